"""RMS norm of rows (Zhang and Sennrich 2019), with the residual sum before it in the same pass.

A program holds a whole row in registers: one read, a sum of squares in float32, one write. It takes
every n-th row, so that a long prompt reads the gains once a program and not once a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from inferlab.errors import InferlabError
from inferlab.kernels.gpu.compiled import Capability, Compile, Target
from inferlab.kernels.gpu.dsl import capability, jit, tl, triton

LONGEST = 32768  # values of a row: what the registers of one program hold
PROGRAMS = 512  # as many as a large GPU runs at a time


@jit
def rms_norm_kernel(  # type: ignore[no-untyped-def]
    x, residual, weight, out, total,
    rows, size, eps,
    x_stride, residual_stride, out_stride, total_stride,
    RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = rms_norm(total) * weight for total = x + residual, or for total = x without one."""
    at = tl.arange(0, BLOCK)  # [BLOCK]
    inside = at < size
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
        if RESIDUAL:
            before = tl.load(residual + row * residual_stride + at, mask=inside, other=0.0)
            values = (values + before.to(tl.float32)).to(total.dtype.element_ty).to(tl.float32)
            tl.store(total + row * total_stride + at, values, mask=inside)
        scale = 1.0 / tl.sqrt(tl.sum(values * values, axis=0) / size + eps)
        tl.store(out + row * out_stride + at, values * scale * gain, mask=inside)


class Config(NamedTuple):
    """How a norm is launched."""

    block: int  # values of a row, rounded up to a power of two
    num_warps: int


def config(size: int, itemsize: int, capability: Capability) -> Config:
    """Return the launch for rows of `size` values: 16 bytes a thread, until a program is full."""
    block, lanes = triton.next_power_of_2(size), 64 if isinstance(capability, str) else 32
    return Config(block, min(16, max(1, block * itemsize // (16 * lanes))))


def launch(
    x: Any, weight: Any, eps: float, out: Any, residual: Any = None, total: Any = None
) -> Any:
    """Fill `out` [B, n] with the normed rows of x [B, n], times weight [n].

    With a residual [B, n], `total` becomes x + residual, rounded to its dtype, and `out` the norm
    of that. `total` may be x or the residual itself, and `out` may be x. All dense in n.
    """
    rows, size = x.shape
    if size > LONGEST:
        raise InferlabError(f"rms_norm: rows of {size} values; at most {LONGEST} fit")
    if (residual is None) != (total is None):
        raise InferlabError("rms_norm: residual and total belong together")
    if x.numel():
        fused = residual is not None
        before, sums = (residual, total) if fused else (x, x)
        block, warps = config(size, x.element_size(), capability(x.device))
        rms_norm_kernel[(min(rows, PROGRAMS),)](
            x, before, weight, out, sums,
            rows, size, eps,
            x.stride(0), before.stride(0), out.stride(0), sums.stride(0),
            fused, block,
            num_warps=warps,
        )  # fmt: skip
    return out


def traffic(rows: int, size: int, itemsize: int, residual: bool = False) -> int:
    """Return the fewest bytes of a norm: rows in and out, gains in, residual in and sum out."""
    return ((4 if residual else 2) * rows + 1) * size * itemsize


def aot(target: Target) -> list[Compile]:
    """Return what `launch` compiles on such a GPU, for models small and large."""
    cases = []
    for dtype in ("fp32", "bf16" if target.has_bf16 else "fp16"):
        for size in (576, 4096, 16384):
            block, warps = config(size, 4 if dtype == "fp32" else 2, target.capability)
            strides = ("x_stride", "residual_stride", "out_stride", "total_stride")
            for fused in (False, True):
                cases.append(
                    Compile(
                        rms_norm_kernel,
                        f"{dtype}, {size} values" + (", residual" if fused else ""),
                        dict.fromkeys(("x", "residual", "weight", "out", "total"), f"*{dtype}")
                        | {"rows": "i32", "size": "i32:16", "eps": "fp32"}
                        | dict.fromkeys(strides, "i32:16"),
                        {"RESIDUAL": fused, "BLOCK": block},
                        num_warps=warps,
                        wide_loads=True,
                    )
                )
    return cases
