"""A model in several parts that run side by side: tensor parallelism.

As in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053) each rank holds some heads and some
feed-forward channels: the rows of q, k, v, gate and up that make them, the columns of o and down
that read them. So o and down give a rank's part of a sum, and one all-reduce each makes it whole.
Of the vocabulary each rank holds some rows. Embeddings are one more all-reduce, to which a rank
adds zeros for tokens that are not its own; logits are gathered. The table could stand whole on
each rank and save that message, for the bytes of a matrix more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from inferlab.errors import InferlabError
from inferlab.kernels.quantised import BLOCK
from inferlab.model.config import ModelConfig
from inferlab.model.transformer import Cache, Layer, Transformer, Weights

ALL = slice(None)


class Group(Protocol):
    """The processes that hold one model: this one is `rank` of `size`."""

    rank: int
    size: int

    def add(self, x: Tensor) -> Tensor:
        """Return the sum of every rank's x: an all-reduce. May write it over x."""

    def join(self, x: Tensor) -> Tensor:
        """Return every rank's x, all of one shape, side by side in the last dimension."""


@dataclass(frozen=True)
class Share:
    """What one rank holds: ranges of query heads, KV heads, channels and the vocabulary."""

    heads: range
    kv_heads: range
    channels: range
    tokens: range

    def config(self, whole: ModelConfig) -> ModelConfig:
        """Return the sizes of this share, which its KV cache has too. The vocabulary stays whole,
        since logits come back so.
        """
        return replace(
            whole,
            heads=len(self.heads),
            kv_heads=len(self.kv_heads),
            intermediate=len(self.channels),
        )

    def cut(self, part: str, head_dim: int) -> tuple[slice, slice]:
        """Return which rows and columns of a part, such as "q" or "down", are this rank's.

        A vector counts as one row. What is not cut (norms, and o's bias) is whole on each rank.
        """
        heads, kv = _slice(self.heads, head_dim), _slice(self.kv_heads, head_dim)
        channels, tokens = _slice(self.channels), _slice(self.tokens)
        rows = {"q": heads, "k": kv, "v": kv, "gate": channels, "up": channels}
        rows |= {"embedding": tokens, "head": tokens}
        columns = {"o": heads, "down": channels, "q_bias": heads, "k_bias": kv, "v_bias": kv}
        return rows.get(part, ALL), columns.get(part, ALL)


def shares(config: ModelConfig, ranks: int) -> list[Share]:
    """Return what each of so many ranks holds.

    Heads go by the KV heads that they read; with fewer of these than ranks, each KV head stands on
    several, which part its query heads. Shares may differ by one head, and the largest sets the
    pace. Raises InferlabError, naming the field, if a rank would hold nothing.
    """
    group = config.heads // config.kv_heads  # query heads that read one KV head
    heads: list[tuple[range, range]] = []
    if ranks <= config.kv_heads:
        for kv in _parts(config.kv_heads, ranks):
            heads.append((range(kv.start * group, kv.stop * group), kv))
    else:
        for head, some in enumerate(_parts(ranks, config.kv_heads)):
            for own in _parts(group, len(some)):
                first = head * group
                heads.append((range(first + own.start, first + own.stop), range(head, head + 1)))

    # Whole blocks if there are enough, so that matrices that are stored in them can be cut.
    width = config.intermediate
    unit = BLOCK if width % BLOCK == 0 and width >= BLOCK * ranks else 1
    channels = [range(u.start * unit, u.stop * unit) for u in _parts(width // unit, ranks)]
    each = -(-config.vocab // ranks)  # the last rank's may be shorter
    tokens = [range(r * each, min((r + 1) * each, config.vocab)) for r in range(ranks)]

    for field, total, held in (
        ("num_attention_heads", config.heads, [q for q, _ in heads]),
        ("intermediate_size", width, channels),
        ("vocab_size", config.vocab, tokens),
    ):
        if not all(held):
            raise InferlabError(f"{field} {total} is too small to be shared by {ranks} ranks")
    return [
        Share(q, kv, own, some) for (q, kv), own, some in zip(heads, channels, tokens, strict=True)
    ]


class ShardedTransformer(Transformer):
    """One rank's part of a model. Every rank runs the same pass, and gets the same logits."""

    def __init__(self, config: ModelConfig, weights: Weights, share: Share, group: Group):
        """`config` is the whole model's; `weights` are this share's alone, o's bias excepted."""
        if group.rank:  # rank 0 brings o's bias into the sum
            layers = [replace(layer, o_bias=None) for layer in weights.layers]
            weights = replace(weights, layers=layers)
        super().__init__(share.config(config), weights)
        self.share, self.group = share, group

    def _embed(self, ids: Tensor) -> Tensor:
        own = self.share.tokens
        others = (ids < own.start) | (ids >= own.stop)
        rows = super()._embed((ids - own.start).clamp(0, len(own) - 1))
        return self.group.add(rows.masked_fill(others[..., None], 0))

    def _attention(
        self, index: int, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache
    ) -> Tensor:
        return self.group.add(super()._attention(index, layer, x, cos, sin, cache))

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        return self.group.add(super()._mlp(layer, x))

    def _logits(self, x: Tensor) -> Tensor:
        own = super()._logits(x)
        each = -(-self.config.vocab // self.group.size)
        padded = F.pad(own, (0, each - own.shape[-1]))
        return self.group.join(padded)[..., : self.config.vocab]


def _parts(total: int, count: int) -> list[range]:
    """Return `count` ranges, one after the other, as equal as can be."""
    edges = [index * total // count for index in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def _slice(some: range, times: int = 1) -> slice:
    return slice(some.start * times, some.stop * times)
