"""What a checkpoint's files say about the model, checked, in one frozen record.

Sizes are read by `theory.models`, as for the catalog; this module adds what only a forward
pass needs (rotation, windows, epsilon, end tokens) and refuses, by the name of its field,
whatever the transformer here does not do. GGUF metadata is translated to the same fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferlab.errors import InferlabError, unknown
from inferlab.theory import models
from inferlab.theory.models import ModelShape

if TYPE_CHECKING:
    from inferlab.model.gguf import GGUF

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ROPES = ("default", "linear", "dynamic", "llama3", "yarn")
MOST_LAYERS = 4096  # a damaged file may claim billions

# The value that each of these must have, where a config names it at all.
ONLY = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "quantization_config": (None,),
    "num_local_experts": (None, 0),
    "num_experts": (None, 0),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "embedding_multiplier": (None, 1),
    "no_rope_layers": (None,),
}


@dataclass(frozen=True)
class Rope:
    """Rotary positions: `dim` channels of each head turn, pair i by `theta ** (-2 i / dim)`.

    `kind` names the scaling past the trained context `original_context`; the fields after it
    are those scalings' own (`rope.frequencies`). `divisors`, one a pair, divide the
    frequencies: GGUF files store their scaling so.
    """

    theta: float
    dim: int
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and choices of one checkpoint. `windows` has one entry a layer, None for full."""

    name: str
    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    norm_eps: float
    rope: Rope
    qkv_bias: bool
    o_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    tied: bool
    max_context: int
    eos_ids: frozenset[int] = frozenset()
    bos_id: int | None = None

    @property
    def sliding_window(self) -> int | None:
        """Positions that a windowed layer sees, itself included; None if every layer is full."""
        return max((w for w in self.windows if w is not None), default=None)

    def shape(self) -> ModelShape:
        """Return the sizes alone, for `theory.costs`."""
        return ModelShape(
            name=self.name,
            layers=self.layers,
            hidden=self.hidden,
            intermediate=self.intermediate,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab=self.vocab,
            tied=self.tied,
            max_context=self.max_context,
            window=self.sliding_window,
            windowed_layers=sum(w is not None for w in self.windows),
            qk_norm=self.qk_norm,
            qkv_bias=self.qkv_bias,
            output_bias=self.o_bias,
        )


def from_folder(folder: Path) -> ModelConfig:
    """Read `config.json`, and the end tokens of `generation_config.json`, of a folder."""
    fields = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    extra = read_json(generation) if generation.exists() else {}
    name = fields.get("_name_or_path") or folder.resolve().name
    return from_fields(fields, name=name, eos=ids(extra.get("eos_token_id"), "eos_token_id"))


def from_fields(
    fields: Mapping[str, Any],
    *,
    name: str = "",
    eos: frozenset[int] = frozenset(),
    divisors: tuple[float, ...] = (),
) -> ModelConfig:
    """Return the config that the fields of a `config.json` describe.

    `eos` are end tokens known from elsewhere; the union counts. Raises InferlabError naming
    the field that is missing, wrong or not implemented.
    """
    family = fields.get("model_type")
    if family not in FAMILIES:
        raise unknown("model_type", str(family), FAMILIES)
    for field, allowed in ONLY.items():
        if field in fields and fields[field] not in allowed:
            raise InferlabError(
                f"{field} {fields[field]!r} is not implemented; it must be {allowed[0]!r}"
            )
    if family == "llama":  # Llama's attention has no window, whatever its config carries
        fields = {k: v for k, v in fields.items() if k not in ("sliding_window", "layer_types")}
    shape = models.from_config(fields, name=name)
    if shape.layers > MOST_LAYERS:
        raise InferlabError(f"num_hidden_layers {shape.layers} is more than {MOST_LAYERS}")
    rope = _rope(fields, shape, divisors)
    return ModelConfig(
        name=name,
        family=family,
        layers=shape.layers,
        hidden=shape.hidden,
        intermediate=shape.intermediate,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab=shape.vocab,
        norm_eps=_number(fields, "rms_norm_eps", 1e-6),
        rope=rope,
        qkv_bias=shape.qkv_bias,
        o_bias=shape.output_bias,
        qk_norm=shape.qk_norm,
        windows=tuple(_windows(fields, shape)),
        tied=shape.tied,
        max_context=_context(shape.max_context, rope),
        eos_ids=eos | ids(fields.get("eos_token_id"), "eos_token_id"),
        bos_id=min(ids(fields.get("bos_token_id"), "bos_token_id"), default=None),
    )


