"""Models by name, and the reader of any Hugging Face `config.json` of a known family.

The catalog is a folder of such files, each with a few more words on where its sizes come from
under the key `inferlab`; one function reads them and the reader's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inferlab.errors import InferlabError, unknown
from inferlab.theory.shapes import Experts, Latent, ModelShape, Weights

__all__ = [
    "Experts",
    "Latent",
    "ModelShape",
    "Weights",
    "all",
    "families",
    "from_config",
    "get",
    "names",
    "path",
]

_CATALOG = Path(__file__).parent / "data" / "models"


@cache
def get(name: str) -> ModelShape:
    """Return the catalog's model called `name`, such as "llama-2-70b", in any case.

    Raises InferlabError, with the nearest known names, if there is none.
    """
    return from_config(path(name))


def path(name: str) -> Path:
    """Return the file of the catalog's model called `name`; raises as `get` does."""
    if name.lower() not in names():
        raise unknown("model", name, names())
    return _CATALOG / f"{name.lower()}.json"


@cache
def names() -> tuple[str, ...]:
    """Return the names of the catalog's models."""
    return tuple(sorted(path.stem for path in _CATALOG.glob("*.json")))


def all() -> tuple[ModelShape, ...]:
    """Return every model of the catalog, in the order of `names`."""
    return tuple(get(name) for name in names())


def families() -> tuple[str, ...]:
    """Return the values of `model_type` that `from_config` can read."""
    return tuple(_FAMILIES)


