"""Softmax of each row: weights that are positive and sum to one.

A row that fits into the registers of one program is read once. A longer one goes by in blocks,
with a running maximum and a running sum (the online softmax, Milakov and Gimelshein 2018), and is
then read a second time to be written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from inferlab.kernels.gpu.compiled import Compile, Target
from inferlab.kernels.gpu.dsl import jit, tl, triton

LONGEST_BLOCK = 16384  # elements of a row that one program keeps in registers


@jit
def softmax_kernel(x, out, columns, x_stride, out_stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a row, all of it at once."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)  # [BLOCK]
    inside = at < columns
    values = tl.load(x + row * x_stride + at, mask=inside, other=-float("inf")).to(tl.float32)
    weights = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * out_stride + at, weights / tl.sum(weights, axis=0), mask=inside)


@jit
def online_softmax_kernel(x, out, columns, x_stride, out_stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a row, BLOCK columns at a time."""
    row = tl.program_id(0).to(tl.int64)
    largest, total = -float("inf"), 0.0
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)  # [BLOCK]
        values = tl.load(x + row * x_stride + at, mask=at < columns, other=-float("inf"))
        values = values.to(tl.float32)
        larger = tl.maximum(largest, tl.max(values, axis=0))
        # Before the first finite value there is nothing to subtract.
        shift = tl.where(larger == -float("inf"), 0.0, larger)
        total = total * tl.exp(largest - shift) + tl.sum(tl.exp(values - shift), axis=0)
        largest = larger
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)  # [BLOCK]
        values = tl.load(x + row * x_stride + at, mask=at < columns, other=-float("inf"))
        weights = tl.exp(values.to(tl.float32) - largest) / total
        tl.store(out + row * out_stride + at, weights, mask=at < columns)


class Config(NamedTuple):
    """How a softmax is launched."""

    block: int  # columns a program has in registers
    num_warps: int


def config(columns: int) -> Config:
    """Return the launch for rows of `columns`: the whole row, or blocks of it if it is long."""
    block = min(triton.next_power_of_2(columns), LONGEST_BLOCK)
    if columns > LONGEST_BLOCK:
        block //= 2  # a loop keeps two blocks on their way
    return Config(block, min(16, max(1, block // 512)))


def launch(x: Any, out: Any) -> Any:
    """Fill `out` [R, C] with the softmax of each row of x [R, C], both dense in C."""
    rows, columns = x.shape
    if x.numel():
        block, warps = config(columns)
        kernel = softmax_kernel if columns <= block else online_softmax_kernel
        kernel[(rows,)](x, out, columns, x.stride(0), out.stride(0), BLOCK=block, num_warps=warps)
    return out


def traffic(rows: int, columns: int, itemsize: int) -> int:
    """Return the fewest bytes that the softmax of `rows` rows moves: each value in and out."""
    return 2 * rows * columns * itemsize


def aot(target: Target) -> list[Compile]:
    """Return what `launch` compiles on such a GPU."""
    cases = []
    for columns in (512, 4096, LONGEST_BLOCK, 131072):
        block, warps = config(columns)
        for dtype in ("fp32", "fp16"):
            cases.append(
                Compile(
                    softmax_kernel if columns <= block else online_softmax_kernel,
                    f"{dtype}, {columns} columns",
                    {"x": f"*{dtype}", "out": f"*{dtype}", "columns": "i32:16"}
                    | dict.fromkeys(("x_stride", "out_stride"), "i32:16"),
                    {"BLOCK": block},
                    num_warps=warps,
                    wide_loads=True,
                )
            )
    return cases
