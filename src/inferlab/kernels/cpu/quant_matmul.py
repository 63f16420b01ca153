"""Many vectors times quantised matrices in whole numbers, with nothing widened to float32.

Each block of 32 elements of a vector is rounded to 16 bits with a scale of its own: an error of
2e-5, far below that of the weights. A thread unpacks 16 rows of a matrix into a panel that stays in
its cache while all vectors meet it. A register of the panel holds two codes of each of eight rows,
as int16; it meets two elements of a vector, repeated for each row, in one instruction. Each (row of
the batch, row of the matrix) is the same sum in the same order whatever the batch and the threads,
hence bit for bit the same.
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
from inferlab.kernels.cpu.quant_dot import BLOCK, to_shorts
from inferlab.kernels.cpu.team import NOTHING, Me, desk, take, team, team_for
from inferlab.kernels.cpu.vector import (
    dot_shorts,
    eight_halves,
    load_floats,
    load_shorts,
    nibble,
    signed_byte,
    spread,
    spread_shorts,
    store_floats,
    store_low_shorts,
    store_shorts,
    swap_middle,
    to_floats,
    total,
    turn_quads,
)
from inferlab.kernels.quantised import PRODUCTS, Quantised

PANEL = 16
"""Rows of a matrix that are unpacked together, and the fewest that it may have."""
_X_BLOCK = 2 * BLOCK + 8  # bytes of a packed block: its codes, scale, and sum
_CODES = 2 * BLOCK * PANEL  # bytes of a panel for the codes of a block of columns
_BLOCK = _CODES + 8 * PANEL  # and with its scales and mins
_PIECE = 1 << 21  # products that a thread makes at a time: short to wait for
_SHARE = 1 << 22  # products for each thread: with fewer, one is done before another is awake
_VECTOR_SHARE = 1 << 19  # the same where there is one vector
_PACK_PIECE = 1 << 14  # elements that a thread packs at a time


@jit
def pack(x, blocks, out):  # type: ignore[no-untyped-def]
    """Round the blocks of float32 at `x` to int16: 32 codes, the scale, and the sum, of each.

    Of each four codes the middle two change places, as those of a panel do.
    """
    for block in range(blocks):
        p, q, r, s, scale = to_shorts(x + block * 4 * BLOCK)
        to = out + block * _X_BLOCK
        store_low_shorts(to, swap_middle(p))
        store_low_shorts(to + 16, swap_middle(q))
        store_low_shorts(to + 32, swap_middle(r))
        store_low_shorts(to + 48, swap_middle(s))
        two = floats(to + 2 * BLOCK, 2)
        two[0], two[1] = scale, scale * total(to_floats(p + q + r + s))


@part
def _store_nibbles(quads, to):  # type: ignore[no-untyped-def]
    """Columns 0, 2 and 1, 3 of four in the low nibbles, and half a block on, in the high ones."""
    store_shorts(to, nibble(quads, 0))
    store_shorts(to + 64, nibble(quads, 2))
    store_shorts(to + 512, nibble(quads, 1))
    store_shorts(to + 576, nibble(quads, 3))


@part
def _store_bytes(quads, to):  # type: ignore[no-untyped-def]
    store_shorts(to, signed_byte(quads, 0))
    store_shorts(to + 64, signed_byte(quads, 1))


@jit
def unpack(m, first, panel):  # type: ignore[no-untyped-def]
    """Write eight rows of a quantised `matvec.MATRIX` at `panel`, block by block.

    A block of 16 rows has sixteen pairs of registers of codes, these rows' in the first of each
    pair; then the scales, these rows' first, and the mins.
    """
    w, at = m.data + first * m.stride, first * m.scale_stride
    for block in range(m.columns // BLOCK):
        to, step = panel + block * _BLOCK, block * m.scale_step
        scale, least = eight_halves(m.scales + at + step, m.scale_stride), spread(float32(0))
        if m.bits == 4:
            a, b, c, d = turn_quads(w + block * 16, m.stride)
            _store_nibbles(a, to)
            _store_nibbles(b, to + 128)
            _store_nibbles(c, to + 256)
            _store_nibbles(d, to + 384)
            least = eight_halves(m.mins + at + step, m.scale_stride) * spread(m.times)
        else:
            for half in range(2):
                a, b, c, d = turn_quads(w + block * BLOCK + half * 16, m.stride)
                _store_bytes(a, to + half * 512)
                _store_bytes(b, to + half * 512 + 128)
                _store_bytes(c, to + half * 512 + 256)
                _store_bytes(d, to + half * 512 + 384)
        if m.row_scales:
            scale = scale * load_floats(m.row_scales + first * m.row_scale_step)
        store_floats(to + _CODES, scale)
        store_floats(to + _CODES + 64, least)


@part
def _two(w, a, b, c):  # type: ignore[no-untyped-def]
    """Multiply two columns of the panel's 16 rows with two elements of each of three vectors."""
    low, high = load_shorts(w), load_shorts(w + 32)
    a, b, c = spread_shorts(a), spread_shorts(b), spread_shorts(c)
    return (
        dot_shorts(low, a),
        dot_shorts(high, a),
        dot_shorts(low, b),
        dot_shorts(high, b),
        dot_shorts(low, c),
        dot_shorts(high, c),
    )


