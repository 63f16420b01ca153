"""The prefill benchmark measures what it says."""

import json
import statistics

import pytest

from inferlab.engine import LLM
from inferlab.errors import InferlabError
from inferlab.measure import prefill
from inferlab.theory import costs


@pytest.fixture(scope="module")
def llm():
    return LLM.load()


def test_figures_follow_from_the_raw_samples(llm):
    found = prefill.bench(llm, [3, 9], runs=2, peers=False)
    json.dumps(found, allow_nan=False)
    assert [len(times) for times in found["samples"]] == [2, 2]
    assert found["seconds"] == [statistics.median(times) for times in found["samples"]]
    work = costs.prefill(llm.model.config.shape(), 9).flops
    assert found["flops"][1] == work
    assert found["flops_per_second"][1] == pytest.approx(work / found["seconds"][1])
    reached = found["flops_per_second"][1] / found["product_rate"]
    assert found["fraction_of_product"][1] == pytest.approx(reached)
    assert found["warm_ups"] == prefill.WARM_UPS
    assert (found["peers"], found["peers_note"]) == ({}, "not asked for")


@pytest.mark.slow
def test_transformers_reads_beside_us(llm):
    pytest.importorskip("transformers")
    found = prefill.bench(llm, [4], runs=1)
    theirs = found["peers"]["transformers"]
    assert theirs["times_as_fast"] == [theirs["seconds"][0] / found["seconds"][0]]
    assert len(theirs["samples"][0]) == 1


@pytest.mark.parametrize("tokens", [[], [0], [9000]])
def test_prompts_that_cannot_be_are_refused(llm, tokens):
    with pytest.raises(InferlabError, match="must be from 1 to 8192"):
        prefill.bench(llm, tokens, peers=False)
