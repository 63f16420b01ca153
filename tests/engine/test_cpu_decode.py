"""The SIMD decode step against `Transformer.forward`, for every kind of model."""

from __future__ import annotations

import math
from functools import partial

import pytest
import tiny
import torch
from caches import filled as filled_to
from caches import forward

from inferlab.engine.cpu_decode import CpuDecoder, supports
from inferlab.engine.kv_cache import ContiguousCache
from inferlab.engine.paged_cache import PagedCache
from inferlab.errors import InferlabError
from inferlab.kernels import backends, reference
from inferlab.kernels.quantised import quantise
from inferlab.model import checkpoint, source
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
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "vocab_size": 131,
        "max_position_embeddings": 100,
    }
    config = tiny.config(**sizes | fields)
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


filled = partial(filled_to, capacity=560)


def step(model, cache, ids, **options):
    """One step by the SIMD kernels."""
    return CpuDecoder(model, cache, **options).step(ids, cache)


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
        got = decoder.step(ids, ours)
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
    logits = step(model, together, ids, threads=2)
    whole = filled(model, lengths)
    for b in range(batch):
        alone = ContiguousCache(model.config, 1, 560)
        alone.k[:], alone.v[:] = whole.k[:, b : b + 1], whole.v[:, b : b + 1]
        alone.lengths[0] = lengths[b]
        one = step(model, alone, ids[b : b + 1], threads=1)
        assert torch.equal(logits[b], one[0])
        assert torch.equal(together.k[:, b].nan_to_num(9), alone.k[:, 0].nan_to_num(9))


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_that_lose_their_cores_change_no_bit(threads):
    """More threads than cores: some are late all the time, and others do their work for them."""
    model = random_model(num_hidden_layers=6, vocab_size=4097)
    caches = [filled(model, [200, 3]), filled(model, [200, 3])]
    decoders = [CpuDecoder(model, c, threads=n) for c, n in zip(caches, (1, threads), strict=True)]
    for token in range(30):
        ids = torch.tensor([token, token + 40])
        one, many = (d.step(ids, c) for d, c in zip(decoders, caches, strict=True))
        assert torch.equal(one, many)
    assert torch.equal(caches[0].k.nan_to_num(9), caches[1].k.nan_to_num(9))


def quantised_model() -> tuple[Transformer, Transformer]:
    """A model whose matrices have every format, one of them float32, and the same widened."""
    model = random_model(num_hidden_layers=2, attention_bias=True, tie_word_embeddings=True)
    wide = random_model(num_hidden_layers=2, attention_bias=True, tie_word_embeddings=True)
    formats = {"q": "q4_1", "k": "q8_0", "v": "q4_0", "o": "int8", "gate": "q4_1", "up": "q8_0"}
    for layer, other in zip(model.weights.layers, wide.weights.layers, strict=True):
        for name, form in formats.items():
            setattr(layer, name, quantise(getattr(layer, name), form))
            setattr(other, name, getattr(layer, name).dequantise())
    table = quantise(model.weights.embedding, "q8_0")
    model.weights.embedding = model.weights.head = table
    wide.weights.embedding = wide.weights.head = table.dequantise()
    return model, wide


def test_quantised_weights_with_float32_activations_equal_the_widened_model():
    model, wide = quantised_model()
    ours, theirs = filled(model, [127, 0, 5]), filled(wide, [127, 0, 5])
    decoder = CpuDecoder(model, ours, threads=2, activations="float32")
    for token in range(3):
        ids = torch.tensor([token, token + 50, 130])
        right = forward(wide, ids, theirs)
        torch.testing.assert_close(decoder.step(ids, ours), right, atol=2e-4, rtol=1e-4)


