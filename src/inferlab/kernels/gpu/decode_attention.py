"""Attention of one new token a row over its cache, the context shared out among many programs.

One token has little to compute, and all of the cache to read: every multiprocessor must have some
of it. So the context of a row is split (flash decoding, Dao et al. 2023). A program takes one piece
of one KV head and holds all the query heads that read it, as vLLM's unified kernel does, so that
each key and value is loaded once. A second kernel merges the pieces by their log-sum-exp. How many
pieces there are depends on the cache's capacity alone, which a CUDA graph can hold; where they lie
follows from each row's length, on the device.

The cache is pages [P, KV, block, D], found through a table; a contiguous cache is pages of one row.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch

from inferlab.kernels.gpu.compiled import Capability, Compile, Target
from inferlab.kernels.gpu.dsl import capability, interpreted, jit, tl, triton

NO_WINDOW = 2**31 - 1
MOST_SPLITS = 512  # pieces of a row; the kernel that merges holds their weights at once
MERGED = 16  # pieces that it adds at a time


@jit
def share_of(tiles, shares, index):  # type: ignore[no-untyped-def]
    """Return the first tile of a share and the one after its last; sizes differ by 1 at most."""
    each, more = tiles // shares, tiles % shares
    first = index * each + tl.minimum(index, more)
    return first, first + each + (index < more).to(tl.int32)


@jit
def attend_kernel(  # type: ignore[no-untyped-def]
    q, k, v, table, lengths, out, parts, sums,
    window, scale, group,
    q_row, q_head, k_page, k_head, k_position, v_page, v_head, v_position, table_row,
    out_row, out_head,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    PAGE: tl.constexpr, DOT: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One piece of one KV head of one row, for the `group` query heads that read it.

    With WHOLE the piece is all there is, and goes to `out`; otherwise its mean goes to `parts`
    [B, H, splits, SIZE], the base-2 logarithm of its sum of weights to `sums` [B, H, splits].
    PAGE is a page's positions, 0 if a row has only one page.
    """
    split, splits = tl.program_id(0), tl.num_programs(0)
    turns = tl.cdiv(group, ROWS)
    kv, turn = tl.program_id(1) // turns, tl.program_id(1) % turns
    b = tl.program_id(2).to(tl.int64)
    end = tl.load(lengths + b).to(tl.int32)
    start = tl.maximum(end - window, 0)
    first, last = share_of(tl.cdiv(end - start, TILE), splits, split)
    if (not WHOLE) & (first == last):
        return

    row = turn * ROWS + tl.arange(0, ROWS)  # [ROWS], heads of the group; past its end there is none
    d = tl.arange(0, WIDTH)  # [WIDTH], channels; past SIZE there is none
    head = kv * group + row
    there = (row < group)[:, None] & (d < SIZE)[None, :]
    query = tl.load(q + b * q_row + head[:, None] * q_head + d[None, :], mask=there, other=0.0)
    k_from = k + kv.to(tl.int64) * k_head
    v_from = v + kv.to(tl.int64) * v_head
    if PAGE == 0:
        page = tl.load(table + b * table_row).to(tl.int64)
        k_from += page * k_page
        v_from += page * v_page

    # Without tensor cores every slot of a tile keeps its own softmax, so that programs' threads
    # meet once, at the end. The least peak is finite: an empty slot's weights are 0, not NaN.
    if DOT:
        peak = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        mixed = tl.zeros((ROWS, WIDTH), tl.float32)
    else:
        peak = tl.full((ROWS, TILE), -1e30, tl.float32)
        total = tl.zeros((ROWS, TILE), tl.float32)
        mixed = tl.zeros((ROWS, TILE, WIDTH), tl.float32)

    for tile in range(first, last):
        at = start + tile * TILE
        slot = tl.arange(0, TILE)  # [TILE]
        seen = slot < end - at
        if PAGE == 0:
            k_at = k_from + tl.cast(at, tl.int64) * k_position + slot * k_position
            v_at = v_from + tl.cast(at, tl.int64) * v_position + slot * v_position
        else:
            index = (at + slot) // PAGE
            page = tl.load(table + b * table_row + index, mask=seen, other=0).to(tl.int64)
            inner = (at + slot) % PAGE
            k_at = k_from + page * k_page + inner * k_position
            v_at = v_from + page * v_page + inner * v_position
        inside = seen[:, None] & (d < SIZE)[None, :]
        keys = tl.load(k_at[:, None] + d[None, :], mask=inside, other=0.0)  # [TILE, WIDTH]
        values = tl.load(v_at[:, None] + d[None, :], mask=inside, other=0.0)
        if DOT:
            scores = tl.dot(query, keys.T) * scale  # [ROWS, TILE], of base 2
            scores = tl.where(seen[None, :], scores, float("-inf"))
            highest = tl.maximum(peak, tl.max(scores, 1))
            fade = tl.exp2(peak - highest)
            weights = tl.exp2(scores - highest[:, None])
            total = total * fade + tl.sum(weights, 1)
            mixed = tl.dot(weights.to(values.dtype), values, mixed * fade[:, None])
        else:
            wide = query.to(tl.float32)[:, None, :]
            scores = tl.sum(wide * keys.to(tl.float32)[None, :, :], 2) * scale
            scores = tl.where(seen[None, :], scores, float("-inf"))
            highest = tl.maximum(peak, scores)
            fade = tl.exp2(peak - highest)
            weights = tl.exp2(scores - highest)  # [ROWS, TILE]
            total = total * fade + weights
            new = weights[:, :, None] * values.to(tl.float32)[None, :, :]
            mixed = mixed * fade[:, :, None] + new
        peak = highest

    if not DOT:
        highest = tl.max(peak, 1)
        fade = tl.exp2(peak - highest[:, None])
        total = tl.sum(total * fade, 1)
        mixed = tl.sum(mixed * fade[:, :, None], 1)
        peak = highest
    mean = mixed / tl.where(total == 0, 1.0, total)[:, None]
    if WHOLE:
        to = out + b * out_row + head[:, None] * out_head + d[None, :]
        tl.store(to, mean, mask=there)
    else:
        heads = tl.num_programs(1) // turns * group
        piece = (b * heads + head) * splits + split  # [ROWS]
        tl.store(parts + piece[:, None] * SIZE + d[None, :], mean, mask=there)
        tl.store(sums + piece, peak + tl.log2(total), mask=row < group)


