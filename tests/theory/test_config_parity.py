"""Parameter counts against transformers: the same tiny config, built there without memory."""

from __future__ import annotations

import json

import pytest

from inferlab.theory import models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

DENSE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDE = {**DENSE, "head_dim": 24}
LATENT = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
CASES = {
    "LlamaConfig": WIDE,
    "MistralConfig": {**WIDE, "sliding_window": 32},
    "MixtralConfig": {**WIDE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2Config": DENSE,
    "Qwen3Config": WIDE,
    "Qwen3MoeConfig": {
        **WIDE,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "decoder_sparse_step": 2,
    },
    "GemmaConfig": WIDE,
    "Gemma2Config": WIDE,
    "Gemma3TextConfig": WIDE,
    "Phi3Config": DENSE,
    "DeepseekV2Config": {**DENSE, **LATENT, "q_lora_rank": None},
    "DeepseekV3Config": {**DENSE, **LATENT, "q_lora_rank": 24, "n_group": 2, "topk_group": 1},
    "GptOssConfig": {**WIDE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "GPT2Config": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 128}
    | {"bos_token_id": 1, "eos_token_id": 2},
}


def count(config) -> int:
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    tensors = dict(model.named_parameters())
    # DeepSeek-V3's router bias is stored with the weights, though not as a parameter.
    tensors |= {n: b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
    return sum(tensor.numel() for tensor in tensors.values())


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", CASES)
def test_parameters_equal_those_of_transformers(name, tied):
    config = getattr(transformers, name)(**CASES[name], tie_word_embeddings=tied)
    assert models.from_config(json.loads(config.to_json_string())).params == count(config)


def test_biases_that_a_config_asks_for():
    config = transformers.LlamaConfig(**WIDE, attention_bias=True, mlp_bias=True)
    assert models.from_config(json.loads(config.to_json_string())).params == count(config)
