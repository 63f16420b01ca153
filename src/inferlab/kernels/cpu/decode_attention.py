"""Attention of one new token over its cache, with the online softmax, in pieces of the context.

A piece is `PIECE` positions of one KV head; all query heads of that KV head meet its keys and
values while they are near. Pieces start at multiples of `PIECE`, so that a row's sums depend on
nothing but its own length. Keys and values lie in pages, found by a table; a row without one has a
single page.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import float32

from inferlab.kernels.cpu.exp import exp
from inferlab.kernels.cpu.jit import floats, jit, longs
from inferlab.kernels.cpu.matvec import dot4
from inferlab.kernels.cpu.team import NOTHING, desk, take, team

PIECE = 128


class Pages(NamedTuple):
    """How positions lie in memory: `block` of them a page; bytes from one to the next."""

    block: int
    page: int
    head: int
    position: int


def scratch_floats(heads: int, size: int) -> int:
    """Float32 of scratch for one piece: `places`, then `attend_split` for a KV head's queries."""
    return 2 * PIECE + heads * (PIECE + 3 + size)


def most_pieces(capacity: int) -> int:
    """Return how many pieces a row of up to `capacity` positions may have, whatever its window."""
    return capacity // PIECE + 1


@jit
def piece_of(length, window, piece):  # type: ignore[no-untyped-def]
    """Return the first position of a piece, the one after its last, and the number of pieces.

    The last token of `length` sees the last `window` of them, or with window 0 all. Past the
    number of pieces the positions mean nothing.
    """
    seen = max(0, length - window) if window else 0
    first = (seen // PIECE + piece) * PIECE
    count = (length + PIECE - 1) // PIECE - seen // PIECE
    return max(seen, first), min(length, first + PIECE), count


@jit
def place_of(pages, table, position):  # type: ignore[no-untyped-def]
    """Return the byte at which a position of the first head lies; `table` is its row's."""
    page = position // pages.block
    return table[page] * pages.page + (position - page * pages.block) * pages.position


@jit
def places(pages, table, first, last, out):  # type: ignore[no-untyped-def]
    """Write the bytes at which positions first..last-1 lie to `out`, an address of PIECE int64."""
    where, count, t = longs(out, PIECE), last - first, 0
    while t < count:
        start = place_of(pages, table, first + t)
        run = min(pages.block - (first + t) % pages.block, count - t)
        for i in range(run):
            where[t + i] = start + i * pages.position
        t += run


@jit
def attend_split(q, heads, k, v, count, size, scale, scratch, out, out_stride):  # type: ignore[no-untyped-def]
    """All query heads of one KV head over `count` of its positions.

    `q` is the address of `heads` vectors side by side; `k` and `v` are those of the first page;
    `scratch` holds `scratch_floats` and begins with what `places` wrote. Writes size + 2 float32
    for each head, `out_stride` bytes apart: the sum of exp(score - max) v, the max, and the sum of
    exp(score - max).
    """
    where, width = longs(scratch, PIECE), PIECE + 3
    scratch += PIECE * 8
    scores, sums = floats(scratch, heads * width), scratch + heads * width * 4
    # Four streams, as in `matvec`; past the end the last position again. Every head meets a key
    # while it is in the first-level cache, and memory has time to send the next.
    quarter, end = (count + 3) // 4, count - 1
    for t in range(quarter):
        t1, t2, t3 = t + quarter, t + 2 * quarter, t + 3 * quarter
        k0, k1 = k + where[t], k + where[min(t1, end)]
        k2, k3 = k + where[min(t2, end)], k + where[min(t3, end)]
        for h in range(heads):
            s0, s1, s2, s3 = dot4(k0, k1, k2, k3, q + h * size * 4, size)
            at = h * width
            scores[at + t], scores[at + t1] = s0 * scale, s1 * scale
            scores[at + t2], scores[at + t3] = s2 * scale, s3 * scale

    for h in range(heads):
        score, total = floats(scratch + h * width * 4, width), float32(0)
        highest = float32(-np.inf)
        for t in range(count):
            highest = max(highest, score[t])
        for t in range(count):
            score[t] = exp(score[t] - highest)
            total += score[t]
        # Past the end the last value again, with weight 0.
        score[count] = score[count + 1] = score[count + 2] = float32(0)
        result = floats(out + h * out_stride, size + 2)
        result[size], result[size + 1] = highest, total

    mixed = floats(sums, heads * size)
    for i in range(heads * size):
        mixed[i] = float32(0)
    for t in range(quarter):
        t1, t2, t3 = t + quarter, t + 2 * quarter, t + 3 * quarter
        v0, v1 = floats(v + where[t], size), floats(v + where[min(t1, end)], size)
        v2 = floats(v + where[min(t2, end)], size)
        v3 = floats(v + where[min(t3, end)], size)
        for h in range(heads):
            score, mix = floats(scratch + h * width * 4, width), floats(sums + h * size * 4, size)
            p0, p1, p2, p3 = score[t], score[t1], score[t2], score[t3]
            for i in range(size):
                mix[i] += p0 * v0[i] + p1 * v1[i] + p2 * v2[i] + p3 * v3[i]
    for h in range(heads):
        result, mix = floats(out + h * out_stride, size), floats(sums + h * size * 4, size)
        for i in range(size):
            result[i] = mix[i]


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
def _attend(me, q, k, v, pages, table, sizes, lengths, scale, parts, own, desk):  # type: ignore[no-untyped-def]
    """Every (row, KV head, piece)."""
    batch, heads, kv_heads, size, splits, window = sizes
    group = heads // kv_heads
    pieces = batch * kv_heads * splits
    scratch = own[me.member].ctypes.data
    piece = take(desk.ctypes.data, pieces, -1, me, NOTHING)
    while piece >= 0:
        b, h, split = piece // splits // kv_heads, piece // splits % kv_heads, piece % splits
        first, last, count = piece_of(lengths[b], window, split)
        if split < count:
            head = b * heads + h * group
            places(pages, table[b], first, last, scratch)
            attend_split(
                q + head * size * 4,
                group,
                k + h * pages.head,
                v + h * pages.head,
                last - first,
                size,
                scale,
                scratch,
                parts + (head * splits + split) * (size + 2) * 4,
                splits * (size + 2) * 4,
            )
        piece = take(desk.ctypes.data, pieces, piece, me, NOTHING)


@jit
def _merge(parts, sizes, lengths, out):  # type: ignore[no-untyped-def]
    batch, heads, _, size, splits, window = sizes
    for row in range(batch * heads):
        count = piece_of(lengths[row // heads], window, 0)[2]
        merge_splits(parts + row * splits * (size + 2) * 4, count, size, out + row * size * 4)


def launch(
    q: Any, k: Any, v: Any, table: Any, lengths: Any, window: int | None, out: Any, threads: Any
) -> Any:
    """Fill `out` [B, H, D]; float32 pages [P, KV, block, D] on a CPU, k and v strided alike."""
    members = team(threads)
    q = q.contiguous()
    batch, heads, size = q.shape
    splits = most_pieces(int(lengths.max())) if batch else 0
    parts = q.new_empty((batch, heads, splits, size + 2))
    own = np.empty((members.threads, scratch_floats(heads // k.shape[1], size)), np.float32)
    sizes = (batch, heads, k.shape[1], size, splits, window or 0)
    pages = Pages(k.shape[2], *(n * 4 for n in k.stride()[:3]))
    seen, scale = lengths.numpy(), float32(size**-0.5)
    addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr())
    work = (parts.data_ptr(), own, desk(batch * k.shape[1] * splits))
    members.run(_attend, *addresses, pages, table.numpy(), sizes, seen, scale, *work)
    _merge(parts.data_ptr(), sizes, seen, out.data_ptr())
    return out
