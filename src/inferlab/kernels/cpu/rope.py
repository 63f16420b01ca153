"""Rotary position embedding of the heads of one token."""

from __future__ import annotations

from typing import Any

from inferlab.kernels.cpu.jit import floats, jit


@jit
def rope(x, stride, cos, sin, pairs, size, heads, out):  # type: ignore[no-untyped-def]
    """Turn the pairs (i, i + pairs) of `heads` heads by angles of which cos and sin are given.

    Heads are `size` float32, `stride` bytes apart at `x`, side by side at `out`, and not
    overlapping; channels from 2 * pairs on are copied.
    """
    cosine, sine = floats(cos, pairs), floats(sin, pairs)
    for head in range(heads):
        before, after = floats(x + head * stride, size), floats(out + head * size * 4, size)
        for i in range(pairs):
            low, high = before[i], before[i + pairs]
            after[i] = low * cosine[i] - high * sine[i]
            after[i + pairs] = high * cosine[i] + low * sine[i]
        for i in range(2 * pairs, size):
            after[i] = before[i]


def launch(x: Any, cos: Any, sin: Any, out: Any) -> Any:
    """Fill `out` [B, H, D] with the turned heads of x; float32 tensors on a CPU."""
    for b in range(x.shape[0]):
        angles = (cos[b].data_ptr(), sin[b].data_ptr(), cos.shape[1])
        rope(x[b].data_ptr(), x.stride(1) * 4, *angles, x.shape[2], x.shape[1], out[b].data_ptr())
    return out
