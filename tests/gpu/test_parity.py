"""Our engine against the transformers that is installed, on the same random weights."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from inferlab.engine.gpu_decode import GpuDecoder
from inferlab.engine.kv_cache import ContiguousCache
from inferlab.measure import peer
from inferlab.model import synthetic

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values:FutureWarning")

KEYS = ("smollm2-135m", "llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "mistral-7b-v0.1")
TOLERANCE = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}
SMALL = {"layers": 3, "hidden": 256, "heads": 8, "kv_heads": 2, "vocab": 512, "intermediate": 384}


@pytest.mark.parametrize("key", KEYS)
@torch.inference_mode()
def test_a_prompt_and_steps_after_it_equal_transformers(key, dtype, device, big):
    config = synthetic.catalog_config(key)
    changes = SMALL | {"windows": config.windows[:3]}
    if big(False, True):
        changes |= {"layers": 1, "windows": config.windows[:1], "hidden": 64, "vocab": 64}
    config = dataclasses.replace(config, **changes)
    model = synthetic.transformer(config, device, dtype, spread=1.5 / math.sqrt(config.hidden))
    theirs = peer.build(model)
    tokens = big(300, 12)
    ids = torch.arange(tokens + 3, device=device)[None] * 31 % config.vocab
    right = theirs(ids).logits[0].float()

    cache = ContiguousCache(config, 1, tokens + 8, device, dtype, "triton")
    parts = [
        model.forward(part, cache.positions(part.shape[1]), cache, logits="all")[0]
        for part in ids[:, :tokens].split(tokens // 2, dim=1)
    ]
    decoder = GpuDecoder(model, cache)
    parts += [decoder.step(ids[0, n : n + 1].cpu(), cache) for n in range(tokens, tokens + 3)]
    got = torch.cat(parts)
    error = (got - right).square().mean().sqrt() / right.square().mean().sqrt()
    assert float(error) < TOLERANCE[dtype]
