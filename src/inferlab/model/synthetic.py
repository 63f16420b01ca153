"""A model of a real shape with random weights: for measurements where there is no checkpoint.

Speed depends on sizes and formats and not on what a model knows. Random and not zero, since a
chip draws less power for zeros and then runs faster.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.kernels.quantised import Quantised, quantise
from inferlab.model import config as configs
from inferlab.model.checkpoint import layer_shapes, model_shapes
from inferlab.model.config import ModelConfig
from inferlab.model.transformer import Layer, Transformer, Weights
from inferlab.theory import models

SPREAD = 0.02
"""Standard deviation of a weight, as models of this kind are initialised."""


def catalog_config(key: str) -> ModelConfig:
    """Return the config of one of the catalog's models, such as "llama-3.2-1b"."""
    shape = models.get(key)
    fields = json.loads(models.path(key).read_text(encoding="utf-8"))
    try:
        return configs.from_fields(fields, name=shape.key)
    except InferlabError as error:
        raise InferlabError(f"model {key} cannot be run here ({error})") from None


def transformer(
    config: ModelConfig,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    format: str | None = None,
    seed: int = 0,
    spread: float = SPREAD,
) -> Transformer:
    """Return a transformer with weights drawn on `device`: the same seed gives the same ones.

    Norms are drawn around one, all else around zero. `format` quantises every matrix, the
    embedding included (`kernels.quantised`); a matrix at a time is ever held as floats.
    """
    generator = torch.Generator(device).manual_seed(seed)
    simd = torch.device(device).type == "cpu" and backends.has_numba()

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = torch.empty(shape, device=device, dtype=dtype)
        return tensor.normal_(float("norm" in name), spread, generator=generator)

    def matrix(name: str, shape: tuple[int, ...]) -> Tensor | Quantised:
        tensor = draw(name, shape)
        if not format or tensor.dim() != 2:
            return tensor
        matrix = quantise(tensor, format)
        return matrix.in_groups() if simd else matrix

    def layer() -> Layer:
        parts: dict[str, Any] = {name: matrix(name, s) for name, s in layer_shapes(config).items()}
        return Layer(**parts)

    shapes = model_shapes(config)
    embedding = matrix("embedding", shapes["embedding"])
    layers = [layer() for _ in range(config.layers)]
    norm = draw("norm", shapes["norm"])
    head = embedding if config.tied else matrix("head", shapes["head"])
    return Transformer(config, Weights(embedding, layers, norm, head))
