"""One decode step on a CPU: every layer in one call, threads meeting at barriers of their own.

All members of a team run `decode_step` together. Cheap work (norms, merging attention's pieces)
each repeats for itself, which costs less than a barrier; matrices, keys and values are read once,
in chunks that the threads take as they come.
"""

from __future__ import annotations

import numpy as np

from inferlab.kernels.cpu.decode_attention import SPLIT, attend_split, merge_splits, visible
from inferlab.kernels.cpu.jit import fetch_add, floats, jit
from inferlab.kernels.cpu.matvec import MATRIX, Rows, matvec, swiglu
from inferlab.kernels.cpu.rms_norm import rms_norm
from inferlab.kernels.cpu.rope import rope
from inferlab.kernels.cpu.team import WORK, meet

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
        ("keys", "i8"),  # of this layer, first row, first head, position 0
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
        ("norm", "i8"),
        ("head", MATRIX),
        # Bytes from row to row, head to head, position to position of keys and values.
        ("cache_row", "i8"),
        ("cache_head", "i8"),
        ("cache_position", "i8"),
        ("batch", "i8"),
        ("splits", "i8"),  # pieces of attention reserved for each head
        # Shared by all threads: [B, hidden], [B, H D], [B, KV D] twice, [B, H, splits, D + 2],
        # [B, F], [B, V], and cos and sin [B, pairs].
        ("x", "i8"),
        ("q", "i8"),
        ("k", "i8"),
        ("v", "i8"),
        ("parts", "i8"),
        ("act", "i8"),
        ("logits", "i8"),
        ("cos", "i8"),
        ("sin", "i8"),
        # Each thread's own: `private` bytes from one to the next.
        ("own", "i8"),
        ("private", "i8"),
    ],
    align=True,
)


def compile_step() -> None:
    """Compile `decode_step`, or load it compiled from the cache of an earlier process."""
    from numba import int64, typeof

    step, layers, integers = np.zeros(1, STEP), np.zeros(1, LAYER), np.zeros(1, np.int64)
    arrays = (typeof(a) for a in (integers, step, layers, integers))
    decode_step.compile((int64, int64, *arrays))


def private_floats(
    batch: int, hidden: int, heads_dim: int, intermediate: int, head_dim: int
) -> int:
    """Count the float32 of memory that each thread needs: [B, input], [B, F], a head, scores."""
    return batch * (max(hidden, heads_dim) + intermediate) + 2 * head_dim + SPLIT + 3


def splits_of(capacity: int) -> int:
    """Count the pieces of attention that `capacity` positions may need, wherever a window cuts."""
    return capacity // SPLIT + 1


@jit
def store(s, layer, b, h, position, scratch):  # type: ignore[no-untyped-def]
    """Norm and rotate the new key of one KV head; write it and the value into the cache."""
    size = s.head_dim
    index = (b * layer.k.rows + h * size) * 4
    where = b * s.cache_row + h * s.cache_head + position * s.cache_position
    key = s.k + index
    if layer.k_norm:
        rms_norm(key, 0, layer.k_norm, size, s.eps, scratch, 1)
        key = scratch
    angle = b * s.pairs * 4
    rope(key, 0, s.cos + angle, s.sin + angle, s.pairs, size, 1, layer.keys + where)
    value, out = floats(s.v + index, size), floats(layer.values + where, size)
    for i in range(size):
        out[i] = value[i]


