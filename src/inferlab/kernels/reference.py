"""What each op must compute, in float64 and without a thought for speed: the tests' oracles.

Arguments are numpy arrays or anything that numpy reads as one; results are float64 arrays.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from inferlab.kernels.quantised import Quantised

Array = NDArray[np.float64]


def _wide(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)


def vector_add(a: ArrayLike, b: ArrayLike) -> Array:
    """a + b, both [n]."""
    return _wide(a) + _wide(b)


def softmax(x: ArrayLike) -> Array:
    """e^x of each row of x [R, C] over the row's sum."""
    x = _wide(x)
    weights = np.exp(x - x.max(-1, keepdims=True)) if x.size else x
    return weights / weights.sum(-1, keepdims=True)


def matmul(a: ArrayLike, b: ArrayLike) -> Array:
    """a [M, K] times b [K, N]."""
    return _wide(a) @ _wide(b)


def rms_norm(x: ArrayLike, weight: ArrayLike, eps: float) -> Array:
    """x [..., n] over its root mean square, times weight [n] (Zhang and Sennrich 2019)."""
    x = _wide(x)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * _wide(weight)


def matvec(
    weight: ArrayLike,
    x: ArrayLike,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
) -> Array:
    """x [B, K] times weight [N, K] transposed, plus bias [N], plus residual [B, N]: [B, N]."""
    y = _wide(x) @ _wide(weight).T
    y = y if bias is None else y + _wide(bias)
    return y if residual is None else y + _wide(residual)


def swiglu(gate: ArrayLike, up: ArrayLike, x: ArrayLike) -> Array:
    """silu(gate x) * (up x), for x [B, K] and two matrices [F, K]: [B, F] (Shazeer 2020)."""
    g, u = matvec(gate, x), matvec(up, x)
    return g / (1 + np.exp(-g)) * u


def quant_matvec(
    weight: Quantised,
    x: ArrayLike,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
) -> Array:
    """Widen a quantised weight [N, K], then multiply: what `matvec` says, [B, N]."""
    return matvec(weight.dequantise(torch.float64), x, bias, residual)


def quant_swiglu(gate: Quantised, up: Quantised, x: ArrayLike) -> Array:
    """Widen two quantised matrices [F, K], then do what `swiglu` says: [B, F]."""
    return swiglu(gate.dequantise(torch.float64), up.dequantise(torch.float64), x)


def rope(x: ArrayLike, cos: ArrayLike, sin: ArrayLike) -> Array:
    """Turn channel pairs (i, i + P) of x [B, H, D] by angles with cos and sin [B, P]."""
    x, c, s = _wide(x), _wide(cos)[:, None], _wide(sin)[:, None]
    half = c.shape[-1]
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([low * c - high * s, high * c + low * s, rest], axis=-1)


def rope_and_cache(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    cos: ArrayLike,
    sin: ArrayLike,
    k_pages: ArrayLike,
    v_pages: ArrayLike,
    lengths: ArrayLike,
    table: ArrayLike | None = None,
    q_norm: ArrayLike | None = None,
    k_norm: ArrayLike | None = None,
    eps: float = 0.0,
) -> tuple[Array, Array, Array]:
    """Turned q [R, H, D], and pages [pages, KV, block, D] with turned k, and v, in their places.

    Row r is token r % T of sequence r // T, where T is R over the number of `lengths`.
    """
    q, k, v = _wide(q), _wide(k), _wide(v)
    k_pages, v_pages = _wide(k_pages).copy(), _wide(v_pages).copy()
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    q, k = rope(q, cos, sin), rope(k, cos, sin)
    starts, block = np.asarray(lengths), k_pages.shape[2]
    pages = np.arange(len(starts))[:, None] if table is None else np.asarray(table)
    for row in range(len(q)):
        b, t = divmod(row, len(q) // len(starts))
        entry, slot = divmod(int(starts[b]) + t, block)
        if 0 <= entry < pages.shape[1] and 0 <= pages[b, entry] < len(k_pages):
            k_pages[pages[b, entry], :, slot] = k[row]
            v_pages[pages[b, entry], :, slot] = v[row]
    return q, k_pages, v_pages


def decode_attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, lengths: ArrayLike, window: int | None = None
) -> Array:
    """Let one query a row, q [B, H, D], see its `lengths` [B] positions of k, v [B, KV, S, D].

    Query head h reads KV head h // (H / KV); with a window, only the last `window` positions.
    """
    q, k, v = _wide(q), _wide(k), _wide(v)
    heads, size = q.shape[1:]
    out = np.empty_like(q)
    for b, length in enumerate(np.asarray(lengths)):
        start = 0 if window is None else max(0, int(length) - window)
        for head in range(heads):
            kv = head // (heads // k.shape[1])
            scores = k[b, kv, start:length] @ q[b, head] / np.sqrt(size)
            weights = np.exp(scores - scores.max())
            out[b, head] = weights / weights.sum() @ v[b, kv, start:length]
    return out


