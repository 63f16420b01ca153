"""The clock on work that is repeated: the first runs are left out, all others are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from inferlab import machine
from inferlab.engine.graphs import Graph, Launch

WARM_UPS = 2
"""Runs before the clock starts: they pay for compilers, pools, pages and clock rates."""
MOST = 200
_FEWEST = 3


def samples(
    run: Callable[[], object],
    device: str,
    *,
    seconds: float = 0.3,
    runs: int | None = None,
    most: int = MOST,
    warm_ups: int = WARM_UPS,
) -> list[float]:
    """Return the seconds of each of several runs, until the GPU is done too.

    As many as fit into `seconds`, at least three and at `most` so many, or `runs` of them, or one
    where `machine.hurried`; `warm_ups` more come first.
    """
    if machine.hurried():
        runs = 1
    for _ in range(warm_ups):
        once(run, device)
    found: list[float] = []
    while len(found) < (runs or most):
        found.append(once(run, device))
        if runs is None and len(found) >= _FEWEST and sum(found) > seconds:
            break
    return found


def once(run: Callable[[], object], device: str) -> float:
    """Return the seconds of one run, until the GPU is done too."""
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def per_launch(launches: Sequence[Launch], device: str, *, seconds: float = 0.3) -> list[float]:
    """Return the seconds of one launch, on average over `launches`, once for each run of them.

    They do the same work in different memory, more of it than a cache holds, so that each finds
    its data far away. On a GPU they run as one graph: what is measured is the GPU and not Python.
    """
    count = len(launches)
    if device != "cuda":
        return [
            s / count for s in samples(lambda: [run() for run in launches], device, seconds=seconds)
        ]
    graph = Graph(launches, torch.device(device))
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run() -> float:
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    for _ in range(WARM_UPS):
        run()
    found: list[float] = []
    while len(found) < _FEWEST or (sum(found) < seconds and len(found) < MOST):
        found.append(run())
    return [s / count for s in found]