@jit
def attend(s, layer, lengths, scratch, member, threads, counter):  # type: ignore[no-untyped-def]
    """This member's share of the attention: pieces of (row, KV head, part of the context)."""
    size = s.head_dim
    kv_heads, heads = layer.k.rows // size, layer.q.rows // size
    group = heads // kv_heads
    query, scores = scratch + size * 4, scratch + 2 * size * 4
    longest = 0
    for b in range(s.batch):
        longest = max(longest, visible(lengths[b] + 1, layer.window)[1])
    piece = member
    while piece < s.batch * kv_heads * longest:
        b, h = piece // longest // kv_heads, piece // longest % kv_heads
        split, length = piece % longest, lengths[b] + 1
        start, count = visible(length, layer.window)
        if split < count:
            base = (start // SPLIT + split) * SPLIT
            if split == count - 1:
                store(s, layer, b, h, lengths[b], scratch)
            cache = b * s.cache_row + h * s.cache_head
            angle = b * s.pairs * 4
            for head in range(h * group, (h + 1) * group):
                q = s.q + (b * heads + head) * size * 4
                if layer.q_norm:
                    rms_norm(q, 0, layer.q_norm, size, s.eps, scratch, 1)
                    q = scratch
                rope(q, 0, s.cos + angle, s.sin + angle, s.pairs, size, 1, query)
                attend_split(
                    query,
                    layer.keys + cache,
                    layer.values + cache,
                    s.cache_position,
                    size,
                    max(start, base),
                    min(length, base + SPLIT),
                    s.scale,
                    scores,
                    s.parts + ((b * heads + head) * s.splits + split) * (size + 2) * 4,
                )
        piece = fetch_add(counter, 1) + threads


@jit
def decode_step(member, threads, sync, step, layers, lengths):  # type: ignore[no-untyped-def]
    """Run one new token of each row through all layers; `lengths` [B] are the rows' caches.

    `step` is an array of one `STEP`, `layers` of `LAYER`. On entry `x` holds the embeddings;
    on return `logits` are written and keys and values stored at position `lengths[b]`.
    """
    s = step[0]
    arrivals = sync.ctypes.data
    counter, goal = arrivals + WORK, threads
    hidden, batch = s.head.columns, s.batch
    width = max(hidden, layers[0].o.columns)

    own = s.own + member * s.private
    normed = Rows(own, hidden * 4)
    scratch = Rows(own + batch * width * 4, layers[0].gate.rows * 4)
    head_scratch = scratch.data + batch * scratch.stride

    none = Rows(0, 0)
    x, act = Rows(s.x, hidden * 4), Rows(s.act, layers[0].gate.rows * 4)
    for index in range(layers.shape[0]):
        layer = layers[index]
        rms_norm(x.data, x.stride, layer.attn_norm, hidden, s.eps, normed.data, batch)
        for part in range(3):
            m = layer.q if part == 0 else layer.k if part == 1 else layer.v
            y = s.q if part == 0 else s.k if part == 1 else s.v
            matvec(m, normed, none, Rows(y, m.rows * 4), batch, member, threads, counter)
            counter += 8
        meet(arrivals, goal, layer.o, member)
        goal += threads

        attend(s, layer, lengths, head_scratch, member, threads, counter)
        counter += 8
        meet(arrivals, goal, layer.o, member)
        goal += threads

        size, columns = s.head_dim, layer.o.columns
        for b in range(batch):
            _, count = visible(lengths[b] + 1, layer.window)
            for head in range(columns // size):
                parts = s.parts + (b * (columns // size) + head) * s.splits * (size + 2) * 4
                merge_splits(parts, count, size, own + (b * columns + head * size) * 4)
        matvec(layer.o, Rows(own, columns * 4), x, x, batch, member, threads, counter)
        counter += 8
        meet(arrivals, goal, layer.gate, member)
        goal += threads

        rms_norm(x.data, x.stride, layer.mlp_norm, hidden, s.eps, normed.data, batch)
        swiglu(layer.gate, layer.up, normed, act, scratch, batch, member, threads, counter)
        counter += 8
        meet(arrivals, goal, layer.down, member)
        goal += threads

        matvec(layer.down, act, x, x, batch, member, threads, counter)
        counter += 8
        following = layers[index + 1].q if index + 1 < layers.shape[0] else s.head
        meet(arrivals, goal, following, member)
        goal += threads

    rms_norm(x.data, x.stride, s.norm, hidden, s.eps, normed.data, batch)
    logits = Rows(s.logits, s.head.rows * 4)
    matvec(s.head, normed, none, logits, batch, member, threads, counter)
