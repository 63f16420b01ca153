"""Many vectors times quantised matrices in whole numbers, with nothing widened to float32.

Each block of 32 elements of a vector is rounded to 16 bits with a scale of its own (`quant_dot`):
an error of 2e-5, far below that of the weights. A thread unpacks two groups of a matrix's rows into
a panel that stays in its cache while all vectors meet it. A register of the panel holds two codes
of each of eight rows, as int16; it meets two elements of a vector, repeated for each row, in one
instruction. Each (row of the batch, row of the matrix) is the same sum in the same order whatever
the batch and the threads, hence bit for bit the same.
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
from inferlab.kernels.cpu.quant_dot import BLOCK, INT16, SHORTS_BYTES, pack, planes_of
from inferlab.kernels.cpu.team import NOTHING, Me, desk, take, team, team_for
from inferlab.kernels.cpu.vector import (
    dot_shorts,
    eight_halves,
    load_bytes,
    load_floats,
    load_shorts,
    nibble,
    signed_byte,
    spread,
    spread_shorts,
    store_floats,
    store_shorts,
    to_floats,
)
from inferlab.kernels.quantised import GROUP, PRODUCTS, Quantised

PANEL = 16
"""Rows of a matrix that are unpacked together, and the fewest that it may have."""
_CODES = 2 * BLOCK * PANEL  # bytes of a panel for the codes of a block of columns
_BLOCK = _CODES + 8 * PANEL  # and with its scales and mins
_PIECE = 1 << 21  # products that a thread makes at a time: short to wait for
_SHARE = 1 << 22  # products for each thread: with fewer, one is done before another is awake
_VECTOR_SHARE = 1 << 19  # the same where there is one vector
_PACK_PIECE = 1 << 14  # elements that a thread packs at a time


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
def unpack(m, group, panel):  # type: ignore[no-untyped-def]
    """Write eight rows of a quantised `matvec.MATRIX`, a group, at `panel`, block by block.

    A block of 16 rows has sixteen pairs of registers of codes, these rows' in the first of each
    pair; then the scales, these rows' first, and the mins.
    """
    w, s, least = planes_of(m, group)
    for block in range(m.columns // BLOCK):
        to, scale, low = panel + block * _BLOCK, eight_halves(s), spread(float32(0))
        if m.bits == 4:
            for quad in range(4):
                _store_nibbles(load_bytes(w + quad * 32), to + quad * 128)
            low = eight_halves(least) * spread(m.times)
        else:
            for quad in range(8):
                _store_bytes(load_bytes(w + quad * 32), to + quad * 128)
        if m.row_scales:
            scale = scale * load_floats(m.row_scales + group * GROUP * 4)
        store_floats(to + _CODES, scale)
        store_floats(to + _CODES + 64, low)
        w, s, least = w + m.bits * BLOCK, s + m.scale_step, least + m.scale_step


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
            w, at = panel + block * _BLOCK, block * SHORTS_BYTES
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
def whole_rows(m):  # type: ignore[no-untyped-def]
    """Rows of a matrix with those that fill its last group."""
    return (m.rows + GROUP - 1) // GROUP * GROUP


@jit
def _matmul(me, matrices, x, y, own, batch, vectors, panels, packing, desk):  # type: ignore[no-untyped-def]
    """Write x times each matrix, beside each other and in whole groups, to the rows of y.

    First all pack, so many `vectors` a piece; then they multiply, so many `panels` a piece.
    """
    columns = matrices[0].columns
    pieces = (batch + vectors - 1) // vectors
    piece = take(packing.ctypes.data, pieces, -1, me, NOTHING)
    while piece >= 0:
        for b in range(piece * vectors, min(batch, (piece + 1) * vectors)):
            pack(x.data + b * x.stride, columns, INT16, x.packed + b * x.packed_stride)
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
                before += whole_rows(matrices[index])
                index += 1
            m = matrices[index]
            first = min(number * PANEL, whole_rows(m) - PANEL)
            unpack(m, first // GROUP, panel)
            unpack(m, first // GROUP + 1, panel + 32)
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
        return launch(weights, x) if min(rows) >= PANEL else None
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
    whole = [-(-n // GROUP) * GROUP for n in rows]
    y = torch.empty(batch, sum(whole))
    if not batch:
        return y[:, : sum(rows)]
    members = team(threads) if threads else team_for(batch * columns * sum(rows), _SHARE)
    packed = np.empty((batch, columns // BLOCK * SHORTS_BYTES), np.uint8)
    own = np.empty((members.threads, columns // BLOCK * _BLOCK), np.uint8)
    inputs = Inputs(x.data_ptr(), x.stride(0) * 4, packed.ctypes.data, packed.strides[0])
    vectors = max(1, _PACK_PIECE // columns)
    panels = max(1, _PIECE // (batch * columns * PANEL))
    pieces = -(-batch // vectors), -(-sum(-(-n // PANEL) for n in rows) // panels)
    out = Rows(y.data_ptr(), y.stride(0) * 4)
    desks = (desk(count) for count in pieces)
    members.run(_matmul, records(weights), inputs, out, own, batch, vectors, panels, *desks)
    if whole != rows:
        parts = zip(y.split(whole, dim=1), rows, strict=True)
        y = torch.cat([part[:, :n] for part, n in parts], dim=1)
    return y