def from_gguf(gguf: GGUF) -> ModelConfig:
    """Translate GGUF metadata to the fields of a `config.json`, and read those."""
    meta = gguf.metadata
    family = meta.get("general.architecture")
    if family not in FAMILIES:
        raise unknown("general.architecture", str(family), FAMILIES)

    def need(key: str) -> Any:
        value = meta.get(f"{family}.{key}")
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise InferlabError(f"{family}.{key} is {value!r}; it must be a positive number")
        return value

    def get(key: str, default: Any = None) -> Any:
        return meta.get(f"{family}.{key}", default)

    heads, hidden = need("attention.head_count"), need("embedding_length")
    head_dim = get("attention.key_length") or hidden // heads
    for key, right in {
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "attention.sliding_window": 0,
        "expert_count": 0,
    }.items():
        if get(key, right) != right:
            raise InferlabError(f"{family}.{key} {get(key)} is not implemented; it must be {right}")
    scaling = get("rope.scaling.type", "none")
    fields = {
        "model_type": family,
        "num_hidden_layers": need("block_count"),
        "hidden_size": hidden,
        "intermediate_size": need("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": gguf.entry("token_embd.weight").shape[0],
        "max_position_embeddings": need("context_length"),
        "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in gguf,
        "attention_bias": "blk.0.attn_output.bias" in gguf,
        "rope_parameters": {
            "rope_type": "default" if scaling == "none" else scaling,
            "rope_theta": get("rope.freq_base", 10000.0),
            "factor": get("rope.scaling.factor"),
            "original_max_position_embeddings": get("rope.scaling.original_context_length"),
            "attention_factor": get("rope.scaling.attn_factor"),
            "beta_fast": get("rope.scaling.yarn_beta_fast"),
            "beta_slow": get("rope.scaling.yarn_beta_slow"),
        },
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
    }
    ends = (meta.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom"))
    eos = ids([end for end in ends if end is not None], "tokenizer.ggml.eos_token_id")
    divisors: tuple[float, ...] = ()
    if "rope_freqs.weight" in gguf:
        divisors = tuple(gguf.tensor("rope_freqs.weight").flatten().tolist())
    name = str(meta.get("general.name") or gguf.path.stem)
    return from_fields(fields, name=name, eos=eos, divisors=divisors)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; anything else is an error that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InferlabError(f"{path} cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise InferlabError(f"{path} must hold a JSON object")
    return value


def ids(value: Any, field: str) -> frozenset[int]:
    """Return the token ids of a field that holds one id, a list of ids, or nothing."""
    found = value if isinstance(value, list) else [] if value is None else [value]
    if any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in found):
        raise InferlabError(f"{field} is {value!r}; it must be a token id or a list of them")
    return frozenset(found)


def _number(fields: Mapping[str, Any], field: str, default: float | None = None) -> float:
    value = fields.get(field)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise InferlabError(f"{field} is {value!r}; it must be a positive number")
    return float(value)


def _rope(fields: Mapping[str, Any], shape: ModelShape, divisors: tuple[float, ...]) -> Rope:
    """Read either spelling: `rope_parameters`, or `rope_theta` beside `rope_scaling`."""
    given = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise InferlabError(f"rope_scaling is {given!r}; it must be an object or null")
    outer = {k: fields[k] for k in ("rope_theta", "partial_rotary_factor") if k in fields}
    rope = {**outer, **{k: v for k, v in given.items() if v is not None}}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPES:
        raise unknown("rope_type", str(kind), ROPES)
    if any(isinstance(v, Mapping) for v in given.values()):
        raise InferlabError("rope_parameters that differ by layer are not implemented")

    dim = int(shape.head_dim * _number(rope, "partial_rotary_factor", 1.0))
    if dim % 2 or not 0 < dim <= shape.head_dim:
        raise InferlabError(
            f"partial_rotary_factor makes {dim} of {shape.head_dim} channels turn;"
            f" it must be an even number of them"
        )
    if divisors and len(divisors) != dim // 2:
        raise InferlabError(
            f"rope_freqs.weight has {len(divisors)} values; it must have {dim // 2}"
        )
    factor = 1.0 if kind == "default" else _number(rope, "factor")
    original = shape.max_context
    if kind in ("llama3", "yarn"):
        original = int(_number(rope, "original_max_position_embeddings", original))
    low, high = _number(rope, "low_freq_factor", 1.0), _number(rope, "high_freq_factor", 4.0)
    if low >= high:
        raise InferlabError(f"high_freq_factor {high} must be above low_freq_factor {low}")
    return Rope(
        theta=_number(rope, "rope_theta", 10000.0),
        dim=dim,
        kind=kind,
        factor=factor,
        original_context=original,
        low_freq_factor=low,
        high_freq_factor=high,
        beta_fast=_number(rope, "beta_fast", 32.0),
        beta_slow=_number(rope, "beta_slow", 1.0),
        truncate=bool(rope.get("truncate", True)),
        attention_factor=_attention_factor(rope, factor) if kind == "yarn" else 1.0,
        divisors=divisors,
    )


def _attention_factor(rope: Mapping[str, Any], factor: float) -> float:
    """Return YaRN's factor on cos and sin: 0.1 ln(factor) + 1, unless the config says else."""
    if "attention_factor" in rope:
        return _number(rope, "attention_factor")

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(max(factor, 1.0)) + 1.0

    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scale(_number(rope, "mscale")) / scale(_number(rope, "mscale_all_dim"))
    return scale(1.0)


def _context(stated: int, rope: Rope) -> int:
    """Return the longest context: some scalings state only the one before them."""
    if rope.kind in ("linear", "dynamic"):
        return int(stated * rope.factor)
    return max(stated, int(rope.original_context * rope.factor)) if rope.kind == "yarn" else stated


def _windows(fields: Mapping[str, Any], shape: ModelShape) -> Iterator[int | None]:
    kinds = fields.get("layer_types") if shape.window else None
    full = shape.layers - shape.windowed_layers
    for layer in range(shape.layers):
        sliding = kinds[layer] == "sliding_attention" if kinds else layer >= full
        yield shape.window if sliding else None
