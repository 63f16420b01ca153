"""Checkpoints on disk: GGUF files written from tiny models, shards, and damage."""

from __future__ import annotations

import json
import random
import shutil

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

from inferlab.engine.kv_cache import ContiguousCache
from inferlab.errors import InferlabError
from inferlab.kernels.reference import rms_ratio
from inferlab.model import checkpoint, config, gguf_tokenizer
from inferlab.model.gguf import GGUF

IDS = torch.randint(0, 131, (1, 40), generator=torch.Generator().manual_seed(0))
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
TOKENS = [*(f"<{i}>" for i in range(128)), "a", "b", "ab"]


def logits(opened, **options):
    model = opened.load(**options)
    cache = ContiguousCache(model.config, 1, 40, dtype=model.dtype)
    return model.forward(IDS, cache.positions(40), cache, logits="all")


def llama_cpp_order(rows, heads):
    """What llama.cpp's converter does to q and k: pairs of channels side by side."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def as_gguf(folder, path, *, kind=Kind.F32, drop=(), divisors=None, **metadata):
    """Write a folder's model as llama.cpp would, with a vocabulary that means nothing."""
    fields = json.loads((folder / "config.json").read_text())
    family, heads = fields["model_type"], fields["num_attention_heads"]
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(fields["num_hidden_layers"])
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(metadata.pop("llama__attention__head_count", heads))
    writer.add_head_count_kv(fields["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_rope_freq_base(fields["rope_parameters"]["rope_theta"])
    if fields.get("head_dim"):
        writer.add_key_length(fields["head_dim"])
        writer.add_value_length(fields["head_dim"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in metadata.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](key.replace("__", "."), value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], fields["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float().numpy()
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            count = heads if "q_proj" in name else fields["num_key_value_heads"]
            values = llama_cpp_order(values, count)
        name = names.get_name(name, (".weight", ".bias"))
        if name not in drop:
            stored = kind if values.ndim == 2 and values.shape[1] % 32 == 0 else Kind.F32
            writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    "name", ["llama", "llama-tied", "llama-one-kv-head", "llama-bias", "qwen2", "qwen3"]
)
def test_a_gguf_file_gives_the_logits_of_its_folder(name, saved, tmp_path):
    folder = checkpoint.open(saved(name))
    file = checkpoint.open(as_gguf(saved(name), tmp_path / "x.gguf"))
    torch.testing.assert_close(logits(file), logits(folder), atol=1e-5, rtol=0)
    assert file.config.shape().params == folder.config.shape().params
    assert file.config.bos_id == 1
    assert file.config.eos_ids == file.tokenizer().eos_ids == {2}


@pytest.mark.parametrize(
    ("kind", "bound"), [(Kind.F16, 2e-3), (Kind.BF16, 2e-2), (Kind.Q8_0, 0.1), (Kind.Q4_1, 1.0)]
)
def test_narrow_files_load_what_their_blocks_say(kind, bound, saved, tmp_path):
    opened = checkpoint.open(as_gguf(saved("llama"), tmp_path / "x.gguf", kind=kind))
    exact = checkpoint.open(saved("llama")).load().weights
    near = opened.load(quantize="none").weights
    for part in MATRICES:
        expected = getattr(exact.layers[1], part)
        got = getattr(near.layers[1], part)
        error = (got - expected).abs().max() / expected.std()
        assert 0 < error < bound, part
        assert opened.stored(part, 1)[0].name == kind.name


def formats(opened, **options):
    """How many matrices are in each format, once loaded."""
    return {name: len(held) for name, held in opened.load(**options).formats.items()}


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_blocks_stay_as_they_are_stored(kind, saved, tmp_path):
    """By name and by value, q and k with their rows in order, and at the file's own size."""
    opened = checkpoint.open(as_gguf(saved("llama"), tmp_path / "x.gguf", kind=kind))
    model, wide = opened.load(), opened.load(quantize="none")
    assert formats(opened) == {kind.name.lower(): 22}
    assert formats(opened, quantize="none") == {"fp32": 22}
    for layer, widened in zip(model.weights.layers, wide.weights.layers, strict=True):
        for part in MATRICES:
            assert torch.equal(getattr(layer, part).dequantise(), getattr(widened, part)), part
        assert layer.attn_norm.dtype == torch.float32
    stored = sum(opened.stored(part, i)[1].nbytes for part in MATRICES for i in range(3))
    stored += opened.stored("head")[1].nbytes
    assert model.streamed_bytes == stored + 7 * 64 * 4


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen2"])
def test_a_pass_over_blocks_is_a_pass_over_what_they_widen_to(kind, name, saved, tmp_path):
    opened = checkpoint.open(as_gguf(saved(name), tmp_path / "x.gguf", kind=kind))
    kept, wide = logits(opened), logits(opened, quantize="none")
    torch.testing.assert_close(kept, wide, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", [None, Kind.F32, Kind.F16, Kind.BF16], ids=str)
@pytest.mark.parametrize(
    ("quantize", "expected", "bound"),
    [("q8", {"q8_0": 22}, 0.01), ("q4", {"q4_1": 21, "q8_0": 1}, 0.15)],
)
def test_float_checkpoints_are_quantised_while_they_load(
    kind, quantize, expected, bound, saved, tmp_path
):
    folder = saved("llama")
    path = folder if kind is None else as_gguf(folder, tmp_path / "x.gguf", kind=kind)
    opened = checkpoint.open(path)
    assert formats(opened, quantize=quantize) == expected
    near = opened.load(quantize=quantize).weights
    exact = checkpoint.open(folder).load().weights
    for part in MATRICES:
        right = getattr(exact.layers[2], part)
        assert 0 < rms_ratio(getattr(near.layers[2], part).dequantise(), right) < bound
    assert rms_ratio(near.embedding.dequantise(), exact.embedding) < 0.01


def test_blocks_of_a_file_are_not_rounded_again_to_more_bits(saved, tmp_path):
    four = checkpoint.open(as_gguf(saved("llama"), tmp_path / "4.gguf", kind=Kind.Q4_0))
    assert formats(four, quantize="q4") == formats(four, quantize="q8") == {"q4_0": 22}
    eight = checkpoint.open(as_gguf(saved("llama"), tmp_path / "8.gguf", kind=Kind.Q8_0))
    assert formats(eight, quantize="q8") == {"q8_0": 22}
    assert formats(eight, quantize="q4") == {"q4_1": 21, "q8_0": 1}


def test_case_40_what_fills_no_blocks_stays_float_and_is_counted(saved):
    """Three `down` matrices of 72 columns among nineteen others of 64."""
    opened = checkpoint.open(saved("odd-columns"))
    assert formats(opened, quantize="q8") == {"q8_0": 19, "fp32": 3}
    model = opened.load(quantize="q8")
    assert all(isinstance(layer.down, torch.Tensor) for layer in model.weights.layers)
    # Wide random weights amplify the rounding of eight bits.
    assert rms_ratio(logits(opened, quantize="q8"), logits(opened)) < 0.2


def test_case_40_a_model_without_any_such_matrix_is_refused(saved):
    opened = checkpoint.open(saved("all-odd-columns"))
    with pytest.raises(InferlabError, match="quantize q4: no matrix has a multiple of 32 columns"):
        opened.load(quantize="q4")


def test_norms_and_biases_are_never_quantised(saved):
    layer = checkpoint.open(saved("qwen2")).load(quantize="q4").weights.layers[0]
    for part in ("attn_norm", "mlp_norm", "q_bias", "k_bias", "v_bias"):
        assert getattr(layer, part).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quantised_weights_serve_narrow_activations(dtype, saved):
    opened = checkpoint.open(saved("llama-bias"))
    model = opened.load(dtype=dtype, quantize="q8")
    assert model.dtype == dtype
    near = logits(opened, dtype=dtype, quantize="q8")
    bound = {torch.bfloat16: 0.3, torch.float16: 0.05}[dtype]
    assert rms_ratio(near, logits(opened, quantize="q8")) < bound


def test_the_scaling_that_gguf_keeps_in_a_tensor_is_honoured(peer, saved, tmp_path):
    """llama3's divisors, computed by transformers, reach the same logits as its config."""
    theirs = peer("llama-llama3").model.rotary_emb.inv_freq
    plain = 10_000.0 ** (-torch.arange(0, 16, 2) / 16)
    path = as_gguf(saved("llama-llama3"), tmp_path / "x.gguf", divisors=(plain / theirs).tolist())
    folder = logits(checkpoint.open(saved("llama-llama3")))
    torch.testing.assert_close(logits(checkpoint.open(path)), folder, atol=1e-4, rtol=0)
    without = as_gguf(saved("llama-llama3"), tmp_path / "y.gguf")
    assert (logits(checkpoint.open(without)) - folder).abs().max() > 1


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_the_scalings_that_gguf_keeps_in_metadata_are_honoured(kind, saved, tmp_path):
    scaling = {"rope__scaling__type": kind, "rope__scaling__factor": 4.0}
    if kind == "yarn":
        scaling["rope__scaling__original_context_length"] = 16
    metadata = {f"llama__{key}": value for key, value in scaling.items()}
    path = as_gguf(saved(f"llama-{kind}"), tmp_path / "x.gguf", **metadata)
    folder = logits(checkpoint.open(saved(f"llama-{kind}")))
    torch.testing.assert_close(logits(checkpoint.open(path)), folder, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(drop=["blk.1.ffn_up.weight"]), r"tensor 'blk\.1\.ffn_up\.weight' is missing"),
        (dict(llama__attention__head_count=6), r"'blk\.0\.attn_q\.weight' has shape \(64, 64\)"),
        (dict(drop=["output_norm.weight"]), r"tensor 'output_norm\.weight' is missing"),
        (dict(drop=["token_embd.weight"]), r"tensor 'token_embd\.weight' is missing"),
        (dict(divisors=[1.0, 2.0]), r"rope_freqs\.weight has 2 values; it must have 8"),
        (dict(llama__expert_count=4), r"llama\.expert_count 4 is not implemented"),
        (dict(llama__attention__sliding_window=8), r"llama\.attention\.sliding_window 8 is not"),
        (dict(llama__rope__scaling__type="longrope"), "unknown rope_type 'longrope'"),
        (dict(llama__rope__dimension_count=4), r"llama\.rope\.dimension_count 4 is not"),
    ],
)
def test_what_a_gguf_file_lacks_or_asks_too_much_is_named(options, message, saved, tmp_path):
    path = as_gguf(saved("llama"), tmp_path / "x.gguf", **options)
    with pytest.raises(InferlabError, match=message):
        checkpoint.open(path).load()


def test_other_architectures_and_missing_keys_are_named(tmp_path):
    path = tmp_path / "x.gguf"
    for family, message in (
        ("gemma2", "general.architecture 'gemma2'"),
        ("llama", "head_count is"),
    ):
        writer = gguf.GGUFWriter(path, family)
        writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(InferlabError, match=message):
            checkpoint.open(path)


def test_damage_anywhere_in_the_header_never_escapes(saved, tmp_path):
    """Flipped bits and cut ends: the checkpoint loads, or an InferlabError says why not."""
    whole = as_gguf(saved("llama"), tmp_path / "x.gguf").read_bytes()
    header = whole.index(b"\0" * 40) if b"\0" * 40 in whole else len(whole)
    draw, path, refused = random.Random(5), tmp_path / "bad.gguf", 0
    for trial in range(400):
        damaged = bytearray(whole[: draw.randrange(len(whole))] if trial % 4 == 0 else whole)
        if trial % 4:
            at = draw.randrange(min(header, 1400) if trial % 2 else 6000)
            damaged[at] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            checkpoint.open(path).load()
        except InferlabError:
            refused += 1
    assert refused > 150


def test_metadata_of_a_wrong_kind_never_escapes(saved, tmp_path):
    """Each key in turn holds something else: it is refused, or it does not matter."""
    path = as_gguf(saved("llama"), tmp_path / "x.gguf", tokenizer__chat_template="{{ 1 }}")
    refused = set()
    for key in GGUF(path).metadata:
        for value in ("", "x", [1], ["x"], -1, 0, 7, 2**40, 1.5, float("nan"), True):
            file = GGUF(path)
            del file.metadata["llama.attention.key_length"]  # as in SmolLM2's
            file.metadata[key] = value
            try:
                config.from_gguf(file)
                tokenizer = gguf_tokenizer.from_gguf(file)
                tokenizer.decode(tokenizer.chat([{"role": "user", "content": "ab"}]))
            except InferlabError:
                refused.add(key)
    assert len(refused) > 12


def test_shards_load_as_one_file(saved):
    whole, sharded = saved("llama"), saved("llama", max_shard_size="40KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    got = logits(checkpoint.open(sharded))
    assert torch.equal(got, logits(checkpoint.open(whole)))


@pytest.fixture
def copied(saved, tmp_path):
    """Return a copy of a folder of shards, to be damaged."""
    return shutil.copytree(saved("llama", max_shard_size="40KB"), tmp_path / "copy")


def test_damaged_shards_are_named(copied):
    index = copied / "model.safetensors.index.json"
    second = sorted(copied.glob("*.safetensors"))[1]
    content = second.read_bytes()
    for damage in (content[:100], content[:-10], b"", b"\xff" * 64):
        second.write_bytes(damage)
        with pytest.raises(InferlabError, match=second.name):
            checkpoint.open(copied)
    second.unlink()
    with pytest.raises(InferlabError, match=second.name):
        checkpoint.open(copied)
    for listed in ([], {"a": 1}, {"a": "../../etc/passwd"}, None):
        index.write_text(json.dumps({"weight_map": listed}))
        with pytest.raises(InferlabError, match="weight_map must name"):
            checkpoint.open(copied)
    index.unlink()
    with pytest.raises(InferlabError, match=r"no model\.safetensors"):
        checkpoint.open(copied)


def rewritten(saved, tmp_path, change):
    """Return a copy of the tiny Llama's folder with its tensors changed."""
    folder = shutil.copytree(saved("llama"), tmp_path / "copy")
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop("model.layers.2.mlp.up_proj.weight"),
            r"layers\.2\.mlp\.up_proj\.weight' is",
        ),
        (lambda t: t.pop("lm_head.weight"), r"tensor 'lm_head\.weight' is missing"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(63)}),
            r"'model\.norm\.weight' has shape \(63,\); the config says \(64,\)",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}),
            r"'model\.norm\.weight' has dtype torch\.int8",
        ),
    ],
)
def test_missing_and_misshapen_tensors_are_named(change, message, saved, tmp_path):
    with pytest.raises(InferlabError, match=message):
        checkpoint.open(rewritten(saved, tmp_path, change)).load()


