"""Our forward pass against transformers, on tiny models with wide random weights."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from inferlab.engine import kv_cache
from inferlab.engine.kv_cache import ContiguousCache
from inferlab.model import checkpoint, transformer

# transformers renames the argument that carries its cache; either name works in 4.48 to 5.39.
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values:FutureWarning")

TOLERANCE = 1e-4  # float32 logits of up to 7
TOKENS = 60  # past the trained context of every scaling: 16 or 32
CHUNKS = {"whole": [60], "chunked": [17, 16, 1, 26], "step by step": [20, *[1] * 40]}
IDS = torch.randint(0, 131, (2, TOKENS), generator=torch.Generator().manual_seed(0))


@torch.inference_mode()
def theirs(peer, chunks):
    parts, past = [], None
    for ids in IDS.split(chunks, dim=1):
        state = peer(ids, past_key_values=past, use_cache=True)
        past = state.past_key_values
        parts.append(state.logits)
    return torch.cat(parts, dim=1)


def ours(model, chunks):
    cache = ContiguousCache(model.config, *IDS.shape)
    parts = [
        model.forward(ids, cache.positions(ids.shape[1]), cache, logits="all")
        for ids in IDS.split(chunks, dim=1)
    ]
    return torch.cat(parts, dim=1)


def difference(peer, model, chunks):
    return (ours(model, chunks) - theirs(peer, chunks)).abs().max().item()


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_logits_equal_transformers(name, peer, saved, chunks):
    model = checkpoint.open(saved(name)).load()
    assert difference(peer(name), model, chunks) < TOLERANCE


def test_last_logits_are_the_last_of_all(saved):
    model = checkpoint.open(saved("llama")).load()
    cache = ContiguousCache(model.config, *IDS.shape)
    last = model.forward(IDS, cache.positions(TOKENS), cache)
    assert last.dtype == torch.float32
    torch.testing.assert_close(last, ours(model, [TOKENS])[:, -1], atol=1e-5, rtol=0)


# Planted faults: the check above has to see each of them.


def _replace_rope(model, **changes):
    config = model.config
    model.config = dataclasses.replace(config, rope=dataclasses.replace(config.rope, **changes))


def scaling_ignored(model, patch):
    _replace_rope(model, kind="default", attention_factor=1.0)


def yarn_without_its_attention_factor(model, patch):
    _replace_rope(model, attention_factor=1.0)


def theta_wrong(model, patch):
    _replace_rope(model, theta=500_000.0)


def pairs_interleaved(model, patch):
    def rotate(x, cos, sin):
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)

    patch.setattr(transformer, "rotate", rotate)


def _plant_mask(patch, visible):
    right = kv_cache.F.scaled_dot_product_attention

    def attention(q, k, v, attn_mask=None, is_causal=False, **options):
        key = torch.arange(k.shape[2])
        query = key[-q.shape[2] :, None]
        return right(q, k, v, attn_mask=visible(query, key), **options)

    patch.setattr(kv_cache.F, "scaled_dot_product_attention", attention)


def mask_shows_the_next_token(model, patch):
    _plant_mask(patch, lambda query, key: key <= query + 1)


def mask_hides_the_token_before(model, patch):
    _plant_mask(patch, lambda query, key: (key <= query) & (key != query - 1))


def window_ignored(model, patch):
    _plant_mask(patch, lambda query, key: key <= query)


def window_one_too_wide(model, patch):
    windows = tuple(w and w + 1 for w in model.config.windows)
    model.config = dataclasses.replace(model.config, windows=windows)


def gqa_heads_shifted(model, patch):
    right = ContiguousCache.attend
    patch.setattr(
        ContiguousCache,
        "attend",
        lambda self, layer, q, k, v: right(self, layer, q, k.roll(1, 2), v.roll(1, 2)),
    )


def gqa_heads_interleaved(model, patch):
    right = ContiguousCache.attend

    def attend(self, layer, q, k, v):
        groups = (k.shape[2], q.shape[2] // k.shape[2])
        mixed = q.unflatten(2, groups[::-1]).transpose(2, 3).flatten(2, 3)
        out = right(self, layer, mixed, k, v)
        return out.unflatten(2, groups).transpose(2, 3).flatten(2, 3)

    patch.setattr(ContiguousCache, "attend", attend)


def scale_from_hidden_over_heads(model, patch):
    right = kv_cache.F.scaled_dot_product_attention
    config = model.config
    scale = (config.hidden // config.heads) ** -0.5
    patch.setattr(
        kv_cache.F,
        "scaled_dot_product_attention",
        lambda *args, **options: right(*args, scale=scale, **options),
    )


def norm_epsilon_of_another_family(model, patch):
    model.config = dataclasses.replace(model.config, norm_eps=1e-6)


def tied_head_forgotten(model, patch):
    head = torch.empty_like(model.weights.head)
    model.weights.head = torch.nn.init.normal_(head, std=0.2, generator=torch.Generator())


def qk_norm_forgotten(model, patch):
    for layer in model.weights.layers:
        layer.q_norm = layer.k_norm = None


def bias_forgotten(model, patch):
    for layer in model.weights.layers:
        layer.q_bias = layer.k_bias = layer.v_bias = None


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (scaling_ignored, "llama-linear"),
        (scaling_ignored, "llama-dynamic"),
        (scaling_ignored, "llama-llama3"),
        (scaling_ignored, "llama-yarn"),
        (yarn_without_its_attention_factor, "llama-yarn"),
        (theta_wrong, "llama"),
        (pairs_interleaved, "llama"),
        (mask_shows_the_next_token, "llama"),
        (mask_hides_the_token_before, "llama"),
        (window_ignored, "mistral-window"),
        (window_ignored, "qwen2-window"),
        (window_one_too_wide, "mistral-window"),
        (gqa_heads_shifted, "llama"),
        (gqa_heads_interleaved, "mistral-six-heads"),
        (scale_from_hidden_over_heads, "llama-one-kv-head"),
        (norm_epsilon_of_another_family, "llama"),
        (tied_head_forgotten, "llama-tied"),
        (qk_norm_forgotten, "qwen3"),
        (bias_forgotten, "qwen2"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_planted_fault_fails_the_comparison(fault, name, peer, saved, monkeypatch):
    model = checkpoint.open(saved(name)).load()
    fault(model, monkeypatch)
    assert difference(peer(name), model, [TOKENS]) > 10 * TOLERANCE
