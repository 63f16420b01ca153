"""Every rung of the ladder computes the same, and says what it needs when it cannot run."""

from __future__ import annotations

import numpy as np
import pytest

from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.kernels.cpu import inspect
from inferlab.measure import ladder

needs_numba = pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
A = np.random.default_rng(0).random((7, 33), np.float32)
B = np.random.default_rng(1).random((33, 5), np.float32)


@pytest.mark.parametrize("problem", ladder.PROBLEMS)
@pytest.mark.parametrize("size", [1, 3, 40])
def test_every_rung_has_a_rate(problem, size):
    rungs = ladder.climb(problem, size, seconds=0)
    assert [rung.name for rung in rungs] == list(ladder.RUNGS)
    for rung in rungs:
        assert (rung.flops is None) == (rung.lacks == "numba")
        assert rung.flops is None or rung.flops > 0


def test_the_loops_are_products():
    rows, columns = A.tolist(), B.T.tolist()
    assert ladder.dot(rows[0], columns[0], 0.0) == pytest.approx(float(A[0] @ B[:, 0]))
    out = [[0.0] * 5 for _ in range(7)]
    ladder.matmul(ladder.dot, rows, columns, out)
    np.testing.assert_allclose(out, A.astype(np.float64) @ B, rtol=1e-6)


@needs_numba
@pytest.mark.parametrize("lanes", [False, True])
def test_compiled_loops_are_the_same_products(lanes):
    out = np.zeros((7, 5), np.float32)
    dot = ladder.compiled(ladder.dot, lanes=lanes)
    ladder.compiled(ladder.matmul, lanes=lanes)(dot, A, np.ascontiguousarray(B.T), out)
    np.testing.assert_allclose(out, A @ B, rtol=1e-5)


@needs_numba
def test_only_a_sum_whose_order_may_change_becomes_simd():
    loops = [ladder.instructions(lanes=lanes) for lanes in (False, True)]
    assert [any(map(inspect.is_vector, loop)) for loop in loops] == [False, True]
    assert all(loop[-1].split()[0].startswith(("j", "b", "c", "t")) for loop in loops)


@needs_numba
def test_a_chase_of_pointers_meets_every_line_and_takes_time():
    lines = 64
    order = np.random.default_rng(0).permutation(lines) * 8
    following = np.zeros(lines * 8, np.int64)
    following[order] = np.roll(order, -1)
    seen, at = set(), 0
    for _ in range(lines):
        at = ladder.chase(following, 1) if not seen else int(following[at])
        seen.add(at)
    assert seen == set(range(0, lines * 8, 8))
    assert 1e-10 < ladder.latency(1 << 16, 1000) < 1e-5


def test_without_numba_the_middle_of_the_ladder_is_named_as_missing(monkeypatch):
    monkeypatch.setenv("INFERLAB_HIDE", "numba")
    rungs = {rung.name: rung for rung in ladder.climb("dot", 64, seconds=0)}
    assert [name for name, rung in rungs.items() if rung.lacks == "numba"] == [
        "compiled",
        "SIMD lanes",
        "threads",
    ]
    assert rungs["BLAS"].flops > 0
    with pytest.raises(InferlabError, match="numba"):
        ladder.latency(1 << 16)


def test_the_limits_are_those_of_a_cpu():
    found = ladder.limits()
    assert 1e8 < found.bandwidth < 2e12
    assert 1e8 < found.flops < 2e14


def test_a_rung_that_is_faster_than_every_reader_sets_the_limit():
    fast, lame = ladder.Rung("BLAS", 1e15), ladder.Rung("threads", None, "numba")
    assert ladder.limits([lame, fast], [fast]) == (4e15, 1e15)


def test_a_problem_or_a_size_that_is_none_is_named():
    with pytest.raises(InferlabError, match="problem"):
        ladder.climb("sort", 8)
    with pytest.raises(InferlabError, match="size is 0"):
        ladder.climb("dot", 0)
