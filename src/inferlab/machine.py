"""This machine's two numbers, bytes per second and operations per second, and its backends.

Both are measured, in under three seconds, and kept in the cache folder. Bandwidth is the best of
several readers, since each alone misses some of it; operations are those of a large matrix
product in each number format.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.kernels.backends import cache_dir
from inferlab.theory.hardware import Hardware

__all__ = ["Machine", "cache_dir", "chosen", "cores", "measure", "name", "numbers"]

# Far past any last-level cache that a single process gets to itself on a laptop.
READ_BYTES = 512 << 20
_BUDGET_SECONDS = 0.5  # for each reader and each format
_FILE = "machine.json"


@dataclass(frozen=True)
class Machine:
    """What one measurement found. `measured_at` is in seconds since 1970."""

    name: str
    device: str  # "cpu" or "cuda"
    cores: int
    memory_bytes: int
    bandwidth: float  # bytes/s, the best of `readers`
    readers: Mapping[str, float]  # bytes/s that each way of reading reached
    flops: Mapping[str, float]  # FLOP/s of the best matrix product, by number format
    backends: Mapping[str, str]  # what runs each op
    measured_at: float

    def hardware(self) -> Hardware:
        """Return this machine as a chip of the catalog, for `roofline.place`."""
        return Hardware(
            key="this-machine",
            name=self.name,
            flops=self.flops,
            bandwidth=self.bandwidth,
            memory_bytes=self.memory_bytes,
            source="measured on this machine",
        )


def numbers(refresh: bool = False) -> Machine:
    """Return this machine's numbers: those of the cache folder, or new ones with `refresh`."""
    path = cache_dir() / _FILE
    if not refresh:
        try:
            kept = Machine(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            pass  # none yet, or written by another version
        else:
            if (kept.name, kept.backends) == (name(), chosen(kept.device)):
                return kept
    found = measure()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(found), indent=2), encoding="utf-8")
    except OSError:
        pass  # a read-only home only means measuring again
    return found


def measure() -> Machine:
    """Measure this machine now. Raises InferlabError if there is no torch to do it with."""
    try:
        import torch
    except ImportError as error:
        raise InferlabError("measuring needs torch: pip install 'inferlab[engine]'") from error

    device = "cuda" if torch.cuda.is_available() else "cpu"
    readers = {reader: READ_BYTES / best for reader, best in _readers(device)}
    return Machine(
        name=name(),
        device=device,
        cores=cores(),
        memory_bytes=_memory_bytes(device),
        bandwidth=max(readers.values()),
        readers=readers,
        flops=dict(_products(device)),
        backends=chosen(device),
        measured_at=time.time(),
    )


def name() -> str:
    """Return what runs the kernels, such as "NVIDIA H200" or "AMD EPYC 7763, 2 cores"."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    count = cores()
    return f"{_cpu()}, {count} {'core' if count == 1 else 'cores'}"


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chosen(device: str) -> dict[str, str]:
    """Return what runs each kind of pass on `device` when `kernels` is auto."""
    simd = device == "cpu" and backends.has_numba()
    return {"prefill": "torch", "decode": "simd" if simd else "torch"}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory_bytes(device: str) -> int:
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(0).total_memory)
    import psutil

    return int(psutil.virtual_memory().total)


def _readers(device: str) -> Iterator[tuple[str, float]]:
    """Yield (reader, seconds to move READ_BYTES): a sum, a copy, and matrix times vector."""
    import torch

    columns = 4096
    data = torch.rand(READ_BYTES // 4 // columns, columns, device=device)
    vector = torch.rand(columns, device=device)
    half = data.view(2, -1)
    yield "sum", _best(lambda: data.sum(), device)
    yield "copy", _best(lambda: half[0].copy_(half[1]), device)
    yield "matrix-vector", _best(lambda: torch.mv(data, vector), device)


def _products(device: str) -> Iterator[tuple[str, float]]:
    """Yield (format, FLOP/s) of a square matrix product."""
    import torch

    size = 8192 if device == "cuda" else 1024
    formats = {"fp32": torch.float32}
    if device == "cuda":
        formats["fp16"] = torch.float16
        if torch.cuda.is_bf16_supported(including_emulation=False):
            formats["bf16"] = torch.bfloat16
    for key, dtype in formats.items():
        a, b = (torch.rand(size, size, device=device, dtype=dtype) for _ in range(2))
        yield key, 2 * size**3 / _best(partial(torch.mm, a, b), device)


def _best(run: Callable[[], object], device: str) -> float:
    """Return the fewest seconds that `run` took, of as many runs as the budget allows."""
    import torch

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    run()  # the first one pays for pages, pools and clocks
    wait()
    best, end = float("inf"), time.perf_counter() + _BUDGET_SECONDS
    while True:
        start = time.perf_counter()
        run()
        wait()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return best
