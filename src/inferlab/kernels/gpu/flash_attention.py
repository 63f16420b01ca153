"""Attention of many queries over many keys, without a matrix of scores in memory.

A program takes BLOCK_M queries of one head and walks over the keys they see, BLOCK_N at a time. It
keeps, for each query, the highest score so far, the sum of the weights and the weighted sum of the
values; when a higher score turns up, both sums are scaled down to it (online softmax, Milakov and
Gimelshein 2018; FlashAttention-2, Dao 2023). Weights are powers of 2, which a GPU has an
instruction for, so the scale of the scores holds a factor log2(e).

Tiles of keys that no query of the program sees are never loaded. Only those that some of them see,
along the diagonal and at the window's far edge, are masked; the tiles between need no mask.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from inferlab.kernels.gpu.compiled import Capability, Compile, Target
from inferlab.kernels.gpu.dsl import capability, check_dot, jit, tl, triton


@jit
def walk(  # type: ignore[no-untyped-def]
    mixed, total, peak, query, k, v, k_position, v_position, position, first, last, end, window,
    scale,
    SIZE: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """Take in the keys from `first` up to `last`, a whole number of tiles; none from `end` on.

    `position` [BLOCK_M] is where each query [BLOCK_M, WIDTH] stands.
    """
    d = tl.arange(0, query.shape[1])
    for start in range(first, last, BLOCK_N):
        slot = tl.arange(0, BLOCK_N)  # [BLOCK_N]
        at = tl.cast(start, tl.int64)
        k_at = k + at * k_position + slot[:, None] * k_position + d[None, :]
        v_at = v + at * v_position + slot[:, None] * v_position + d[None, :]
        if MASKED:
            inside = (slot < end - start)[:, None]
            if query.shape[1] != SIZE:
                inside = inside & (d < SIZE)[None, :]
            keys = tl.load(k_at, mask=inside, other=0.0)  # [BLOCK_N, WIDTH]
            values = tl.load(v_at, mask=inside, other=0.0)
        elif query.shape[1] != SIZE:
            keys = tl.load(k_at, mask=(d < SIZE)[None, :], other=0.0)
            values = tl.load(v_at, mask=(d < SIZE)[None, :], other=0.0)
        else:
            keys = tl.load(k_at)
            values = tl.load(v_at)
        scores = tl.dot(query, keys.T, input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        if MASKED:
            key = start + slot
            seen = (key < end)[None, :]
            if CAUSAL:
                seen = seen & (key[None, :] <= position[:, None])
            if WINDOW:
                seen = seen & (key[None, :] > position[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(peak, tl.max(scores, 1) * scale)
        base = highest
        if WINDOW:  # a query whose window begins further on has seen nothing yet
            base = tl.where(highest == float("-inf"), 0.0, highest)
        fade = tl.exp2(peak - base)
        weights = tl.exp2(scores * scale - base[:, None])
        total = total * fade + tl.sum(weights, 1)
        mixed = mixed * fade[:, None]
        mixed = tl.dot(weights.to(values.dtype), values, mixed, input_precision="ieee")
        peak = highest
    return mixed, total, peak


@jit
def attend_kernel(  # type: ignore[no-untyped-def]
    q, k, v, offset, out,
    tokens, keys, group, window, scale,
    q_row, q_token, q_head, k_row, k_position, k_head, v_row, v_position, v_head,
    out_row, out_token, out_head,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """BLOCK_M queries of one head of one row, over all the keys that they see."""
    # The last queries see most, and start first.
    block = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    head, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    token = block + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    d = tl.arange(0, WIDTH)  # [WIDTH]; past SIZE there is nothing
    there = (token < tokens)[:, None] & (d < SIZE)[None, :]
    row = token.to(tl.int64)[:, None]
    q_at = q + b * q_row + head * q_head + row * q_token + d[None, :]
    query = tl.load(q_at, mask=there, other=0.0)  # [BLOCK_M, WIDTH]
    k_from = k + b * k_row + head // group * k_head
    v_from = v + b * v_row + head // group * v_head

    # Keys first..low are masked at the window's edge, low..high are seen by every query, high..end
    # are masked along the diagonal, or where there are no more. All but `end` begin a tile.
    position = token
    first, low, end = 0, 0, keys
    high = keys // BLOCK_N * BLOCK_N
    if CAUSAL:
        nearest = tl.load(offset + b).to(tl.int32) + block  # where the first query stands
        farthest = nearest + tl.minimum(BLOCK_M, tokens - block) - 1
        position = nearest + tl.arange(0, BLOCK_M)
        end = tl.minimum(keys, farthest + 1)
        high = tl.minimum(keys, nearest + 1) // BLOCK_N * BLOCK_N
        if WINDOW:
            first = tl.maximum(0, nearest - window + 1) // BLOCK_N * BLOCK_N
            low = tl.cdiv(tl.maximum(0, farthest - window + 1), BLOCK_N) * BLOCK_N
            low = tl.maximum(first, tl.minimum(low, high))
            high = tl.maximum(low, high)

    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, WIDTH), tl.float32)
    if WINDOW:
        mixed, total, peak = walk(
            mixed, total, peak, query, k_from, v_from, k_position, v_position, position,
            first, low, end, window, scale, SIZE, BLOCK_N, True, CAUSAL, WINDOW,
        )  # fmt: skip
    mixed, total, peak = walk(
        mixed, total, peak, query, k_from, v_from, k_position, v_position, position,
        low, high, end, window, scale, SIZE, BLOCK_N, False, CAUSAL, WINDOW,
    )  # fmt: skip
    mixed, total, peak = walk(
        mixed, total, peak, query, k_from, v_from, k_position, v_position, position,
        high, end, end, window, scale, SIZE, BLOCK_N, True, CAUSAL, WINDOW,
    )  # fmt: skip
    mean = mixed / tl.where(total == 0, 1.0, total)[:, None]
    out_at = out + b * out_row + head * out_head + row * out_token + d[None, :]
    tl.store(out_at, mean, mask=there)


class Config(NamedTuple):
    """How attention is launched."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def config(tokens: int, size: int, itemsize: int, capability: Capability) -> Config:
    """Return the tiles for `tokens` queries of `size` channels, of `itemsize` bytes each.

    The more queries share a tile of keys, the less is loaded for each; what limits them are the
    registers for scores and sums, and shared memory for `num_stages` tiles of keys and values.
    Without tensor cores (float32, and Triton's code for a T4) tiles are small.
    """
    width = triton.next_power_of_2(size)
    height = max(16, triton.next_power_of_2(tokens))
    few = height < 128
    if itemsize == 4 or capability == (7, 5):
        return Config(min(height, 32), 16 if itemsize == 4 and width > 64 else 32, 8, 1)
    if isinstance(capability, str):
        return Config(min(height, 128), 64 if width <= 64 else 32, 4, 1)
    if capability in ((9, 0), (10, 0)):
        return Config(min(height, 128), 64 if width > 64 or few else 128, 4 if few else 8, 3)
    if capability == (8, 0):
        return Config(min(height, 64 if width > 64 else 128), 64, 4, 2 if width > 64 else 3)
    return Config(min(height, 128), 32 if width > 64 else 64, 4 if few else 8, 2)


