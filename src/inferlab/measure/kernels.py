"""Every op on work of a telling size: its time by each backend here, and its traffic.

The sizes suit where they run: past every cache on a CPU and on a GPU, and small enough for Triton's
interpreter to count what a kernel moves, where the large sizes' proportions already show.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inferlab import machine
from inferlab.errors import InferlabError, unknown
from inferlab.kernels import backends, ops
from inferlab.measure import clock, traffic

LIMIT = 1.05
"""Bytes that a memory-bound kernel may move, over the fewest that it must."""
_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_PAST_CACHES = {"cpu": 128 << 20, "cuda": 512 << 20}  # bytes of all copies of a case together
_MOST_COPIES = 64


@dataclass(frozen=True)
class Work:
    """One call of an op on tensors of its own, and the least that it costs."""

    run: Callable[[str], Any]  # takes the backend
    bytes: int
    flops: int


@dataclass(frozen=True)
class Case:
    """An op at one size. `make` draws its tensors."""

    op: str
    label: str
    modules: tuple[str, ...]  # of `kernels.gpu`, whose kernels it launches
    make: Callable[[], Work]
    memory_bound: bool = True


@dataclass(frozen=True)
class Place:
    """Where cases run: "cpu", "cuda", or "interpreter", which is a CPU that takes its time."""

    name: str
    dtype: torch.dtype

    @property
    def device(self) -> str:
        """What torch calls it."""
        return "cuda" if self.name == "cuda" else "cpu"

    def pick(self, interpreter: int, cpu: int, cuda: int) -> int:
        """Return the size that suits the place."""
        return {"interpreter": interpreter, "cpu": cpu, "cuda": cuda}[self.name]

    def draw(self, *shape: int) -> Tensor:
        """Return random numbers: on zeros a GPU is faster than it is."""
        return torch.randn(shape, device=self.device).to(self.dtype)


def _vector_add(at: Place) -> Iterator[Case]:
    from inferlab.kernels.gpu import vector_add as gpu

    size = at.pick(1 << 18, 1 << 23, 1 << 26)

    def make() -> Work:
        a, b = at.draw(size), at.draw(size)
        fewest = gpu.traffic(size, a.element_size())
        return Work(lambda backend: ops.vector_add(a, b, backend=backend), fewest, size)

    yield Case("vector_add", f"{size:,} numbers", ("vector_add",), make)


def _softmax(at: Place) -> Iterator[Case]:
    from inferlab.kernels.gpu import softmax as gpu

    for columns in (4096, 4097):
        rows = at.pick(32, 2048, 16384)

        def make(rows: int = rows, columns: int = columns) -> Work:
            x = at.draw(rows, columns)
            fewest = gpu.traffic(rows, columns, x.element_size())
            return Work(lambda backend: ops.softmax(x, backend=backend), fewest, 5 * x.numel())

        yield Case("softmax", f"{rows:,} rows of {columns:,}", ("softmax",), make)


def _matmul(at: Place) -> Iterator[Case]:
    from inferlab.kernels.gpu import matmul as gpu

    size = at.pick(256, 1024, 8192)

    def make() -> Work:
        a, b = at.draw(size, size), at.draw(size, size)
        fewest = gpu.traffic(size, size, size, a.element_size())
        return Work(lambda backend: ops.matmul(a, b, backend=backend), fewest, 2 * size**3)

    yield Case("matmul", f"{size:,} square", ("matmul",), make, memory_bound=False)


def _decode_attention(at: Place) -> Iterator[Case]:
    from inferlab.kernels.gpu import decode_attention as gpu

    heads, kv_heads, size = at.pick(8, 32, 32), at.pick(2, 8, 8), 128
    length = at.pick(1024, 4096, 32768)

    def make() -> Work:
        q = at.draw(1, heads, size)
        k, v = (at.draw(1, kv_heads, length, size) for _ in range(2))
        seen = torch.full((1,), length, device=at.device)
        table = torch.zeros(1, 1, dtype=torch.int32, device=at.device)
        fewest = gpu.traffic(length, heads, kv_heads, size, q.element_size())

        def run(backend: str) -> Tensor:
            pages = table if backend == "triton" else None
            return ops.decode_attention(q, k, v, seen, table=pages, backend=backend)

        return Work(run, fewest, 4 * heads * size * length)

    label = f"{heads} heads on {kv_heads}, {length:,} positions"
    yield Case("decode_attention", label, ("decode_attention",), make)


_CASES: tuple[Callable[[Place], Iterator[Case]], ...] = (
    _vector_add,
    _softmax,
    _matmul,
    _decode_attention,
)


def cases(at: Place, names: Iterable[str] | None = None) -> list[Case]:
    """Return the cases of the ops called `names`, or of all. Raises InferlabError for others."""
    every = [case for of_op in _CASES for case in of_op(at)]
    known = {case.op for case in every}
    for name in names or ():
        if name not in known:
            raise unknown("op", name, known)
    return [case for case in every if not names or case.op in names]


def place(device: str | None = None) -> Place:
    """Return where this machine runs kernels, with the number format that it is best at."""
    if (device or ("cuda" if torch.cuda.is_available() else "cpu")) == "cpu":
        return Place("cpu", torch.float32)
    modern = torch.cuda.get_device_capability() >= (8, 0)
    return Place("cuda", torch.bfloat16 if modern else torch.float16)


def counted(names: Iterable[str] | None = None) -> list[Case]:
    """Return the cases that `count` takes. Raises InferlabError where it cannot count."""
    if reason := traffic.why_not():
        raise InferlabError(reason)
    return cases(Place("interpreter", torch.float32), names)


def count(case: Case) -> dict[str, Any]:
    """Return what a case's Triton kernels load and store in the interpreter, and the fewest bytes.

    `good` says whether nothing lies outside the tensors and, where memory is what bounds the
    kernel, whether it moves at most `LIMIT` times the fewest.
    """
    modules = [importlib.import_module(f"inferlab.kernels.gpu.{name}") for name in case.modules]
    work = case.make()
    with traffic.counting(*modules) as found:
        work.run("triton")
    ratio = found.bytes / work.bytes
    return {
        "op": case.op,
        "label": case.label,
        "fewest_bytes": work.bytes,
        "loaded_bytes": found.loaded,
        "stored_bytes": found.stored,
        "outside_bytes": found.outside,
        "ratio": ratio,
        "memory_bound": case.memory_bound,
        "good": not found.outside and (ratio <= LIMIT or not case.memory_bound),
    }


def bench(
    names: Iterable[str] | None = None, *, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Time every case here, by each backend in turn, beside the memory and the matrix products.

    Times are medians in seconds with their raw samples; a fraction is that of the bandwidth, or for
    work bound by arithmetic of the rate of products, measured in this run. Left out, unless they
    are named, are the ops that have no kernel of ours for this device.
    """
    at = place()
    own = ops.TRITON if at.device == "cuda" else ops.SIMD
    some = [case for case in cases(at, names) if names or case.op in own]
    say("reading memory, multiplying matrices")
    bandwidth, product = _bandwidth(at.device), _product_rate(at)
    return {
        "device": at.device,
        "name": machine.name(),
        "dtype": _NAMES[at.dtype],
        "threads": torch.get_num_threads(),
        "bandwidth": bandwidth,
        "product_rate": product,
        "cases": [_time(case, at, bandwidth, product, say) for case in some],
    }