@jit
def merge_kernel(  # type: ignore[no-untyped-def]
    parts, sums, lengths, out,
    window, splits, out_row, out_head,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    MERGED: tl.constexpr,
):  # fmt: skip
    """The mean of one head's pieces, weighted by their sums; zeros for a row of no positions."""
    h, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    end = tl.load(lengths + b).to(tl.int32)
    tiles = tl.cdiv(end - tl.maximum(end - window, 0), TILE)
    count = tl.minimum(tiles, splits)  # pieces that are not empty: the first ones
    piece = (b * tl.num_programs(0) + h) * splits
    every = tl.arange(0, SPLITS)
    weights = tl.load(sums + piece + every, mask=every < count, other=float("-inf"))
    peak = tl.where(count == 0, 0.0, tl.max(weights, 0))
    total = tl.where(count == 0, 1.0, tl.sum(tl.exp2(weights - peak), 0))
    d = tl.arange(0, WIDTH)  # [WIDTH]
    mixed = tl.zeros((WIDTH,), tl.float32)
    for first in range(0, count, MERGED):
        some = first + tl.arange(0, MERGED)  # [MERGED]
        inside = (some < count)[:, None] & (d < SIZE)[None, :]
        mean = tl.load(parts + (piece + some)[:, None] * SIZE + d[None, :], mask=inside, other=0.0)
        weight = tl.load(sums + piece + some, mask=some < count, other=float("-inf"))
        mixed += tl.sum(tl.exp2(weight - peak)[:, None] * mean, 0)
    tl.store(out + b * out_row + h * out_head + d, mixed / total, mask=d < SIZE)


