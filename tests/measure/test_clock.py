"""Cold starts stay out of samples."""

from __future__ import annotations

import statistics
import time

import pytest

from inferlab.measure import clock


@pytest.mark.parametrize("measure", ["samples", "per_launch"])
def test_case_60_a_slow_first_run_is_left_out(measure):
    calls = []

    def run():
        calls.append(0.3 if not calls else 0.002)
        time.sleep(calls[-1])

    if measure == "samples":
        found = clock.samples(run, "cpu", runs=10)
        assert len(calls) == 10 + clock.WARM_UPS
    else:
        found = clock.per_launch([run, run], "cpu", seconds=0.05)
        assert len(calls) == 2 * (len(found) + clock.WARM_UPS)
    assert max(found) < 0.15
    with_it = [0.3, *found]
    assert statistics.quantiles(with_it, n=100)[98] > 0.2 > statistics.quantiles(found, n=100)[98]


def test_there_are_at_least_three_samples_and_no_more_than_asked_for():
    assert len(clock.samples(lambda: time.sleep(0.01), "cpu", seconds=0)) == 3
    assert len(clock.samples(lambda: None, "cpu", runs=1)) == 1
    assert len(clock.samples(lambda: None, "cpu", seconds=9)) == 200


def test_in_a_hurry_everything_runs_once_after_its_warm_ups(monkeypatch):
    monkeypatch.setenv("INFERLAB_HURRY", "1")
    calls = []
    assert len(clock.samples(lambda: calls.append(1), "cpu", runs=10, warm_ups=2)) == 1
    assert len(calls) == 3
    assert len(clock.per_launch([lambda: None, lambda: None], "cpu")) == 1