def chain(x: ArrayLike, steps: int, scale: float = 0.999, shift: float = 0.001) -> float:
    """Sum of x [n] after `steps` times v -> scale v + shift on each number."""
    value = _wide(x)
    for _ in range(steps):
        value = value * scale + shift
    return float(value.sum())


def flash_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    causal: bool = True,
    window: int | None = None,
    offset: ArrayLike | None = None,
) -> Array:
    """Let queries q [B, T, H, D] see keys and values k, v [B, S, KV, D]: [B, T, H, D].

    Causal: query t of row b stands at position offset[b] + t (offset 0 if None) and sees keys up to
    its own, with a window the last `window` of them; otherwise all S. Query head h reads KV head
    h // (H / KV).
    """
    q, k, v = _wide(q), _wide(k), _wide(v)
    batch, tokens, heads, size = q.shape
    group = heads // k.shape[2]
    starts = np.zeros(batch, np.int64) if offset is None else np.asarray(offset)
    key = np.arange(k.shape[1])
    out = np.empty_like(q)
    for b in range(batch):
        position = starts[b] + np.arange(tokens)[:, None]
        seen = (key <= position) & (key > position - (window or tokens + k.shape[1]))
        for head in range(heads):
            scores = q[b, :, head] @ k[b, :, head // group].T / np.sqrt(size)
            scores = np.where(seen | (not causal), scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[b, :, head] = weights / weights.sum(-1, keepdims=True) @ v[b, :, head // group]
    return out


def philox(seed: int, offset: int) -> int:
    """Return 64 random bits: Philox4x32-10 under a key, at a counter (Salmon et al. 2011)."""
    words = [offset & 0xFFFFFFFF, offset >> 32 & 0xFFFFFFFF, 0, 0]
    keys = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            second >> 32 ^ words[1] ^ keys[0],
            second & 0xFFFFFFFF,
            first >> 32 ^ words[3] ^ keys[1],
            first & 0xFFFFFFFF,
        ]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words[0] << 32 | words[1]


def sample(
    logits: ArrayLike,
    temperature: ArrayLike,
    top_k: ArrayLike,
    top_p: ArrayLike,
    min_p: ArrayLike,
    seeds: ArrayLike,
    offsets: ArrayLike,
) -> NDArray[np.int64]:
    """Return a token for each row of logits [B, V], int64 [B]; -1 for a row that is not numbers.

    Temperature 0 is greedy. Otherwise the filters act in the order temperature, top-k (0: all),
    top-p of what is left, min-p; of equal logits the lowest ids come first. Of the tokens that are
    left, by id, the first is taken whose cumulative probability passes `philox` / 2^64.
    """
    tokens = []
    rows = (_wide(logits), *(np.asarray(x) for x in (temperature, top_k, top_p, min_p)))
    for x, t, k, p, least, seed, offset in zip(
        *rows, np.asarray(seeds), np.asarray(offsets), strict=True
    ):
        peak = x.max()
        if not np.isfinite(peak):
            tokens.append(-1)
        elif t == 0:
            tokens.append(int(x.argmax()))
        else:
            weights = np.exp((x - peak) / max(t, 1e-6))
            order = np.argsort(-x, kind="stable")[: k or None]
            sizes = weights[order]
            before = np.cumsum(sizes) - sizes
            stay = (before < p * sizes.sum()) | (p == 1)
            left = np.sort(order[stay & (sizes >= least)])
            running = np.cumsum(weights[left])
            target = philox(int(seed), int(offset)) / 2**64 * running[-1]
            tokens.append(int(left[np.searchsorted(running, target, side="right")]))
    return np.array(tokens, dtype=np.int64)


def rms_ratio(got: ArrayLike, right: ArrayLike) -> float:
    """Root mean square of the error over that of the right values; NaN counts as infinite."""
    got, right = _wide(got), _wide(right)
    if got.shape != right.shape:
        raise ValueError(f"shapes differ: {got.shape} and {right.shape}")
    if not right.size:
        return 0.0
    error = np.sqrt(np.mean((got - right) ** 2)) / max(np.sqrt(np.mean(right**2)), 1e-300)
    return float(error) if np.isfinite(error) else float("inf")
