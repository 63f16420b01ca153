"""Caches to decode from, and a pass by torch that a decode step is held against."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from inferlab.engine.kv_cache import ContiguousCache
from inferlab.model.transformer import Transformer


def filled(model: Transformer, lengths: Sequence[int], capacity: int = 24) -> ContiguousCache:
    """Return a cache with random keys and values up to `lengths`, and NaN beyond."""
    cache = ContiguousCache(model.config, len(lengths), capacity, model.device, model.dtype)
    generator = torch.Generator(model.device).manual_seed(3)
    for tensor in (cache.k, cache.v):
        tensor.normal_(generator=generator)
        for row, length in enumerate(lengths):
            tensor[:, row, :, length:] = math.nan
    cache.lengths[:] = torch.tensor(lengths)
    return cache


def forward(model: Transformer, ids: Tensor, cache: ContiguousCache) -> Tensor:
    """Return logits of one token a row by torch, row by row: none sees another's NaN."""
    rows = [cache.row(b) for b in range(cache.batch)]
    ids = ids.to(model.device)
    return torch.cat(
        [model.forward(ids[b : b + 1, None], r.positions(1), r) for b, r in enumerate(rows)]
    )
