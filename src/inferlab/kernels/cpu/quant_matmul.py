"""Many vectors times quantised matrices in whole numbers, with nothing widened to float32.

Vectors are packed as int8 (`quant_dot.pack`). A thread unpacks eight rows of a matrix into a panel
that stays in its cache while all vectors meet it. A register of the panel holds four weights of
each of the eight rows; it meets four elements of a vector, repeated for each row. Products with
nibbles leave room to sum a whole block in 16 bits. A weight of 8 bits is two nibbles:
w + 128 = 16 high + low. Each (row of the batch, row of the matrix) is the same sum in the same
order whatever the batch and the threads, hence bit for bit the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy import float32
from torch import Tensor

from inferlab.kernels.cpu import matvec
from inferlab.kernels.cpu.jit import floats, jit, part
from inferlab.kernels.cpu.matvec import MATRIX, Inputs, Rows, records
from inferlab.kernels.cpu.quant_dot import BLOCK, PAIR_BYTES, pack, packed_bytes
from inferlab.kernels.cpu.team import NOTHING, Me, desk, take, team, team_for
from inferlab.kernels.cpu.vector import (
    dot_pairs,
    eight_halves,
    high_nibbles,
    load_bytes,
    load_floats,
    low_nibbles,
    spread,
    spread_bytes,
    store_bytes,
    store_floats,
    sum_pairs,
    to_floats,
    turn_quads,
    unsigned,
)
from inferlab.kernels.quantised import PRODUCT_ROWS, PRODUCTS, Quantised

PANEL = PRODUCT_ROWS  # rows of a matrix that are unpacked together
_SCALES, _MINS = PANEL * BLOCK, PANEL * (BLOCK + 4)  # where they stand in a part
_PART = PANEL * (BLOCK + 8)  # bytes of a panel for a block of nibbles
_PIECE = 1 << 21  # products that a thread makes at a time: short to wait for
_SHARE = 1 << 22  # products for each thread: with fewer, one is done before another is awake
_VECTOR_SHARE = 1 << 19  # the same where there is one vector
_PACK_PIECE = 1 << 14  # elements that a thread packs at a time


@part
def _store_nibbles(quads, low, high):  # type: ignore[no-untyped-def]
    a, b, c, d = quads
    store_bytes(low, low_nibbles(a))
    store_bytes(low + 32, low_nibbles(b))
    store_bytes(low + 64, low_nibbles(c))
    store_bytes(low + 96, low_nibbles(d))
    store_bytes(high, high_nibbles(a))
    store_bytes(high + 32, high_nibbles(b))
    store_bytes(high + 64, high_nibbles(c))
    store_bytes(high + 96, high_nibbles(d))


@jit
def unpack(m, first, panel):  # type: ignore[no-untyped-def]
    """Write rows first..first+7 of a quantised `matvec.MATRIX` at `panel`, part by part.

    A part has eight registers of nibbles, one for each four columns of a block, then the scales
    of the eight rows, and their mins. A block of bytes takes two: its low nibbles, its high ones.
    """
    w, at = m.data + first * m.stride, first * m.scale_stride
    for block in range(m.columns // BLOCK):
        scale = eight_halves(m.scales + at + block * m.scale_step, m.scale_stride)
        if m.bits == 4:
            to = panel + block * _PART
            _store_nibbles(turn_quads(w + block * 16, m.stride), to, to + 128)
            least = eight_halves(m.mins + at + block * m.scale_step, m.scale_stride)
            store_floats(to + _SCALES, scale)
            store_floats(to + _MINS, least * spread(m.times))
            continue
        to = panel + 2 * block * _PART
        for half in range(2):
            a, b, c, d = turn_quads(w + block * BLOCK + half * 16, m.stride)
            quads = unsigned(a), unsigned(b), unsigned(c), unsigned(d)
            _store_nibbles(quads, to + half * 128, to + _PART + half * 128)
        if m.row_scales:
            scale = scale * load_floats(m.row_scales + first * m.row_scale_step)
        store_floats(to + _SCALES, scale)
        store_floats(to + _MINS, scale * spread(float32(-128)))
        store_floats(to + _PART + _SCALES, scale * spread(float32(16)))
        store_floats(to + _PART + _MINS, spread(float32(0)))


@part
def _products(weights, a, b, c, d):  # type: ignore[no-untyped-def]
    """Multiply a register of the panel with four elements of each of four vectors."""
    w = load_bytes(weights)
    return (
        dot_pairs(w, spread_bytes(a)),
        dot_pairs(w, spread_bytes(b)),
        dot_pairs(w, spread_bytes(c)),
        dot_pairs(w, spread_bytes(d)),
    )


@part
def _sums(p, q):  # type: ignore[no-untyped-def]
    return p[0] + q[0], p[1] + q[1], p[2] + q[2], p[3] + q[3]


@part
def _half(w, a, b, c, d):  # type: ignore[no-untyped-def]
    """Multiply half a block of the panel's rows with half a block of four vectors."""
    first = _sums(_products(w, a, b, c, d), _products(w + 32, a + 4, b + 4, c + 4, d + 4))
    last = _products(w + 64, a + 8, b + 8, c + 8, d + 8)
    return _sums(_sums(first, last), _products(w + 96, a + 12, b + 12, c + 12, d + 12))


