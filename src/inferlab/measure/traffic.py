"""The bytes that a Triton kernel asks memory for, counted in the interpreter one access at a time.

triton-viz shows every load and store of an interpreted kernel, with the addresses. What the masks
let through is counted, and whatever lies in no element of the kernel's own tensors is a fault.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inferlab.errors import InferlabError
from inferlab.kernels import backends

# Triton's random numbers are beyond triton-viz.
_BLIND = ("draw_kernel",)


@dataclass
class Traffic:
    """What kernels loaded and stored, in bytes, and how many of these lie where nothing is."""

    loaded: int = 0
    stored: int = 0
    outside: int = 0

    @property
    def bytes(self) -> int:
        """Loads and stores together."""
        return self.loaded + self.stored


def why_not() -> str | None:
    """Say why traffic cannot be counted here; None if it can."""
    if not backends.has_triton():
        return "counting traffic needs Triton, which is not installed (or hidden)"
    if not importlib.util.find_spec("triton_viz"):
        return "counting traffic needs triton-viz: pip install 'inferlab[test]'"
    from inferlab.kernels.gpu import dsl

    if not dsl.interpreted():
        return "counting traffic needs Triton's interpreter: set TRITON_INTERPRET=1"
    return None


@contextlib.contextmanager
def counting(*modules: ModuleType) -> Iterator[Traffic]:
    """Count what the kernels of `modules` move while the block runs, but for those of `_BLIND`.

    Raises InferlabError where it cannot be counted.
    """
    if reason := why_not():
        raise InferlabError(reason)
    found = Traffic()
    traced = _tracer(found)
    kept = [
        (module, name, each)
        for module in modules
        for name, each in vars(module).items()
        if type(each).__name__ == "InterpretedFunction" and name not in _BLIND
    ]
    try:
        for module, name, each in kept:
            setattr(module, name, traced(each))
        yield found
    finally:
        for module, name, each in kept:
            setattr(module, name, each)


def _within(addresses: NDArray[np.int64], tensor: Tensor) -> NDArray[np.bool_]:
    """Whether each address is that of an element of `tensor`, not of a hole between its rows."""
    size = tensor.element_size()
    rest = addresses - tensor.data_ptr()
    inside = np.full(addresses.shape, tensor.numel() > 0)
    dimensions = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, length in sorted((d for d in dimensions if d[0] and d[1] > 1), reverse=True):
        index = rest // (stride * size)
        inside &= (index >= 0) & (index < length)
        rest -= index * stride * size
    return inside & (rest == 0)


def _tracer(found: Traffic) -> Callable[[Any], Any]:
    """Return what makes of a kernel one that adds to `found` whatever it moves."""
    import triton_viz
    from triton_viz.core import patch
    from triton_viz.core.callbacks import ForLoopCallbacks, OpCallbacks
    from triton_viz.core.client import Client
    from triton_viz.core.data import AtomicCas, AtomicRMW, Load, Store

    # triton-viz rewrites every loop to a name that it defines in the module of the kernel only.
    vars(builtins)["_triton_viz_loop_patcher"] = patch._loop_patcher

    class Meter(Client):
        NAME = "meter"

        def __init__(self) -> None:
            super().__init__()
            self.tensors: dict[str, Tensor] = {}

        def arg_callback(self, name: str, arg: Any, arg_cvt: Any) -> None:
            if isinstance(arg, Tensor):
                self.tensors[name] = arg

        def grid_callback(self, grid: tuple[int, ...]) -> None:
            """The grid is no matter."""

        def register_op_callback(self, op_type: type, *args: Any, **kwargs: Any) -> Any:
            def count(field: str, pointers: Any, mask: Any) -> None:
                size = pointers.get_element_ty().primitive_bitwidth // 8
                at = pointers.data[mask.data.astype(bool)].astype(np.int64)
                setattr(found, field, getattr(found, field) + at.size * size)
                for tensor in self.tensors.values():
                    at = at[~_within(at, tensor)]
                found.outside += at.size * size

            def refuse(*args: Any, **kwargs: Any) -> None:
                raise NotImplementedError(f"traffic of {op_type.__name__} is not counted")

            if op_type is Load:
                return OpCallbacks(before_callback=lambda p, m, keys: count("loaded", p, m))
            if op_type is Store:
                return OpCallbacks(before_callback=lambda p, m, keys: count("stored", p, m))
            if op_type in (AtomicCas, AtomicRMW):
                return OpCallbacks(before_callback=refuse)
            return OpCallbacks()

        def register_for_loop_callback(self) -> Any:
            return ForLoopCallbacks()

        def finalize(self) -> list[Any]:
            self.tensors.clear()
            return []

        def grid_idx_callback(self, grid_idx: tuple[int, ...]) -> None:
            """Nothing depends on the program."""

        def pre_run_callback(self, fn: Any) -> bool:
            return True

        def post_run_callback(self, fn: Any) -> bool:
            return True

        def pre_warmup_callback(self, jit_fn: Any, *args: Any, **kwargs: Any) -> bool:
            return False

        def post_warmup_callback(self, jit_fn: Any, ret: Any) -> None:
            """Nothing is warmed up."""

    return triton_viz.trace(Meter())
