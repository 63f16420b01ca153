"""The catalogs of `inferlab.theory` as plain dicts, so that no explorer retypes a number."""

from __future__ import annotations

from typing import Any

from inferlab.theory import formats, hardware, models
from inferlab.theory.shapes import ModelShape, Weights


def catalog() -> dict[str, Any]:
    """Return all models, chips and formats by key, as `lib/theory.js` reads them."""
    return {
        "models": {shape.key: model(shape) for shape in models.all()},
        "chips": {each.key: chip(each) for each in hardware.all()},
        "formats": {name: format_(name) for name in formats.names()},
    }


def model(shape: ModelShape) -> dict[str, Any]:
    """Return what the cost formulas need of a model, derived sizes included."""
    sizes = {
        name: getattr(shape, name)
        for name in (
            "name",
            "params",
            "active_params",
            "embedding_params",
            "tied",
            "layers",
            "full_layers",
            "windowed_layers",
            "window",
            "hidden",
            "heads",
            "kv_heads",
            "head_dim",
            "query_width",
            "value_width",
            "kv_width",
            "learned_positions",
            "max_context",
        )
    }
    experts, latent = shape.experts, shape.latent
    return {
        **sizes,
        "projections": _weights(shape.projection_weights),
        "ffn": _weights(shape.ffn_weights),
        "head": _weights(shape.head_weights),
        "expert": _weights(shape.expert_weights),
        "experts": experts
        and {"count": experts.count, "active": experts.active, "layers": experts.layers},
        "latent": latent
        and {
            "kv_rank": latent.kv_rank,
            "rope_dim": latent.rope_dim,
            "nope_dim": latent.nope_dim,
            "value_dim": latent.value_dim,
        },
    }


def chip(each: hardware.Hardware) -> dict[str, Any]:
    """Return a chip's two numbers, its memory, and how to list it."""
    return {
        "name": each.name,
        "vendor": each.vendor,
        "year": each.year,
        "flops": dict(each.flops),
        "bandwidth": each.bandwidth,
        "memory_bytes": each.memory_bytes,
        "memory_type": each.memory_type,
        "default_dtype": each.default_dtype,
    }


def format_(name: str) -> dict[str, Any]:
    """Return how a storage format packs elements and in what it is multiplied."""
    each = formats.get(name)
    return {
        "block": each.block,
        "block_bytes": each.block_bytes,
        "arithmetic": list(each.arithmetic),
    }


def _weights(weights: Weights) -> dict[str, int]:
    return {"matrices": weights.matrices, "vectors": weights.vectors}
