"""Quantised rows as float32, for a matrix product that works on nothing else.

Codes times scales are exact in float32 (those of int8 are rounded once), so this gives bit for
bit what torch gives.
"""

from __future__ import annotations

import numpy as np
from numpy import float32
from torch import Tensor

from inferlab.kernels.cpu import quant_matmul
from inferlab.kernels.cpu.jit import floats, jit
from inferlab.kernels.cpu.matvec import MATRIX, records
from inferlab.kernels.cpu.quant_dot import BLOCK, planes_of
from inferlab.kernels.cpu.team import NOTHING, Me, desk, take, team, team_for
from inferlab.kernels.cpu.vector import (
    float_nibble,
    spread,
    spread_half,
    store_floats,
    to_floats,
    two_quads,
)
from inferlab.kernels.quantised import GROUP, WIDEN, Quantised

_PIECES = 4  # for each thread
_QUAD = 32  # bytes from four of a row's to its next four
_SHARE = 1 << 19  # weights for each thread: with fewer, one is done before another is awake


@jit
def widen_row(m, row, out):  # type: ignore[no-untyped-def]
    """Write the `m.columns` float32 of one row of a quantised `matvec.MATRIX` at `out`."""
    w, s, least = planes_of(m, row // GROUP)
    w, s, least = w + row % GROUP * 4, s + row % GROUP * 2, least + row % GROUP * 2
    whole = floats(m.row_scales, m.rows)[row] if m.row_scales else float32(1)
    for block in range(m.columns // BLOCK):
        to, scale = out + block * 128, spread_half(s)
        if m.bits == 4:
            low = spread_half(least) * spread(m.times)
            first, second = two_quads(w, _QUAD), two_quads(w + 2 * _QUAD, _QUAD)
            store_floats(to, float_nibble(first, 0) * scale + low)
            store_floats(to + 32, float_nibble(second, 0) * scale + low)
            store_floats(to + 64, float_nibble(first, 1) * scale + low)
            store_floats(to + 96, float_nibble(second, 1) * scale + low)
        else:
            scale = scale * spread(whole)
            for at in range(4):
                codes = two_quads(w + 2 * at * _QUAD, _QUAD)
                store_floats(to + at * 32, to_floats(codes) * scale)
        w, s, least = w + m.bits * BLOCK, s + m.scale_step, least + m.scale_step


@jit
def _widen(me, m, first, rows, chunk, out, stride, desk):  # type: ignore[no-untyped-def]
    pieces = (rows + chunk - 1) // chunk
    piece = take(desk.ctypes.data, pieces, -1, me, NOTHING)
    while piece >= 0:
        for row in range(piece * chunk, min(rows, (piece + 1) * chunk)):
            widen_row(m[0], first + row, out + row * stride)
        piece = take(desk.ctypes.data, pieces, piece, me, NOTHING)


def prepare() -> None:
    """Compile, or load from the cache of an earlier process; from then on `dequantise` uses it.

    `quant_matmul` too, which saves most of the widening.
    """
    from numba import int64, typeof

    me, m, counters = Me(0, 1), np.zeros(1, MATRIX), np.zeros(1, np.int64)
    _widen.compile((typeof(me), typeof(m), *[int64] * 5, typeof(counters)))
    WIDEN["cpu"] = launch
    quant_matmul.prepare()


def launch(weight: Quantised, rows: slice, out: Tensor, threads: int | None = None) -> Tensor:
    """Fill `out` [n, K], float32, with n rows of a weight on the CPU, K a multiple of 32."""
    members = team(threads) if threads else team_for(out.numel(), _SHARE)
    count = len(out)
    chunk = max(1, -(-count // (_PIECES * members.threads)))
    pieces, stride = desk(-(-count // chunk)), out.stride(0) * 4
    members.run(_widen, records([weight]), rows.start, count, chunk, out.data_ptr(), stride, pieces)
    return out
