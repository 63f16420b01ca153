"""Configs: every spelling that is read, every field that is refused, and EOS from everywhere."""

from __future__ import annotations

import json

import pytest

from inferlab.errors import InferlabError
from inferlab.model.config import from_fields, from_folder

LLAMA = dict(
    model_type="llama",
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    vocab_size=131,
    max_position_embeddings=32,
    rms_norm_eps=1e-5,
)
QWEN2 = LLAMA | dict(model_type="qwen2", num_key_value_heads=2)
LLAMA3 = dict(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)


def test_what_a_llama_1_config_leaves_out():
    config = from_fields(LLAMA, name="tiny")
    assert (config.kv_heads, config.head_dim, config.tied) == (4, 16, False)
    assert (config.rope.theta, config.rope.dim, config.rope.kind) == (10_000, 16, "default")
    assert config.windows == (None,) * 4
    assert config.sliding_window is None
    assert (config.qkv_bias, config.o_bias, config.qk_norm) == (False, False, False)
    assert (config.eos_ids, config.bos_id) == (frozenset(), None)
    shape = config.shape()
    assert (shape.name, shape.layers, shape.hidden, shape.vocab) == ("tiny", 4, 64, 131)


@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_both_spellings_of_rope_mean_the_same(kind):
    old = LLAMA | dict(rope_theta=5e5, rope_scaling={kind: "llama3", **LLAMA3})
    new = LLAMA | dict(rope_parameters={"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3})
    assert from_fields(old) == from_fields(new)
    rope = from_fields(new).rope
    assert (rope.theta, rope.kind, rope.factor, rope.original_context) == (5e5, "llama3", 8, 16)


def test_rope_scaling_null_is_no_scaling():
    assert from_fields(LLAMA | dict(rope_scaling=None, rope_theta=1e6)).rope.theta == 1e6


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        (dict(rope_type="default"), 32),
        (dict(rope_type="llama3", **LLAMA3), 32),
        (dict(rope_type="linear", factor=4.0), 128),
        (dict(rope_type="dynamic", factor=2.0), 64),
        (dict(rope_type="yarn", factor=4.0), 128),
        (dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8), 32),
    ],
)
def test_the_longest_context_counts_the_scaling(rope, context):
    assert from_fields(LLAMA | dict(rope_parameters=rope)).max_context == context


@pytest.mark.parametrize(
    ("extra", "factor"),
    [
        ({}, 1.1386294361119891),  # 0.1 ln 4 + 1
        (dict(attention_factor=0.7), 0.7),
        (dict(mscale=1.0, mscale_all_dim=1.0), 1.0),
        (dict(mscale=2.0, mscale_all_dim=1.0), 1.2772588722239782 / 1.1386294361119891),
    ],
)
def test_yarn_scales_attention_as_its_config_says(extra, factor):
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8, **extra)
    rope = from_fields(LLAMA | dict(rope_parameters=yarn)).rope
    assert rope.attention_factor == pytest.approx(factor)


def test_partial_rotary_factor_narrows_what_turns():
    config = from_fields(LLAMA | dict(head_dim=64, partial_rotary_factor=0.5))
    assert (config.rope.dim, config.head_dim) == (32, 64)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        (dict(sliding_window=8), (None,) * 4),  # use_sliding_window is false if left out
        (dict(sliding_window=8, use_sliding_window=True, max_window_layers=3), (None,) * 3 + (8,)),
        (dict(sliding_window=8, use_sliding_window=True, max_window_layers=0), (8,) * 4),
        (
            dict(
                sliding_window=8,
                use_sliding_window=True,
                layer_types=["full_attention", "sliding_attention"] * 2,
            ),
            (None, 8, None, 8),
        ),
    ],
)
def test_qwen2_windows(fields, windows):
    assert from_fields(QWEN2 | fields).windows == windows


