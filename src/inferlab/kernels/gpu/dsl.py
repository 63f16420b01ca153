"""Triton's language, or stand-ins that let a kernel's module be imported without it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from inferlab.errors import InferlabError
from inferlab.kernels import backends

if backends.has_triton():
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is decorated
    import triton
    import triton.language as tl

    jit: Any = triton.jit

    def interpreted() -> bool:
        """Whether kernels run in Triton's interpreter, on CPU tensors."""
        return os.environ.get("TRITON_INTERPRET") == "1"

else:

    class _Language:
        constexpr = None

    class _Missing:
        """A kernel that cannot run; `kernel[grid]` says so."""

        def __init__(self, fn: Callable[..., Any]) -> None:
            self.fn = fn  # under the name that Triton gives it: a page may show its source

        def __getitem__(self, grid: object) -> None:
            raise InferlabError(f"kernel {self.fn.__name__}: Triton is not installed (or hidden)")

    triton: Any = None  # type: ignore[no-redef]
    tl: Any = _Language  # type: ignore[no-redef]

    def jit(function: Callable[..., Any]) -> Any:
        """Stand in for the compiler: the module imports, its kernels refuse to run."""
        return _Missing(function)

    def interpreted() -> bool:
        """Whether kernels run in Triton's interpreter: there is none."""
        return False


def capability(device: torch.device) -> tuple[int, int] | str:
    """Return what `config` of an op's module goes by: (9, 0), or AMD's name such as "gfx942".

    On a CPU, where kernels are interpreted: what an H100 is, so that its configurations are tested.
    """
    if device.type == "cpu":
        return (9, 0)
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    return torch.cuda.get_device_capability(device)


def check_dot(op: str, x: torch.Tensor) -> None:
    """Raise InferlabError for bfloat16 in the interpreter, whose `tl.dot` of it is far off."""
    if interpreted() and x.dtype == torch.bfloat16:
        raise InferlabError(f"{op}: bf16 products need a GPU; the interpreter gets them wrong")
