"""The sum of two vectors: the smallest kernel that there is."""

from __future__ import annotations

from typing import Any

from inferlab.kernels.gpu.compiled import Compile, Target
from inferlab.kernels.gpu.dsl import jit, tl, triton

BLOCK = 2048  # elements a program adds
WARPS = 4  # of 32 or 64 threads: at least 8 elements each, 16 bytes in float16


@jit
def vector_add_kernel(a, b, out, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add one block: program p has elements p * BLOCK up to the next one's first."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)  # [BLOCK]
    inside = at < size
    x = tl.load(a + at, mask=inside).to(tl.float32)
    y = tl.load(b + at, mask=inside).to(tl.float32)
    tl.store(out + at, x + y, mask=inside)


def launch(a: Any, b: Any, out: Any) -> Any:
    """Fill `out` [n] with a + b, summed in float32; dense vectors of one dtype."""
    grid = (triton.cdiv(a.numel(), BLOCK),)
    if a.numel():
        vector_add_kernel[grid](a, b, out, a.numel(), BLOCK=BLOCK, num_warps=WARPS)
    return out


def traffic(size: int, itemsize: int) -> int:
    """Return the fewest bytes that adding two vectors of `size` elements moves."""
    return 3 * size * itemsize


def aot(target: Target) -> list[Compile]:
    """Return what `launch` compiles on such a GPU."""
    return [
        Compile(
            vector_add_kernel,
            f"{dtype}, block {BLOCK}",
            {"a": f"*{dtype}", "b": f"*{dtype}", "out": f"*{dtype}", "size": "i32:16"},
            {"BLOCK": BLOCK},
            num_warps=WARPS,
            wide_loads=True,
        )
        for dtype in ("fp32", "fp16")
    ]
