"""Shared decode steps are timed, and their weights counted, as the engine has them."""

import pytest

from inferlab.engine import LLM
from inferlab.errors import InferlabError
from inferlab.measure import batch
from inferlab.theory import costs


@pytest.fixture(scope="module", params=["none", "q4"])
def llm(request):
    return LLM.load(quantize=request.param)


def test_the_parts_are_what_a_step_reads(llm):
    parts = batch.stored(llm)
    assert sum(parts.values()) == llm.model.streamed_bytes
    shape = llm.model.config.shape()
    step = costs.decode_step(shape, 0, dtype=llm.dtype, stored=parts)
    assert sum(step.parts[name].bytes for name in parts) == llm.model.streamed_bytes
    if llm.dtype == "fp32":
        assert parts == pytest.approx(costs.weight_bytes_by_part(shape, "fp32", 1))


def test_a_step_is_timed_for_as_many_answers_as_asked(llm, monkeypatch):
    seen = []
    step = llm.decode
    monkeypatch.setattr(llm, "decode", lambda ids, cache: seen.append(len(ids)) or step(ids, cache))
    samples = batch.step_samples(llm, 3, runs=2)
    assert len(samples) == 2
    assert min(samples) > 0
    assert set(seen) == {3}


def test_a_price_has_a_time_for_each(monkeypatch):
    monkeypatch.setattr(batch, "step_samples", lambda llm, n: [2.0 * n, 1.0 * n])
    found = batch.price(None, (1, 4), label="x")
    assert found == {"label": "x", "tokens": [1, 4], "seconds": [1.0, 4.0]}


@pytest.mark.parametrize("answers", [0, 17])
def test_more_answers_than_a_step_serves_are_refused(llm, answers):
    with pytest.raises(InferlabError, match="must be from 1 to 16"):
        batch.step_samples(llm, answers)
