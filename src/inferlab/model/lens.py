"""Looking inside one forward pass: what each head looks at, and what each layer would say.

For explaining, not for speed: attention writes out all of its scores, and each layer runs those
below it again.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from inferlab.errors import InferlabError
from inferlab.model.transformer import Transformer, Weights


class Scores:
    """A cache for one pass over a whole text that keeps what attention computes on the way.

    `queries`, `keys` and `values` have one entry a layer, [T, H or KV, D] after rotation;
    `weights` too, [H, T, T]: row t is how much token t takes from each token.
    """

    def __init__(self) -> None:
        self.queries: list[Tensor] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.weights: list[Tensor] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend causally within the text, [1, T, H, D], by writing out every score."""
        if q.shape[0] != 1:
            raise InferlabError(f"looking inside takes one text at a time, not {q.shape[0]}")
        group = q.shape[2] // k.shape[2]
        wide_k, wide_v = (each.repeat_interleave(group, dim=2)[0] for each in (k, v))
        scores = torch.einsum("thd,shd->hts", q[0], wide_k) / q.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        self.queries.append(q[0])
        self.keys.append(k[0])
        self.values.append(v[0])
        self.weights.append(weights)
        return torch.einsum("hts,shd->thd", weights, wide_v)[None]

    def advance(self, tokens: int) -> None:
        """Nothing to count: the text is all there is."""


def attention(model: Transformer, ids: list[int]) -> Scores:
    """Read a text of token ids in one pass; return what every head of every layer looked at.

    Raises InferlabError for a model with windows, whose layers do not see the whole text.
    """
    if model.config.sliding_window is not None:
        raise InferlabError("layers of this model have a window: all scores of a text are not seen")
    scores = Scores()
    _read(model, ids, scores)
    return scores


def layers_would_say(model: Transformer, ids: list[int]) -> Tensor:
    """Return each layer's logits of the next token at every place: float32 [layers, T, V].

    The "logit lens": the final norm and the output matrix applied to what has come up so far
    (nostalgebraist 2020).
    """
    c, w = model.config, model.weights
    said = []
    for count in range(1, c.layers + 1):
        config = replace(c, layers=count, windows=c.windows[:count])
        part = Transformer(config, Weights(w.embedding, w.layers[:count], w.norm, w.head))
        said.append(_read(part, ids, Scores())[0])
    return torch.stack(said)


def _read(model: Transformer, ids: list[int], scores: Scores) -> Tensor:
    text = torch.tensor([ids], device=model.device)
    places = torch.arange(len(ids), device=model.device)[None]
    return model.forward(text, places, scores, logits="all")
