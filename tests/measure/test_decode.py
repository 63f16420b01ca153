"""The decode benchmark measures what it says, and its peer computes the same."""

import dataclasses
import json
import statistics
from types import SimpleNamespace

import pytest

from inferlab.engine import LLM
from inferlab.errors import InferlabError
from inferlab.measure import compiled, decode, passes, peer
from inferlab.model import checkpoint, source, synthetic


@pytest.fixture(scope="module")
def llm():
    return LLM.load(quantize="none")


def test_figures_follow_from_the_raw_samples(llm):
    found = json.loads(json.dumps(decode.bench(llm, 4, peers=False), allow_nan=False))
    assert len(found["samples"]) == found["output_tokens"] == 4
    assert found["seconds_per_token"] == statistics.median(found["samples"])
    assert found["bandwidth"] == max(found["readers"].values())
    kv = found["bytes_per_token"] - llm.model.streamed_bytes
    assert found["context"] == found["prompt_tokens"] + decode.WARM_UPS + 2
    assert kv == 30 * 2 * 3 * 64 * 4 * found["context"]  # layers, K and V, heads, fp32
    rate = found["bytes_per_token"] / found["seconds_per_token"]
    assert found["achieved_bytes_per_second"] == pytest.approx(rate)
    assert found["fraction_of_bandwidth"] == pytest.approx(rate / found["bandwidth"])
    assert (found["peers"], found["peers_note"]) == ({}, "not asked for")


def test_transformers_on_our_tensors_says_the_same_tokens(llm):
    pytest.importorskip("transformers")
    prompt = decode._prompt(llm)
    theirs = peer.Transformers(llm.model)
    theirs.begin(prompt)
    llm.prefill(prompt[:-1])
    a = b = prompt[-1]
    for _ in range(8):
        a, b = int(llm.decode_step([a]).argmax()), theirs.step(b)
        assert a == b


@pytest.mark.slow
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
        peer.Apart("no-such-model.gguf", "cpu", "float32")


def test_a_missing_peer_is_said_to_be_missing(llm, monkeypatch):
    monkeypatch.setattr(peer, "util", SimpleNamespace(find_spec=lambda _: None))
    assert "transformers is not installed" in decode.bench(llm, 1)["peers_note"]


def test_nothing_to_decode_is_refused(llm):
    with pytest.raises(InferlabError, match="tokens is 0"):
        decode.bench(llm, 0)


def test_quantised_weights_are_counted_as_they_are_stored(llm):
    stored = LLM(checkpoint.open(source.find(None)).load(quantize=None), llm.tokenizer)
    found = decode.bench(stored, 4, peers=False)
    floats = decode.bench(llm, 4, peers=False)
    assert found["bytes_per_token"] < 0.25 * floats["bytes_per_token"]
    assert decode._float_bytes(stored.model) == llm.model.streamed_bytes


@pytest.mark.parametrize("key", ["llama-3.2-1b", "qwen3-0.6b", "mistral-7b-v0.1"])
def test_the_compiled_step_says_the_tokens_of_ours(key, monkeypatch):
    monkeypatch.setattr(compiled.torch, "compile", lambda step, **_: step)  # minutes on a CPU
    model = small(key)
    ours, theirs = LLM(model, kernels="torch"), compiled.Compiled(model)
    prompt = [5, 17, 3, 99, 4, 28]
    theirs.begin(prompt)
    ours.prefill(prompt[:-1])
    token = prompt[-1]
    for _ in range(6):
        token = int(ours.decode_step([token]).argmax())
        assert theirs.step() == token
    assert len(theirs.decode(2)) == 2


@pytest.mark.parametrize("key", ["llama-3.2-1b", "qwen3-0.6b"])
def test_transformers_on_a_catalog_shape_says_the_same_tokens(key):
    pytest.importorskip("transformers")
    model = small(key)
    ours, theirs = LLM(model, kernels="torch"), peer.Transformers(model)
    prompt = passes.random_ids(ours, 200)
    theirs.begin(prompt)
    ours.prefill(prompt[:-1])
    a = b = prompt[-1]
    for _ in range(6):
        a, b = int(ours.decode_step([a]).argmax()), theirs.step(b)
        assert a == b


def test_what_stands_beside_us_on_a_gpu(monkeypatch):
    """In one process there, and on float weights only: nobody else reads our blocks."""
    model = small("llama-3.2-1b", format="q8_0")
    monkeypatch.setattr(type(model), "device", SimpleNamespace(type="cuda"))
    sides, notes = peer.beside(model, None, compiled=True)
    assert sides == {}
    assert notes["compiled torch"] == "compiled torch is measured on float weights"
    assert "float weights" in notes["transformers"] or "not installed" in notes["transformers"]


def small(key, **how):
    """A model of a catalog's kind, small, its weights wide enough for positions to matter."""
    config = synthetic.catalog_config(key)
    sizes = {"layers": 2, "windows": config.windows[:2], "vocab": 300, "hidden": 64}
    sizes |= {"heads": 4, "kv_heads": 2, "intermediate": 96}
    return synthetic.transformer(dataclasses.replace(config, **sizes), spread=0.2, **how)
