"""Dot products of four quantised rows with one vector, the vector packed to meet them.

Formats and planes are those of `kernels.quantised`. With weights scale * code + min, a block of 32
adds scale * sum(code * x) + min * sum(x): the sums over whole numbers are where the work is.
A vector is packed once and then meets every row of a matrix, in one of three ways:

- int8 (`INT8`), for nibbles: each block of x has a step of its own, and each half of it (elements
  0-7 and 16-23, or the others) is rounded to 8 bits in a whole number of them, up to `MOST_STEPS`.
  Into `down` SwiGLU sends outliers, and each then coarsens 16 elements instead of 32; to bring both
  halves together costs next to nothing, since their sums are multiplied by whole numbers anyway. A
  pair of blocks A, B takes `PAIR_BYTES`: four elements of A, four of B, and so on, as int8, the
  first halves before the others; the step of A, of B, as float32; the sums of both; and as int16
  how many steps the first halves are rounded in, twice that of A, twice that of B, and the others.
  A vector that comes alone meets nibbles in the order in which they unpack, and so the same is
  written again: elements 0-15 of A, of B, then 16-31; four times the steps of each half of A, of B.
- int16 (`INT16`), for bytes: products of two bytes overflow the sums of the fast instruction, and
  without it more bits cost nothing. A block takes `SHORTS_BYTES`: its 32 int16 and, as float32,
  their step; what is left keeps the next block on a border of the cache.
- float32 (`FLOAT32`), for both: a block takes `BLOCK_BYTES`: its 32 float32, and an eighth of
  their sum for each lane.

Where matrices of both kinds meet a vector, the int16 blocks stand behind the int8 ones.
"""

from __future__ import annotations

import numpy as np
from numpy import float32, int64

from inferlab.kernels.cpu.jit import floats, jit, longs, part
from inferlab.kernels.cpu.vector import (
    dot_pairs,
    dot_shorts,
    float_bytes,
    float_nibbles,
    four_halves,
    four_pairs,
    high_nibbles,
    lane,
    larger,
    load_bytes,
    load_floats,
    load_shorts,
    low_nibbles,
    pair_totals,
    repeat_bytes,
    repeat_floats,
    repeat_shorts,
    rounded,
    spread,
    spread_half,
    store_floats,
    store_low_bytes,
    store_low_shorts,
    to_floats,
    total,
    totals,
    turn_fours,
    turn_pairs,
    turned,
    turned_sums,
    wide_bytes,
)

BLOCK = 32
FLOAT32, INT8, INT16 = 1, 2, 4
"""How vectors meet a matrix; a sum of them says how a vector is packed that meets several."""
PAIR_BYTES = 192
SHORTS_BYTES = 96
BLOCK_BYTES = 160
MOST_STEPS = 255
HIGHEST = 32767
_TWICE = 0x10001  # times an int16: the same number twice
_FOUR_TIMES = 0x1000100010001