def test_mistral_and_llama_windows():
    mistral = QWEN2 | dict(model_type="mistral")
    assert from_fields(mistral | dict(sliding_window=8)).windows == (8,) * 4
    assert from_fields(mistral | dict(sliding_window=None)).windows == (None,) * 4
    assert from_fields(LLAMA | dict(sliding_window=8)).windows == (None,) * 4


def test_biases_and_norms_of_each_family():
    def flags(**fields):
        config = from_fields(QWEN2 | fields)
        return config.qkv_bias, config.o_bias, config.qk_norm

    assert flags(model_type="llama", attention_bias=True) == (True, True, False)
    assert flags(model_type="qwen2") == (True, False, False)
    assert flags(model_type="qwen3") == (False, False, True)
    assert flags(model_type="mistral") == (False, False, False)
    assert from_fields(QWEN2 | dict(model_type="qwen3")).head_dim == 128  # the family's default


@pytest.mark.parametrize(
    "fields",
    [
        dict(model_type="gemma2"),
        dict(model_type="llama4"),
        dict(model_type=None),
        dict(hidden_act="gelu"),
        dict(mlp_bias=True),
        dict(quantization_config={"quant_method": "gptq"}),
        dict(num_local_experts=8),
        dict(attn_logit_softcapping=50.0),
        dict(hidden_size="64"),
        dict(hidden_size=None),
        dict(hidden_size=0),
        dict(num_attention_heads=3),
        dict(num_key_value_heads=3),
        dict(vocab_size=1.5),
        dict(num_hidden_layers=-1),
        dict(num_hidden_layers=2**31),
        dict(rms_norm_eps="tiny"),
        dict(rms_norm_eps=0),
        dict(rope_theta=-1.0),
        dict(rope_theta=float("nan")),
        dict(eos_token_id="</s>"),
        dict(eos_token_id=[2, True]),
        dict(eos_token_id=-1),
        dict(bos_token_id=1.0),
        dict(partial_rotary_factor=1.5),
        dict(partial_rotary_factor=0.2),
        dict(tie_word_embeddings="yes"),
        dict(attention_bias=1),
    ],
    ids=lambda fields: ascii(fields)[:40],
)
def test_what_is_wrong_or_not_implemented_is_refused_by_its_field(fields):
    (field,) = fields
    with pytest.raises(InferlabError, match=field) as error:
        from_fields(LLAMA | fields)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (dict(rope_type="longrope", factor=2.0), "unknown rope_type 'longrope'"),
        (dict(type="mrope"), "unknown rope_type 'mrope'"),
        (dict(rope_type="linear"), "factor is None"),
        (dict(rope_type="yarn", factor="4"), "factor is '4'"),
        (dict(rope_type="llama3", **LLAMA3 | {"high_freq_factor": 1.0}), "high_freq_factor"),
        (dict(full_attention=dict(rope_type="default")), "differ by layer"),
        ("linear", "must be an object or null"),
    ],
)
def test_wrong_ropes_are_refused(rope, message):
    with pytest.raises(InferlabError, match=message):
        from_fields(LLAMA | dict(rope_scaling=rope))


def write(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, {2}),
        ([7, 2], None, {2, 7}),
        (2, 7, {2, 7}),
        (None, [9, 7], {7, 9}),
        ([383, 5], [5, 383], {5, 383}),
        (None, None, set()),
    ],
)
def test_end_tokens_of_both_files_count(tmp_path, config, generation, expected):
    write(tmp_path, config=LLAMA | dict(eos_token_id=config, bos_token_id=1))
    if generation is not None:
        write(tmp_path, generation_config=dict(eos_token_id=generation))
    found = from_folder(tmp_path)
    assert (found.eos_ids, found.bos_id) == (expected, 1)
    assert found.name == tmp_path.name


def test_damaged_config_files_are_named(tmp_path):
    with pytest.raises(InferlabError, match=r"config\.json cannot be read"):
        from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InferlabError, match=r"config\.json cannot be read"):
        from_folder(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InferlabError, match=r"config\.json cannot be read"):
        from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(InferlabError, match=r"config\.json must hold"):
        from_folder(tmp_path)
