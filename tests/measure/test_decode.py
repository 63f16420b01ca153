"""The decode benchmark measures what it says, and its peer computes the same."""

import json
import statistics
from types import SimpleNamespace

import pytest

from inferlab.engine import LLM
from inferlab.errors import InferlabError
from inferlab.measure import decode, peer


@pytest.fixture(scope="module")
def llm():
    return LLM.load()


def test_figures_follow_from_the_raw_samples(llm):
    found = json.loads(json.dumps(decode.bench(llm, 4, peers=False), allow_nan=False))
    assert len(found["samples"]) == found["output_tokens"] == 4
    assert found["seconds_per_token"] == statistics.median(found["samples"])
    assert found["bandwidth"] == max(found["readers"].values())
    kv = found["bytes_per_token"] - llm.model.streamed_bytes
    assert kv == 30 * 2 * 3 * 64 * 4 * (found["prompt_tokens"] + 2)  # layers, K and V, heads, fp32
    rate = found["bytes_per_token"] / found["seconds_per_token"]
    assert found["achieved_bytes_per_second"] == pytest.approx(rate)
    assert found["fraction_of_bandwidth"] == pytest.approx(rate / found["bandwidth"])
    assert (found["peers"], found["peers_note"]) == ({}, "not asked for")


def test_transformers_on_our_tensors_says_the_same_tokens(llm):
    pytest.importorskip("transformers")
    prompt = decode._prompt(llm)
    theirs = peer.step(llm.model, prompt)
    llm.prefill(prompt[:-1])
    a = b = prompt[-1]
    for _ in range(8):
        a, b = int(llm.decode_step([a]).argmax()), theirs(b)
        assert a == b


def test_the_peer_runs_beside_us(llm):
    pytest.importorskip("transformers")
    found = decode.bench(llm, 10)
    theirs = found["peers"]["transformers"]
    assert found["peers_note"] is None
    assert len(theirs["samples"]) == len(found["samples"]) == 10
    ratio = statistics.median(theirs["samples"]) / statistics.median(found["samples"])
    assert theirs["times_as_fast"] == pytest.approx(ratio)


def test_a_peer_that_fails_says_so():
    pytest.importorskip("transformers")
    with pytest.raises(InferlabError, match="transformers failed in its own process"):
        peer.Peer("no-such-model.gguf", [1], "cpu", "float32")


def test_a_missing_peer_is_said_to_be_missing(llm, monkeypatch):
    monkeypatch.setattr(peer, "util", SimpleNamespace(find_spec=lambda _: None))
    assert "transformers is not installed" in decode.bench(llm, 1)["peers_note"]


def test_nothing_to_decode_is_refused(llm):
    with pytest.raises(InferlabError, match="tokens is 0"):
        decode.bench(llm, 0)
