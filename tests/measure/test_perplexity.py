"""What rounding costs SmolLM2, on a page of a book: weights, activations, and llama.cpp's way."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest
import tiny
import torch

from inferlab.engine import LLM
from inferlab.engine.kv_cache import ContiguousCache
from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.measure import perplexity
from inferlab.model import source, synthetic

REFERENCE = json.loads(Path(__file__).with_name("llamacpp_reference.json").read_text())
FEW = 300  # tokens; the whole text takes a minute
LENGTHS = [FEW, pytest.param(len(REFERENCE["ids"]), marks=pytest.mark.slow)]

needs_model = pytest.mark.skipif(source.installed() is None, reason="make setup fetches SmolLM2")


@pytest.fixture(scope="module")
def stored():
    """Weights as the file stores them."""
    return LLM.load(device="cpu")


@pytest.fixture(scope="module")
def exact():
    """Their log-probabilities where every weight is widened to float32."""
    model, found = LLM.load(device="cpu", quantize="none"), {}

    def logprobs(length):
        if length not in found:
            found[length] = perplexity.logprobs(model, REFERENCE["ids"][:length])
        return found[length]

    return logprobs


@needs_model
def test_the_text_is_the_one_that_llama_cpp_read(stored):
    text = perplexity.text()
    assert hashlib.sha256(text.encode()).hexdigest() == REFERENCE["text_sha256"]
    assert stored.tokenizer.encode(text) == REFERENCE["ids"]
    assert len(REFERENCE["ids"]) == 2691


@needs_model
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("rounds", "most"), [(False, 2e-3), (True, 2e-2)])
def test_prompts_are_read_as_if_weights_were_floats(stored, exact, rounds, most, length):
    """Also where vectors are rounded to 16 bits, so that no weight need be widened."""
    stored.warm_up()
    engine = LLM(stored.model, stored.tokenizer)
    engine.model = stored.model.rounding(rounds)
    got = perplexity.logprobs(engine, REFERENCE["ids"][:length])
    torch.testing.assert_close(got, exact(length), atol=most, rtol=0)
    right = perplexity.perplexity(exact(length))
    assert perplexity.perplexity(got) == pytest.approx(right, rel=1e-3)


@needs_model
@pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("activations", "most", "spread"), [("int8", 0.003, 0.06), ("float32", 1e-4, 1e-3)]
)
def test_answers_are_written_as_if_weights_were_floats(
    stored, exact, activations, most, spread, length
):
    """Perplexity moves by less than a third of a percent where vectors are rounded to int8 too.

    Rounding moves each log-probability a little, up or down; `spread` bounds that. The mean of
    few large moves is known only roughly, so a short text gets three of its standard errors more.
    """
    engine = LLM(stored.model, stored.tokenizer, activations=activations)
    got = perplexity.logprobs(engine, REFERENCE["ids"][:length], steps=True)
    moved = got - exact(length)
    assert 0 < moved.std() < spread  # above 0: it was no float model that was asked
    if activations == "int8" and length == FEW:
        most += 3 * float(moved.std()) / FEW**0.5
    right = perplexity.perplexity(exact(length))
    assert perplexity.perplexity(got) == pytest.approx(right, rel=most)


@needs_model
@pytest.mark.parametrize("length", LENGTHS)
def test_llama_cpp_foretells_the_text_as_well(exact, length):
    theirs = torch.tensor(REFERENCE["logprobs"][: length - 1], dtype=torch.float64)
    ours = perplexity.perplexity(exact(length))
    assert ours == pytest.approx(perplexity.perplexity(theirs), rel=0.01)


def test_perplexity_is_the_number_of_equal_choices():
    assert perplexity.perplexity(torch.full((7,), -math.log(12.0))) == pytest.approx(12)
    assert perplexity.perplexity(torch.tensor([0.0, -math.log(4.0)])) == pytest.approx(2)


@pytest.fixture(scope="module", params=["torch", "simd"])
def llm(request):
    """Random weights, wide enough that every position matters; a context of 80 tokens."""
    if request.param == "simd" and not backends.has_numba():
        pytest.skip("numba is not here")
    config = tiny.config(vocab_size=131, max_position_embeddings=80)
    return LLM(synthetic.transformer(config, spread=0.3), kernels=request.param)


@pytest.mark.parametrize("steps", [False, True])
def test_each_token_is_given_all_before_it(llm, steps, monkeypatch):
    """Against one pass over the text, cut nowhere."""
    monkeypatch.setattr(perplexity, "_CHUNK", 7)
    ids = [(i * i) % 131 for i in range(60)]
    got = perplexity.logprobs(llm, ids, steps=steps)
    cache = ContiguousCache(llm.model.config, 1, 60)
    logits = llm.model.forward(torch.tensor([ids]), cache.positions(60), cache, logits="all")
    right = logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    torch.testing.assert_close(got, right.double(), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("ids", "words"), [([1], "2 or more"), ([1] * 81, "context holds 80")])
def test_texts_of_no_length_or_too_much_are_refused(llm, ids, words):
    with pytest.raises(InferlabError, match=words):
        perplexity.logprobs(llm, ids)
