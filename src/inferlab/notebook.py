"""What the first cell of every notebook calls: this machine by name, what is live, what is recorded."""

from __future__ import annotations

import importlib.util
import os
import platform
from importlib import resources
from pathlib import Path

from inferlab import __version__
from inferlab.figures import style


def setup() -> None:
    """Give figures the book's look, and print which machine runs the cells that follow."""
    style.use()
    _same_bytes_for_the_same_figure()
    names = recorded()
    print(f"inferlab {__version__} on {device()}")
    print(f"Live on this machine: every cell. {_kernels()}")
    print(f"Recorded: {', '.join(names) if names else 'no other machine yet'}")


def device() -> str:
    """Return this machine's name as a reader knows it, such as "AMD EPYC 7763, 2 cores"."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = f"{_cpu()}, {cores} {'core' if cores == 1 else 'cores'}"
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            return f"{torch.cuda.get_device_name()} ({name})"
    return name


def recorded() -> list[str]:
    """Return the names of the machines whose measurements came with the package."""
    folder = resources.files("inferlab.records")
    return sorted(Path(f.name).stem for f in folder.iterdir() if f.name.endswith(".json"))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _kernels() -> str:
    found = [name for name in ("numba", "triton") if importlib.util.find_spec(name)]
    return f"Kernels: torch{''.join(f', {name}' for name in found)}."


def _same_bytes_for_the_same_figure() -> None:
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return  # no notebook around
    set_matplotlib_formats("svg", metadata={"Date": None})