def from_config(config: Mapping[str, Any] | str | Path, name: str | None = None) -> ModelShape:
    """Return the shape that a `config.json` describes, given as a mapping or as a path.

    A multimodal config is read through its `text_config`: the language model alone. Raises
    InferlabError, naming the field, for what is missing, absurd or of an unknown family.
    """
    key = ""
    if not isinstance(config, Mapping):
        path = Path(config)
        config = _read(path)
        key = path.parent.name if path.name == "config.json" else path.stem
    about = config.get("inferlab", {})
    text = _text_config(config)
    family_name = text.get("model_type")
    if not isinstance(family_name, str):
        raise InferlabError("model_type is missing from the config: it names the model's family")
    if family_name not in _FAMILIES:
        raise unknown("model_type", family_name, _FAMILIES)
    family = _FAMILIES[family_name]
    fields = _Fields({**family.defaults, **{k: v for k, v in text.items() if v is not None}})
    shape = family.read(fields, family.traits)
    return replace(
        shape,
        name=name or about.get("name") or text.get("_name_or_path") or key or family_name,
        key=key,
        source=about.get("source", ""),
        notes=about.get("notes", ""),
        published=MappingProxyType(about.get("published", {})),
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InferlabError(f"no such config: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InferlabError(f"cannot read config {path}: {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise InferlabError(f"config {path} is not JSON: {error}") from None
    if not isinstance(config, Mapping):
        raise InferlabError(f"config {path} must hold a JSON object")
    return config


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return config
    # Older multimodal files name the family on the outside only.
    outer = config.get("model_type")
    text = {"model_type": f"{outer}_text" if outer == "gemma3" else outer, **inner}
    if "tie_word_embeddings" in config:
        text.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    return text


class _Fields:
    """A config's fields, each checked when it is asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def count(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = 10**9
    ) -> int:
        """Return a whole number between `least` and `most`."""
        value = self._values.get(name, default)
        if value is None:
            raise InferlabError(f"{name} is missing from the config")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InferlabError(
                f"{name} is {value!r} in the config: it must be a whole number"
                f" from {least} to {most:,}"
            )
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise InferlabError(f"{name} is {value!r} in the config: it must be true or false")
        return value

    def get(self, name: str) -> Any:
        """Return whatever stands there, None if nothing does."""
        return self._values.get(name)


def _decoder(fields: _Fields, traits: Mapping[str, Any]) -> ModelShape:
    """Read the common layout: Llama's fields, and what its relatives added to them."""
    hidden = fields.count("hidden_size")
    layers = fields.count("num_hidden_layers", most=10_000)
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads if traits.get("multi_head") else None)
    if heads % kv_heads:
        raise InferlabError(
            f"num_key_value_heads is {kv_heads} in the config: it must divide"
            f" num_attention_heads, {heads}"
        )
    if "head_dim" not in fields and hidden % heads:
        raise InferlabError(
            f"num_attention_heads is {heads} in the config: without head_dim it must divide"
            f" hidden_size, {hidden}"
        )
    experts = _experts(fields, layers)
    # Where every layer is a mixture, files still carry the width of a dense layer that is not.
    all_mixed = experts is not None and experts.layers == layers
    intermediate = experts.width if experts and all_mixed else fields.count("intermediate_size")
    window, windowed = _windows(fields, layers, str(traits.get("windows", "all")))
    bias = fields.flag("attention_bias", bool(traits.get("attention_bias", False)))
    return ModelShape(
        name="",
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.count("head_dim", hidden // heads),
        vocab=fields.count("vocab_size"),
        tied=fields.flag("tie_word_embeddings", bool(traits.get("tied", False))),
        max_context=fields.count("max_position_embeddings"),
        experts=experts,
        window=window,
        windowed_layers=windowed,
        norms_per_layer=int(traits.get("norms_per_layer", 2)),
        qk_norm=bool(traits.get("qk_norm", False)),
        qkv_bias=bias or bool(traits.get("qkv_bias", False)),
        output_bias=bias,
        ffn_bias=fields.flag("mlp_bias", bool(traits.get("ffn_bias", False))),
        router_bias=bool(traits.get("router_bias", False)),
        sinks=bool(traits.get("sinks", False)),
    )


def _experts(fields: _Fields, layers: int) -> Experts | None:
    """Read a mixture of experts under any of its spellings."""
    counts = ("num_local_experts", "n_routed_experts", "num_experts")
    spelling = next((name for name in counts if name in fields), None)
    if spelling is None:
        return None
    count = fields.count(spelling)
    active = fields.count("num_experts_per_tok")
    if active > count:
        raise InferlabError(
            f"num_experts_per_tok is {active} in the config: there are only {count} experts"
        )
    width = "moe_intermediate_size" if "moe_intermediate_size" in fields else "intermediate_size"
    dense = min(layers, fields.count("first_k_dense_replace", 0, least=0))
    step, every = fields.count("decoder_sparse_step", 1), fields.count("moe_layer_freq", 1)
    plain = fields.get("mlp_only_layers") or []
    sparse = [
        n for n in range(dense, layers) if (n + 1) % step == 0 and n % every == 0 and n not in plain
    ]
    expert_width = fields.count(width)
    return Experts(
        count=count,
        active=active,
        width=expert_width,
        layers=len(sparse),
        shared_width=expert_width * fields.count("n_shared_experts", 0, least=0),
    )


def _windows(fields: _Fields, layers: int, rule: str) -> tuple[int | None, int]:
    """Return the window and the number of layers that have it.

    `rule` says what a family does in files that do not list their layers: a window in "all"
    layers, in "alternate" ones, in all but each "sixth", or in the "late" ones where asked for.
    """
    if fields.get("sliding_window") is None:
        return None, 0
    if rule == "late" and not fields.flag("use_sliding_window"):
        return None, 0
    window = fields.count("sliding_window")
    kinds = fields.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise InferlabError(f"layer_types must list {layers} layers, as num_hidden_layers says")
        windowed = kinds.count("sliding_attention")
        if windowed + kinds.count("full_attention") != layers:
            raise InferlabError(
                "layer_types may hold only sliding_attention and full_attention here"
            )
    elif rule == "late":
        windowed = max(0, layers - fields.count("max_window_layers", layers, least=0))
    elif rule == "all":
        windowed = layers
    else:
        pattern = fields.count("sliding_window_pattern", 2 if rule == "alternate" else 6)
        windowed = layers - layers // pattern
    return (window, windowed) if windowed else (None, 0)


def _deepseek(fields: _Fields, traits: Mapping[str, Any]) -> ModelShape:
    """Read a DeepSeek config: latent attention, a few dense layers, then experts."""
    latent = Latent(
        query_rank=fields.count("q_lora_rank", 0, least=0),
        kv_rank=fields.count("kv_lora_rank"),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        value_dim=fields.count("v_head_dim"),
    )
    shape = _decoder(fields, traits)
    if shape.qkv_bias:
        raise InferlabError("attention_bias is true in the config: not known with latent attention")
    # `head_dim` in these files is the rotated part; a value head is what the catalog means by it.
    return replace(shape, latent=latent, head_dim=latent.value_dim)


def _gpt2(fields: _Fields, traits: Mapping[str, Any]) -> ModelShape:
    """Read a GPT-2 config: its own names, biases everywhere, learned positions, two matrices."""
    hidden = fields.count("n_embd")
    heads = fields.count("n_head")
    if hidden % heads:
        raise InferlabError(f"n_head is {heads} in the config: it must divide n_embd, {hidden}")
    positions = fields.count("n_positions")
    return ModelShape(
        name="",
        layers=fields.count("n_layer", most=10_000),
        hidden=hidden,
        intermediate=fields.count("n_inner", 4 * hidden),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=fields.count("vocab_size"),
        tied=fields.flag("tie_word_embeddings", True),
        max_context=positions,
        ffn_matrices=2,
        learned_positions=positions,
        norm_bias=True,
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
    )


@dataclass(frozen=True)
class _Family:
    """How to read one `model_type`: what its code does that its config does not say.

    `defaults` fill fields that published files of the family leave out.
    """

    traits: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[_Fields, Mapping[str, Any]], ModelShape] = _decoder


_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
}

_FAMILIES: Mapping[str, _Family] = MappingProxyType(
    {
        "llama": _Family({"multi_head": True}),
        "mistral": _Family(),
        "mixtral": _Family(),
        "qwen2": _Family({"qkv_bias": True, "windows": "late"}),
        "qwen3": _Family({"qk_norm": True, "windows": "late"}, {"head_dim": 128}),
        "qwen3_moe": _Family({"qk_norm": True, "windows": "late"}),
        "gemma": _Family({"tied": True}, {"head_dim": 256}),
        "gemma2": _Family(
            {"tied": True, "norms_per_layer": 4, "windows": "alternate"}, {"head_dim": 256}
        ),
        "gemma3_text": _Family(
            {"tied": True, "norms_per_layer": 4, "qk_norm": True, "windows": "sixth"}, _GEMMA3
        ),
        "phi3": _Family({"multi_head": True}),
        "deepseek_v2": _Family({"multi_head": True}, read=_deepseek),
        "deepseek_v3": _Family({"multi_head": True, "router_bias": True}, read=_deepseek),
        "gpt_oss": _Family(
            {
                "attention_bias": True,
                "ffn_bias": True,
                "router_bias": True,
                "sinks": True,
                "windows": "alternate",
            },
            {"head_dim": 64},
        ),
        "gpt2": _Family(read=_gpt2),
    }
)