class Config(NamedTuple):
    """How a piece is computed: by matrix products or not, `tile` positions at a time."""

    dot: bool
    rows: int  # query heads a program holds
    tile: int
    num_warps: int
    num_stages: int
    resident: int  # programs that a multiprocessor holds at once


def config(group: int, size: int, itemsize: int, paged: bool, capability: Capability) -> Config:
    """Return the tiles for `group` query heads a KV head, of `size` channels.

    Tensor cores take 16 rows at least, and heads that are not there cost nothing: memory is what
    one waits for. What counts is to have some ten KB on their way to every multiprocessor. Without
    tensor cores (float32, and Triton's code for a T4) a thread multiplies what it has loaded, 16
    bytes of each key, by the heads it holds; more heads than fit its registers take turns.
    """
    width = triton.next_power_of_2(size)
    if itemsize == 4 or capability == (7, 5):
        rows = min(triton.next_power_of_2(group), 4 if itemsize == 2 else 8)
        threads = 4 * (64 if isinstance(capability, str) else 32)
        wave = max(1, threads * 16 // (width * itemsize))  # positions that all threads load at once
        return Config(False, rows, wave if rows > 2 else 2 * wave, 4, 1, 3)
    rows = max(16, triton.next_power_of_2(group))
    if capability in ((8, 0), (9, 0), (10, 0)):
        return Config(True, rows, 64 if width <= 128 else 32, 4, 3 + 2 * paged, 3)
    stages = 2 if isinstance(capability, str) else 3
    return Config(True, rows, 32, 4, stages + 2 * paged, 2)


@functools.cache
def splits(batch: int, kv_heads: int, capacity: int, made: Config, processors: int) -> int:
    """Return into how many pieces each KV head's context is split, for a GPU's `processors`.

    All programs should run in whole waves of `processors * resident`: of the counts that need
    about the least time (a program's own start is taken as two tiles), the smallest.
    """
    tiles = max(1, -(-capacity // made.tile))
    most = min(tiles, MOST_SPLITS)

    def time(pieces: int) -> int:
        waves = -(-batch * kv_heads * pieces // (processors * made.resident))
        return waves * (-(-tiles // pieces) + 2)

    best = min(map(time, range(1, most + 1)))
    return next(pieces for pieces in range(1, most + 1) if time(pieces) <= 1.05 * best)


def scratch(q: Any, k: Any, table: Any) -> Any:
    """Return the memory that `launch` needs to itself, float32 [B, H, splits, D + 1]."""
    batch, heads, size = q.shape
    made = _config(q, k, table)
    cuda = q.device.type == "cuda"
    count = torch.cuda.get_device_properties(q.device).multi_processor_count if cuda else 1
    pieces = splits(batch, k.shape[1], table.shape[1] * k.shape[2], made, count)
    return q.new_empty((batch, heads, pieces, size + 1), dtype=torch.float32)


def launch(
    q: Any, k: Any, v: Any, table: Any, lengths: Any, window: int | None, out: Any, scratch: Any
) -> Any:
    """Fill `out` [B, H, D]; each row of q [B, H, D] sees the `lengths` [B] positions behind it.

    Position p of row b is k[table[b, p // block], :, p % block], for pages k and v
    [P, KV, block, D], dense in D as q and out are; with a window only the last `window` positions
    count. A row of length 0 gets zeros. `scratch` comes from the function of that name.
    """
    batch, heads, size = q.shape
    kv_heads, block = k.shape[1:3]
    group, pieces = heads // kv_heads, scratch.shape[2]
    made = _config(q, k, table)
    width = triton.next_power_of_2(size)
    window = NO_WINDOW if window is None else window
    planes = scratch.view(-1)
    parts, sums = planes[: batch * heads * pieces * size], planes[batch * heads * pieces * size :]
    if not batch:
        return out
    attend_kernel[(pieces, kv_heads * triton.cdiv(group, made.rows), batch)](
        q, k, v, table, lengths, out, parts, sums,
        window, size**-0.5 * math.log2(math.e), group,
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], table.stride(0), *out.stride()[:2],
        size, width, made.rows, made.tile, 0 if table.shape[1] == 1 else block, made.dot,
        pieces == 1, num_warps=made.num_warps, num_stages=made.num_stages,
    )  # fmt: skip
    if pieces > 1:
        merge_kernel[(heads, batch)](
            parts, sums, lengths, out,
            window, pieces, *out.stride()[:2],
            size, width, made.tile, triton.next_power_of_2(pieces), MERGED,
        )  # fmt: skip
    return out


def _config(q: Any, k: Any, table: Any) -> Config:
    # The interpreter gets products of bfloat16 wrong; the way of a T4 needs none.
    unfit = interpreted() and q.dtype == torch.bfloat16
    gpu = (7, 5) if unfit else capability(q.device)
    paged = table.shape[1] > 1
    return config(q.shape[1] // k.shape[1], q.shape[2], q.element_size(), paged, gpu)


def traffic(positions: int, heads: int, kv_heads: int, size: int, itemsize: int) -> int:
    """Return the fewest bytes for a row that sees `positions`: keys, values, q, the result."""
    return (2 * positions * kv_heads + 2 * heads) * size * itemsize


def aot(target: Target) -> list[Compile]:
    """Return what `launch` compiles on such a GPU: contiguous and paged, some groups and sizes."""
    cases = []
    strides = "q_row q_head k_page k_head k_position v_page v_head v_position out_row out_head"
    usual = ((4, 128, 0), (4, 128, 16))
    every = (*usual, (1, 128, 0), (3, 64, 0), (7, 80, 16), (9, 80, 0), (16, 96, 64))
    for dtype in ("fp32", "fp16", "bf16") if target.has_bf16 else ("fp32", "fp16"):
        for group, size, block in every if dtype == "fp16" else usual:
            made = config(group, size, 4 if dtype == "fp32" else 2, block > 0, target.capability)
            width = triton.next_power_of_2(size)
            cases.append(
                Compile(
                    attend_kernel,
                    f"{dtype}, {group} heads of {size}, "
                    + (f"pages of {block}" if block else "contiguous"),
                    dict.fromkeys(("q", "k", "v", "out"), f"*{dtype}")
                    | {"table": "*i32", "lengths": "*i32", "parts": "*fp32", "sums": "*fp32"}
                    | {"window": "i32", "scale": "fp32", "group": "i32", "table_row": "i32"}
                    | dict.fromkeys(strides.split(), "i32:16"),
                    {"SIZE": size, "WIDTH": width, "ROWS": made.rows, "TILE": made.tile}
                    | {"PAGE": block, "DOT": made.dot, "WHOLE": False},
                    made.num_warps,
                    made.num_stages,
                    tensor_cores=made.dot,
                    wide_loads=True,
                )
            )
    for size in (64, 128):
        made = config(4, size, 2, False, target.capability)
        cases.append(
            Compile(
                merge_kernel,
                f"merge, heads of {size}",
                {"parts": "*fp32", "sums": "*fp32", "lengths": "*i32", "out": "*fp16"}
                | {"window": "i32", "splits": "i32", "out_row": "i32:16", "out_head": "i32:16"},
                {"SIZE": size, "WIDTH": triton.next_power_of_2(size), "TILE": made.tile}
                | {"SPLITS": 64, "MERGED": MERGED},
                wide_loads=True,
            )
        )
    return cases
