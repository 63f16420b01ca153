"""Attention of one new token over its cache, with the online softmax, in pieces of the context.

A piece is `SPLIT` positions of one KV head; all query heads of that KV head meet its keys and
values while they are in the cache. Pieces start at multiples of `SPLIT`, so that a row's sums
depend on nothing but its own length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import float32

from inferlab.kernels.cpu.exp import exp
from inferlab.kernels.cpu.jit import floats, jit
from inferlab.kernels.cpu.matvec import dot4
from inferlab.kernels.cpu.team import desk, take, team

SPLIT = 128


@jit
def visible(length, window):  # type: ignore[no-untyped-def]
    """Return the first position that the last token of `length` sees, and the pieces from there.

    Window 0 is no window. No pieces for length 0.
    """
    first = max(0, length - window) if window else 0
    return first, (length + SPLIT - 1) // SPLIT - first // SPLIT


@jit
def attend_split(q, k, v, stride, size, first, last, scale, scratch, out):  # type: ignore[no-untyped-def]
    """One query head over positions first..last-1 of one KV head.

    `k` and `v` are addresses of position 0, positions `stride` bytes apart; `scratch` holds
    SPLIT + 3 + size float32. Writes size + 2 float32 to `out`: the sum of exp(score - max) v,
    the max, and the sum of exp(score - max).
    """
    count = last - first
    score = floats(scratch, count + 3)
    highest = float32(-np.inf)
    # Four streams, as in `matvec`; past the end the last position again.
    quarter, end = (count + 3) // 4, count - 1
    for t in range(quarter):
        t1, t2, t3 = t + quarter, t + 2 * quarter, t + 3 * quarter
        score[t], score[t1], score[t2], score[t3] = dot4(
            k + (first + t) * stride,
            k + (first + min(t1, end)) * stride,
            k + (first + min(t2, end)) * stride,
            k + (first + min(t3, end)) * stride,
            q,
            size,
        )
    for t in range(count):
        score[t] *= scale
        highest = max(highest, score[t])
    total = float32(0)
    for t in range(count):
        score[t] = exp(score[t] - highest)
        total += score[t]

    sums = floats(scratch + (SPLIT + 3) * 4, size)
    for i in range(size):
        sums[i] = float32(0)
    score[count] = score[count + 1] = score[count + 2] = float32(0)
    for t in range(quarter):
        t1, t2, t3 = t + quarter, t + 2 * quarter, t + 3 * quarter
        v0 = floats(v + (first + t) * stride, size)
        v1 = floats(v + (first + min(t1, end)) * stride, size)
        v2 = floats(v + (first + min(t2, end)) * stride, size)
        v3 = floats(v + (first + min(t3, end)) * stride, size)
        p0, p1, p2, p3 = score[t], score[t1], score[t2], score[t3]
        for i in range(size):
            sums[i] += p0 * v0[i] + p1 * v1[i] + p2 * v2[i] + p3 * v3[i]
    result = floats(out, size + 2)
    for i in range(size):
        result[i] = sums[i]
    result[size], result[size + 1] = highest, total


@jit
def merge_splits(parts, count, size, out):  # type: ignore[no-untyped-def]
    """Combine the `count` results of one head that `attend_split` left side by side at `parts`."""
    part = floats(parts, count * (size + 2))
    highest = float32(-np.inf)
    for s in range(count):
        highest = max(highest, part[s * (size + 2) + size])
    result = floats(out, size)
    for i in range(size):
        result[i] = float32(0)
    total = float32(0)
    for s in range(count):
        weight = exp(part[s * (size + 2) + size] - highest)
        total += weight * part[s * (size + 2) + size + 1]
        for i in range(size):
            result[i] += weight * part[s * (size + 2) + i]
    for i in range(size):
        result[i] /= total


@jit
def _attend(member, q, k, v, strides, sizes, lengths, scale, parts, scratch, desk):  # type: ignore[no-untyped-def]
    """Every (row, head, piece); `strides` are bytes: q row, q head, then KV row, head, position."""
    batch, heads, kv_heads, size, splits, window = sizes
    q_row, q_head, kv_row, kv_head, position = strides
    pieces = batch * heads * splits
    piece = take(desk.ctypes.data, pieces, -1)
    while piece >= 0:
        b, head, split = piece // splits // heads, piece // splits % heads, piece % splits
        start, count = visible(lengths[b], window)
        if split < count:
            base = (start // SPLIT + split) * SPLIT
            cache = b * kv_row + head // (heads // kv_heads) * kv_head
            attend_split(
                q + b * q_row + head * q_head,
                k + cache,
                v + cache,
                position,
                size,
                max(start, base),
                min(lengths[b], base + SPLIT),
                scale,
                scratch + member * (SPLIT + 3 + size) * 4,
                parts + piece * (size + 2) * 4,
            )
        piece = take(desk.ctypes.data, pieces, piece)


@jit
def _merge(parts, sizes, lengths, out):  # type: ignore[no-untyped-def]
    batch, heads, _, size, splits, window = sizes
    for row in range(batch * heads):
        _, count = visible(lengths[row // heads], window)
        merge_splits(parts + row * splits * (size + 2) * 4, count, size, out + row * size * 4)


def launch(
    q: Any, k: Any, v: Any, lengths: Any, window: int | None, out: Any, threads: int | None
) -> Any:
    """Fill `out` [B, H, D]; float32 tensors on a CPU, k and v strided alike."""
    members = team(threads)
    batch, heads, size = q.shape
    splits = int(lengths.max()) // SPLIT + 1 if batch else 0
    parts = q.new_empty((batch, heads, splits, size + 2))
    scratch = q.new_empty((members.threads, SPLIT + 3 + size))
    sizes = (batch, heads, k.shape[1], size, splits, window or 0)
    strides = tuple(n * 4 for n in (*q.stride()[:2], *k.stride()[:3]))
    seen = lengths.numpy()
    addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr())
    work = (parts.data_ptr(), scratch.data_ptr(), desk(batch * heads * splits))
    members.run(_attend, *addresses, strides, sizes, seen, float32(size**-0.5), *work)
    _merge(parts.data_ptr(), sizes, seen, out.data_ptr())
    return out