def test_int8_activations_stay_near_the_widened_model_and_are_the_default():
    model, wide = quantised_model()
    ids = torch.tensor([7, 70])
    right = forward(wide, ids, filled(wide, [60, 2]))
    got = step(model, filled(model, [60, 2]), ids)
    assert 1e-4 < reference.rms_ratio(got, right) < 2e-2
    asked = step(model, filled(model, [60, 2]), ids, activations="int8")
    assert torch.equal(got, asked)


@pytest.mark.parametrize("activations", ["int8", "float32"])
@pytest.mark.parametrize("batch", [2, 4, 7, 16])
def test_a_row_of_quantised_decoding_is_bit_for_bit_what_it_is_alone(batch, activations):
    model, _ = quantised_model()
    lengths, ids = [(b * 37) % 530 for b in range(batch)], torch.arange(batch) + 3
    together, whole = filled(model, lengths), filled(model, lengths)
    logits = step(model, together, ids, threads=2, activations=activations)
    for b in range(batch):
        alone = ContiguousCache(model.config, 1, 560)
        alone.k[:], alone.v[:] = whole.k[:, b : b + 1], whole.v[:, b : b + 1]
        alone.lengths[0] = lengths[b]
        one = step(model, alone, ids[b : b + 1], threads=1, activations=activations)
        assert torch.equal(logits[b], one[0])


def test_a_view_of_some_rows_of_a_cache():
    model = random_model()
    whole = filled(model, [5, 200, 60])
    right = forward(model, torch.tensor([4]), filled(model, [5, 200, 60]).row(1))
    got = step(model, whole.row(1), torch.tensor([4]))
    torch.testing.assert_close(got, right, atol=1e-4, rtol=1e-4)
    assert whole.lengths.tolist() == [5, 201, 60]


