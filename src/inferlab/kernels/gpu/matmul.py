"""The product of two matrices, tile by tile.

A program makes one tile of the result. It walks along the shared dimension and multiplies a tile of
`a` with a tile of `b` at each step, so that a number which was loaded once is used as often as the
tile is wide. Programs are numbered in groups of some rows of tiles: those that run at the same time
then need fewer distinct tiles, and find more of them in the L2 cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from inferlab.kernels.gpu.compiled import Capability, Compile, Target
from inferlab.kernels.gpu.dsl import capability, check_dot, jit, tl, triton

GROUP = 8  # rows of tiles that are worked through side by side


@jit
def tile_of(program, rows, columns, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (row, column) of a program's tile, in a grid of rows * columns tiles."""
    first = program // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)  # the last group may have fewer rows
    inside = program % (GROUP * columns)
    return first + inside % height, inside // height


@jit
def matmul_kernel(  # type: ignore[no-untyped-def]
    a, b, out,
    M, N, K,
    a_row, a_column, b_row, b_column, out_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of out = a b, for a [M, K] and b [K, N]."""
    row, column = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    m = (row * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)  # [BLOCK_M]
    n = (column * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)  # [BLOCK_N]
    k = tl.arange(0, BLOCK_K).to(tl.int64)  # [BLOCK_K]
    a_tile = a + m[:, None] * a_row + k[None, :] * a_column  # [BLOCK_M, BLOCK_K]
    b_tile = b + k[:, None] * b_row + n[None, :] * b_column  # [BLOCK_K, BLOCK_N]

    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for done in range(0, K, BLOCK_K):
        left = K - done
        x = tl.load(a_tile, mask=(m[:, None] < M) & (k[None, :] < left), other=0.0)
        y = tl.load(b_tile, mask=(k[:, None] < left) & (n[None, :] < N), other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
        a_tile += BLOCK_K * tl.cast(a_column, tl.int64)
        b_tile += BLOCK_K * tl.cast(b_row, tl.int64)

    at = out + m[:, None] * out_row + n[None, :]  # [BLOCK_M, BLOCK_N]
    tl.store(at, total, mask=(m[:, None] < M) & (n[None, :] < N))


class Config(NamedTuple):
    """How a product is launched."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def config(rows: int, itemsize: int, capability: Capability) -> Config:
    """Return the tiles for a result of `rows` rows, from numbers of `itemsize` bytes.

    Large tiles reuse more; what limits them is shared memory, which holds `num_stages` pairs of
    tiles, and the registers for the sums. Without tensor cores (float32, and Triton's code for a
    T4) every thread multiplies by itself, and its share of the tile must be small.
    """
    height = max(16, triton.next_power_of_2(rows))
    if itemsize == 4 or capability == (7, 5):
        return Config(min(height, 64), 64, 16, 8, 2)
    if capability in ((8, 0), (9, 0), (10, 0)) and height >= 128:
        return Config(128, 256, 64, 8, 3)
    if isinstance(capability, str):
        return Config(min(height, 128), 128, 64, 8, 2)
    return Config(min(height, 128), 128, 32, 4, 3)


def launch(a: Any, b: Any, out: Any) -> Any:
    """Fill `out` [M, N], dense in N, with a [M, K] times b [K, N], of any strides."""
    check_dot("matmul", a)
    (rows, depth), columns = a.shape, b.shape[1]
    made = config(rows, a.element_size(), capability(a.device))
    grid = (triton.cdiv(rows, made.block_m) * triton.cdiv(columns, made.block_n),)
    if out.numel():
        matmul_kernel[grid](
            a, b, out,
            rows, columns, depth,
            *a.stride(), *b.stride(), out.stride(0),
            made.block_m, made.block_n, made.block_k, GROUP,
            num_warps=made.num_warps, num_stages=made.num_stages,
        )  # fmt: skip
    return out


def traffic(rows: int, columns: int, depth: int, itemsize: int) -> int:
    """Return the fewest bytes of a product: both matrices in, the result out, each once."""
    return (rows * depth + depth * columns + rows * columns) * itemsize


def aot(target: Target) -> list[Compile]:
    """Return what `launch` compiles on such a GPU, for tall matrices and for 16 rows."""
    cases = []
    for dtype in ("fp32", "fp16", "bf16") if target.has_bf16 else ("fp32", "fp16"):
        for rows in (16, 4096):
            made = config(rows, 4 if dtype == "fp32" else 2, target.capability)
            strides = dict.fromkeys(("a_row", "b_row", "out_row"), "i32:16")
            sizes = {"M": "i32:16", "N": "i32:16", "K": "i32:16"}
            cases.append(
                Compile(
                    matmul_kernel,
                    f"{dtype}, tiles {made.block_m} x {made.block_n} x {made.block_k}",
                    dict.fromkeys(("a", "b", "out"), f"*{dtype}")
                    | sizes | strides | {"a_column": "i32:1", "b_column": "i32:1"},
                    {"BLOCK_M": made.block_m, "BLOCK_N": made.block_n, "BLOCK_K": made.block_k}
                    | {"GROUP": GROUP},
                    made.num_warps,
                    made.num_stages,
                    tensor_cores=dtype != "fp32",
                )
            )  # fmt: skip
    return cases
