"""The load generator against our own server: equal counts, refusals counted, nothing left."""

from __future__ import annotations

import pytest

from inferlab.measure import load, load_report


@pytest.mark.parametrize("chat", [False, True])
def test_the_generator_counts_what_our_server_counts(real, chat):
    asks = load.synthetic(12, prompt=(2, 8), output=(1, 12), seed=3)
    free = real.engine.blocks.free
    target = load.find(real.address, chat=chat, ignore_eos=True)
    run = load.open_loop(target, asks, 40.0, warm_ups=load.synthetic(3, prompt=4, output=2))
    assert [one.error for one in run.outcomes] == [None] * 12
    assert [one.times.tokens for one in run.outcomes] == [one.max_tokens for one in asks]
    extra = len("u:") + 1 if chat else 0  # what the template adds
    sizes = [len(one.prompt.encode()) + extra for one in asks]
    assert [one.prompt_tokens for one in run.outcomes] == sizes
    made = load_report.summary(run, {"ttft": 30.0})
    assert (made["attainment"], made["failed"], made["warm_ups"]) == (1.0, 0, 3)
    real.until(lambda: real.engine.blocks.free == free)


def test_a_closed_loop_fills_the_batch(real):
    target = load.find(real.address, ignore_eos=True)
    run = load.closed_loop(target, load.synthetic(12, prompt=3, output=20), 4)
    assert not any(one.error for one in run.outcomes)
    assert load_report.summary(run, {})["output_tokens"] == 20


def test_refusals_are_failures_and_lower_attainment(make_fake):
    busy = make_fake(batch=1, max_waiting=1)
    busy.engine.delay = 0.05
    target = load.find(busy.address, ignore_eos=True)
    run = load.open_loop(target, load.synthetic(10, prompt=4, output=5), 200.0)
    made = load_report.summary(run, {"ttft": 30.0})
    assert 0 < made["failed"] < 10
    assert all("429" in error for error in made["errors"])
    assert made["attainment"] == pytest.approx(1 - made["failed"] / 10)