@part
def _scaled(sum, codes, scale, least, x):  # type: ignore[no-untyped-def]
    """Add a block: scale * scale of the vector * codes + min * sum of the vector."""
    two = floats(x + 64, 9)
    return sum + to_floats(sum_pairs(codes)) * (scale * spread(two[0])) + least * spread(two[8])


@jit
def meet(panel, parts, shift, x, stride, y, y_stride, batch):  # type: ignore[no-untyped-def]
    """Multiply a panel with packed vectors, `stride` bytes apart, and store eight float32 of each.

    Four at a time; where fewer are left, the last one again. A block has 1 << `shift` parts.
    """
    for b in range(0, batch, 4):
        b1, b2, b3 = min(b + 1, batch - 1), min(b + 2, batch - 1), min(b + 3, batch - 1)
        x0, x1, x2, x3 = x + b * stride, x + b1 * stride, x + b2 * stride, x + b3 * stride
        sum0 = sum1 = sum2 = sum3 = spread(float32(0))
        for index in range(parts):
            block, w = index >> shift, panel + index * _PART
            at = (block >> 1) * PAIR_BYTES + (block & 1) * 16
            here = x0 + at, x1 + at, x2 + at, x3 + at
            # Two products of at most 15 * 127 in each of eight sums: 30,480 fits 16 bits.
            codes = _half(w, x0 + at, x1 + at, x2 + at, x3 + at)
            at += 32
            codes = _sums(codes, _half(w + 128, x0 + at, x1 + at, x2 + at, x3 + at))
            scale, least = load_floats(w + _SCALES), load_floats(w + _MINS)
            sum0 = _scaled(sum0, codes[0], scale, least, here[0])
            sum1 = _scaled(sum1, codes[1], scale, least, here[1])
            sum2 = _scaled(sum2, codes[2], scale, least, here[2])
            sum3 = _scaled(sum3, codes[3], scale, least, here[3])
        store_floats(y + b * y_stride, sum0)
        store_floats(y + b1 * y_stride, sum1)
        store_floats(y + b2 * y_stride, sum2)
        store_floats(y + b3 * y_stride, sum3)


@jit
def panels_of(m):  # type: ignore[no-untyped-def]
    """Panels of a matrix; the last one may begin in the one before."""
    return (m.rows + PANEL - 1) // PANEL


