"""Every op on work of a telling size: its time by each backend here, and its traffic.

The sizes suit where they run: past every cache on a CPU and on a GPU, and small enough for Triton's
interpreter to count what a kernel moves, where the large sizes' proportions already show.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inferlab import machine
from inferlab.errors import InferlabError, unknown
from inferlab.kernels import backends, ops
from inferlab.kernels.quantised import BLOCK, FORMATS, FOUR_BITS, ROW_SCALED, Quantised
from inferlab.measure import clock, traffic

LIMIT = 1.05
"""Bytes that a memory-bound kernel may move, over the fewest that it must."""
_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_PAST_CACHES = {"cpu": 128 << 20, "cuda": 512 << 20}  # bytes of all copies of a case together
_MOST_COPIES = 64
_ROUNDS, _ROUND_SECONDS = 3, 0.07  # in which each backend has its turn


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
    peer: bool = True  # torch does it too, with no loop of ours around


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


def _chain(at: Place) -> Iterator[Case]:
    from inferlab.kernels.gpu import chain as gpu

    size = at.pick(1 << 18, 1 << 24, 1 << 27)

    def make() -> Work:
        x = torch.randn(size, device=at.device)
        return Work(lambda backend: ops.chain(x, 1, backend=backend), gpu.traffic(size), 3 * size)

    yield Case("chain", f"{size:,} numbers, 1 step", ("chain",), make)


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


def _rms_norm(at: Place) -> Iterator[Case]:
    from inferlab.kernels.gpu import rms_norm as gpu

    rows, size = at.pick(6144, 4096, 16384), at.pick(256, 4096, 4096)
    for residual in (False, True):

        def make(residual: bool = residual) -> Work:
            x, weight = at.draw(rows, size), at.draw(size)
            fewest = gpu.traffic(rows, size, x.element_size(), residual)
            if residual:
                y = at.draw(rows, size)
                return Work(
                    lambda backend: ops.add_rms_norm(x, y, weight, 1e-5, backend=backend),
                    fewest,
                    5 * x.numel(),
                )
            return Work(
                lambda backend: ops.rms_norm(x, weight, 1e-5, backend=backend),
                fewest,
                4 * x.numel(),
            )

        op = "add_rms_norm" if residual else "rms_norm"
        yield Case(op, f"{rows:,} rows of {size:,}", ("rms_norm",), make)


def _rope_and_cache(at: Place) -> Iterator[Case]:
    from inferlab.kernels.gpu import rope_and_cache as gpu

    rows, heads, kv_heads, size = at.pick(64, 1024, 8192), 32, 8, 128

    def make() -> Work:
        q, k, v = at.draw(rows, heads, size), *(at.draw(rows, kv_heads, size) for _ in range(2))
        angles = torch.randn(rows, size // 2, device=at.device)
        k_pages, v_pages = (k.new_empty(rows // 16, kv_heads, 16, size) for _ in range(2))
        table = torch.randperm(rows // 16, device=at.device).int()[None]
        start = torch.zeros(1, dtype=torch.int32, device=at.device)
        cos, sin = angles.cos(), angles.sin()
        return Work(
            lambda backend: ops.rope_and_cache(
                q, k, v, cos, sin, k_pages, v_pages, start, table, backend=backend
            ),
            gpu.traffic(rows, heads, kv_heads, size, size // 2, q.element_size()),
            6 * rows * (heads + kv_heads) * size // 2,
        )

    label = f"{rows:,} tokens, {heads} heads on {kv_heads}"
    yield Case("rope_and_cache", label, ("rope_and_cache",), make, peer=False)


def _matvec(at: Place) -> Iterator[Case]:
    from inferlab.kernels.gpu import matvec as gpu

    # As tall as a vocabulary: the vector is then little beside the matrix.
    rows, columns = at.pick(16384, 49152, 131072), at.pick(512, 576, 4096)
    for matrices in (1, 2):

        def make(matrices: int = matrices) -> Work:
            some = [at.draw(rows // matrices, columns) for _ in range(matrices)]
            x = at.draw(1, columns)
            run: Callable[..., Tensor] = ops.matvec if matrices == 1 else ops.swiglu
            return Work(
                lambda backend: run(*some, x, backend=backend),
                gpu.traffic(1, rows // matrices, columns, x.element_size(), matrices),
                2 * rows * columns,
            )

        op, many = ("matvec", "") if matrices == 1 else ("swiglu", "2 of ")
        yield Case(op, f"{many}{rows // matrices:,} × {columns}", ("matvec",), make)


def _quant_matvec(at: Place) -> Iterator[Case]:
    from inferlab.kernels.gpu import quant_matvec as gpu

    rows, columns = at.pick(2048, 49152, 131072), at.pick(1024, 576, 4096)
    kinds = [(1, form) for form in FORMATS] + [(2, "q4_1")]
    for matrices, form in kinds:

        def make(matrices: int = matrices, form: str = form) -> Work:
            some = [_codes(at, form, rows // matrices, columns) for _ in range(matrices)]
            x = at.draw(1, columns)
            kernel: Callable[..., Tensor] = ops.quant_matvec if matrices == 1 else ops.quant_swiglu

            def run(backend: str) -> Tensor:
                if at.name != "interpreter":
                    return kernel(*some, x, backend=backend)
                # So few programs that each takes as many rows as it does of a vocabulary.
                with _attribute(gpu, "PROGRAMS", 16):
                    return kernel(*some, x.half(), backend=backend)

            size = 2 if at.name == "interpreter" else x.element_size()
            fewest = gpu.traffic(1, rows // matrices, columns, form, size, matrices)
            return Work(run, fewest, 2 * rows * columns)

        op, many = ("quant_matvec", "") if matrices == 1 else ("quant_swiglu", "2 of ")
        label = f"{form}, {many}{rows // matrices:,} × {columns}"
        yield Case(op, label, ("quant_matvec",), make)


@contextlib.contextmanager
def _attribute(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Let a module's attribute have another value for a while."""
    kept = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, kept)


