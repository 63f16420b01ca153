"""A chain of multiply-adds on every number read: as much arithmetic for each byte as one likes."""

from __future__ import annotations

from typing import Any

from inferlab.kernels.gpu.compiled import Compile, Target
from inferlab.kernels.gpu.dsl import jit, tl

BLOCK = 2048  # numbers of a program
WARPS = 4  # 16 numbers a thread, so 16 chains side by side


@jit
def chain_kernel(x, out, size, steps, scale, shift, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum a block's numbers, each as it is at the end of its chain."""
    program = tl.program_id(0).to(tl.int64)
    at = program * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    inside = at < size
    value = tl.load(x + at, mask=inside, other=0.0)
    for _ in range(steps):
        value = value * scale + shift
    tl.store(out + program, tl.sum(tl.where(inside, value, 0.0), axis=0))


def programs(size: int) -> int:
    """Return how many sums `launch` writes for `size` numbers."""
    return -(-size // BLOCK)


def launch(x: Any, steps: int, scale: float, shift: float, out: Any) -> Any:
    """Fill `out` [programs(n)] with sums of the chains of x [n]; dense float32."""
    if x.numel():
        chain_kernel[(programs(x.numel()),)](
            x, out, x.numel(), steps, scale, shift, BLOCK=BLOCK, num_warps=WARPS
        )
    return out


def traffic(size: int, itemsize: int = 4) -> int:
    """Return the fewest bytes that chains over `size` numbers move: each in, and a sum out."""
    return (size + 1) * itemsize


def aot(target: Target) -> list[Compile]:
    """Return what `launch` compiles on such a GPU."""
    signature = {"x": "*fp32", "out": "*fp32", "size": "i32:16", "steps": "i32"}
    return [
        Compile(
            chain_kernel,
            f"fp32, block {BLOCK}",
            signature | {"scale": "fp32", "shift": "fp32"},
            {"BLOCK": BLOCK},
            num_warps=WARPS,
            wide_loads=True,
        )
    ]