def _time(
    case: Case, at: Place, bandwidth: float, product: float, say: Callable[[str], None]
) -> dict[str, Any]:
    say(f"{case.op}, {case.label}")
    first = case.make()
    copies = min(_MOST_COPIES, max(1, _PAST_CACHES[at.device] // first.bytes))
    works = [first, *(case.make() for _ in range(copies - 1))]
    sides = {}
    for backend in _backends(case.op, at):
        launches = [lambda work=work, backend=backend: work.run(backend) for work in works]
        samples = clock.per_launch(launches, at.device, seconds=0.2)
        seconds = statistics.median(samples)
        reached = first.bytes / seconds / bandwidth
        if not case.memory_bound:
            reached = first.flops / seconds / product
        sides[backend] = {
            "seconds": seconds,
            "bytes_per_second": first.bytes / seconds,
            "flops_per_second": first.flops / seconds,
            "fraction": reached,
            "samples": samples,
        }
    return {
        "op": case.op,
        "label": case.label,
        "bytes": first.bytes,
        "flops": first.flops,
        "memory_bound": case.memory_bound,
        "backends": sides,
    }


def _backends(op: str, at: Place) -> list[str]:
    """Return what can run an op here: our kernel, if there is one, and torch."""
    if at.device == "cuda":
        ours = ["triton"] if op in ops.TRITON and backends.has_triton() else []
    else:
        ours = ["simd"] if op in ops.SIMD and backends.has_numba() else []
    return [*ours, "torch"]


def _bandwidth(device: str) -> float:
    readers = machine.readers_of(device).values()
    times = [statistics.median(clock.samples(run, device, seconds=0.3)) for run in readers]
    return machine.READ_BYTES / min(times)


def _product_rate(at: Place) -> float:
    size = at.pick(0, 1024, 8192)
    a, b = at.draw(size, size), at.draw(size, size)
    times = clock.samples(lambda: a @ b, at.device, seconds=0.3)
    return 2 * size**3 / statistics.median(times)