@part
def _sums(p, q):  # type: ignore[no-untyped-def]
    return p[0] + q[0], p[1] + q[1], p[2] + q[2], p[3] + q[3], p[4] + q[4], p[5] + q[5]


@part
def _scaled(sum, codes, w, x):  # type: ignore[no-untyped-def]
    """Add a block: scale * scale of the vector * codes + min * sum of the vector."""
    two = floats(x + 2 * BLOCK, 2)
    scale, least = load_floats(w + _CODES), load_floats(w + _CODES + 64)
    return sum + to_floats(codes) * (scale * spread(two[0])) + least * spread(two[1])


@jit
def meet(panel, blocks, x, stride, y, y_stride, batch):  # type: ignore[no-untyped-def]
    """Multiply a panel with packed vectors, `stride` bytes apart, and store 16 float32 of each.

    Three at a time; where fewer are left, the last one again.
    """
    for b in range(0, batch, 3):
        b1, b2 = min(b + 1, batch - 1), min(b + 2, batch - 1)
        x0, x1, x2 = x + b * stride, x + b1 * stride, x + b2 * stride
        sum0 = sum1 = sum2 = high0 = high1 = high2 = spread(float32(0))
        for block in range(blocks):
            w, at = panel + block * _BLOCK, block * _X_BLOCK
            p, q, r = x0 + at, x1 + at, x2 + at
            codes = _two(w, p, q, r)
            for pair in range(1, BLOCK // 2):
                at = 4 * pair
                codes = _sums(codes, _two(w + 64 * pair, p + at, q + at, r + at))
            sum0, high0 = _scaled(sum0, codes[0], w, p), _scaled(high0, codes[1], w + 32, p)
            sum1, high1 = _scaled(sum1, codes[2], w, q), _scaled(high1, codes[3], w + 32, q)
            sum2, high2 = _scaled(sum2, codes[4], w, r), _scaled(high2, codes[5], w + 32, r)
        store_floats(y + b * y_stride, sum0)
        store_floats(y + b * y_stride + 32, high0)
        store_floats(y + b1 * y_stride, sum1)
        store_floats(y + b1 * y_stride + 32, high1)
        store_floats(y + b2 * y_stride, sum2)
        store_floats(y + b2 * y_stride + 32, high2)


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
            pack(x.data + b * x.stride, columns // BLOCK, x.packed + b * x.packed_stride)
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
            first = min(number * PANEL, m.rows - PANEL)
            unpack(m, first, panel)
            unpack(m, first + 8, panel + 32)
            out = y.data + (before + first) * 4
            meet(panel, columns // BLOCK, x.packed, x.packed_stride, out, y.stride, batch)
        piece = take(desk.ctypes.data, pieces, piece, me, NOTHING)


def prepare() -> None:
    """Compile, or load from the cache of an earlier process; from then on `linear` uses it.

    Only where the CPU has the instruction that it is made of (AVX2); elsewhere weights are widened.
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


def product(weights: Sequence[Quantised], x: Tensor) -> Tensor | None:
    """Return what `quantised.PRODUCTS` promises."""
    rows = [weight.shape[0] for weight in weights]
    if len(x) != 1:
        dense = all(weight.scales.stride(-1) == 1 for weight in weights)
        return launch(weights, x) if dense and min(rows) >= PANEL else None
    y = torch.empty(1, sum(rows))
    for weight, out in zip(weights, y.split(rows, dim=1), strict=True):
        threads = team_for(x.shape[1] * weight.shape[0], _VECTOR_SHARE).threads
        matvec.launch(weight, x, None, None, out, threads, exact=True)
    return y


def launch(weights: Sequence[Quantised], x: Tensor, threads: int | None = None) -> Tensor:
    """Return x [B, K], rounded to int16, times each weight [N, K] transposed: [B, sum of N].

    Float32 on a CPU, x dense in K, each weight with 16 rows or more and K a multiple of 32.
    """
    (batch, columns), rows = x.shape, [weight.shape[0] for weight in weights]
    y = torch.empty(batch, sum(rows))
    if not batch:
        return y
    members = team(threads) if threads else team_for(batch * columns * sum(rows), _SHARE)
    packed = np.empty((batch, columns // BLOCK * _X_BLOCK), np.uint8)
    own = np.empty((members.threads, columns // BLOCK * _BLOCK), np.uint8)
    inputs = Inputs(x.data_ptr(), x.stride(0) * 4, packed.ctypes.data, packed.strides[0])
    vectors = max(1, _PACK_PIECE // columns)
    panels = max(1, _PIECE // (batch * columns * PANEL))
    pieces = -(-batch // vectors), -(-sum(-(-n // PANEL) for n in rows) // panels)
    out = Rows(y.data_ptr(), y.stride(0) * 4)
    desks = (desk(count) for count in pieces)
    members.run(_matmul, records(weights), inputs, out, own, batch, vectors, panels, *desks)
    return y
