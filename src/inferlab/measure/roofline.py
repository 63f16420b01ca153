"""Measure a roofline: kernels of rising intensity, the clock on each, and what leaves the roof.

Two families climb. A chain of multiply-adds on every number of a long array does as many operations
for each byte as one asks of it; a matrix meets ever more rows at once, as a model's matrices do.
`samples` times both, `beside` times what one memory level and one peak cannot explain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from inferlab import machine
from inferlab.errors import InferlabError
from inferlab.kernels import backends, ops

#: Multiply-adds on each number, and rows that the matrix meets.
STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
GPU_ROWS = (*ROWS, 256, 512, 1024, 2048, 4096)
_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}  # of the array and of the matrix: past every cache
_COLUMNS = {"cpu": 4096, "cuda": 8192}
_ROUNDS = 64  # so that starting the threads is little beside them
_NEAR_BYTES = 4 << 20  # stays in a CPU's last cache once it has been read
_ENOUGH_SECONDS, _FEWEST_RUNS, _MOST_RUNS = 0.25, 3, 20

#: What a reader calls each family, and each thing beside them.
LABELS = {
    "chain": "chains of multiply-adds",
    "matmul": "a matrix and its rows",
    "near": "from a cache",
    "lone": "one chain at a time",
    "small": "tiny products",
}

Sweep = dict[str, Any]


def samples(
    device: str | None = None, *, quick: bool = False, megabytes: float | None = None
) -> dict[str, Sweep]:
    """Return the times of both families on `device`, by default the GPU if there is one.

    {"chain": sweep, "matmul": sweep}; "chain" only where numba or Triton compiles it. A sweep has
    the number format of its arithmetic, `dtype`; what grows, `at`; and for each point `flops`,
    `bytes` (the fewest that it can move) and the raw `samples` in seconds. `quick` halves the
    points; array and matrix take `megabytes`, or more than any cache holds.
    """
    device = _device(device)
    if megabytes is not None and megabytes <= 0:
        raise InferlabError(f"megabytes is {megabytes}: it must be above 0")
    size = round(megabytes * 1e6) if megabytes else _BYTES[device]
    every = 2 if quick else 1
    found = {}
    if _compiles_chains(device):
        found["chain"] = _chains(device, size, STEPS[::every])
    rows = GPU_ROWS if device == "cuda" else ROWS
    found["matmul"] = _products(device, size, rows[::every])
    return found


def beside(device: str | None = None) -> dict[str, Sweep]:
    """Return work that the plain roofline gets wrong, each a sweep of few points, as `samples`.

    "near" are chains over an array small enough to stay in a cache, above the slanted roof;
    "lone" are chains with one vector in flight at a time, below the flat one (SIMD only);
    "small" are matrix products so small that starting them takes longer than doing them.
    """
    device = _device(device)
    found, near = {}, _NEAR_BYTES
    if device == "cuda":
        near = torch.cuda.get_device_properties(0).L2_cache_size // 2
    if _compiles_chains(device):
        found["near"] = _chains(device, near, (0, 1, 2), rounds=_ROUNDS if device == "cpu" else 1)
        if device == "cpu":
            found["lone"] = _chains(device, near, (64, 128), lone=True)
    found["small"] = _small(device, (16, 32, 64))
    return found


def points(sweep: Sweep, of: Callable[[Sequence[float]], float] = min) -> list[tuple[float, float]]:
    """Return (intensity in FLOP/B, FLOP/s) of each point of a sweep, by its best time or `of`."""
    return [
        (flops / moved, flops / of(times))
        for flops, moved, times in zip(
            sweep["flops"], sweep["bytes"], sweep["samples"], strict=True
        )
    ]


def rings(
    found: Mapping[str, Sweep], of: Callable[[Sequence[float]], float] = min
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return `points` of every sweep by the format of its arithmetic, then by its label.

    Sweeps of one format share a roof, so each format is a picture: {"fp32": {label: points}}.
    """
    shown: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, sweep in found.items():
        shown.setdefault(sweep["dtype"], {})[LABELS[name]] = points(sweep, of)
    return shown


def _device(name: str | None) -> str:
    there = torch.cuda.is_available()
    if name not in (None, "cpu", "cuda"):
        raise InferlabError(f"device is {name!r}: it must be cpu or cuda")
    if name == "cuda" and not there:
        raise InferlabError("device cuda: torch finds no GPU here")
    return name or ("cuda" if there else "cpu")


def _compiles_chains(device: str) -> bool:
    return backends.has_triton() if device == "cuda" else backends.has_numba()


def _chains(
    device: str, size: int, steps: Sequence[int], *, lone: bool = False, rounds: int = 1
) -> Sweep:
    count = size // 4
    x = _random(count, device=device)
    return _sweep(
        "fp32",
        {
            k: (
                (2 * k + 1) * count * rounds,
                4 * count * rounds,
                partial(ops.chain, x, k, lone=lone, rounds=rounds),
            )
            for k in steps
        },
        device,
    )


def _products(device: str, size: int, rows: Sequence[int]) -> Sweep:
    """Time one matrix with ever more rows, by the kernels that the engine would take."""
    dtype, name = torch.float32, "fp32"
    if device == "cuda":
        modern = torch.cuda.get_device_capability() >= (8, 0)
        dtype, name = (torch.bfloat16, "bf16") if modern else (torch.float16, "fp16")
    k = _COLUMNS[device]
    n = max(1, size // dtype.itemsize // k)
    weight = _random(n, k, device=device).to(dtype)
    work = {}
    for b in rows:
        x = _random(b, k, device=device).to(dtype)
        moved = dtype.itemsize * (n * k + b * k + b * n)
        work[b] = (2 * b * n * k, moved, partial(ops.matvec, weight, x))
    return _sweep(name, work, device)


def _small(device: str, sides: Sequence[int]) -> Sweep:
    work = {}
    for n in sides:
        a, b = _random(2, n, n, device=device)
        work[n] = (2 * n**3, 3 * 4 * n**2, partial(torch.mm, a, b))
    return _sweep("fp32", work, device)


def _random(*shape: int, device: str) -> torch.Tensor:
    """Return random numbers: zeros run faster than any model does."""
    count = torch.Size(shape).numel()
    # Drawing one block and repeating it is far quicker than drawing all.
    block = torch.rand(min(count, 1 << 20), device=device)
    return block.repeat(-(-count // block.numel()))[:count].view(shape)


def _sweep(
    dtype: str, work: Mapping[int, tuple[int, int, Callable[[], object]]], device: str
) -> Sweep:
    return {
        "dtype": dtype,
        "at": list(work),
        "flops": [flops for flops, _, _ in work.values()],
        "bytes": [moved for _, moved, _ in work.values()],
        "samples": [_samples(run, device) for _, _, run in work.values()],
    }


def _samples(run: Callable[[], object], device: str) -> list[float]:
    """Return the seconds of each run: at least 3 after one that warms up, then as time allows.

    One is enough where `machine.hurried`.
    """
    _seconds(run, device)
    if machine.hurried():
        return [_seconds(run, device)]
    found: list[float] = []
    while len(found) < _MOST_RUNS and (len(found) < _FEWEST_RUNS or sum(found) < _ENOUGH_SECONDS):
        found.append(_seconds(run, device))
    return found


def _seconds(run: Callable[[], object], device: str) -> float:
    if device == "cuda":
        # The GPU's own clock: what it takes to start a kernel is no part of it.
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
