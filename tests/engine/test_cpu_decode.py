"""The SIMD decode step against `Transformer.forward`, for every kind of model."""

from __future__ import annotations

import math

import pytest
import torch

from inferlab.engine.cpu_decode import CpuDecoder, supports
from inferlab.engine.kv_cache import ContiguousCache
from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.model import checkpoint, source
from inferlab.model import config as configs
from inferlab.model.checkpoint import layer_shapes
from inferlab.model.transformer import Layer, Transformer, Weights

pytestmark = pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")

SCALED = {"factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS = {
    "llama": {},
    "biases": {"attention_bias": True},
    "tied, head_dim apart": {"head_dim": 24, "tie_word_embeddings": True},
    "one KV head": {"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 20},
    "as many KV heads as heads": {"num_key_value_heads": 4},
    "odd sizes": {"hidden_size": 52, "intermediate_size": 77, "vocab_size": 123, "head_dim": 10},
    "half the channels turn": {"partial_rotary_factor": 0.5},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    "llama3": {"rope_scaling": {"rope_type": "llama3", **SCALED}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", **SCALED}},
    "window": {"model_type": "mistral", "sliding_window": 7},
    "qwen2, some layers windowed": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 130,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 24},
}


def random_model(**fields) -> Transformer:
    """Weights wide enough that attention is far from flat and positions matter."""
    config = configs.from_fields(
        {
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 131,
            "max_position_embeddings": 100,
            "tie_word_embeddings": False,
        }
        | fields
    )
    generator = torch.Generator().manual_seed(7)

    def draw(name, shape):
        return 0.2 * torch.randn(shape, generator=generator) + ("norm" in name)

    layers = [
        Layer(**{name: draw(name, shape) for name, shape in layer_shapes(config).items()})
        for _ in range(config.layers)
    ]
    embedding = draw("", (config.vocab, config.hidden))
    head = embedding if config.tied else draw("", embedding.shape)
    return Transformer(config, Weights(embedding, layers, draw("norm", (config.hidden,)), head))


def filled(model, lengths, capacity=560):
    """A cache with random keys and values up to `lengths`, and NaN beyond."""
    cache = ContiguousCache(model.config, len(lengths), capacity)
    generator = torch.Generator().manual_seed(3)
    for tensor in (cache.k, cache.v):
        tensor.normal_(generator=generator)
        for row, length in enumerate(lengths):
            tensor[:, row, :, length:] = math.nan
    cache.lengths[:] = torch.tensor(lengths)
    return cache


def forward(model, ids, cache):
    """One token a row by torch, row by row: what is poisoned beyond a row is never seen."""
    rows = [cache.row(b) for b in range(cache.batch)]
    return torch.cat(
        [model.forward(ids[b : b + 1, None], r.positions(1), r) for b, r in enumerate(rows)]
    )


@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("lengths", [[0], [127, 0, 5, 510]], ids=["from nothing", "ragged"])
def test_steps_equal_the_torch_pass(fields, lengths):
    model = random_model(**fields)
    ours, theirs = filled(model, lengths), filled(model, lengths)
    decoder = CpuDecoder(model, ours, threads=2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        ids = torch.randint(0, model.config.vocab, (len(lengths),), generator=generator)
        right = forward(model, ids, theirs)
        got = decoder.step(ids)
        assert got.shape == right.shape
        torch.testing.assert_close(got, right, atol=2e-4, rtol=1e-4)
    assert ours.lengths.tolist() == theirs.lengths.tolist() == [n + 4 for n in lengths]
    torch.testing.assert_close(ours.k, theirs.k, atol=1e-4, rtol=1e-4, equal_nan=True)
    torch.testing.assert_close(ours.v, theirs.v, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("batch", range(1, 17))
def test_a_row_of_a_batch_is_bit_for_bit_what_it_is_alone(batch):
    model = random_model(model_type="qwen3", num_hidden_layers=2)
    lengths = [(b * 37) % 530 for b in range(batch)]
    together = filled(model, lengths)
    ids = torch.arange(batch) + 3
    logits = CpuDecoder(model, together, threads=2).step(ids)
    whole = filled(model, lengths)
    for b in range(batch):
        alone = ContiguousCache(model.config, 1, 560)
        alone.k[:], alone.v[:] = whole.k[:, b : b + 1], whole.v[:, b : b + 1]
        alone.lengths[0] = lengths[b]
        one = CpuDecoder(model, alone, threads=1).step(ids[b : b + 1])
        assert torch.equal(logits[b], one[0])
        assert torch.equal(together.k[:, b].nan_to_num(9), alone.k[:, 0].nan_to_num(9))


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_that_lose_their_cores_change_no_bit(threads):
    """More threads than cores: some are late all the time, and others do their work for them."""
    model = random_model(num_hidden_layers=6, vocab_size=4097)
    caches = [filled(model, [200, 3]), filled(model, [200, 3])]
    decoders = [CpuDecoder(model, c, threads=n) for c, n in zip(caches, (1, threads), strict=True)]
    for step in range(30):
        ids = torch.tensor([step, step + 40])
        one, many = (decoder.step(ids) for decoder in decoders)
        assert torch.equal(one, many)
    assert torch.equal(caches[0].k.nan_to_num(9), caches[1].k.nan_to_num(9))


def test_a_view_of_some_rows_of_a_cache():
    model = random_model()
    whole = filled(model, [5, 200, 60])
    right = forward(model, torch.tensor([4]), filled(model, [5, 200, 60]).row(1))
    got = CpuDecoder(model, whole.row(1)).step(torch.tensor([4]))
    torch.testing.assert_close(got, right, atol=1e-4, rtol=1e-4)
    assert whole.lengths.tolist() == [5, 201, 60]


def test_logits_of_earlier_steps_stay_as_they_were():
    model = random_model()
    decoder = CpuDecoder(model, filled(model, [3]))
    first = decoder.step(torch.tensor([1]))
    kept = first.clone()
    decoder.step(torch.tensor([2]))
    assert torch.equal(first, kept)


def test_weights_that_are_views_with_holes():
    model = random_model(attention_bias=True)
    right = CpuDecoder(model, filled(model, [9])).step(torch.tensor([1]))
    for layer in model.weights.layers:
        for name, tensor in list(vars(layer).items()):
            if tensor is not None:
                setattr(layer, name, torch.stack([tensor, tensor * math.nan], dim=-1)[..., 0])
    assert torch.equal(right, CpuDecoder(model, filled(model, [9])).step(torch.tensor([1])))


def test_case_29_a_full_cache_is_refused_and_stays_as_it_was():
    model = random_model()
    cache = filled(model, [2, 4], capacity=4)
    decoder, before = CpuDecoder(model, cache), cache.k.clone()
    with pytest.raises(InferlabError, match="holds 4 positions a row; 5 would not fit"):
        decoder.step(torch.tensor([1, 2]))
    assert cache.lengths.tolist() == [2, 4]
    torch.testing.assert_close(cache.k, before, equal_nan=True)


def test_what_it_cannot_run_is_refused():
    model = random_model()
    with pytest.raises(InferlabError, match="batch 17 is above 16"):
        CpuDecoder(model, ContiguousCache(model.config, 17, 4))
    with pytest.raises(InferlabError, match="float32"):
        CpuDecoder(model, ContiguousCache(model.config, 1, 4, dtype=torch.bfloat16))
    model.weights.embedding = model.weights.embedding.bfloat16()
    assert not supports(model)


def test_smollm2_says_what_torch_says():
    """64 greedy tokens of the real model, and its logits along the way."""
    if source.installed() is None:
        pytest.skip("SmolLM2 is not installed: make setup")
    found = checkpoint.open(source.find())
    model = found.load("cpu", torch.float32, "none")
    text = "List the planets of the solar system, and say one thing about each."
    ids = found.tokenizer().chat([{"role": "user", "content": text}])
    prompt = torch.tensor([ids])
    cache = ContiguousCache(model.config, 1, len(ids) + 64)
    tokens = [model.forward(prompt, cache.positions(len(ids)), cache).argmax(-1)]
    decoder, steps = CpuDecoder(model, cache), []
    for _ in range(64):
        steps.append(decoder.step(tokens[-1]))
        tokens.append(steps[-1].argmax(-1))
    # One torch pass over the answer: it would have chosen every token of it.
    answer = torch.cat([prompt[0], *tokens[:-1]])[None]
    fresh = ContiguousCache(model.config, 1, answer.shape[1])
    every = model.forward(answer, fresh.positions(answer.shape[1]), fresh, logits="all")
    right = every[0, len(ids) :]
    torch.testing.assert_close(torch.cat(steps), right, atol=2e-3, rtol=1e-4)
    assert torch.cat(tokens[1:]).tolist() == right.argmax(-1).tolist()
