"""LeNet-5 as it is usually taught (LeCun 1998): two convolutions, three dense layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def logits(parameters: Mapping[str, Floats], picture: Floats) -> Floats:
    """Return a score for each digit, [10], of a picture [32, 32] with values from 0 to 1.

    `parameters` hold "conv1.weight" [6, 1, 5, 5], "conv1.bias", "conv2...", "fc1..." to "fc3...".
    """
    x = picture[None]  # [channels, height, width]
    for name in ("conv1", "conv2"):
        x = np.tanh(convolution(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"]))
        x = halve(x)
    x = x.reshape(-1)
    for name in ("fc1", "fc2", "fc3"):
        x = parameters[f"{name}.weight"] @ x + parameters[f"{name}.bias"]
        x = np.tanh(x) if name != "fc3" else x
    return x


def convolution(x: Floats, weight: Floats, bias: Floats) -> Floats:
    """Return x [C, H, W] under weight [O, C, K, K] without padding: [O, H - K + 1, W - K + 1].

    Every window of the picture becomes a row, so that a convolution is a matrix product.
    """
    size = weight.shape[-1]
    windows = sliding_window_view(x, (size, size), axis=(1, 2))  # [C, H', W', K, K]
    return np.einsum("chwij,ocij->ohw", windows, weight, optimize=True) + bias[:, None, None]


def halve(x: Floats) -> Floats:
    """Return x [C, H, W] averaged over squares of two: [C, H/2, W/2]."""
    channels, height, width = x.shape
    return x.reshape(channels, height // 2, 2, width // 2, 2).mean((2, 4))
