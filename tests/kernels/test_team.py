"""Threads that share a kernel: every piece is done, whoever is late, and faults pass on."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from inferlab.kernels import backends

pytestmark = pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")

PIECES, PHASES = 40, 25


@pytest.fixture(scope="module")
def phases():
    """A kernel whose every phase reads all that the one before wrote."""
    from inferlab.kernels.cpu.jit import jit
    from inferlab.kernels.cpu.team import NOTHING, desk_bytes, take

    bytes_ = desk_bytes(PIECES)

    @jit
    def kernel(me, values, desks, faults, lame):  # type: ignore[no-untyped-def]
        desk = desks.ctypes.data
        for phase in range(PHASES):
            piece = take(desk, PIECES, -1, me, NOTHING)
            while piece >= 0:
                if me.member == lame:  # takes a piece and never comes back
                    return
                for i in range(PIECES):
                    faults[me.member] += values[phase, i] != phase + i
                values[phase + 1, piece] = phase + 1 + piece
                piece = take(desk, PIECES, piece, me, NOTHING)
            desk += bytes_

    def run(team, lame=-1):
        values = np.full((PHASES + 1, PIECES), -1, np.int64)
        values[0] = np.arange(PIECES)
        faults = np.zeros(team.threads, np.int64)
        desks = np.zeros(PHASES * bytes_ // 8, np.int64)
        team.run(kernel, values, desks, faults, lame)
        assert not faults.any()
        return values

    return run


RIGHT = np.arange(PHASES + 1)[:, None] + np.arange(PIECES)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_no_phase_begins_before_the_last_is_complete(phases, threads):
    from inferlab.kernels.cpu.team import team

    for _ in range(5):
        assert (phases(team(threads)) == RIGHT).all()


@pytest.mark.parametrize("threads", [2, 3])
def test_the_work_of_a_thread_that_was_taken_away_is_done_by_others(phases, threads):
    from inferlab.kernels.cpu.team import team

    for _ in range(5):
        assert (phases(team(threads), lame=1) == RIGHT).all()


def test_callers_take_turns(phases):
    from inferlab.kernels.cpu.team import team

    results = []

    def call():
        results.extend((phases(team(2)) == RIGHT).all() for _ in range(5))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [True] * 15


def test_who_comes_late_stays_out():
    from inferlab.kernels.cpu.team import Team

    team = Team(2)
    began, calls = threading.Event(), []

    def slow(me):
        if me.member == 1:
            began.set()
            time.sleep(0.2)
        else:
            assert began.wait(10)

    team.run(slow)  # waits for member 1, who is inside
    worker_is_busy = threading.Event()
    job = team._inboxes[0]

    class Block:
        def join(self, member):
            worker_is_busy.wait(10)

    job.put(Block())
    team.run(lambda me: calls.append(me.member))
    assert calls == [0]
    worker_is_busy.set()
    time.sleep(0.1)
    assert calls == [0]


@pytest.mark.parametrize("where", [0, 1])
def test_a_fault_is_passed_on_and_the_team_goes_on(phases, where):
    from inferlab.kernels.cpu.team import Team

    team, inside, left = Team(2), threading.Event(), threading.Event()

    def kernel(me):
        if me.member == 1:
            inside.set()
        else:
            assert inside.wait(10)
        if me.member == where:
            raise KeyboardInterrupt
        time.sleep(0.05)
        left.set()

    with pytest.raises(KeyboardInterrupt):
        team.run(kernel)
    assert left.is_set()  # nobody is at work on the arguments any more
    assert (phases(team) == RIGHT).all()


def test_the_caller_keeps_its_cores(phases):
    from inferlab.kernels.cpu.team import team

    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system does not say where a thread may run")
    before = os.sched_getaffinity(0)
    phases(team(2))
    assert os.sched_getaffinity(0) == before


def test_a_container_with_the_time_of_two_cores_gets_two_threads(monkeypatch, tmp_path):
    from inferlab.kernels.cpu import team

    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(team, "_CGROUP", limit)
    monkeypatch.setattr(team, "_cores", lambda: [{n} for n in range(8)])
    for text, threads in (("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8)):
        limit.write_text(text)
        assert team.physical_cores() == threads


def test_members_have_cores_of_their_own(monkeypatch):
    from inferlab.kernels.cpu import team

    monkeypatch.setattr(team, "_CGROUP", team.Path("absent"))
    monkeypatch.setattr(team, "_cores", lambda: [{0, 4}, {1, 5}, {2, 6}, {3, 7}])
    assert team.physical_cores() == 4
    assert team._places(2) == [{0, 4, 2, 6}, {1, 5, 3, 7}]
    assert team._places(4) == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    assert team._places(5) == []
    monkeypatch.setattr(team, "_cores", lambda: [])
    assert team.physical_cores() == os.cpu_count()
    assert team._places(2) == []
