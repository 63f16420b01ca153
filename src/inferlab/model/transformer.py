"""The decoder-only transformer of Llama and its relatives, plainly in torch.

Shapes: B sequences, T new tokens each; H query heads share KV key-value heads of D channels;
F is the feed-forward width, V the vocabulary. A matrix is stored [out, in] and applied as
x @ W.T, quantised ones widened piece by piece on the way. The cache owns everything about the
past: it stores keys and values, and masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, fields
from typing import Literal, Protocol, Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from inferlab.kernels.quantised import Quantised, linear, linears
from inferlab.model.config import ModelConfig
from inferlab.model.rope import angles, rotate

Matrix: TypeAlias = "Tensor | Quantised"
FLOATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class Cache(Protocol):
    """What a forward pass asks of a KV cache."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v [B, T, KV, D], then let q [B, T, H, D] attend: [B, T, H, D]."""

    def advance(self, tokens: int) -> None:
        """Count `tokens` new positions in every row, once all layers have stored them."""


@dataclass
class Layer:
    """The tensors of one layer. Biases and q/k norms are None where the model has none."""

    attn_norm: Tensor  # [hidden]
    q: Matrix  # [H D, hidden]
    k: Matrix  # [KV D, hidden]
    v: Matrix  # [KV D, hidden]
    o: Matrix  # [hidden, H D]
    mlp_norm: Tensor  # [hidden]
    gate: Matrix  # [F, hidden]
    up: Matrix  # [F, hidden]
    down: Matrix  # [hidden, F]
    q_bias: Tensor | None = None  # [H D]
    k_bias: Tensor | None = None  # [KV D]
    v_bias: Tensor | None = None  # [KV D]
    o_bias: Tensor | None = None  # [hidden]
    q_norm: Tensor | None = None  # [D]
    k_norm: Tensor | None = None  # [D]


@dataclass
class Weights:
    """All tensors of a model. With tied embeddings `head` is the very matrix `embedding`."""

    embedding: Matrix  # [V, hidden]
    layers: list[Layer]
    norm: Tensor  # [hidden]
    head: Matrix  # [V, hidden]

    def streamed(self) -> Iterator[Matrix]:
        """Yield each tensor that a decode step reads as a whole.

        Of an input embedding a step gathers single rows, so the table counts only as the head
        that it also is when tied.
        """
        yield self.norm
        yield self.head
        for layer in self.layers:
            yield from (t for f in fields(layer) if (t := getattr(layer, f.name)) is not None)


class Transformer:
    """Weights on one device, and the forward pass over them."""

    rounds = False
    """Whether quantised matrices may meet their inputs rounded to 16 bits, where a kernel can."""

    def __init__(self, config: ModelConfig, weights: Weights):
        self.config, self.weights = config, weights

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """What activations, norms and biases are, and matrices that are not quantised."""
        return self.weights.norm.dtype

    def rounding(self, rounds: bool) -> Self:
        """Return the model, on the same weights, that `rounds` so."""
        if rounds == self.rounds:
            return self
        twin = copy(self)
        twin.rounds = rounds
        return twin

    @property
    def streamed_bytes(self) -> int:
        """Bytes of the weights that one decode step reads, scales of quantised ones included."""
        return sum(t.nbytes for t in self.weights.streamed())

    @property
    def formats(self) -> dict[str, list[Matrix]]:
        """The matrices that a decode step reads, by their format, such as "q4_1" or "bf16"."""
        found: dict[str, list[Matrix]] = {}
        for matrix in self.weights.streamed():
            if len(matrix.shape) == 2:
                name = FLOATS[matrix.dtype] if isinstance(matrix, Tensor) else matrix.format
                found.setdefault(name, []).append(matrix)
        return found

    @torch.inference_mode()
    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Cache,
        *,
        logits: Literal["last", "all"] = "last",
    ) -> Tensor:
        """Run T new tokens of B sequences after what `cache` holds.

        `ids` and `positions` are int64 [B, T]. Returns float32 logits of each row's last
        token, [B, V], or of all, [B, T, V].
        """
        w, eps = self.weights, self.config.norm_eps
        x = self._embed(ids)  # [B, T, hidden]
        cos, sin = angles(self.config.rope, positions)
        for index, layer in enumerate(w.layers):
            x = x + self._attention(
                index, layer, rms_norm(x, layer.attn_norm, eps), cos, sin, cache
            )
            x = x + self._mlp(layer, rms_norm(x, layer.mlp_norm, eps))
        cache.advance(ids.shape[1])
        x = rms_norm(x[:, -1] if logits == "last" else x, w.norm, eps)
        return self._logits(x).float()

    def _embed(self, ids: Tensor) -> Tensor:
        table = self.weights.embedding
        if isinstance(table, Tensor):
            return F.embedding(ids, table)
        return table.dequantise(self.dtype, ids.flatten()).view(*ids.shape, -1)

    def _attention(
        self, index: int, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache
    ) -> Tensor:
        heads = (*x.shape[:2], -1, self.config.head_dim)
        biased = (layer.q, layer.q_bias), (layer.k, layer.k_bias), (layer.v, layer.v_bias)
        q, k, v = (part.view(heads) for part in self._linears(x, *biased))  # [B, T, H or KV, D]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(q, layer.q_norm, self.config.norm_eps)
            k = rms_norm(k, layer.k_norm, self.config.norm_eps)
        out = cache.attend(index, rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self._linear(out.flatten(2), layer.o, layer.o_bias)

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        """SwiGLU (Shazeer 2020): down(silu(gate x) * up x)."""
        gate, up = self._linears(x, (layer.gate, None), (layer.up, None))
        return self._linear(F.silu(gate) * up, layer.down)

    def _logits(self, x: Tensor) -> Tensor:
        return self._linear(x, self.weights.head)

    def _linear(self, x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
        return linear(x, weight, bias, rounded=self.rounds)

    def _linears(self, x: Tensor, *pairs: tuple[Matrix, Tensor | None]) -> list[Tensor]:
        return linears(x, *pairs, rounded=self.rounds)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale x [..., n] to a root mean square of one, then by `weight` [n].

    In float32 throughout: the square of a float16 above 256 is infinite.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)
