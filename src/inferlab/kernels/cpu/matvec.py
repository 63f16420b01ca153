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
from inferlab.kernels.cpu.jit import floats, jit
from inferlab.kernels.cpu.team import desk, take, team

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
CHUNK_BYTES = 1 << 17  # what a thread takes at a time: short to wait for, long to stream
_MOST_CHUNKS = 2048


class Rows(NamedTuple):
    """The float32 vectors of a batch: where the first stands, and bytes from one to the next."""

    data: int
    stride: int


def matrix(data: int, rows: int, columns: int, stride: int, bias: int = 0) -> tuple[int, ...]:
    """Return the `MATRIX` of `rows` rows, `stride` bytes apart, at address `data`."""
    # An even number of chunks, alike in size, shares well among an even number of threads.
    pairs = min(_MOST_CHUNKS, -(-rows * stride // CHUNK_BYTES)) // 2
    return data, rows, columns, stride, bias, max(4, -(-rows // (8 * max(1, pairs))) * 4)


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
def matvec_chunk(m, first, end, x, residual, y, batch):  # type: ignore[no-untyped-def]
    """Rows first..end-1 of the matrix with every vector of the batch.

    The four rows that are read together stand a quarter of the chunk apart: four streams in
    different pages keep more of the hardware's prefetchers busy than one stream four rows wide.
    """
    quarter, last = (end - first + 3) // 4, end - 1
    bias = floats(m.bias, m.rows)
    for r in range(first, first + quarter):
        row0 = m.data + r * m.stride
        # Where a quarter is short: the last row again, without a store.
        row1 = m.data + min(r + quarter, last) * m.stride
        row2 = m.data + min(r + 2 * quarter, last) * m.stride
        row3 = m.data + min(r + 3 * quarter, last) * m.stride
        for b in range(batch):
            sums = dot4(row0, row1, row2, row3, x.data + b * x.stride, m.columns)
            out = floats(y.data + b * y.stride, m.rows)
            before = floats(residual.data + b * residual.stride, m.rows)
            for i in range(4):
                at = r + i * quarter
                if at <= last:
                    total = sums[i]
                    if m.bias:
                        total += bias[at]
                    if residual.data:
                        total += before[at]
                    out[at] = total


@jit
def pieces_of(m):  # type: ignore[no-untyped-def]
    """Chunks of a matrix."""
    return (m.rows + m.chunk - 1) // m.chunk


@jit
def matvec_piece(m, piece, x, residual, y, batch):  # type: ignore[no-untyped-def]
    """Chunk number `piece` of y = m x + bias + residual; `residual` may be Rows(0, 0)."""
    first = piece * m.chunk
    matvec_chunk(m, first, min(m.rows, first + m.chunk), x, residual, y, batch)


@jit
def matvec(m, x, residual, y, batch, desk):  # type: ignore[no-untyped-def]
    """y = m x + bias + residual, with all who call this at the same zeroed `desk`."""
    pieces = pieces_of(m)
    piece = take(desk, pieces, -1)
    while piece >= 0:
        matvec_piece(m, piece, x, residual, y, batch)
        piece = take(desk, pieces, piece)


@jit
def swiglu(gate, up, x, y, own, batch, desk):  # type: ignore[no-untyped-def]
    """y = silu(gate x) * (up x), with all who call this at the same zeroed `desk`.

    `own` is the caller's scratch, two vectors like those of y for each of the batch.
    """
    pieces = pieces_of(gate)
    ups = Rows(own.data + batch * own.stride, own.stride)
    piece = take(desk, pieces, -1)
    while piece >= 0:
        first = piece * gate.chunk
        end = min(gate.rows, first + gate.chunk)
        matvec_chunk(gate, first, end, x, Rows(0, 0), own, batch)
        matvec_chunk(up, first, end, x, Rows(0, 0), ups, batch)
        for b in range(batch):
            g = floats(own.data + b * own.stride + first * 4, end - first)
            u = floats(ups.data + b * ups.stride + first * 4, end - first)
            out = floats(y.data + b * y.stride + first * 4, end - first)
            for i in range(end - first):
                out[i] = g[i] / (float32(1) + exp(-g[i])) * u[i]
        piece = take(desk, pieces, piece)


@jit
def _matvec(member, m, x, residual, y, batch, desk):  # type: ignore[no-untyped-def]
    matvec(m[0], x, residual, y, batch, desk.ctypes.data)


@jit
def _swiglu(member, m, x, y, own, batch, desk):  # type: ignore[no-untyped-def]
    mine = Rows(own.data + member * 2 * batch * own.stride, own.stride)
    swiglu(m[0], m[1], x, y, mine, batch, desk.ctypes.data)


def _rows(x: Any) -> Rows:
    return Rows(0, 0) if x is None else Rows(x.data_ptr(), x.stride(0) * 4)


def _matrices(*weights: Any, bias: Any = None) -> np.ndarray[Any, np.dtype[np.void]]:
    bias_at = 0 if bias is None else bias.data_ptr()
    records = []
    for w in weights:
        rows, columns = w.shape
        records.append(matrix(w.data_ptr(), rows, columns, w.stride(0) * 4, bias_at))
    return np.array(records, MATRIX)


def _desk(m: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return desk(-(-int(m["rows"]) // int(m["chunk"])))


def launch(weight: Any, x: Any, bias: Any, residual: Any, out: Any, threads: int | None) -> Any:
    """Fill `out` [B, N] with x weight^T + bias + residual; float32 tensors on a CPU."""
    m = _matrices(weight, bias=bias)
    y, before = _rows(out), _rows(residual)
    team(threads).run(_matvec, m, _rows(x), before, y, x.shape[0], _desk(m[0]))
    return out


def launch_swiglu(gate: Any, up: Any, x: Any, out: Any, threads: int | None) -> Any:
    """Fill `out` [B, F] with silu(gate x) * (up x); float32 tensors on a CPU."""
    members = team(threads)
    own = out.new_empty((members.threads * 2 * x.shape[0], out.shape[1]))
    m = _matrices(gate, up)
    members.run(_swiglu, m, _rows(x), _rows(out), _rows(own), x.shape[0], _desk(m[0]))
    return out
