"""A film of an engine's blocks tells what the pool did, and nothing else."""

from __future__ import annotations

import pytest

from inferlab.engine import LLM, Engine, SamplingParams
from inferlab.errors import InferlabError
from inferlab.measure.paging import Arrival, watch

START = "You are a patient guide. Answer in a few words. "


@pytest.fixture(scope="module")
def llm():
    return LLM.load(quantize="none")


@pytest.fixture(scope="module")
def film(llm):
    engine = Engine(llm, kv_tokens=40, block=4, max_batch=3, step_tokens=32)
    arrivals = [
        Arrival("A", 0, f"{START}Where is Paris?", 6),
        Arrival("B", 1, f"{START}Where is Rome?", 6),
        Arrival("C", 2, "Once upon a time there was", 6),
        Arrival("D", 16, f"{START}Where is Oslo?", 2),
    ]
    told = watch(engine, arrivals)
    engine.check()
    assert told["steps"][-1]["tables"] == {}
    return told


def test_blocks_and_tables_tell_the_same(film):
    for step in film["steps"]:
        for index, block in enumerate(step["blocks"]):
            assert block["holders"] == [n for n, table in step["tables"].items() if index in table]
            assert not (block["holders"] and block["kept"])
            assert len(block["text"]) <= film["size"]
            if block["kept"]:
                assert len(block["text"]) == film["size"]


def test_a_beginning_in_common_is_held_twice_and_found_again(film):
    found = {name: tokens for step in film["steps"] for name, tokens in step["scheduled"]}
    assert found["A"] == 0
    assert found["B"] == 12
    assert found["D"] == 12
    shared = [b for b in film["steps"][1]["blocks"] if b["holders"] == ["A", "B"]]
    assert "".join(t for b in shared for t in b["text"]) == START.strip()


def test_everyone_comes_once_and_ends_once(film):
    for kind in ("came", "finished"):
        assert sorted(n for step in film["steps"] for n in step[kind]) == ["A", "B", "C", "D"]
    assert film["requests"]["A"]["prompt"].endswith("Paris?")


def test_texts_are_what_the_requests_say_alone(film, llm):
    for one in film["requests"].values():
        params = SamplingParams(max_new_tokens=6, ignore_eos=True)
        alone = llm.generate(one["prompt"], params)[0].text
        assert alone.startswith(one["answer"])


def test_a_model_without_a_tokenizer_is_refused(llm):
    class Bare:
        llm = type("L", (), {"tokenizer": None})

    with pytest.raises(InferlabError, match="tokenizer"):
        watch(Bare(), [])
