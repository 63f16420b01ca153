"""How kernels are compiled, and the machine instructions that numba has no word for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferlab.errors import InferlabError
from inferlab.kernels import backends

_SOURCES = (Path(__file__).parent, Path(__file__).parents[2] / "engine")

if backends.has_numba():
    import numba
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic as _intrinsic

    # numba's annotations count the typing context as an argument of the instruction.
    intrinsic: Any = _intrinsic

    _I32, _I64 = ir.IntType(32), ir.IntType(64)

    def _digest() -> str:
        # numba checks only the file of the function it loads, not of those that it calls.
        texts = [f.read_bytes() for d in _SOURCES for f in sorted(d.glob("*.py")) if _is_kernel(f)]
        return hashlib.sha256(b"".join(texts)).hexdigest()[:16]

    def _is_kernel(file: Path) -> bool:
        return file.parent.name == "cpu" or file.name == "cpu_step.py"

    OPTIONS: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"nsz", "arcp", "contract", "afn", "reassoc"},
    }
    _CACHE = str(backends.cache_dir() / "numba" / _digest())

    def part(function: Callable[..., Any]) -> Any:
        """Compile `function` as `jit` does, and make it part of each kernel that calls it."""
        return numba.njit(forceinline=True, **OPTIONS)(function)

    def jit(function: Callable[..., Any]) -> Any:
        """Compile `function` on its first call, without the GIL, and keep the machine code on disk.

        Sums may be reassociated, which is what lets a loop become SIMD; NaN and infinity stay.
        """
        config: Any = numba.config
        usual, config.CACHE_DIR = config.CACHE_DIR, _CACHE
        try:
            return numba.njit(cache=True, **OPTIONS)(function)
        finally:
            config.CACHE_DIR = usual

    @intrinsic
    def _pointer(_context, address):  # type: ignore[no-untyped-def]
        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.inttoptr(args[0], ir.FloatType().as_pointer())

        return types.CPointer(types.float32)(types.int64), build

    @intrinsic
    def fetch_add(_context, address, amount):  # type: ignore[no-untyped-def]
        """Add to the int64 at `address` atomically; return what stood there."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            where = builder.inttoptr(args[0], _I64.as_pointer())
            return builder.atomic_rmw("add", where, args[1], "acq_rel")

        return types.int64(types.int64, types.int64), build

    @intrinsic
    def load_acquire(_context, address):  # type: ignore[no-untyped-def]
        """Read the int64 at `address`; what its writer wrote before is visible after."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), "acquire", 8)

        return types.int64(types.int64), build

    @intrinsic
    def float_of_bits(_context, bits):  # type: ignore[no-untyped-def]
        """Read the low 32 bits of an int64 as a float32."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.bitcast(builder.trunc(args[0], _I32), ir.FloatType())

        return types.float32(types.int64), build

    @intrinsic
    def prefetch(_context, address):  # type: ignore[no-untyped-def]
        """Ask memory for the line at `address`; any address will do, nothing waits for it."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            where = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
            kind = ir.FunctionType(ir.VoidType(), [where.type, _I32, _I32, _I32])
            call = builder.module.declare_intrinsic("llvm.prefetch", (where.type,), kind)
            builder.call(call, [where, _I32(0), _I32(3), _I32(1)])
            return context.get_dummy_value()

        return types.void(types.int64), build

    @intrinsic
    def _long_pointer(_context, address):  # type: ignore[no-untyped-def]
        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.inttoptr(args[0], _I64.as_pointer())

        return types.CPointer(types.int64)(types.int64), build

    _inline: Any = numba.njit(inline="always")

    @_inline
    def floats(address, count):  # type: ignore[no-untyped-def]
        """View `count` float32 at `address` as an array."""
        return numba.carray(_pointer(address), (count,))

    @_inline
    def longs(address, count):  # type: ignore[no-untyped-def]
        """View `count` int64 at `address` as an array."""
        return numba.carray(_long_pointer(address), (count,))

else:

    def jit(function: Callable[..., Any]) -> Any:
        """Stand in for the compiler: the module imports, its kernels refuse to run."""

        def refuse(*args: object) -> None:
            raise InferlabError(f"kernel {function.__name__}: numba is not installed (or hidden)")

        return refuse

    fetch_add = load_acquire = float_of_bits = prefetch = floats = longs = part = jit
