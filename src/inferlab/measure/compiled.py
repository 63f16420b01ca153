"""Compiled torch: the decode step as gpt-fast has it (PyTorch team, 2023), on our weights.

Nothing but torch's own operations on a cache of fixed size, and `torch.compile` around the whole
step, which fuses what lies between the matrix products and records the rest as a CUDA graph.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferlab.engine.kv_cache import ContiguousCache
from inferlab.model import rope
from inferlab.model.transformer import Layer, Transformer, rms_norm

CAPACITY = 1024
"""Positions of its cache."""


class Compiled:
    """A sequence that decodes by the compiled step; torch's plain pass reads its prompt."""

    def __init__(self, model: Transformer) -> None:
        self.version = str(torch.__version__)
        self._model = model
        self._cache = ContiguousCache(model.config, 1, CAPACITY, model.device, model.dtype)
        self._position = torch.zeros(1, dtype=torch.int64, device=model.device)
        self._token = torch.zeros(1, dtype=torch.int64, device=model.device)
        step = _Step(model, self._cache)
        self._step = torch.compile(step, mode="reduce-overhead", fullgraph=True)

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a new sequence: read all of the prompt but its last token."""
        self._cache.lengths[0] = 0
        if len(prompt) > 1:
            ids = torch.tensor([prompt[:-1]], device=self._model.device)
            self._model.forward(ids, self._cache.positions(len(prompt) - 1), self._cache)
        self._position.fill_(len(prompt) - 1)
        self._token.fill_(prompt[-1])

    def decode(self, tokens: int) -> list[float]:
        """Decode the next `tokens` tokens; return the seconds of each."""
        samples = []
        for _ in range(tokens):
            start = time.perf_counter()
            self.step()
            samples.append(time.perf_counter() - start)
        return samples

    @torch.no_grad()
    def step(self) -> int:
        """Decode one more token, and return it."""
        token = int(self._step(self._token, self._position).argmax())
        self._token.fill_(token)
        self._position += 1
        return token

    def close(self) -> None:
        """Let go of everything."""
        torch.compiler.reset()


class _Step(nn.Module):
    """One token of one row. What stays in place is a buffer, which the graph need not copy."""

    def __init__(self, model: Transformer, cache: ContiguousCache) -> None:
        super().__init__()
        self.eps = model.config.norm_eps
        self.blocks = nn.ModuleList(
            _Block(model, index, layer, cache) for index, layer in enumerate(model.weights.layers)
        )
        where = torch.arange(cache.capacity, device=model.device)[:, None]
        cos, sin = rope.angles(model.config.rope, where)  # [capacity, 1, 1, pairs]
        for name in ("embedding", "norm", "head"):
            self.register_buffer(name, getattr(model.weights, name))
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        """Return logits [1, V] for a token int64 [1] at a position int64 [1]."""
        own: Any = self
        x = F.embedding(token[None], own.embedding)  # [1, 1, hidden]
        cos, sin = own.cos[position], own.sin[position]
        for block in self.blocks:
            x = block(x, position, cos, sin)
        return F.linear(rms_norm(x[:, -1], own.norm, self.eps), own.head).float()


class _Block(nn.Module):
    def __init__(
        self, model: Transformer, index: int, layer: Layer, cache: ContiguousCache
    ) -> None:
        super().__init__()
        self.eps, self.head_dim = model.config.norm_eps, model.config.head_dim
        self.window = model.config.windows[index]
        for field in fields(layer):
            self.register_buffer(field.name, getattr(layer, field.name))
        self.register_buffer("keys", cache.k[index])
        self.register_buffer("values", cache.v[index])
        self.register_buffer("slots", torch.arange(cache.capacity, device=cache.k.device))

    def forward(self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        own: Any = self  # a layer's tensors, by the names that they have there
        h = rms_norm(x, own.attn_norm, self.eps)
        q, k, v = (
            F.linear(h, weight, bias).view(1, 1, -1, self.head_dim)
            for weight, bias in ((own.q, own.q_bias), (own.k, own.k_bias), (own.v, own.v_bias))
        )
        if own.q_norm is not None:
            q, k = rms_norm(q, own.q_norm, self.eps), rms_norm(k, own.k_norm, self.eps)
        q, k = rope.rotate(q, cos, sin), rope.rotate(k, cos, sin)
        own.keys.index_copy_(2, position, k.transpose(1, 2))
        own.values.index_copy_(2, position, v.transpose(1, 2))
        seen = own.slots <= position
        if self.window is not None:
            seen = seen & (own.slots > position - self.window)
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2), own.keys, own.values, attn_mask=seen[None, None], enable_gqa=True
        )
        x = x + F.linear(attended.transpose(1, 2).flatten(2), own.o, own.o_bias)
        h = rms_norm(x, own.mlp_norm, self.eps)
        return x + F.linear(F.silu(F.linear(h, own.gate)) * F.linear(h, own.up), own.down)