def launch(
    q: Any, k: Any, v: Any, offset: Any, out: Any, *, causal: bool = True, window: int | None = None
) -> Any:
    """Fill `out` [B, T, H, D] from q [B, T, H, D], k and v [B, S, KV, D], all dense in D.

    With `causal` query t of row b stands at position offset[b] + t, sees the keys up to its own,
    the last `window` of them if there is one; without, all S. `offset` is an integer tensor [B].
    """
    check_dot("flash_attention", q)
    batch, tokens, heads, size = q.shape
    made = config(tokens, size, q.element_size(), capability(q.device))
    if q.numel():
        attend_kernel[(triton.cdiv(tokens, made.block_m), heads, batch)](
            q, k, v, offset, out,
            tokens, k.shape[1], heads // k.shape[2], window or 0, size**-0.5 * math.log2(math.e),
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            size, triton.next_power_of_2(size), made.block_m, made.block_n,
            causal, window is not None, num_warps=made.num_warps, num_stages=made.num_stages,
        )  # fmt: skip
    return out


def traffic(tokens: int, keys: int, heads: int, kv_heads: int, size: int, itemsize: int) -> int:
    """Return the fewest bytes for a row: each of its queries, keys, values and results once."""
    return (2 * tokens * heads + 2 * keys * kv_heads) * size * itemsize


def aot(target: Target) -> list[Compile]:
    """Return what `launch` compiles on such a GPU: some sizes of heads, windowed, not causal."""
    pointers, names = ("q", "k", "v", "out"), ("row", "token", "head")
    strides = [f"{t}_{n}" for t in ("q", "out") for n in names]
    strides += [f"{t}_{n}" for t in ("k", "v") for n in ("row", "position", "head")]
    usual = ((128, 4096, True, False), (64, 4096, True, False))
    every = (
        *usual,
        (80, 4096, True, False),
        (96, 4096, True, False),
        (128, 16, True, False),
        (64, 64, True, False),
        (128, 4096, True, True),
        (128, 4096, False, False),
    )
    cases = []
    for dtype in ("fp32", "fp16", "bf16") if target.has_bf16 else ("fp32", "fp16"):
        for size, tokens, causal, window in every if dtype == "fp16" else usual:
            made = config(tokens, size, 4 if dtype == "fp32" else 2, target.capability)
            kind = "windowed" if window else "causal" if causal else "whole"
            cases.append(
                Compile(
                    attend_kernel,
                    f"{dtype}, {kind}, heads of {size}, tiles {made.block_m} x {made.block_n}",
                    dict.fromkeys(pointers, f"*{dtype}")
                    | {"offset": "*i64", "scale": "fp32"}
                    | dict.fromkeys(("tokens", "keys", "group", "window"), "i32")
                    | dict.fromkeys(strides, "i32:16"),
                    {"SIZE": size, "WIDTH": triton.next_power_of_2(size)}
                    | {"BLOCK_M": made.block_m, "BLOCK_N": made.block_n}
                    | {"CAUSAL": causal, "WINDOW": window},
                    made.num_warps,
                    made.num_stages,
                    tensor_cores=dtype != "fp32",
                )
            )
    return cases
