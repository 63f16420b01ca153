"""exp in float32 that the compiler can vectorise, where a call to libm could not be."""

from __future__ import annotations

import numpy as np
from numpy import float32, int64

from inferlab.kernels.cpu.jit import float_of_bits, jit


@jit
def exp(x):  # type: ignore[no-untyped-def]
    """e^x to two units in the last place; 0 below -87, 1.7e38 from 88 on, NaN kept.

    x = k ln 2 + r with |r| at most half of ln 2; e^r by Cephes' polynomial, 2^k by its bits.
    """
    if x < float32(-87.0):
        x = float32(-87.0)
    if x > float32(88.0):
        x = float32(88.0)
    k = np.floor(x * float32(1.44269504) + float32(0.5))
    # ln 2 in two parts, the first short enough for k times it to be exact.
    r = (x - k * float32(0.693359375)) + k * float32(2.12194440e-4)
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    p = p * r * r + r + float32(1.0)
    return p * float_of_bits((int64(k) + 127) << 23)