def _codes(at: Place, form: str, rows: int, columns: int) -> Quantised:
    """Return a quantised matrix of random codes, with weights like a model's."""
    half = torch.float16

    def scales(*shape: int) -> Tensor:
        return torch.rand(shape, device=at.device).mul(1e-3)

    if form == ROW_SCALED:
        codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8, device=at.device)
        return Quantised(form, codes, scales(rows))
    blocks = rows, columns // BLOCK
    if form not in FOUR_BITS:
        codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8, device=at.device)
        return Quantised(form, codes, scales(*blocks).to(half))
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, device=at.device)
    mins = -8 * scales(*blocks) if form == "q4_1" else None
    return Quantised(form, codes, scales(*blocks).to(half), None if mins is None else mins.to(half))


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
            if backend == "torch":
                return F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]
            pages = table if backend == "triton" else None
            return ops.decode_attention(q, k, v, seen, table=pages, backend=backend)

        return Work(run, fewest, 4 * heads * size * length)

    label = f"{heads} heads on {kv_heads}, {length:,} positions"
    yield Case("decode_attention", label, ("decode_attention",), make)


def _flash_attention(at: Place) -> Iterator[Case]:
    from inferlab.kernels.gpu import flash_attention as gpu

    heads, kv_heads, size = at.pick(2, 8, 32), at.pick(1, 2, 8), at.pick(64, 128, 128)
    tokens = at.pick(256, 1024, 8192)

    def make() -> Work:
        q = at.draw(1, tokens, heads, size)
        k, v = (at.draw(1, tokens, kv_heads, size) for _ in range(2))
        fewest = gpu.traffic(tokens, tokens, heads, kv_heads, size, q.element_size())
        start = torch.zeros(1, dtype=torch.int64, device=at.device)
        pairs = tokens * (tokens + 1) // 2  # of a query and a key that it sees

        def run(backend: str) -> Tensor:
            if backend == "torch":
                theirs = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
                return F.scaled_dot_product_attention(
                    theirs[0], theirs[1], theirs[2], is_causal=True, enable_gqa=True
                ).transpose(1, 2)
            return ops.flash_attention(q, k, v, offset=start, backend=backend)

        return Work(run, fewest, 4 * heads * size * pairs)

    label = f"{tokens:,} tokens, {heads} heads on {kv_heads}"
    yield Case("flash_attention", label, ("flash_attention",), make, memory_bound=False)


def _sample(at: Place) -> Iterator[Case]:
    from inferlab.kernels.gpu import sample as gpu

    if at.name == "interpreter":
        return  # triton-viz cannot follow Triton's random numbers
    rows, vocab = at.pick(1, 1, 8), at.pick(1, 49152, 131072)

    def make() -> Work:
        logits = 4 * at.draw(rows, vocab)
        ones = torch.ones(rows, dtype=torch.float64, device=at.device)
        ids = torch.arange(rows, device=at.device)
        top_k = torch.full_like(ids, 50)
        return Work(
            lambda backend: ops.sample(
                logits, 0.8 * ones, top_k, 0.9 * ones, 0 * ones, ids, ids, backend=backend
            ),
            gpu.traffic(rows, vocab, logits.element_size()),
            8 * rows * vocab,
        )

    label = f"{rows} of {vocab:,} logits, top-k and top-p"
    yield Case("sample", label, ("sample",), make, memory_bound=False, peer=False)


