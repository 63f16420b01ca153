"""One decode step on a CPU: every layer in one call, shared piece by piece by a team of threads.

All members of a team run `decode_step` together. Matrices, keys and values are read once, in
pieces that threads take as they come (`kernels.cpu.team.take`). Cheap work (norms, merging
attention's pieces) each thread repeats for itself, which costs less than waiting for another's.
Every layer has activations of its own, so that a thread which lost its core for a while can only
write again what is there already.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferlab.kernels.cpu.decode_attention import (
    Pages,
    attend_split,
    merge_splits,
    piece_of,
    place_of,
    places,
    scratch_floats,
)
from inferlab.kernels.cpu.jit import floats, jit
from inferlab.kernels.cpu.matvec import (
    MATRIX,
    Inputs,
    Rows,
    beginning,
    matvec,
    matvec_piece,
    pack_all,
    pieces_of,
    swiglu,
)
from inferlab.kernels.cpu.quant_dot import packed_bytes
from inferlab.kernels.cpu.rms_norm import rms_norm
from inferlab.kernels.cpu.rope import rope
from inferlab.kernels.cpu.team import NOTHING, Me, desk_bytes, take
from inferlab.kernels.cpu.widen import widen_row

# Every "i8" that is no size is an address of float32; 0 where the model has no such tensor.
LAYER = np.dtype(
    [
        ("attn_norm", "i8"),
        ("q", MATRIX),
        ("k", MATRIX),
        ("v", MATRIX),
        ("q_norm", "i8"),
        ("k_norm", "i8"),
        ("o", MATRIX),
        ("mlp_norm", "i8"),
        ("gate", MATRIX),
        ("up", MATRIX),
        ("down", MATRIX),
        ("window", "i8"),  # positions; 0 for all
        ("keys", "i8"),  # of this layer, first page, first head, position 0
        ("values", "i8"),
    ],
    align=True,
)
STEP = np.dtype(
    [
        ("head_dim", "i8"),
        ("pairs", "i8"),
        ("eps", "f4"),
        ("scale", "f4"),
        ("embedding", MATRIX),
        ("norm", "i8"),
        ("head", MATRIX),
        # Positions in a page; bytes from page to page, head to head, position to position.
        ("block", "i8"),
        ("page", "i8"),
        ("cache_head", "i8"),
        ("cache_position", "i8"),
        ("batch", "i8"),
        ("splits", "i8"),  # pieces of attention reserved for each head
        ("x", "i8"),  # [B, hidden], for the rows of the embedding
        ("cos", "i8"),  # [S, pairs]: of every position
        ("sin", "i8"),
        ("logits", "i8"),  # [B, V]
        ("layers", "i8"),  # activations, `layer_bytes` for each layer
        ("layer_bytes", "i8"),
        ("own", "i8"),  # scratch, `own_bytes` for each thread
        ("own_bytes", "i8"),
        ("packed_bytes", "i8"),  # of one packed vector there
        ("desks", "i8"),  # of all phases, zeroed before each step
    ],
    align=True,
)


_desk_bytes = jit(desk_bytes)
_ALONE = ("o", "gate", "down")  # matrices that are a phase by themselves


def layer_bytes(layer: Any, batch: int, head_dim: int, splits: int) -> int:
    """Bytes of one layer's activations: q, k, v, x twice, SwiGLU's, and attention's pieces."""
    sizes = {name: int(layer[name]["rows"]) for name in ("q", "k", "v", "o", "down", "gate")}
    parts = sizes["q"] // head_dim * splits * (head_dim + 2)
    return 4 * batch * (sum(sizes.values()) + parts)


def own_bytes(layer: Any, batch: int, head_dim: int) -> int:
    """Bytes of one thread's scratch: an input, packed too, SwiGLU's two products, attention's."""
    floats = max(int(layer["q"]["columns"]), int(layer["o"]["columns"]))
    floats += 2 * int(layer["gate"]["rows"])
    group = int(layer["q"]["rows"]) // int(layer["k"]["rows"])
    attention = (1 + group) * head_dim + scratch_floats(group, head_dim)
    return batch * (4 * floats + most_packed(layer)) + 4 * attention


