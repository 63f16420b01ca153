"""An engine under load in this process: every job answered, at times that make sense."""

from __future__ import annotations

import pytest
import tiny

from inferlab.engine import LLM
from inferlab.engine.serving import Engine
from inferlab.measure import engine_load
from inferlab.model import synthetic
from inferlab.theory import latency, queueing
from inferlab.theory.queueing import Job


@pytest.fixture(scope="module")
def llm() -> LLM:
    config = tiny.config(vocab_size=300, max_position_embeddings=1024)
    return LLM(synthetic.transformer(config, seed=1), None, name="tiny")


def test_every_job_is_answered_in_full_and_not_before_it_came(llm):
    jobs = queueing.jobs(60.0, 20, prompt=(3, 40), output=(1, 12))
    engine = Engine(llm, kv_tokens=512, max_batch=4, step_tokens=32)
    times = engine_load.play(engine, jobs)
    assert [one.tokens for one in times] == [job.output for job in jobs]
    for one, job in zip(times, jobs, strict=True):
        assert one.scheduled == job.arrived < one.pieces[0]
    assert not engine.busy
    assert engine.blocks.free == engine.blocks.total


def test_jobs_may_come_in_any_order_and_after_a_pause(llm):
    engine = Engine(llm, kv_tokens=512)
    times = engine_load.play(engine, [Job(0.3, 5, 2), Job(0.0, 5, 2)])
    assert times[0].pieces[0] > 0.3
    assert times[1].ttft < 0.3
    assert engine_load.play(engine, []) == []


def test_a_hurried_run_plays_the_first_jobs_alone(llm, monkeypatch):
    monkeypatch.setenv("INFERLAB_HURRY", "1")
    jobs = [Job(0.0, 5, output) for output in (2, 3, 4, 5)]
    times = engine_load.play(Engine(llm, kv_tokens=512), jobs)
    assert [one.tokens for one in times] == [2, 3, 4]


def test_costs_of_this_machine_feed_the_simulator(llm):
    costs = engine_load.costs(llm)
    assert set(costs.decode) == set(engine_load.ANSWERS)
    assert set(costs.prefill) == set(engine_load.PROMPTS)
    served = queueing.serve(queueing.jobs(5.0, 30, prompt=16, output=4), costs)
    assert latency.throughput(served.requests) > 0
