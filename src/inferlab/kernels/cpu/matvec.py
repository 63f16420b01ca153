"""Matrix times a few vectors, at the speed at which memory delivers the matrix.

Weights come four rows at a time, so that four sums run side by side, and stay in the first-level
cache while every row of the batch meets them. Each (row of the batch, row of the matrix) is the
same loop over the same numbers whatever the batch and the threads, hence bit for bit the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import float32

from inferlab.kernels.cpu.exp import exp
from inferlab.kernels.cpu.jit import fetch_add, floats, jit
from inferlab.kernels.cpu.team import WORK, team

MATRIX = np.dtype(
    [
        ("data", "i8"),  # address of the first row
        ("rows", "i8"),
        ("columns", "i8"),
        ("stride", "i8"),  # bytes from row to row
        ("bias", "i8"),  # address of `rows` float32, or 0
        ("chunk", "i8"),  # rows that a thread takes at a time, a multiple of four
    ],
    align=True,
)
CHUNK_BYTES = 1 << 16


class Rows(NamedTuple):
    """The float32 vectors of a batch: where the first stands, and bytes from one to the next."""

    data: int
    stride: int


def matrix(data: int, rows: int, columns: int, stride: int, bias: int = 0) -> tuple[int, ...]:
    """Return the `MATRIX` of `rows` rows, `stride` bytes apart, at address `data`."""
    return data, rows, columns, stride, bias, max(1, CHUNK_BYTES // max(1, stride * 4)) * 4


@jit
def dot4(row0, row1, row2, row3, x, size):  # type: ignore[no-untyped-def]
    """Return the dot products of four rows with one vector, each of `size` float32."""
    weight0, weight1 = floats(row0, size), floats(row1, size)
    weight2, weight3 = floats(row2, size), floats(row3, size)
    value = floats(x, size)
    total0 = total1 = total2 = total3 = float32(0)
    for i in range(size):
        v = value[i]
        total0 += weight0[i] * v
        total1 += weight1[i] * v
        total2 += weight2[i] * v
        total3 += weight3[i] * v
    return total0, total1, total2, total3


@jit
def matvec_block(m, r, x, residual, y, batch):  # type: ignore[no-untyped-def]
    """Rows r..r+3 of the matrix with every vector of the batch; rows past the last are left out."""
    last = m.rows - 1
    row0, row1 = m.data + r * m.stride, m.data + min(r + 1, last) * m.stride
    row2, row3 = m.data + min(r + 2, last) * m.stride, m.data + min(r + 3, last) * m.stride
    bias = floats(m.bias, m.rows)
    for b in range(batch):
        sums = dot4(row0, row1, row2, row3, x.data + b * x.stride, m.columns)
        out = floats(y.data + b * y.stride, m.rows)
        before = floats(residual.data + b * residual.stride, m.rows)
        for i in range(min(4, m.rows - r)):
            total = sums[i]
            if m.bias:
                total += bias[r + i]
            if residual.data:
                total += before[r + i]
            out[r + i] = total


@jit
def matvec(m, x, residual, y, batch, member, threads, counter):  # type: ignore[no-untyped-def]
    """This member's share of y = m x + bias + residual; `residual` may be y, or Rows(0, 0).

    `counter` is the address of a zero that the team shares for this product. The first chunk of
    a member is fixed, so that it can be prefetched; others go to whoever is free.
    """
    piece = member
    while piece * m.chunk < m.rows:
        for r in range(piece * m.chunk, min(m.rows, (piece + 1) * m.chunk), 4):
            matvec_block(m, r, x, residual, y, batch)
        piece = fetch_add(counter, 1) + threads


@jit
def swiglu(gate, up, x, y, own, batch, member, threads, counter):  # type: ignore[no-untyped-def]
    """This member's share of y = silu(gate x) * (up x); `own` is its scratch, shaped like y."""
    piece = member
    none = Rows(0, 0)
    while piece * gate.chunk < gate.rows:
        first, end = piece * gate.chunk, min(gate.rows, (piece + 1) * gate.chunk)
        for r in range(first, end, 4):
            matvec_block(gate, r, x, none, y, batch)
            matvec_block(up, r, x, none, own, batch)
        for b in range(batch):
            g = floats(y.data + b * y.stride + first * 4, end - first)
            u = floats(own.data + b * own.stride + first * 4, end - first)
            for i in range(end - first):
                g[i] = g[i] / (float32(1) + exp(-g[i])) * u[i]
        piece = fetch_add(counter, 1) + threads


@jit
def _matvec(member, threads, sync, m, x, residual, y, batch):  # type: ignore[no-untyped-def]
    matvec(m[0], x, residual, y, batch, member, threads, sync.ctypes.data + WORK)


@jit
def _swiglu(member, threads, sync, m, x, y, own, batch):  # type: ignore[no-untyped-def]
    mine = Rows(own.data + member * batch * own.stride, own.stride)
    swiglu(m[0], m[1], x, y, mine, batch, member, threads, sync.ctypes.data + WORK)


def _rows(x: Any) -> Rows:
    return Rows(0, 0) if x is None else Rows(x.data_ptr(), x.stride(0) * 4)


def _matrices(*weights: Any, bias: Any = None) -> np.ndarray[Any, np.dtype[np.void]]:
    bias_at = 0 if bias is None else bias.data_ptr()
    records = []
    for w in weights:
        rows, columns = w.shape
        records.append(matrix(w.data_ptr(), rows, columns, w.stride(0) * 4, bias_at))
    return np.array(records, MATRIX)


def launch(weight: Any, x: Any, bias: Any, residual: Any, out: Any, threads: int | None) -> Any:
    """Fill `out` [B, N] with x weight^T + bias + residual; float32 tensors on a CPU."""
    m = _matrices(weight, bias=bias)
    team(threads).run(_matvec, m, _rows(x), _rows(residual), _rows(out), x.shape[0])
    return out


def launch_swiglu(gate: Any, up: Any, x: Any, out: Any, threads: int | None) -> Any:
    """Fill `out` [B, F] with silu(gate x) * (up x); float32 tensors on a CPU."""
    members = team(threads)
    own = out.new_empty((members.threads * x.shape[0], out.shape[1]))
    m = _matrices(gate, up)
    members.run(_swiglu, m, _rows(x), _rows(out), _rows(own), x.shape[0])
    return out
