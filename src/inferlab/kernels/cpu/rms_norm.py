"""RMS norm of the rows of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import float32

from inferlab.kernels.cpu.jit import floats, jit


@jit
def rms_norm(x, stride, weight, size, eps, out, rows):  # type: ignore[no-untyped-def]
    """out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, for `rows` rows of `size` float32.

    The inputs stand `stride` bytes apart, the outputs side by side; `out` may be `x`.
    """
    scale = floats(weight, size)
    for row in range(rows):
        values, result = floats(x + row * stride, size), floats(out + row * size * 4, size)
        squares = float32(0)
        for i in range(size):
            squares += values[i] * values[i]
        inverse = float32(1) / np.sqrt(squares / float32(size) + eps)
        for i in range(size):
            result[i] = values[i] * inverse * scale[i]


def launch(x: Any, weight: Any, eps: float, out: Any) -> Any:
    """Fill `out` [B, n] with the normed rows of x; float32 tensors on a CPU."""
    address, stride = x.data_ptr(), x.stride(0) * 4
    rms_norm(address, stride, weight.data_ptr(), x.shape[1], float32(eps), out.data_ptr(), len(x))
    return out
