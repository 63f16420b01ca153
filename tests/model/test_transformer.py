"""Pieces of the forward pass that the comparison with transformers does not isolate."""

from __future__ import annotations

import pytest
import torch

from inferlab.engine.kv_cache import ContiguousCache
from inferlab.model import checkpoint
from inferlab.model.transformer import rms_norm


@pytest.mark.parametrize("magnitude", [300.0, 6e4, 1e-4])
def test_rms_norm_of_float16_equals_the_float64_norm(magnitude):
    """Squares of these overflow, or vanish, in float16."""
    signs = torch.randint(0, 2, (2, 896), generator=torch.Generator().manual_seed(1)) * 2 - 1
    x = (signs * magnitude).half()
    weight = torch.linspace(0.5, 1.5, 896).half()
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    got = rms_norm(x, weight, 1e-6)
    assert got.dtype == torch.float16
    assert got.isfinite().all()
    torch.testing.assert_close(got.double(), exact, rtol=1e-3, atol=0)


def test_streamed_bytes_leave_out_an_untied_input_table(saved):
    for name in ("llama", "llama-tied", "qwen2", "qwen3"):
        opened = checkpoint.open(saved(name))
        model = opened.load()
        table = opened.config.vocab * opened.config.hidden
        streamed = opened.config.shape().params - (0 if opened.config.tied else table)
        assert model.streamed_bytes == streamed * 4, name


def test_tied_models_keep_one_table(saved):
    weights = checkpoint.open(saved("llama-tied")).load().weights
    assert weights.head is weights.embedding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_runs_and_gives_float32_logits(saved, dtype):
    model = checkpoint.open(saved("qwen3")).load(dtype=dtype)
    cache = ContiguousCache(model.config, 2, 12, dtype=dtype)
    ids = torch.arange(16).view(2, 8)
    for part in ids.split([5, 1, 2], dim=1):
        logits = model.forward(part, cache.positions(part.shape[1]), cache)
        assert (logits.dtype, logits.shape) == (torch.float32, (2, 131))
        assert logits.isfinite().all()
    assert cache.lengths.tolist() == [8, 8]