_CASES: tuple[Callable[[Place], Iterator[Case]], ...] = (
    _vector_add,
    _chain,
    _softmax,
    _matmul,
    _rms_norm,
    _rope_and_cache,
    _matvec,
    _quant_matvec,
    _decode_attention,
    _flash_attention,
    _sample,
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

    `good` says whether nothing lies outside the tensors, all that must move does, and, where memory
    is what bounds the kernel, at most `LIMIT` times as much.
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
        "good": not found.outside and 1 <= ratio <= (LIMIT if case.memory_bound else math.inf),
    }


def bench(
    names: Iterable[str] | None = None, *, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Time every case here, by each backend in turn, beside the memory and the matrix products.

    Times are medians in seconds with their raw samples. A fraction is that of the bandwidth, or for
    work bound by arithmetic of the rate of products, measured in between. Left out, unless they are
    named, are the ops that have no kernel of ours for this device.
    """
    at = place()
    own = ops.TRITON if at.device == "cuda" else ops.SIMD
    limits = _Limits(at)
    timed = []
    for case in cases(at, names):
        if names or case.op in own:
            say(f"{case.op}, {case.label}")
            timed.append(_time(case, at, limits))
    return {
        "device": at.device,
        "name": machine.name(),
        "dtype": _NAMES[at.dtype],
        "threads": torch.get_num_threads(),
        "bandwidth": machine.READ_BYTES / statistics.median(limits.reads),
        "product_rate": limits.product_flops / statistics.median(limits.products),
        "cases": timed,
    }


class _Limits:
    """This machine's two limits, measured again and again: seconds of each run, for all cases."""

    def __init__(self, at: Place) -> None:
        size = at.pick(0, 1024, 8192)
        a, b = at.draw(size, size), at.draw(size, size)
        readers = machine.readers_of(at.device).values()
        self.device = at.device
        self.product_flops = 2 * size**3
        self.product = lambda: a @ b
        self.reader = min(readers, key=lambda run: min(clock.samples(run, at.device, runs=2)))
        self.reads: list[float] = []
        self.products: list[float] = []
        self.measure()

    def measure(self) -> tuple[float, float]:
        """Read and multiply once; return bytes a second and FLOP/s."""
        self.reads += clock.samples(self.reader, self.device, runs=1, warm_ups=1)
        self.products += clock.samples(self.product, self.device, runs=3, warm_ups=1)
        product = statistics.median(self.products[-3:])
        return machine.READ_BYTES / self.reads[-1], self.product_flops / product


def _time(case: Case, at: Place, limits: _Limits) -> dict[str, Any]:
    first = case.make()
    copies = min(_MOST_COPIES, max(1, _PAST_CACHES[at.device] // first.bytes))
    works = [first, *(case.make() for _ in range(copies - 1))]
    samples: dict[str, list[float]] = {backend: [] for backend in _backends(case, at)}
    for backend in samples:
        first.run(backend)  # pays for the compiler
    reached = []
    for _ in range(_ROUNDS):
        reached.append(limits.measure())
        for backend, taken in samples.items():
            launches = [lambda work=work, backend=backend: work.run(backend) for work in works]
            taken += clock.per_launch(launches, at.device, seconds=_ROUND_SECONDS)
    bandwidth, product = (statistics.median(rates) for rates in zip(*reached, strict=True))
    sides = {}
    for backend, taken in samples.items():
        seconds = statistics.median(taken)
        rates = first.bytes / seconds, first.flops / seconds
        sides[backend] = {
            "seconds": seconds,
            "bytes_per_second": rates[0],
            "flops_per_second": rates[1],
            "fraction": rates[0] / bandwidth if case.memory_bound else rates[1] / product,
            "samples": taken,
        }
    return {
        "op": case.op,
        "label": case.label,
        "bytes": first.bytes,
        "flops": first.flops,
        "memory_bound": case.memory_bound,
        "backends": sides,
    }


def _backends(case: Case, at: Place) -> list[str]:
    """Return what can run a case here: our kernel, if there is one, and torch."""
    if at.device == "cuda":
        ours = ["triton"] if case.op in ops.TRITON and backends.has_triton() else []
    else:
        ours = ["simd"] if case.op in ops.SIMD and backends.has_numba() else []
    return [*ours, "torch"] if case.peer or not ours else ours
