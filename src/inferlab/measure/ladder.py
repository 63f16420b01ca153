"""The same two loops, run ever better: a dot product and a matrix product up the ladder.

`dot` and `matmul` are plain Python. The first rung runs them as they are; numba compiles them for
the next ones; the last asks a library for the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from inferlab import machine
from inferlab.errors import InferlabError, unknown
from inferlab.kernels import backends
from inferlab.kernels.cpu import inspect
from inferlab.kernels.cpu.team import physical_cores
from inferlab.measure import clock

RUNGS = ("Python loop", "compiled", "SIMD lanes", "threads", "BLAS")
PROBLEMS = ("dot", "matmul")
_PYTHON_STEPS = 1 << 17  # as many as a Python loop does in some hundredths of a second
_LINE = 64  # bytes that a CPU fetches at a time


@dataclass(frozen=True)
class Rung:
    """One way to run a loop: its operations per second, or None and what it lacks here."""

    name: str
    flops: float | None
    lacks: str = ""


class Limits(NamedTuple):
    """What this CPU can do at best: bytes per second from memory, fp32 operations per second."""

    bandwidth: float
    flops: float


def dot(a, b, total):  # type: ignore[no-untyped-def]
    """Add the products of two rows to `total`."""
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


def matmul(dot, a, columns, out):  # type: ignore[no-untyped-def]
    """Add A times B to `out`; B comes column by column."""
    for i in range(len(a)):
        for j in range(len(columns)):
            out[i][j] = dot(a[i], columns[j], out[i][j])


def chase(following, steps):  # type: ignore[no-untyped-def]
    """Follow a chain of places: each load says where the next one goes."""
    at = 0
    for _ in range(steps):
        at = following[at]
    return at


def limits(rows: Sequence[Rung] = (), products: Sequence[Rung] = ()) -> Limits:
    """Return the CPU's own limits, also where there is a GPU: its readers, its best product.

    `rows` are the rungs of a long dot product and `products` those of a matrix product: what they
    read and did a second counts too, if it was more.
    """
    import torch

    readers = machine.readers_of("cpu").values()
    read = [machine.READ_BYTES / _best(run, 0.2) for run in readers]
    a, b = torch.rand(2, 1024, 1024)
    done = [2 * 1024**3 / _best(lambda: a @ b, 0.4)]
    # A step of the dot product reads two numbers of 4 bytes for its 2 operations.
    read += [4 * rung.flops for rung in rows if rung.flops]
    done += [rung.flops for rung in products if rung.flops]
    return Limits(max(read), max(done))


def instructions(*, lanes: bool) -> list[str]:
    """Return the inner loop of `dot` in this CPU's instructions.

    With `lanes` as compiled for the third rung, else as for the second. Raises InferlabError
    without numba.
    """
    loop = compiled(dot, lanes=lanes)
    import numba

    row, number = numba.float32[::1], numba.float32
    return inspect.busiest_loop(loop, (row, row, number))


def compiled(loop: Callable[..., Any], *, lanes: bool) -> Any:
    """Return `loop` compiled by numba; only with `lanes` may the order of its additions change.

    Raises InferlabError without numba.
    """
    if not backends.has_numba():
        raise InferlabError("loops cannot be compiled: numba is not installed (or hidden)")
    return _compile(loop, lanes)


@cache
def _compile(loop: Callable[..., Any], lanes: bool) -> Any:
    import numba

    from inferlab.kernels.cpu.jit import OPTIONS

    return numba.njit(**(OPTIONS | ({} if lanes else {"fastmath": False})))(loop)


def climb(problem: str, size: int, *, seconds: float = 0.25) -> list[Rung]:
    """Time each rung and return them in order, the best run of those that fit into `seconds`.

    `problem` "dot" takes two rows of `size` fp32 numbers, "matmul" two square matrices of that
    side. The Python loop does a part of the work.
    """
    if problem not in PROBLEMS:
        raise unknown("problem", problem, PROBLEMS)
    if size < 1:
        raise InferlabError(f"size is {size}: it must be at least 1")
    ways = _dots(size) if problem == "dot" else _products(size)
    return [_rung(name, ways, seconds) for name in RUNGS]


def latency(size: int = 256 << 20, steps: int = 1 << 18) -> float:
    """Return the seconds that one load from memory takes when nothing can be fetched ahead.

    A chain runs through `size` bytes in random order, one number a cache line. Looking up the
    page is part of it. Raises InferlabError without numba.
    """
    lines = size // _LINE
    order = np.random.default_rng(0).permutation(lines) * (_LINE // 8)
    following = np.zeros(lines * (_LINE // 8), np.int64)
    following[order] = np.roll(order, -1)
    run = compiled(chase, lanes=True)
    run(following, 1)
    return _best(lambda: run(following, steps), 0.0) / steps


def _rung(name: str, ways: dict[str, tuple[float, Callable[[], object]]], seconds: float) -> Rung:
    if name not in ways:
        return Rung(name, None, "numba")
    flops, run = ways[name]
    return Rung(name, flops / _best(run, seconds))


def _dots(size: int) -> dict[str, tuple[float, Callable[[], object]]]:
    import torch

    a, b = torch.rand(2, size)
    few = min(size, _PYTHON_STEPS)
    x, y = a[:few].tolist(), b[:few].tolist()
    ways: dict[str, tuple[float, Callable[[], object]]] = {
        "Python loop": (2.0 * few, lambda: dot(x, y, 0.0)),
        "BLAS": (2.0 * size, lambda: torch.dot(a, b)),
    }
    if backends.has_numba():
        zero, plain, wide = np.float32(0), *(compiled(dot, lanes=lanes) for lanes in (False, True))
        pairs = list(zip(_parts(a.numpy()), _parts(b.numpy()), strict=True))
        ways |= {
            "compiled": (2.0 * size, lambda: plain(a.numpy(), b.numpy(), zero)),
            "SIMD lanes": (2.0 * size, lambda: wide(a.numpy(), b.numpy(), zero)),
            "threads": (
                2.0 * size,
                lambda: sum(_together(lambda pair: wide(*pair, zero), pairs)),
            ),
        }
    return ways


def _products(size: int) -> dict[str, tuple[float, Callable[[], object]]]:
    import torch

    a, b = torch.rand(2, size, size)
    flops, out = 2.0 * size**3, torch.empty(size, size)
    few = max(1, min(size, _PYTHON_STEPS // size**2))  # rows of the result
    wide = max(1, min(size, _PYTHON_STEPS // size // few))  # columns of it
    x, y = a[:few].tolist(), b.T[:wide].tolist()
    partly = [[0.0] * wide for _ in range(few)]
    ways: dict[str, tuple[float, Callable[[], object]]] = {
        "Python loop": (2.0 * few * wide * size, lambda: matmul(dot, x, y, partly)),
        "BLAS": (flops, lambda: torch.mm(a, b, out=out)),
    }
    if backends.has_numba():
        rows, columns = a.numpy(), b.T.contiguous().numpy()
        sums = np.zeros_like(rows)
        parts = list(zip(_parts(rows), _parts(sums), strict=True))

        def run(lanes: bool, rows: Any, sums: Any) -> None:
            compiled(matmul, lanes=lanes)(compiled(dot, lanes=lanes), rows, columns, sums)

        ways |= {
            "compiled": (flops, lambda: run(False, rows, sums)),
            "SIMD lanes": (flops, lambda: run(True, rows, sums)),
            "threads": (flops, lambda: _together(lambda part: run(True, *part), parts)),
        }
    return ways


def _parts(rows: Any) -> Sequence[Any]:
    return np.array_split(rows, physical_cores())


def _together(work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """Do each part in a thread of its own; compiled loops run without the GIL."""
    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(work, parts))


def _best(run: Callable[[], object], seconds: float) -> float:
    """Return the fewest seconds of a run: other work on the machine only ever adds to it."""
    return min(clock.samples(run, "cpu", seconds=seconds, warm_ups=1))
