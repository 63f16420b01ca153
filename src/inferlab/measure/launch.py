"""What it costs to ask: the seconds of an operation that has next to nothing to do."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_CALLS = 1000


def seconds() -> dict[str, float]:
    """Return seconds an operation, by the way it is asked for, on a GPU if there is one.

    "called": torch's addition on one number, called from Python as fast as it goes. "in a graph"
    (on a GPU): the same launches recorded once and replayed together.
    """
    cuda = torch.cuda.is_available()
    number = torch.ones(1, device="cuda" if cuda else "cpu")

    def call() -> None:
        for _ in range(_CALLS):
            number.add_(1.0)

    found = {"called": _best(call) / _CALLS}
    if cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        found["in a graph"] = _best(graph.replay) / _CALLS
    return found


def _best(run: Callable[[], object], runs: int = 7) -> float:
    def timed() -> float:
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return min(timed() for _ in range(runs))
