"""Batches that end together, and what chunks do, by hand and against the continuous server."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlab.errors import InferlabError
from inferlab.theory import batching, costs, hardware, limits, models, queueing, roofline
from inferlab.theory.queueing import Job, PassCosts, Step

LLAMA, EIGHT = models.get("llama-2-70b"), models.get("llama-3.1-8b")
H100 = hardware.get("h100-sxm")
COSTS = PassCosts({1: 1.0, 4: 1.3}, {1: 1.0, 100: 5.0}, per_context=0.001)
LOADS = st.lists(
    st.tuples(st.floats(0, 9), st.integers(1, 300), st.integers(1, 30)), min_size=1, max_size=12
)


def test_a_batch_that_ends_together_by_hand():
    jobs = [Job(0, 1, 1), Job(0, 1, 4), Job(0.5, 1, 2)]
    served = batching.static(jobs, lambda step: 1.0 + len(step.chunks), max_batch=2)
    # Two prompts take 3 s; three steps follow, in which the first one's row is wasted.
    assert [r.pieces for r in served.requests] == [(3,), (3, 4, 5, 6), (8, 9)]
    assert (served.steps, served.rows, served.wasted, served.busy) == (6, 4, 3, 9)
    assert served.waits == [0, 0, 5.5]


@settings(deadline=None, max_examples=60)
@given(LOADS, st.integers(1, 5))
def test_everyone_is_served_and_every_row_is_a_token_or_wasted(load, most):
    jobs = [Job(*one) for one in load]
    seen: list[Step] = []

    def seconds(step):
        seen.append(step)
        return COSTS(step)

    served = batching.static(jobs, seconds, max_batch=most)
    assert [len(r.pieces) for r in served.requests] == [job.output for job in jobs]
    assert served.rows == sum(job.output - 1 for job in jobs)
    assert served.rows + served.wasted == sum(step.rows for step in seen)
    assert served.steps == len(seen)
    assert all(wait >= 0 for wait in served.waits)


@settings(deadline=None, max_examples=40)
@given(LOADS)
def test_a_batch_of_one_is_the_same_server_either_way(load):
    jobs = [Job(*one) for one in load]
    one = batching.static(jobs, COSTS, max_batch=1)
    other = queueing.serve(jobs, COSTS, max_batch=1, step_tokens=400)
    for a, b in zip(one.requests, other.requests, strict=True):
        assert a.pieces == pytest.approx(b.pieces, rel=1e-9)
    assert one.wasted == 0


def test_prices_of_passes_are_the_rooflines():
    prices = batching.pass_costs(EIGHT, H100)
    for rows in (1, 64):
        step = costs.decode_step(EIGHT, 0, rows)
        assert prices(Step(rows)) == roofline.place(step, H100).seconds
        past = costs.decode_step(EIGHT, 1000, rows)
        assert prices(Step(rows, context=1000 * rows)) == pytest.approx(
            roofline.place(past, H100).seconds, rel=1e-3
        )
    whole = roofline.place(costs.prefill(EIGHT, 2048), H100).seconds
    assert prices(Step(0, (2048,))) == whole
    assert prices(Step(1, (2048,))) == whole + prices(Step(1))


def test_a_sweep_is_theorys_and_knows_what_fits():
    found = batching.sweep(LLAMA, H100, [1, 8], 2000, chips=4)
    step = roofline.place(costs.decode_step(LLAMA, 2000, 8), H100, chips=4).seconds
    assert found["tpot"][1] == step
    assert found["rate"][1] == 8 / step
    assert found["most"] == limits.sequences_that_fit(LLAMA, H100, 2000, chips=4)
    assert batching.sweep(LLAMA, H100, [1])["most"] is None


def test_small_chunks_shorten_the_gap_and_lengthen_the_wait():
    found = batching.chunked(COSTS, 2000, [100, 500, 2000])
    assert found["gap"] == sorted(found["gap"])
    assert found["ttft"] == sorted(found["ttft"], reverse=True)
    # The whole prompt stands between two tokens.
    whole = COSTS(Step(0, (2000,)))
    assert found["gap"][-1] == pytest.approx(whole + found["quiet"], rel=0.01)
    assert found["quiet"] == pytest.approx(1, rel=0.01)


def test_a_batch_of_none_is_refused():
    with pytest.raises(InferlabError, match="max_batch is 0"):
        batching.static([Job(0, 1, 1)], COSTS, max_batch=0)
