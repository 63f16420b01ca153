"""Latency metrics with their edge cases, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlab.errors import InferlabError
from inferlab.theory import latency
from inferlab.theory.latency import RequestTimes

TEN = RequestTimes(1.0, tuple(1.5 + 0.1 * i for i in range(10)))
ONE = RequestTimes(1.0, (1.2,))
EMPTY = RequestTimes(1.0, (), finished=1.4)
SLOW_FIRST = RequestTimes(1.0, (9.0, 9.1, 9.2))
FAILED = RequestTimes(1.0, (1.1, 1.2), failed=True)


def test_definitions():
    """Case 56: ten tokens, one, none, and a slow first one."""
    assert TEN.ttft == pytest.approx(0.5)
    assert TEN.tpot == pytest.approx(0.1)
    assert TEN.e2e == pytest.approx(1.4)
    assert TEN.itl == pytest.approx([0.1] * 9)
    assert (ONE.ttft, ONE.tpot, ONE.itl) == (pytest.approx(0.2), None, ())
    assert (EMPTY.ttft, EMPTY.tpot, EMPTY.itl) == (None, None, ())
    assert EMPTY.e2e == pytest.approx(0.4)
    assert SLOW_FIRST.tpot == pytest.approx(0.1)
    assert SLOW_FIRST.itl == pytest.approx([0.1, 0.1])
    assert (FAILED.ttft, FAILED.tpot, FAILED.e2e, FAILED.itl) == (None, None, None, ())


def test_pools_leave_out_what_does_not_exist():
    requests = [TEN, ONE, EMPTY, FAILED]
    assert len(latency.ttft(requests)) == 2
    assert latency.tpot(requests) == pytest.approx([0.1])
    assert len(latency.itl(requests)) == 9
    assert len(latency.e2e(requests)) == 3


def test_first_token_is_counted_from_the_scheduled_arrival():
    """A generator that sends late must not hide the queue it caused."""
    assert RequestTimes(scheduled=0.0, pieces=(3.0,)).ttft == 3.0


def test_several_tokens_in_a_piece():
    request = RequestTimes(0.0, (1.0, 2.0, 3.0), output_tokens=9)
    assert request.tpot == pytest.approx(2.0 / 8)
    assert request.itl == (1.0, 1.0)


def test_pieces_out_of_order_are_refused():
    with pytest.raises(InferlabError, match="order"):
        RequestTimes(0.0, (2.0, 1.0))


def test_goodput_counts_requests_that_keep_every_promise():
    requests = [TEN, ONE, SLOW_FIRST, FAILED]
    slos = {"ttft": 0.6, "tpot": 0.15}
    assert [latency.meets(r, slos) for r in requests] == [True, True, False, False]
    assert latency.goodput(requests, slos, seconds=4.0) == 0.5
    assert latency.attainment(requests, slos) == 0.5
    assert latency.duration(requests) == pytest.approx(8.2)
    assert latency.goodput(requests, slos) == pytest.approx(2 / 8.2)
    assert latency.throughput(requests, seconds=2.0) == 7.0
    assert not latency.meets(EMPTY, {})
    assert not latency.meets(TEN, {"ttft": 0.6, "e2e": 1.0})
    with pytest.raises(InferlabError, match="tpot"):
        latency.meets(TEN, {"tpto": 1.0})


def test_sustainable_rate_is_the_highest_before_the_first_miss():
    curve = {1.0: 1.0, 2.0: 0.97, 4.0: 0.9, 8.0: 0.2, 16.0: 0.95}
    assert latency.sustainable_rate(curve) == 4.0
    assert latency.sustainable_rate(curve, target=0.98) == 1.0
    assert latency.sustainable_rate({1.0: 0.5}) is None


def test_empty_samples_are_errors_not_zeros():
    with pytest.raises(InferlabError):
        latency.percentile([], 50)
    with pytest.raises(InferlabError):
        latency.attainment([], {})
    with pytest.raises(InferlabError):
        latency.duration([RequestTimes(0.0)])
    with pytest.raises(InferlabError):
        latency.duration([RequestTimes(1.0, (1.0,))])
    with pytest.raises(InferlabError):
        latency.percentile([1.0], 101)


@given(
    st.lists(st.floats(0, 1e3), min_size=1, max_size=50),
    st.floats(0, 100),
)
def test_percentile_is_numpys(values, percent):
    numpy = pytest.importorskip("numpy")
    expected = numpy.percentile(values, percent)
    assert latency.percentile(values, percent) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.lists(st.floats(0, 10), min_size=2, max_size=50), st.floats(0, 100))
def test_total_time_is_an_identity(gaps, start):
    """Claim 116: T = TTFT + (N - 1) TPOT for one request, by what TPOT means."""
    times, now = [], start
    for gap in gaps:
        now += gap
        times.append(now)
    request = RequestTimes(start, tuple(times))
    total = latency.total_seconds(request.ttft, request.tpot, request.tokens)
    assert total == pytest.approx(request.e2e, abs=1e-9)
