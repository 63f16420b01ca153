"""A recording runs what it was given, again and again, on what the tensors hold by then."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from inferlab.engine import graphs
from inferlab.engine.graphs import Graph


def test_a_recording_runs_once_and_then_on_what_its_tensors_hold(device):
    where = torch.device(device)
    x, y = torch.ones(3, device=where), torch.zeros(3, device=where)
    graph = Graph([partial(torch.mul, x, 2, out=y), partial(torch.add, y, 1, out=y)], where)
    assert y.tolist() == [3, 3, 3]
    x.copy_(torch.tensor([5.0, 6.0, 7.0]))
    y.fill_(float("nan"))
    graph.replay()
    assert y.tolist() == [11, 13, 15]


@pytest.fixture
def imitation(monkeypatch):
    """Note what a recording asks of torch.cuda, in order."""
    said = []

    class Stream:
        def __init__(self, *_):
            pass

        def __enter__(self):
            said.append("side stream")

        def __exit__(self, *_):
            said.append("main stream")

        def wait_stream(self, _):
            said.append("wait")

        synchronize = staticmethod(lambda: said.append("synchronize"))

    class CUDAGraph:
        def capture_begin(self, **_):
            said.append("begin")

        def capture_end(self):
            said.append("end")

        def replay(self):
            said.append("replay")

    monkeypatch.setattr(graphs.torch.cuda, "current_stream", Stream)
    for kind in (Stream, CUDAGraph):
        monkeypatch.setattr(graphs.torch.cuda, kind.__name__, kind)
    monkeypatch.setattr(graphs.torch.cuda, "stream", lambda stream: stream)
    return said


def test_on_a_gpu_the_launches_warm_up_before_they_are_captured(imitation):
    graph = Graph([lambda: imitation.append("launch")], torch.device("cuda"))
    order = "wait, side stream, launch, synchronize, begin, launch, end, main stream, wait"
    assert ", ".join(imitation) == order
    graph.replay()
    assert imitation[-1] == "replay"


def test_a_capture_that_fails_is_left(imitation):
    def launch():
        imitation.append("launch")
        if "begin" in imitation:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        Graph([launch], torch.device("cuda"))
    assert imitation[-2:] == ["end", "main stream"]