def packed_bytes(columns: int) -> int:
    """Return the bytes that a vector of `columns` elements takes when packed, in whatever way."""
    return (columns // BLOCK + 1) // 2 * (PAIR_BYTES + 2 * SHORTS_BYTES)


@part
def _shorts_at(columns):  # type: ignore[no-untyped-def]
    """Where a packed vector's int16 begin."""
    return (columns // BLOCK + 1) // 2 * PAIR_BYTES


@jit
def pack(x, columns, ways, out):  # type: ignore[no-untyped-def]
    """Pack the `columns` float32 at `x`, a multiple of 32, to `packed_bytes` at `out`."""
    blocks = columns // BLOCK
    if ways & FLOAT32:
        for block in range(blocks):
            _pack_floats(x + block * 128, out + block * BLOCK_BYTES)
    if ways & INT16:
        for block in range(blocks):
            _pack_shorts(x + block * 128, out + _shorts_at(columns) + block * SHORTS_BYTES)
    if ways & INT8:
        for pair in range((blocks + 1) // 2):
            whole = 2 * pair + 1 < blocks
            _pack_pair(x + pair * 256, whole, out + pair * PAIR_BYTES)


@part
def _pack_floats(x, to):  # type: ignore[no-untyped-def]
    a, b, c, d = four(x)
    store_floats(to, a)
    store_floats(to + 32, b)
    store_floats(to + 64, c)
    store_floats(to + 96, d)
    store_floats(to + 128, spread(total(a + b + c + d) * float32(0.125)))


@part
def _pack_shorts(x, to):  # type: ignore[no-untyped-def]
    p, q, r, s, step = to_shorts(x)
    store_low_shorts(to, p)
    store_low_shorts(to + 16, q)
    store_low_shorts(to + 32, r)
    store_low_shorts(to + 48, s)
    floats(to + 64, 1)[0] = step


@part
def _pack_pair(x, whole, to):  # type: ignore[no-untyped-def]
    """Pack two blocks as int8, or where not `whole` one, and zeros."""
    step, sum, first, others = _pack_block(x, to, to + 96)
    if whole:
        step1, sum1, first1, others1 = _pack_block(x + 128, to + 4, to + 112)
    else:
        step1 = sum1 = float32(0)
        first1 = others1 = 0
        nothing = rounded(spread(float32(0)))
        for at in range(4, 64, 16):
            store_low_bytes(to + at, nothing, 8)
    numbers, steps = floats(to + 64, 4), longs(to + 80, 2)
    numbers[0], numbers[1], numbers[2], numbers[3] = step, step1, sum, sum1
    steps[0], steps[1] = _TWICE * (first + (first1 << 32)), _TWICE * (others + (others1 << 32))
    steps = longs(to + 160, 4)
    steps[0], steps[1] = _FOUR_TIMES * first, _FOUR_TIMES * others
    steps[2], steps[3] = _FOUR_TIMES * first1, _FOUR_TIMES * others1


@part
def four(x):  # type: ignore[no-untyped-def]
    """Read the 32 float32 of a block."""
    return load_floats(x), load_floats(x + 32), load_floats(x + 64), load_floats(x + 96)


@part
def _most(found):  # type: ignore[no-untyped-def]
    found = larger(found, turned(found, 4))
    found = larger(found, turned(found, 2))
    return lane(larger(found, turned(found, 1)), 0)


@part
def largest(a, b, c, d):  # type: ignore[no-untyped-def]
    """Return the largest magnitude of 32 float32; NaN if one is."""
    return _most(larger(larger(a, b), larger(c, d)))


@part
def to_shorts(x):  # type: ignore[no-untyped-def]
    """Round the 32 float32 of a block to 16 bits: four times eight int32, and their step."""
    a, b, c, d = four(x)
    highest = largest(a, b, c, d)
    up = spread(float32(HIGHEST) / highest if highest > 0 else float32(0))
    p, q, r, s = rounded(a * up), rounded(b * up), rounded(c * up), rounded(d * up)
    return p, q, r, s, highest / float32(HIGHEST)


@part
def _steps(most, inverse):  # type: ignore[no-untyped-def]
    """Return in how many steps to round what is at most so large, and 1 over their size."""
    steps = float32(1)
    if most * inverse * float32(MOST_STEPS) > steps:  # false for NaN
        steps = min(np.ceil(most * inverse * float32(MOST_STEPS)), float32(MOST_STEPS))
    return int64(steps), spread(float32(127 * MOST_STEPS) * inverse / steps)


@jit
def _pack_block(x, quads, rows):  # type: ignore[no-untyped-def]
    """Write 32 elements as int8: by four from `quads`, a gap of four between, and whole at `rows`.

    Return their step, their sum, and in how many steps each half is rounded.
    """
    a, b, c, d = four(x)
    highest = largest(a, b, c, d)
    inverse = float32(1) / highest if highest > 0 else float32(0)
    first, up = _steps(_most(larger(a, c)), inverse)
    p, r = rounded(a * up), rounded(c * up)
    others, up = _steps(_most(larger(b, d)), inverse)
    q, s = rounded(b * up), rounded(d * up)
    store_low_bytes(quads, p, 8)
    store_low_bytes(quads + 16, r, 8)
    store_low_bytes(quads + 32, q, 8)
    store_low_bytes(quads + 48, s, 8)
    store_low_bytes(rows, p, 4)
    store_low_bytes(rows + 8, q, 4)
    store_low_bytes(rows + 32, r, 4)
    store_low_bytes(rows + 40, s, 4)
    sum = total(to_floats(p + r)) * float32(first) + total(to_floats(q + s)) * float32(others)
    step = highest / float32(127 * MOST_STEPS)
    return step, step * sum, first, others


@part
def _nibbles(sum, quads, scale, least, x):  # type: ignore[no-untyped-def]
    """Add a pair of blocks of four rows, in lanes A, B of each, and one vector."""
    (a, b, c, d), (e, f, g, h) = quads
    first = dot_pairs(a, repeat_bytes(x)) + dot_pairs(b, repeat_bytes(x + 8))
    first = first + (dot_pairs(e, repeat_bytes(x + 16)) + dot_pairs(f, repeat_bytes(x + 24)))
    others = dot_pairs(c, repeat_bytes(x + 32)) + dot_pairs(d, repeat_bytes(x + 40))
    others = others + (dot_pairs(g, repeat_bytes(x + 48)) + dot_pairs(h, repeat_bytes(x + 56)))
    codes = dot_shorts(first, repeat_shorts(x + 80)) + dot_shorts(others, repeat_shorts(x + 88))
    return _scaled(sum, codes, scale, least, x)


@part
def _scaled(sum, codes, scale, least, x):  # type: ignore[no-untyped-def]
    sum = sum + to_floats(codes) * (scale * repeat_floats(x + 64))
    return sum + least * repeat_floats(x + 72)


@part
def _row(w, low, high, steps):  # type: ignore[no-untyped-def]
    """Multiply a pair of blocks of one row: eight sums, four of A and four of B."""
    w = load_bytes(w)
    codes = dot_pairs(low_nibbles(w), low) + dot_pairs(high_nibbles(w), high)
    return dot_shorts(codes, steps)


@part
def _quads(w0, w1, w2, w3, whole):  # type: ignore[no-untyped-def]
    """Unpack a pair of blocks, or where not `whole` one, of four rows of nibbles."""
    a, b, c, d = turn_pairs(w0, w1, w2, w3, whole)
    low = low_nibbles(a), low_nibbles(b), low_nibbles(c), low_nibbles(d)
    return low, (high_nibbles(a), high_nibbles(b), high_nibbles(c), high_nibbles(d))


@part
def nibbles4(weights, scales, mins, times, x, blocks):  # type: ignore[no-untyped-def]
    """Dot products of four rows of nibbles with an int8 vector.

    Addresses of each row's weights, scales and mins; a min counts `times` times.
    """
    (w0, w1, w2, w3), (s0, s1, s2, s3), (m0, m1, m2, m3) = weights, scales, mins
    sum = spread(float32(0))
    for pair in range(blocks // 2):
        w, s, here = pair * 32, pair * 4, x + pair * PAIR_BYTES
        low, high, steps = load_bytes(here + 96), load_bytes(here + 128), load_shorts(here + 160)
        row0, row1 = _row(w0 + w, low, high, steps), _row(w1 + w, low, high, steps)
        row2, row3 = _row(w2 + w, low, high, steps), _row(w3 + w, low, high, steps)
        scale = four_pairs(s0 + s, s1 + s, s2 + s, s3 + s)
        least = four_pairs(m0 + s, m1 + s, m2 + s, m3 + s) * spread(times)
        sum = _scaled(sum, turned_sums(row0, row1, row2, row3), scale, least, here)
    if blocks % 2:
        w, s = blocks // 2 * 32, blocks // 2 * 4
        quads = _quads(w0 + w, w1 + w, w2 + w, w3 + w, False)
        scale = four_halves(s0 + s, s1 + s, s2 + s, s3 + s)
        least = four_halves(m0 + s, m1 + s, m2 + s, m3 + s) * spread(times)
        sum = _nibbles(sum, quads, scale, least, x + blocks // 2 * PAIR_BYTES)
    return pair_totals(sum)


@part
def nibbles4_by4(weights, scales, mins, times, x, stride, blocks):  # type: ignore[no-untyped-def]
    """Return what `nibbles4` does for each of four vectors, which stand `stride` bytes apart.

    What is unpacked serves all of them; each number is the same sum in the same order.
    """
    (w0, w1, w2, w3), (s0, s1, s2, s3), (m0, m1, m2, m3) = weights, scales, mins
    x1, x2, x3 = x + stride, x + 2 * stride, x + 3 * stride
    sum0 = sum1 = sum2 = sum3 = spread(float32(0))
    for pair in range(blocks // 2):
        w, s, at = pair * 32, pair * 4, pair * PAIR_BYTES
        quads = _quads(w0 + w, w1 + w, w2 + w, w3 + w, True)
        scale = four_pairs(s0 + s, s1 + s, s2 + s, s3 + s)
        least = four_pairs(m0 + s, m1 + s, m2 + s, m3 + s) * spread(times)
        sum0 = _nibbles(sum0, quads, scale, least, x + at)
        sum1 = _nibbles(sum1, quads, scale, least, x1 + at)
        sum2 = _nibbles(sum2, quads, scale, least, x2 + at)
        sum3 = _nibbles(sum3, quads, scale, least, x3 + at)
    if blocks % 2:
        w, s, at = blocks // 2 * 32, blocks // 2 * 4, blocks // 2 * PAIR_BYTES
        quads = _quads(w0 + w, w1 + w, w2 + w, w3 + w, False)
        scale = four_halves(s0 + s, s1 + s, s2 + s, s3 + s)
        least = four_halves(m0 + s, m1 + s, m2 + s, m3 + s) * spread(times)
        sum0 = _nibbles(sum0, quads, scale, least, x + at)
        sum1 = _nibbles(sum1, quads, scale, least, x1 + at)
        sum2 = _nibbles(sum2, quads, scale, least, x2 + at)
        sum3 = _nibbles(sum3, quads, scale, least, x3 + at)
    return pair_totals(sum0), pair_totals(sum1), pair_totals(sum2), pair_totals(sum3)


@part
def _bytes(sum, low, high, scale, x):  # type: ignore[no-untyped-def]
    """Add a block of one row, in its halves, and one vector."""
    codes = dot_shorts(low, load_shorts(x)) + dot_shorts(high, load_shorts(x + 32))
    return sum + to_floats(codes) * (scale * spread(floats(x + 64, 1)[0]))


@part
def bytes4(weights, scales, step, x, blocks):  # type: ignore[no-untyped-def]
    """Dot products of four rows of bytes with an int16 vector.

    Addresses of each row's weights and scales; `step` bytes from scale to scale.
    """
    (w0, w1, w2, w3), (s0, s1, s2, s3) = weights, scales
    sum0 = sum1 = sum2 = sum3 = spread(float32(0))
    for block in range(blocks):
        w, h, s, here = block * 32, block * 32 + 16, block * step, x + block * SHORTS_BYTES
        sum0 = _bytes(sum0, wide_bytes(w0 + w), wide_bytes(w0 + h), spread_half(s0 + s), here)
        sum1 = _bytes(sum1, wide_bytes(w1 + w), wide_bytes(w1 + h), spread_half(s1 + s), here)
        sum2 = _bytes(sum2, wide_bytes(w2 + w), wide_bytes(w2 + h), spread_half(s2 + s), here)
        sum3 = _bytes(sum3, wide_bytes(w3 + w), wide_bytes(w3 + h), spread_half(s3 + s), here)
    return totals(sum0, sum1, sum2, sum3)


@jit
def bytes_by4(w, s, step, x, stride, blocks):  # type: ignore[no-untyped-def]
    """Return what `bytes4` does for one row and four vectors, `stride` bytes apart."""
    x1, x2, x3 = x + stride, x + 2 * stride, x + 3 * stride
    sum0 = sum1 = sum2 = sum3 = spread(float32(0))
    for block in range(blocks):
        low, high = wide_bytes(w + block * 32), wide_bytes(w + block * 32 + 16)
        scale, at = spread_half(s + block * step), block * SHORTS_BYTES
        sum0 = _bytes(sum0, low, high, scale, x + at)
        sum1 = _bytes(sum1, low, high, scale, x1 + at)
        sum2 = _bytes(sum2, low, high, scale, x2 + at)
        sum3 = _bytes(sum3, low, high, scale, x3 + at)
    return totals(sum0, sum1, sum2, sum3)


@jit
def _exact_nibbles(sum, w, s, m, part, x):  # type: ignore[no-untyped-def]
    codes = float_nibbles(w, False) * load_floats(x)
    codes = codes + float_nibbles(w + 8, False) * load_floats(x + 32)
    codes = codes + float_nibbles(w, True) * load_floats(x + 64)
    codes = codes + float_nibbles(w + 8, True) * load_floats(x + 96)
    return sum + codes * spread_half(s) + spread_half(m) * part


@jit
def exact_nibbles4(weights, scales, mins, times, x, blocks):  # type: ignore[no-untyped-def]
    """Return what `nibbles4` does, with a vector of float32."""
    (w0, w1, w2, w3), (s0, s1, s2, s3), (m0, m1, m2, m3) = weights, scales, mins
    sum0 = sum1 = sum2 = sum3 = spread(float32(0))
    for block in range(blocks):
        w, s, here = block * 16, block * 2, x + block * BLOCK_BYTES
        part = load_floats(here + 128) * spread(times)
        sum0 = _exact_nibbles(sum0, w0 + w, s0 + s, m0 + s, part, here)
        sum1 = _exact_nibbles(sum1, w1 + w, s1 + s, m1 + s, part, here)
        sum2 = _exact_nibbles(sum2, w2 + w, s2 + s, m2 + s, part, here)
        sum3 = _exact_nibbles(sum3, w3 + w, s3 + s, m3 + s, part, here)
    return totals(sum0, sum1, sum2, sum3)


@jit
def _exact_bytes(sum, w, s, x):  # type: ignore[no-untyped-def]
    codes = float_bytes(w) * load_floats(x)
    codes = codes + float_bytes(w + 8) * load_floats(x + 32)
    codes = codes + float_bytes(w + 16) * load_floats(x + 64)
    codes = codes + float_bytes(w + 24) * load_floats(x + 96)
    return sum + codes * spread_half(s)


@jit
def exact_bytes4(weights, scales, step, x, blocks):  # type: ignore[no-untyped-def]
    """Return what `bytes4` does, with a vector of float32."""
    (w0, w1, w2, w3), (s0, s1, s2, s3) = weights, scales
    sum0 = sum1 = sum2 = sum3 = spread(float32(0))
    for block in range(blocks):
        w, s, here = block * 32, block * step, x + block * BLOCK_BYTES
        sum0 = _exact_bytes(sum0, w0 + w, s0 + s, here)
        sum1 = _exact_bytes(sum1, w1 + w, s1 + s, here)
        sum2 = _exact_bytes(sum2, w2 + w, s2 + s, here)
        sum3 = _exact_bytes(sum3, w3 + w, s3 + s, here)
    return totals(sum0, sum1, sum2, sum3)


@part
def _planes(m, rows):  # type: ignore[no-untyped-def]
    """Addresses of four rows' weights, scales and mins."""
    a, b, c, d = rows
    first, second = m.data + a * m.stride, m.data + b * m.stride
    weights = first, second, m.data + c * m.stride, m.data + d * m.stride
    a, b, c, d = a * m.scale_stride, b * m.scale_stride, c * m.scale_stride, d * m.scale_stride
    scales = m.scales + a, m.scales + b, m.scales + c, m.scales + d
    return weights, scales, (m.mins + a, m.mins + b, m.mins + c, m.mins + d)


@part
def dot4(m, rows, x):  # type: ignore[no-untyped-def]
    """Dot products of four rows, by number, of a quantised `matvec.MATRIX` with a packed vector.

    Four lanes, before the scales of whole rows that int8 has.
    """
    blocks, (weights, scales, mins) = m.columns // BLOCK, _planes(m, rows)
    if m.meets == INT8:
        return nibbles4(weights, scales, mins, m.times, x, blocks)
    if m.meets == INT16:
        return bytes4(weights, scales, m.scale_step, x + _shorts_at(m.columns), blocks)
    if m.bits == 4:
        return exact_nibbles4(weights, scales, mins, m.times, x, blocks)
    return exact_bytes4(weights, scales, m.scale_step, x, blocks)


@part
def dot4_by4(m, rows, x, stride):  # type: ignore[no-untyped-def]
    """Return what `dot4` does for each of four packed vectors, `stride` bytes apart; no float32."""
    blocks, (weights, scales, mins) = m.columns // BLOCK, _planes(m, rows)
    if m.meets == INT8:
        return nibbles4_by4(weights, scales, mins, m.times, x, stride, blocks)
    x += _shorts_at(m.columns)
    return turn_fours(
        bytes_by4(weights[0], scales[0], m.scale_step, x, stride, blocks),
        bytes_by4(weights[1], scales[1], m.scale_step, x, stride, blocks),
        bytes_by4(weights[2], scales[2], m.scale_step, x, stride, blocks),
        bytes_by4(weights[3], scales[3], m.scale_step, x, stride, blocks),
    )