@jit
def _matmul(me, matrices, x, y, own, batch, vectors, panels, packing, desk):  # type: ignore[no-untyped-def]
    """Write x times each matrix, beside each other, to the rows of y.

    First all pack, so many `vectors` a piece; then they multiply, so many `panels` a piece.
    """
    columns = matrices[0].columns
    pieces = (batch + vectors - 1) // vectors
    piece = take(packing.ctypes.data, pieces, -1, me, NOTHING)
    while piece >= 0:
        for b in range(piece * vectors, min(batch, (piece + 1) * vectors)):
            pack(x.data + b * x.stride, columns, False, x.packed + b * x.packed_stride)
        piece = take(packing.ctypes.data, pieces, piece, me, NOTHING)

    count = 0
    for m in matrices:
        count += panels_of(m)
    panel, pieces = own[me.member].ctypes.data, (count + panels - 1) // panels
    piece = take(desk.ctypes.data, pieces, -1, me, NOTHING)
    while piece >= 0:
        for number in range(piece * panels, min(count, (piece + 1) * panels)):
            index, before = 0, 0
            while number >= panels_of(matrices[index]):
                number -= panels_of(matrices[index])
                before += matrices[index].rows
                index += 1
            m = matrices[index]
            first, shift = min(number * PANEL, m.rows - PANEL), 0 if m.bits == 4 else 1
            unpack(m, first, panel)
            out = y.data + (before + first) * 4
            parts = columns // BLOCK << shift
            meet(panel, parts, shift, x.packed, x.packed_stride, out, y.stride, batch)
        piece = take(desk.ctypes.data, pieces, piece, me, NOTHING)


def prepare() -> None:
    """Compile, or load from the cache of an earlier process; from then on `linear` uses it.

    Only where the CPU multiplies bytes in one instruction (AVX2); elsewhere weights are widened.
    """
    from llvmlite import binding
    from numba import int64, typeof

    if not binding.get_host_cpu_features().get("avx2"):
        return
    own, counters = np.zeros((1, 1), np.uint8), np.zeros(1, np.int64)
    given = Me(0, 1), np.zeros(1, MATRIX), Inputs(0, 0, 0, 0), Rows(0, 0), own
    _matmul.compile((*map(typeof, given), *[int64] * 3, *[typeof(counters)] * 2))
    matvec.prepare()
    PRODUCTS["cpu"] = product


def product(weights: Sequence[Quantised], x: Tensor, rounded: bool) -> Tensor:
    """Return what `quantised.PRODUCTS` promises."""
    if len(x) > 1:
        return launch(weights, x)
    rows = [weight.shape[0] for weight in weights]
    y = torch.empty(1, sum(rows))
    for weight, out in zip(weights, y.split(rows, dim=1), strict=True):
        threads = team_for(x.shape[1] * weight.shape[0], _VECTOR_SHARE).threads
        matvec.launch(weight, x, None, None, out, threads, exact=not rounded)
    return y


def launch(weights: Sequence[Quantised], x: Tensor, threads: int | None = None) -> Tensor:
    """Return x [B, K], rounded to int8, times each weight [N, K] transposed: [B, sum of N].

    Float32 on a CPU, x dense in K, each weight with 8 rows or more and K a multiple of 32.
    """
    (batch, columns), rows = x.shape, [weight.shape[0] for weight in weights]
    y = torch.empty(batch, sum(rows))
    if not batch:
        return y
    members = team(threads) if threads else team_for(batch * columns * sum(rows), _SHARE)
    packed = np.empty((batch, packed_bytes(columns)), np.uint8)
    own = np.empty((members.threads, columns // BLOCK * 2 * _PART), np.uint8)
    inputs = Inputs(x.data_ptr(), x.stride(0) * 4, packed.ctypes.data, packed.strides[0])
    vectors = max(1, _PACK_PIECE // columns)
    panels = max(1, _PIECE // (batch * columns * PANEL))
    pieces = -(-batch // vectors), -(-sum(-(-n // PANEL) for n in rows) // panels)
    out = Rows(y.data_ptr(), y.stride(0) * 4)
    desks = (desk(count) for count in pieces)
    members.run(_matmul, records(weights), inputs, out, own, batch, vectors, panels, *desks)
    return y
