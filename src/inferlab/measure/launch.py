"""What it costs to ask: the seconds of an operation that has next to nothing to do."""

from __future__ import annotations

import torch

from inferlab.engine.graphs import Graph
from inferlab.measure import clock

_CALLS = 1000


def samples() -> dict[str, list[float]]:
    """Return seconds an operation, run by run, by the way it is asked for.

    "from Python": torch's addition on one number, called as fast as it goes. "in a graph" (on a
    GPU): the same launches recorded once and replayed together.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    number = torch.ones(1, device=device)

    def call() -> None:
        for _ in range(_CALLS):
            number.add_(1.0)

    ways = {"from Python": call}
    if device == "cuda":
        ways["in a graph"] = Graph([call], torch.device(device)).replay
    return {
        way: [seconds / _CALLS for seconds in clock.samples(run, device)]
        for way, run in ways.items()
    }


def seconds() -> dict[str, float]:
    """Return the best of `samples`: other work on the machine only ever adds to it."""
    return {way: min(times) for way, times in samples().items()}
