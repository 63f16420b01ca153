"""Threads that share a kernel: all run, all meet, and nothing is left hanging after a fault."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from inferlab.kernels import backends

pytestmark = pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")


@pytest.fixture(scope="module")
def barriers():
    """A kernel in which each member may only go on once all have reached the same round."""
    from inferlab.kernels.cpu.jit import jit
    from inferlab.kernels.cpu.matvec import MATRIX
    from inferlab.kernels.cpu.team import meet

    @jit
    def kernel(member, threads, sync, seen, nothing, faults):  # type: ignore[no-untyped-def]
        for r in range(seen.shape[0]):
            seen[r, member] = r + 1
            meet(sync.ctypes.data, (2 * r + 1) * threads, nothing[0], member)
            for other in range(threads):
                if seen[r, other] != r + 1:
                    faults[member] += 1
            meet(sync.ctypes.data, (2 * r + 2) * threads, nothing[0], member)

    def run(team, rounds):
        seen, faults = np.zeros((rounds, team.threads), np.int64), np.zeros(team.threads, np.int64)
        team.run(kernel, seen, np.zeros(1, MATRIX), faults)
        return seen, faults

    return run


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_nobody_passes_a_barrier_alone(barriers, threads):
    from inferlab.kernels.cpu.team import team

    for _ in range(3):
        seen, faults = barriers(team(threads), 50)
        assert not faults.any()
        assert (seen == np.arange(1, 51)[:, None]).all()


def test_callers_take_turns(barriers):
    from inferlab.kernels.cpu.team import team

    results = []

    def call():
        results.extend(not barriers(team(2), 20)[1].any() for _ in range(5))

    callers = [threading.Thread(target=call) for _ in range(3)]
    [c.start() for c in callers]
    [c.join() for c in callers]
    assert results == [True] * 15


@pytest.mark.parametrize("where", ["caller", "member"])
def test_a_fault_frees_the_others_and_the_team_goes_on(barriers, where):
    from inferlab.kernels.cpu.team import Team

    team = Team(3)
    left = threading.Event()

    def kernel(member, threads, sync):
        if member == (0 if where == "caller" else 1):
            raise KeyboardInterrupt
        while sync[0] < threads:  # a barrier that the one who failed never reaches
            time.sleep(0.001)
        left.set()

    with pytest.raises(KeyboardInterrupt):
        team.run(kernel)
    assert left.is_set()
    seen, faults = barriers(team, 20)
    assert not faults.any()
    assert (seen > 0).all()


def test_a_core_counts_once(monkeypatch):
    import os

    from inferlab.kernels.cpu.team import physical_cores

    assert 1 <= physical_cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert physical_cores() == os.cpu_count()
