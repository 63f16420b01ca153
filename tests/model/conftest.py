"""Tiny random models, saved by transformers: the other implementation that ours is held against."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
import transformers
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

SIZES = dict(
    vocab_size=131,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
)


def _scaled(kind: str, **parameters):
    return {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **parameters}


LLAMA3 = _scaled(
    "llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
YARN = _scaled("yarn", original_max_position_embeddings=16)

CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "llama-linear": LlamaConfig(**SIZES, rope_parameters=_scaled("linear")),
    "llama-dynamic": LlamaConfig(**SIZES, rope_parameters=_scaled("dynamic")),
    "llama-llama3": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama-yarn": LlamaConfig(**SIZES | {"max_position_embeddings": 64}, rope_parameters=YARN),
    "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-bias": LlamaConfig(**SIZES, attention_bias=True),
    "llama-one-kv-head": LlamaConfig(
        **SIZES | {"num_key_value_heads": 1}, head_dim=24, tie_word_embeddings=True
    ),
    "mistral-six-heads": MistralConfig(
        **SIZES | {"num_attention_heads": 6}, head_dim=24, sliding_window=None
    ),
    "mistral-window": MistralConfig(**SIZES, sliding_window=7),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2-window": Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=7, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**SIZES, head_dim=24, tie_word_embeddings=True),
}

# Beside those: sizes that fill no blocks of 32.
ODD = {
    "odd-columns": LlamaConfig(**SIZES | {"intermediate_size": 72}),
    "all-odd-columns": LlamaConfig(
        **SIZES | {"hidden_size": 40, "intermediate_size": 72, "num_attention_heads": 2},
        head_dim=20,
    ),
}

transformers.utils.logging.disable_progress_bar()


@cache
def _peer(name: str):
    """Return transformers' model, its weights drawn so wide that attention is far from flat.

    At the default width (0.02) a wrong rotation moves no logit that a test could see.
    """
    torch.manual_seed(sum(name.encode()))
    config = copy.deepcopy((CONFIGS | ODD)[name])
    config._attn_implementation = "eager"
    peer = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter_name, parameter in peer.named_parameters():
        center = 1.0 if "norm" in parameter_name else 0.0
        torch.nn.init.normal_(parameter, center, 0.2)
    return peer


@pytest.fixture(params=CONFIGS)
def name(request):
    """Return the name of each tiny model in turn."""
    return request.param


@pytest.fixture
def peer():
    """Return the function that makes (once) the tiny model of a name in CONFIGS."""
    return _peer


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Return a function that saves such a model to a folder of safetensors (once)."""

    @cache
    def save(name: str, **options):
        folder = tmp_path_factory.mktemp(name)
        _peer(name).save_pretrained(folder, **options)
        return folder

    return save
