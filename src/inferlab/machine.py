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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from inferlab.errors import InferlabError
from inferlab.kernels.backends import cache_dir
from inferlab.theory.hardware import Hardware

__all__ = ["Machine", "cache_dir", "chosen", "cores", "hurried", "measure", "name", "numbers"]

# Far past any last-level cache that a single process gets to itself on a laptop.
READ_BYTES = 512 << 20
_BUDGET_SECONDS = 0.35  # for each reader and each format
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

    @property
    def ridge(self) -> dict[str, float]:
        """FLOP per byte at which computing takes as long as reading, by number format."""
        return {dtype: rate / self.bandwidth for dtype, rate in self.flops.items()}

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


def hurried() -> bool:
    """Return whether `INFERLAB_HURRY` is set: then each measurement is one run after its warm-ups.

    Tests of the notebooks set it, since they read no speed. Such numbers are neither kept nor
    recorded.
    """
    return bool(os.environ.get("INFERLAB_HURRY"))


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
    if hurried():
        return found
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
    reader_rates = {
        reader: READ_BYTES / _best(run, device) for reader, run in readers_of(device).items()
    }
    return Machine(
        name=name(),
        device=device,
        cores=cores(),
        memory_bytes=_memory_bytes(device),
        bandwidth=max(reader_rates.values()),
        readers=reader_rates,
        flops={
            format: operations / _best(run, device)
            for format, (operations, run) in products_of(device).items()
        },
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
    """Return the backend of a prefill, and of each op of a decode step, when kernels are auto."""
    from inferlab.kernels import ops

    return {"prefill": "torch"} | ops.choices(device)


def readers_of(device: str) -> dict[str, Callable[[], object]]:
    """Return the ways to read: each, when called, moves `READ_BYTES` once on `device`.

    A sum, a copy (half is read, half written), torch's matrix times vector, and on a CPU ours.
    """
    import torch

    from inferlab.kernels import ops

    columns = 4096
    # Drawing one random block and repeating it is far quicker than drawing all.
    block = torch.rand(READ_BYTES // 4 // columns // 32, columns, device=device)
    data, vector = block.repeat(32, 1), torch.rand(columns, device=device)
    half = data.view(2, -1)
    readers: dict[str, Callable[[], object]] = {
        "sum": data.sum,
        "copy": lambda: half[0].copy_(half[1]),
        "matrix-vector": lambda: torch.mv(data, vector),
    }
    if ops.choices(device)["matvec"] == "simd":
        readers["inferlab matvec"] = lambda: ops.matvec(data, vector[None], backend="simd")
    return readers


def products_of(device: str) -> dict[str, tuple[int, Callable[[], object]]]:
    """Return a square matrix product for each format that `device` has: operations, and a call."""
    import torch

    def product(dtype: torch.dtype, size: int) -> tuple[int, Callable[[], object]]:
        a, b = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
        return 2 * size**3, partial(torch.mm, a, b)

    if device == "cuda":
        found = {"fp32": product(torch.float32, 8192), "fp16": product(torch.float16, 8192)}
        # An older GPU emulates it; that would say nothing of the chip.
        if torch.cuda.get_device_capability() >= (8, 0):
            found["bf16"] = product(torch.bfloat16, 8192)
        return found
    found = {"fp32": product(torch.float32, 1024)}
    # A CPU without bfloat16 instructions would take seconds for a product of the same size.
    operations, run = product(torch.bfloat16, 128)
    if operations / min(_timed(run, device) for _ in range(3)) > 5e9:
        found["bf16"] = product(torch.bfloat16, 1024)
    return found


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


def _timed(run: Callable[[], object], device: str) -> float:
    import torch

    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _best(run: Callable[[], object], device: str) -> float:
    """Return the fewest seconds that `run` took, of as many runs as the budget allows."""
    _timed(run, device)  # the first one pays for pages, pools and clocks
    budget = 0 if hurried() else _BUDGET_SECONDS
    best, end = float("inf"), time.perf_counter() + budget
    while True:
        best = min(best, _timed(run, device))
        if time.perf_counter() > end:
            return best
