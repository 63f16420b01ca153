"""Random tensors for the tests of kernels, and tensors with holes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from inferlab.kernels.quantised import BLOCK, Quantised


def draw(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    """Return normal numbers, the same ones on every device."""
    return torch.randn(shape).to(device, dtype)


def strided(x: Tensor) -> Tensor:
    """Return the same values with a hole after each row, filled with NaN."""
    holes = x.new_full((*x.shape[:-1], 2 * x.shape[-1] + 3), math.nan)
    holes[..., : x.shape[-1]] = x
    return holes[..., : x.shape[-1]]


def wide(*tensors: Tensor) -> list[Tensor]:
    """Return tensors in float64 on the CPU."""
    return [t.double().cpu() for t in tensors]


def rounded(x: Tensor, highest: int) -> Tensor:
    """Return x [B, K] in float64, each block in whole steps of its largest over `highest`."""
    blocks = x.unflatten(1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    steps = torch.round(blocks * torch.where(largest > 0, highest / largest, 0))
    return (steps.double() * (largest / highest).double()).flatten(1)


def guarded(weight: Quantised) -> Quantised:
    """Return the same matrix in memory that ends with it, among NaN and codes of all ones.

    What a kernel reads beyond a row or the matrix then shows.
    """
    planes = []
    for plane in (weight.weights, weight.scales, weight.mins):
        if plane is not None:
            fill = math.nan if plane.is_floating_point() else 85
            around = torch.full((plane.shape[0] + 2, *plane.shape[1:]), fill, dtype=plane.dtype)
            around[1:-1] = plane
            planes.append(around[1:-1])
    return Quantised(weight.format, *planes, grouped=weight.grouped)