@pytest.mark.parametrize("fields", [VARIANTS["llama"], VARIANTS["window"], VARIANTS["qwen3"]])
@pytest.mark.parametrize("size", [1, 4, 16, 100, 128])
def test_pages_anywhere_give_the_bits_of_a_contiguous_cache(fields, size):
    model = random_model(**fields, max_position_embeddings=400)
    lengths, ids = [300, 0, 129, 5], torch.tensor([1, 2, 3, 4])
    whole = filled(model, lengths, capacity=400)
    most = -(-400 // size)
    memory = PagedCache(model.config, len(lengths) * most, size)
    memory.k.fill_(math.nan), memory.v.fill_(math.nan)
    order = torch.randperm(len(lengths) * most, generator=torch.Generator().manual_seed(5))
    tables = [order[b::4].tolist()[: length // size + 1] for b, length in enumerate(lengths)]
    for b, table in enumerate(tables):
        for paged, flat in ((memory.k, whole.k), (memory.v, whole.v)):
            for place, block in enumerate(table):
                part = flat[:, b, :, place * size : (place + 1) * size]
                paged[:, block, :, : part.shape[2]] = part
    rows = memory.rows(tables, lengths)
    assert torch.equal(step(model, rows, ids, threads=2), step(model, whole, ids, threads=2))
    assert rows.lengths.tolist() == [n + 1 for n in lengths]
    for b, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        block, slot = table[length // size], length % size
        assert torch.equal(memory.k[:, block, :, slot], whole.k[:, b, :, length])
        assert torch.equal(memory.v[:, block, :, slot], whole.v[:, b, :, length])


def test_logits_of_earlier_steps_stay_as_they_were():
    model = random_model()
    cache = filled(model, [3])
    decoder = CpuDecoder(model, cache)
    first = decoder.step(torch.tensor([1]), cache)
    kept = first.clone()
    decoder.step(torch.tensor([2]), cache)
    assert torch.equal(first, kept)


def test_weights_that_are_views_with_holes():
    model = random_model(attention_bias=True)
    right = step(model, filled(model, [9]), torch.tensor([1]))
    for layer in model.weights.layers:
        for name, tensor in list(vars(layer).items()):
            if tensor is not None:
                setattr(layer, name, torch.stack([tensor, tensor * math.nan], dim=-1)[..., 0])
    assert torch.equal(right, step(model, filled(model, [9]), torch.tensor([1])))


def test_case_29_a_full_cache_is_refused_and_stays_as_it_was():
    model = random_model()
    cache = filled(model, [2, 4], capacity=4)
    decoder, before = CpuDecoder(model, cache), cache.k.clone()
    with pytest.raises(InferlabError, match="holds 4 positions a row; 5 would not fit"):
        decoder.step(torch.tensor([1, 2]), cache)
    assert cache.lengths.tolist() == [2, 4]
    torch.testing.assert_close(cache.k, before, equal_nan=True)


def test_what_it_cannot_run_is_refused():
    model = random_model()
    cache = filled(model, [3, 4])
    for ids in ([1, 131], [-1, 1], [1]):
        with pytest.raises(InferlabError, match=r"ids is \[.*: 2 from 0 to 130 are needed"):
            step(model, cache, torch.tensor(ids))
    assert cache.lengths.tolist() == [3, 4]
    with pytest.raises(InferlabError, match="batch 17 is above 16"):
        step(model, ContiguousCache(model.config, 17, 4), torch.zeros(17, dtype=torch.int64))
    with pytest.raises(InferlabError, match="not in the memory"):
        CpuDecoder(model, cache).step(torch.tensor([1, 2]), filled(model, [3, 4]))
    with pytest.raises(InferlabError, match="float32"):
        CpuDecoder(model, ContiguousCache(model.config, 1, 4, dtype=torch.bfloat16))
    with pytest.raises(InferlabError, match="unknown activations 'int4'"):
        CpuDecoder(model, ContiguousCache(model.config, 1, 4), activations="int4")
    model.weights.embedding = model.weights.embedding.bfloat16()
    assert not supports(model)
    model = random_model(hidden_size=52, head_dim=10)
    model.weights.head = quantise(model.weights.head, "int8")  # 52 columns: no whole blocks
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
        steps.append(decoder.step(tokens[-1], cache))
        tokens.append(steps[-1].argmax(-1))
    # One torch pass over the answer: it would have chosen every token of it.
    answer = torch.cat([prompt[0], *tokens[:-1]])[None]
    fresh = ContiguousCache(model.config, 1, answer.shape[1])
    every = model.forward(answer, fresh.positions(answer.shape[1]), fresh, logits="all")
    right = every[0, len(ids) :]
    torch.testing.assert_close(torch.cat(steps), right, atol=2e-3, rtol=1e-4)
    assert torch.cat(tokens[1:]).tolist() == right.argmax(-1).tolist()


def test_smollm2_on_its_own_blocks_says_what_the_widened_model_says():
    """One step after a prompt, in both ways; the file's 4 and 8 bits are read as they are."""
    if source.installed() is None:
        pytest.skip("SmolLM2 is not installed: make setup")
    found = checkpoint.open(source.find())
    ids = found.tokenizer().chat([{"role": "user", "content": "What is the capital of France?"}])
    wide, stored = (found.load("cpu", torch.float32, quantize) for quantize in ("none", None))
    caches = [ContiguousCache(wide.config, 1, len(ids) + 1) for _ in range(3)]
    for cache in caches:
        wide.forward(torch.tensor([ids[:-1]]), cache.positions(len(ids) - 1), cache)
    token = torch.tensor(ids[-1:])
    right = step(wide, caches[0], token)
    exact = step(stored, caches[1], token, activations="float32")
    rounded = step(stored, caches[2], token)
    assert reference.rms_ratio(exact, right) < 1e-4
    log_p, log_q = right.log_softmax(-1), rounded.log_softmax(-1)
    divergence = float((log_p.exp() * (log_p - log_q)).sum())  # Kullback and Leibler's, in nats
    assert 0 < divergence < 0.01
    assert right.argmax() == exact.argmax()
    assert rounded.argmax() in right.topk(3).indices
