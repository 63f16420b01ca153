"""Rotary positions: each pair of channels turns by an angle that grows with the position.

Channel i of a head pairs with channel i + dim/2 (the layout of Hugging Face checkpoints).
Frequencies, angles, sines and cosines are float32 whatever the weights are: a bfloat16 angle
at position 16,000 can be off by half a turn.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from inferlab.model.config import Rope


def frequencies(rope: Rope, length: Tensor) -> Tensor:
    """Return radians per position of each pair, float32 [..., dim/2], for contexts of `length`.

    Only the dynamic scaling looks at `length` (any shape, in tokens); the result has that
    shape before its last axis, or broadcasts to it.
    """
    pairs = torch.arange(0, rope.dim, 2, dtype=torch.float32, device=length.device) / rope.dim
    theta = torch.tensor(rope.theta, dtype=torch.float32, device=length.device)
    if rope.kind == "dynamic":  # NTK-aware: stretch the base as the context outgrows training
        stretch = rope.factor * length / rope.original_context - (rope.factor - 1)
        theta = theta * stretch.clamp(min=1)[..., None] ** (rope.dim / (rope.dim - 2))
    freq = 1 / theta**pairs
    if rope.divisors:
        freq = freq / torch.tensor(rope.divisors, device=length.device)
    if rope.kind == "linear":
        return freq / rope.factor
    if rope.kind == "llama3":
        # Slow pairs (few turns in the trained context) are divided, fast ones kept.
        turns = rope.original_context * freq / (2 * math.pi)
        span = rope.high_freq_factor - rope.low_freq_factor
        keep = ((turns - rope.low_freq_factor) / span).clamp(0, 1)
        return keep * freq + (1 - keep) * freq / rope.factor
    if rope.kind == "yarn":
        # Peng et al. 2023, "NTK-by-parts": the ramp is linear in the pair's index.
        low, high = _pair_of_turns(rope, rope.beta_fast), _pair_of_turns(rope, rope.beta_slow)
        if rope.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rope.dim - 1)
        index = torch.arange(rope.dim // 2, device=length.device)
        keep = 1 - ((index - low) / (max(high - low, 0.001))).clamp(0, 1)
        return keep * freq + (1 - keep) * freq / rope.factor
    return freq


def _pair_of_turns(rope: Rope, turns: float) -> float:
    """Return the (fractional) pair that makes `turns` turns in the trained context."""
    ratio = rope.original_context / (turns * 2 * math.pi)
    return rope.dim * math.log(ratio) / (2 * math.log(rope.theta))


def angles(rope: Rope, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin for int64 positions [B, T], each float32 [B, T, 1, dim/2].

    The axis of one is for the heads. YaRN's attention factor is in both.
    """
    freq = frequencies(rope, positions.amax(dim=1) + 1)  # [dim/2], or [B, dim/2] if dynamic
    freq = freq.expand(positions.shape[0], 1, -1) if freq.dim() == 1 else freq[:, None]
    angle = (positions[..., None].float() * freq)[:, :, None]
    return angle.cos() * rope.attention_factor, angle.sin() * rope.attention_factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first 2 * cos.shape[-1] channels of x [B, T, heads, D]; pass the others on."""
    half = cos.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat([*(t.to(x.dtype) for t in turned), rest], dim=-1)
