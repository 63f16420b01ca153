"""What it costs to ask: the seconds of an operation that has next to nothing to do."""

from __future__ import annotations

import torch

from inferlab.engine.graphs import Graph
from inferlab.measure import clock

_CALLS = 1000


def seconds() -> dict[str, float]:
    """Return seconds an operation, by the way it is asked for, on a GPU if there is one.

    "from Python": torch's addition on one number, called as fast as it goes. "in a graph" (on a
    GPU): the same launches recorded once and replayed together.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    number = torch.ones(1, device=device)

    def call() -> None:
        for _ in range(_CALLS):
            number.add_(1.0)

    found = {"from Python": min(clock.samples(call, device)) / _CALLS}
    if device == "cuda":
        graph = Graph([call], torch.device(device))
        found["in a graph"] = min(clock.samples(graph.replay, device)) / _CALLS
    return found
