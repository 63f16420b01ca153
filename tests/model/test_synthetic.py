"""Random models of the catalog's shapes: sized as the catalog says, the same for the same seed."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from inferlab.engine.kv_cache import ContiguousCache
from inferlab.errors import InferlabError
from inferlab.model import synthetic


def small(key="llama-3.2-1b", **changes):
    config = synthetic.catalog_config(key)
    sizes = {"layers": 2, "windows": config.windows[:2], "vocab": 300, "hidden": 64}
    return dataclasses.replace(config, **sizes, intermediate=96, **changes)


def test_the_catalogs_shape_is_kept():
    config = synthetic.catalog_config("llama-3.1-8b")
    assert config.shape().params == 8_030_261_248
    assert config.rope.kind == "llama3"
    with pytest.raises(InferlabError, match="unknown model"):
        synthetic.catalog_config("llama-9")
    with pytest.raises(InferlabError, match=r"gpt-2 cannot be run here \(.*model_type"):
        synthetic.catalog_config("gpt-2")


def test_weights_are_drawn_by_their_seed():
    config = small()
    one, same, other = (synthetic.transformer(config, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.weights.layers[1].down, same.weights.layers[1].down)
    assert not torch.equal(one.weights.layers[1].down, other.weights.layers[1].down)
    assert one.weights.head is one.weights.embedding
    assert one.weights.layers[0].q.std() == pytest.approx(0.02, rel=0.05)
    assert one.weights.norm.mean() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("format", ["q8_0", "q4_0", "int8"])
def test_quantised_weights_answer_as_the_floats_they_came_from(format):
    config = small("qwen3-0.6b")
    ids = torch.tensor([[3, 5, 7]])
    said = []
    for kind in (None, format):
        model = synthetic.transformer(config, format=kind, spread=0.2)
        cache = ContiguousCache(config, 1, 4)
        said.append(model.forward(ids, cache.positions(3), cache))
    assert torch.cosine_similarity(*said) > (0.95 if format == "q4_0" else 0.999)
