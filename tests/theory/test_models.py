"""The catalog against an independent recount; configs good, odd and broken."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from inferlab.errors import InferlabError
from inferlab.theory import costs, models

ORACLE = Path(__file__).parent / "data" / "models_oracle.csv"
ROWS = list(csv.DictReader(ORACLE.open(encoding="utf-8")))

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}


def tiny(**changes):
    return {**TINY, **changes}


def test_catalog_holds_the_models_of_the_oracle():
    assert sorted(row["key"] for row in ROWS) == sorted(models.names())
    assert len(ROWS) == 32


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["key"])
def test_shape_equals_the_oracle(row):
    shape = models.get(row["key"])
    per_position = costs.attention_flops(shape, 1, 200_000, latent="expanded")
    per_position -= costs.attention_flops(shape, 1, 199_999, latent="expanded")
    if shape.latent:  # Expanding one more cached latent is not part of scoring it.
        per_position = costs.attention_flops(shape, 1, 0, latent="expanded")
    recounted = {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "intermediate": shape.intermediate,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab": shape.vocab,
        "params_total": shape.params,
        "params_active": shape.active_params,
        "params_non_embedding": shape.non_embedding_params,
        "params_input_embedding": shape.embedding_params,
        "weight_bytes_bf16": costs.weight_bytes(shape),
        "decode_streamed_bytes_bf16_batch1": costs.streamed_weight_bytes(shape),
        "kv_bytes_per_token_bf16": costs.kv_bytes_per_token(shape),
        "kv_bytes_per_token_bf16_beyond_window": costs.kv_bytes(shape, 200_001)
        - costs.kv_bytes(shape, 200_000),
        "kv_fixed_window_bytes_bf16": 2
        * shape.kv_width
        * shape.windowed_layers
        * (shape.window or 0),
        "attn_flops_per_token_per_ctx": per_position,
        "max_context": shape.max_context,
    }
    assert recounted == {name: int(row[name]) for name in recounted}
    assert str(shape.tied) == row["tied_embeddings"]
    assert shape.source


def published_count(text):
    return float(text.split("B")[0].split("M")[0]) * (1e6 if text.endswith("M") else 1e9)


@pytest.mark.parametrize("name", models.names())
def test_published_totals_are_what_the_names_promise(name):
    """Within a tenth, but for Gemma-2-2B, whose embedding its name leaves out."""
    shape = models.get(name)
    off = shape.params / published_count(shape.published["total"]) - 1
    assert abs(off) < (0.31 if name == "gemma-2-2b" else 0.1)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(InferlabError, match="llama-2-70b"):
        models.get("lama-2-70b")
    assert models.get("LLaMA-2-70B") is not None


def test_kv_of_grouped_queries():
    """Case 61: KV heads and the head's own width, not hidden / heads."""
    assert costs.kv_bytes_per_token(models.get("llama-3.1-8b")) == 131_072
    qwen3_4b = models.from_config(
        tiny(
            model_type="qwen3",
            hidden_size=2560,
            intermediate_size=9728,
            num_hidden_layers=36,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            vocab_size=151936,
            tie_word_embeddings=True,
        )
    )
    assert costs.kv_bytes_per_token(qwen3_4b) == 147_456


# Configs of other people


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": -3}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"hidden_size": 10**30}, "hidden_size"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": None}, "head_dim"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"model_type": None}, "model_type"),
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": "qwen2", "num_key_value_heads": None}, "num_key_value_heads"),
        (
            {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
            "num_experts_per_tok",
        ),
        ({"model_type": "mixtral", "num_local_experts": 4}, "num_experts_per_tok"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
        (
            {"model_type": "gemma2", "sliding_window": 8, "layer_types": ["full_attention"]},
            "layer_types",
        ),
        (
            {"model_type": "qwen3", "sliding_window": 8, "use_sliding_window": True}
            | {"layer_types": ["linear_attention"] * 4},
            "layer_types",
        ),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank"),
        ({"model_type": "gpt2"}, "n_embd"),
    ],
)
def test_broken_configs_name_the_field(changes, field):
    with pytest.raises(InferlabError, match=field) as caught:
        models.from_config(tiny(**changes))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InferlabError, match="no such config"):
        models.from_config(tmp_path / "config.json")
    for text in ("", "{", "[1]", "\udcff"):
        path = tmp_path / "bad.json"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(InferlabError, match=r"bad\.json"):
            models.from_config(path)
    with pytest.raises(InferlabError):
        models.from_config(tmp_path)


def test_a_config_is_read_from_a_path_a_string_or_a_mapping(tmp_path):
    path = tmp_path / "my-model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(TINY))
    assert models.from_config(path).name == "my-model"
    assert models.from_config(str(path), name="mine").name == "mine"
    assert models.from_config(path) == models.from_config(TINY, name="my-model").__class__(
        **{**models.from_config(TINY, name="my-model").__dict__, "key": "my-model"}
    )


def test_older_files_leave_kv_heads_and_head_dim_out():
    shape = models.from_config(tiny(num_key_value_heads=None, head_dim=None))
    assert (shape.kv_heads, shape.head_dim) == (4, 16)


def test_multimodal_files_are_read_through_their_text():
    """A Gemma 3 file as published: sizes inside, and only those that differ from the default."""
    shape = models.from_config(
        {
            "model_type": "gemma3",
            "vision_config": {"hidden_size": 1152},
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
                "model_type": "gemma3_text",
            },
        }
    )
    catalog = models.get("gemma-3-4b")
    assert shape.params - catalog.params == (262_208 - 262_144) * 2560
    assert (shape.window, shape.windowed_layers) == (1024, 29)


def test_windows_by_family():
    assert models.from_config(tiny(model_type="mistral", sliding_window=8)).windowed_layers == 4
    assert models.from_config(tiny(model_type="mistral", sliding_window=None)).window is None
    off = tiny(model_type="qwen2", sliding_window=8, use_sliding_window=False)
    assert models.from_config(off).window is None
    late = tiny(model_type="qwen2", sliding_window=8, use_sliding_window=True, max_window_layers=3)
    assert models.from_config(late).windowed_layers == 1
    assert models.from_config(tiny(model_type="gemma2", sliding_window=8)).windowed_layers == 2
    listed = ["full_attention", *["sliding_attention"] * 3]
    assert (
        models.from_config(
            tiny(model_type="gemma3_text", sliding_window=8, layer_types=listed)
        ).windowed_layers
        == 3
    )


def test_kv_stops_growing_where_every_layer_has_a_window():
    shape = models.get("mistral-7b-v0.1")
    assert costs.kv_bytes(shape, 4096) == costs.kv_bytes(shape, 32_768) == 536_870_912