def test_half_precision_files_load_at_every_dtype(saved, tmp_path):
    folder = rewritten(saved, tmp_path, lambda t: t.update({k: v.half() for k, v in t.items()}))
    exact = logits(checkpoint.open(saved("llama")))
    assert (logits(checkpoint.open(folder)) - exact).abs().max() < 0.1
    for dtype in (torch.float16, torch.bfloat16):
        model = checkpoint.open(folder).load(dtype=dtype)
        assert model.dtype == dtype


def test_loaded_weights_outlive_their_file(saved, tmp_path):
    """Nothing of the model still maps the file: it may be overwritten while the model runs."""
    folder = rewritten(saved, tmp_path, lambda tensors: None)
    model = checkpoint.open(folder).load()
    before = model.weights.embedding.clone()
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert torch.equal(model.weights.embedding, before)


def test_the_end_tokens_of_the_tokenizer_join_the_others(saved, tmp_path):
    """The union of generation_config, config and tokenizer, in the config and the tokenizer."""
    from tokenizers import Tokenizer, decoders, models

    folder = shutil.copytree(saved("llama"), tmp_path / "copy")
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    special = {"eos_token": {"content": "<7>"}, "bos_token": "<1>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    opened = checkpoint.open(folder)
    assert opened.config.eos_ids == opened.tokenizer().eos_ids == {2, 5, 7}


def test_a_folder_without_a_tokenizer_works_on_ids(saved):
    opened = checkpoint.open(saved("llama"))
    assert logits(opened).isfinite().all()
    with pytest.raises(InferlabError, match=r"has no tokenizer\.json"):
        opened.tokenizer()
    with pytest.raises(InferlabError, match="not a GGUF file"):
        opened.stored("q", 0)
