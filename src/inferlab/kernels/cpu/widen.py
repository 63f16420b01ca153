"""Quantised rows as float32, for a matrix product that works on nothing else.

Codes times scales are exact in float32 (those of int8 are rounded once), so this gives bit for
bit what torch gives.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from inferlab.kernels.cpu import quant_matmul
from inferlab.kernels.cpu.jit import jit
from inferlab.kernels.cpu.matvec import MATRIX, records, row_scale
from inferlab.kernels.cpu.quant_dot import BLOCK
from inferlab.kernels.cpu.team import NOTHING, Me, desk, take, team, team_for
from inferlab.kernels.cpu.vector import (
    float_bytes,
    float_nibbles,
    spread,
    spread_half,
    store_floats,
)
from inferlab.kernels.quantised import WIDEN, Quantised

_PIECES = 4  # for each thread
_SHARE = 1 << 19  # weights for each thread: with fewer, one is done before another is awake


@jit
def widen_row(m, row, out):  # type: ignore[no-untyped-def]
    """Write the `m.columns` float32 of one row of a quantised `matvec.MATRIX` at `out`."""
    w, s = m.data + row * m.stride, m.scales + row * m.scale_stride
    if m.bits == 4:
        least = m.mins + row * m.scale_stride
        for block in range(m.columns // BLOCK):
            here, to = w + block * 16, out + block * 128
            scale = spread_half(s + block * 2)
            low = spread_half(least + block * 2) * spread(m.times)
            store_floats(to, float_nibbles(here, False) * scale + low)
            store_floats(to + 32, float_nibbles(here + 8, False) * scale + low)
            store_floats(to + 64, float_nibbles(here, True) * scale + low)
            store_floats(to + 96, float_nibbles(here + 8, True) * scale + low)
        return
    whole = row_scale(m, row)
    for block in range(m.columns // BLOCK):
        scale = spread_half(s + block * m.scale_step) * spread(whole)
        for at in range(0, BLOCK, 8):
            store_floats(
                out + (block * BLOCK + at) * 4, float_bytes(w + block * BLOCK + at) * scale
            )


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
