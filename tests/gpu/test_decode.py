"""The recorded decode step and the engine on it, on models of the catalog's kinds, cut short."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from caches import filled, forward

from inferlab.engine import LLM, SamplingParams
from inferlab.engine.gpu_decode import GpuDecoder
from inferlab.model import synthetic

KEYS = ("smollm2-135m", "llama-3.2-1b", "llama-3.1-8b", "qwen3-0.6b", "mistral-7b-v0.1")
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


@pytest.fixture(params=KEYS)
def key(request):
    return request.param


@pytest.fixture
def make(device, big):
    """Return a function from a catalog's name to two layers of such a model.

    Its weights are wide enough that attention is far from flat; in the interpreter it is tiny.
    """

    def model(key, dtype=torch.float32, **how):
        config = synthetic.catalog_config(key)
        sizes = {"layers": 2, "windows": config.windows[:2]}
        if big(False, True):
            sizes |= {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 64}
            sizes |= {"intermediate": 64, "rope": dataclasses.replace(config.rope, dim=16)}
        config = dataclasses.replace(config, **sizes)
        # Sums of `hidden` products keep their size.
        return synthetic.transformer(
            config, device, dtype, spread=1.5 / math.sqrt(config.hidden), **how
        )

    return model


def ratio(got, right):
    return float((got - right).square().mean().sqrt() / right.square().mean().sqrt())


@pytest.mark.parametrize("format", [None, "q8_0", "q4_0", "q4_1", "int8"])
def test_steps_equal_the_torch_pass(key, format, dtype, make, big):
    model = make(key, dtype, format=format)
    lengths = big([1000, 0, 4095], [3, 0])
    ours, theirs = (filled(model, lengths, big(4608, 24)) for _ in range(2))
    decoder = GpuDecoder(model, ours)
    for step in range(3):
        ids = (torch.arange(len(lengths)) * 17 + step) % model.config.vocab
        got, right = decoder.step(ids, ours), forward(model, ids, theirs)
        assert ratio(got, right) < TOLERANCE[dtype]
    assert ours.lengths.tolist() == theirs.lengths.tolist()


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 16])
def test_case_48_graphs_on_and_off_say_the_same_tokens(batch, key, dtype, make, big):
    model, said = make(key, dtype), []
    for graphs in (True, False):
        cache = filled(model, [(37 * b) % big(900, 9) for b in range(batch)], big(1024, 24))
        decoder = GpuDecoder(model, cache, graphs=graphs)
        ids, tokens = torch.arange(batch), []
        for _ in range(big(20, 2)):
            logits = decoder.step(ids, cache)
            ids = logits.argmax(-1).cpu()
            tokens.append(ids.tolist())
        said.append((tokens, logits))
    assert said[0][0] == said[1][0]
    assert torch.equal(said[0][1], said[1][1])


def test_case_48_nothing_of_an_earlier_request_is_read(make, big, dtype):
    model = make("llama-3.2-1b", dtype)
    capacity = big(512, 16)
    memory, fresh = filled(model, [7, 3, 9], capacity), filled(model, [2, 6], capacity)
    decoder = GpuDecoder(model, memory)
    decoder.step(torch.tensor([1, 2, 3]), memory)
    for kind in "kv":
        getattr(memory, kind)[:, :2] = getattr(fresh, kind)
    rows = memory.rows(0, 2)
    rows.lengths[:] = fresh.lengths
    another = GpuDecoder(model, fresh, graphs=False)
    for ids in (torch.tensor([5, 6]), torch.tensor([7, 8])):
        got, right = decoder.step(ids, rows), another.step(ids, fresh)
        assert torch.equal(got, right)
        for step in decoder._steps.values():
            for buffer in vars(step).values():
                if isinstance(buffer, torch.Tensor):
                    buffer.fill_(math.nan if buffer.is_floating_point() else -77)


def test_the_engine_says_what_torch_says(key, make, big, device):
    """In float32 to the token, for rows that come, grow past their first memory, and leave."""
    model = make(key)
    limits = big([300, 40, 5, 1, 120], [3, 2])
    params = [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in limits]
    prompts = [[(7 * i + j) % 64 for j in range(3 + 2 * i)] for i in range(len(limits))]
    torchs = LLM(model, kernels="torch").generate(prompts, params)
    ours = LLM(model, kernels="auto" if device == "cuda" else "triton")
    assert ours.triton
    for chunk in (None, 2):
        found = ours.generate(prompts, params, chunk=chunk)
        assert [c.token_ids for c in found] == [c.token_ids for c in torchs]


def test_quantised_rows_of_a_batch_are_what_they_are_alone(make, big, device):
    model = make("llama-3.2-1b", format="q4_0")
    ours = LLM(model, kernels="auto" if device == "cuda" else "triton")
    prompts, params = [[1, 2, 3], [9], [4, 4]], SamplingParams(max_new_tokens=big(30, 2))
    alone = [ours.generate(prompt, params)[0].token_ids for prompt in prompts]
    assert [c.token_ids for c in ours.generate(prompts, params)] == alone