def most_packed(layer: Any) -> int:
    """Bytes of the longest vector that a matrix of the layer meets, packed."""
    return packed_bytes(max(int(layer[name]["columns"]) for name in ("q", "o", "down")))


def phases_bytes(layers: Any, head: Any) -> int:
    """Bytes of the desks of one step without attention's: four phases a layer, and the head."""
    chunks = {n: -(-layers[n]["rows"] // layers[n]["chunk"]) for n in ("q", "k", "v", *_ALONE)}
    phases = [chunks["q"] + chunks["k"] + chunks["v"], *(chunks[n] for n in _ALONE)]
    pieces = [*np.concatenate(phases).tolist(), -(-int(head["rows"]) // int(head["chunk"]))]
    return sum(desk_bytes(count) for count in pieces)


@jit
def store(s, layer, b, h, position, where, k, v, scratch):  # type: ignore[no-untyped-def]
    """Norm and rotate the new key of one KV head; write it and the value to byte `where`."""
    size = s.head_dim
    index = (b * layer.k.rows + h * size) * 4
    key = k + index
    if layer.k_norm:
        rms_norm(key, 0, layer.k_norm, size, s.eps, scratch, 1)
        key = scratch
    angle = position * s.pairs * 4
    rope(key, 0, s.cos + angle, s.sin + angle, s.pairs, size, 1, layer.keys + where)
    value, out = floats(v + index, size), floats(layer.values + where, size)
    for i in range(size):
        out[i] = value[i]


@jit
def attend(s, layer, lengths, table, q, k, v, parts, scratch, desk, me, ahead):  # type: ignore[no-untyped-def]
    """Attention in pieces of (row, KV head, part of the context). Return how many there are."""
    size = s.head_dim
    kv_heads, heads = layer.k.rows // size, layer.q.rows // size
    group = heads // kv_heads
    pages = Pages(s.block, s.page, s.cache_head, s.cache_position)
    queries, scores = scratch + size * 4, scratch + (1 + group) * size * 4
    longest = 0
    for b in range(s.batch):
        longest = max(longest, piece_of(lengths[b] + 1, layer.window, 0)[2])
    pieces = s.batch * kv_heads * longest
    piece = take(desk, pieces, -1, me, ahead)
    while piece >= 0:
        b, h = piece // longest // kv_heads, piece // longest % kv_heads
        split = piece % longest
        first, last, count = piece_of(lengths[b] + 1, layer.window, split)
        if split < count:
            head = h * s.cache_head
            if split == count - 1:
                where = place_of(pages, table[b], lengths[b]) + head
                store(s, layer, b, h, lengths[b], where, k, v, scratch)
            angle = lengths[b] * s.pairs * 4
            for i in range(group):
                this = q + (b * heads + h * group + i) * size * 4
                if layer.q_norm:
                    rms_norm(this, 0, layer.q_norm, size, s.eps, scratch, 1)
                    this = scratch
                turned = queries + i * size * 4
                rope(this, 0, s.cos + angle, s.sin + angle, s.pairs, size, 1, turned)
            places(pages, table[b], first, last, scores)
            attend_split(
                queries,
                group,
                layer.keys + head,
                layer.values + head,
                last - first,
                size,
                s.scale,
                scores,
                parts + ((b * heads + h * group) * s.splits + split) * (size + 2) * 4,
                s.splits * (size + 2) * 4,
            )
        piece = take(desk, pieces, piece, me, ahead)
    return pieces


@jit
def embed(m, row, out):  # type: ignore[no-untyped-def]
    """Write one row of a table, by number, as float32."""
    if m.bits:
        widen_row(m, row, out)
        return
    values, result = floats(m.data + row * m.stride, m.columns), floats(out, m.columns)
    for i in range(m.columns):
        result[i] = values[i]


@jit
def decode_step(me, step, layers, lengths, table, ids):  # type: ignore[no-untyped-def]
    """Run one new token of each row, `ids` [B], through all layers.

    `lengths` [B] say how much the rows' caches hold, `table` [B, M] in which pages. `step` is an
    array of one `STEP`, `layers` of `LAYER`. On return `logits` are written, and keys and values
    stored at position `lengths[b]`.
    """
    s = step[0]
    none = Rows(0, 0)
    size, hidden, batch = s.head_dim, s.head.columns, s.batch
    q_size, kv_size, ffn = layers[0].q.rows, layers[0].k.rows, layers[0].gate.rows
    heads = q_size // size

    own = s.own + me.member * s.own_bytes
    products = Rows(own + batch * max(hidden, q_size) * 4, ffn * 4)
    packed, packed_stride = products.data + 2 * batch * products.stride, s.packed_bytes
    scratch = packed + batch * packed_stride
    normed = Inputs(own, hidden * 4, packed, packed_stride)
    mixed = Inputs(own, q_size * 4, packed, packed_stride)

    x, here, desk = Rows(s.x, hidden * 4), s.layers, s.desks
    for b in range(batch):
        embed(s.embedding, ids[b], x.data + b * x.stride)
    for index in range(layers.shape[0]):
        layer = layers[index]
        q = Rows(here, q_size * 4)
        k = Rows(q.data + batch * q.stride, kv_size * 4)
        v = Rows(k.data + batch * k.stride, kv_size * 4)
        attended = Rows(v.data + batch * v.stride, hidden * 4)
        after = Rows(attended.data + batch * hidden * 4, hidden * 4)
        act = Inputs(after.data + batch * hidden * 4, ffn * 4, packed, packed_stride)
        parts = act.data + batch * act.stride
        here += s.layer_bytes

        rms_norm(x.data, x.stride, layer.attn_norm, hidden, s.eps, normed.data, batch)
        pack_all(normed, hidden, layer.q.meets | layer.k.meets | layer.v.meets, batch)
        to_k = pieces_of(layer.q)
        to_v = to_k + pieces_of(layer.k)
        pieces = to_v + pieces_of(layer.v)
        ahead = beginning(layer.o, me)
        piece = take(desk, pieces, -1, me, ahead)
        while piece >= 0:
            if piece < to_k:
                matvec_piece(layer.q, piece, normed, none, q, batch)
            elif piece < to_v:
                matvec_piece(layer.k, piece - to_k, normed, none, k, batch)
            else:
                matvec_piece(layer.v, piece - to_v, normed, none, v, batch)
            piece = take(desk, pieces, piece, me, ahead)
        desk += _desk_bytes(pieces)

        pieces = attend(
            s, layer, lengths, table, q.data, k.data, v.data, parts, scratch, desk, me, NOTHING
        )
        desk += _desk_bytes(pieces)
        for b in range(batch):
            count = piece_of(lengths[b] + 1, layer.window, 0)[2]
            for head in range(heads):
                row = b * heads + head
                merge_splits(
                    parts + row * s.splits * (size + 2) * 4, count, size, own + row * size * 4
                )
        pack_all(mixed, q_size, layer.o.meets, batch)
        matvec(layer.o, mixed, x, attended, batch, desk, me, beginning(layer.gate, me))
        desk += _desk_bytes(pieces_of(layer.o))

        rms_norm(attended.data, hidden * 4, layer.mlp_norm, hidden, s.eps, normed.data, batch)
        pack_all(normed, hidden, layer.gate.meets | layer.up.meets, batch)
        ahead = beginning(layer.down, me)
        swiglu(layer.gate, layer.up, normed, act, products, batch, desk, me, ahead)
        desk += _desk_bytes(pieces_of(layer.gate))

        pack_all(act, ffn, layer.down.meets, batch)
        if index + 1 < layers.shape[0]:
            ahead = beginning(layers[index + 1].q, me)
        else:
            ahead = beginning(s.head, me)
        matvec(layer.down, act, attended, after, batch, desk, me, ahead)
        desk += _desk_bytes(pieces_of(layer.down))
        x = after

    rms_norm(x.data, x.stride, s.norm, hidden, s.eps, normed.data, batch)
    pack_all(normed, hidden, s.head.meets, batch)
    matvec(s.head, normed, none, Rows(s.logits, s.head.rows * 4), batch, desk, me, NOTHING)


def compile_step() -> None:
    """Compile `decode_step`, or load it compiled from the cache of an earlier process."""
    from numba import typeof

    step, layers, whole = np.zeros(1, STEP), np.zeros(1, LAYER), np.zeros(1, np.int64)
    table = np.zeros((1, 1), np.int32)
    decode_step.compile(tuple(typeof(a) for a in (Me(0, 1), step, layers, whole, table, whole)))
