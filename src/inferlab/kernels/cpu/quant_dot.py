"""Dot products of four quantised rows with one vector, the vector packed to meet them.

Formats and planes are those of `kernels.quantised`. With weights scale * code + min, a block of 32
adds scale * sum(code * x) + min * sum(x): the sums over whole numbers are where the work is.
A vector is packed once and then meets every row of a matrix, in one of two ways:

- int8 (`exact` 0): each block of x is rounded to 8 bits with a scale of its own. A pair of blocks
  A, B takes `PAIR_BYTES`: elements 0-15 of A, of B, 16-31 of A, of B, as int8, the order in which
  nibbles unpack; then, each four times, the scales of A and of B, and the sums of A and of B.
- float32 (`exact` 1): a block takes `BLOCK_BYTES`: its 32 float32, and an eighth of their sum for
  each lane.
"""

from __future__ import annotations

from numpy import float32

from inferlab.kernels.cpu.jit import jit, part
from inferlab.kernels.cpu.vector import (
    dot_pairs,
    dot_quads,
    float_bytes,
    float_nibbles,
    fold,
    four_halves,
    four_pairs,
    halves_sum,
    high_nibbles,
    lane,
    lanes_sum,
    larger,
    load_bytes,
    load_floats,
    load_half,
    low_nibbles,
    rounded,
    spread,
    spread_half,
    spread_halves,
    spread_lane,
    spread_two,
    store_floats,
    store_low_bytes,
    sum_pairs,
    to_floats,
    total,
    totals,
    turned,
)

BLOCK = 32
PAIR_BYTES = 128
BLOCK_BYTES = 160


def packed_bytes(columns: int) -> int:
    """Return the bytes that a vector of `columns` elements takes when packed, either way."""
    return columns // BLOCK * BLOCK_BYTES + PAIR_BYTES


@jit
def pack(x, columns, exact, out):  # type: ignore[no-untyped-def]
    """Pack the `columns` float32 at `x`, a multiple of 32, to `packed_bytes` at `out`."""
    blocks = columns // BLOCK
    if exact:
        for block in range(blocks):
            here, there = x + block * 128, out + block * BLOCK_BYTES
            a, b, c, d = four(here)
            store_floats(there, a)
            store_floats(there + 32, b)
            store_floats(there + 64, c)
            store_floats(there + 96, d)
            store_floats(there + 128, spread(total(a + b + c + d) * float32(0.125)))
        return
    for pair in range((blocks + 1) // 2):
        here, there = x + pair * 256, out + pair * PAIR_BYTES
        scale, sum = _pack_block(here, there)
        if 2 * pair + 1 < blocks:
            scale1, sum1 = _pack_block(here + 128, there + 16)
        else:
            scale1 = sum1 = float32(0)
            nothing = rounded(spread(float32(0)))
            for at in (16, 24, 48, 56):
                store_low_bytes(there + at, nothing)
        store_floats(there + 64, spread_two(scale, scale1))
        store_floats(there + 96, spread_two(sum, sum1))


@part
def four(x):  # type: ignore[no-untyped-def]
    """Read the 32 float32 of a block."""
    return load_floats(x), load_floats(x + 32), load_floats(x + 64), load_floats(x + 96)


@part
def largest(a, b, c, d):  # type: ignore[no-untyped-def]
    """Return the largest magnitude of 32 float32; NaN if one is."""
    found = larger(larger(a, b), larger(c, d))
    found = larger(found, turned(found, 4))
    found = larger(found, turned(found, 2))
    return lane(larger(found, turned(found, 1)), 0)


@jit
def _pack_block(x, out):  # type: ignore[no-untyped-def]
    """Write 32 elements as int8, half of them at `out`, half 32 bytes on; (scale, sum)."""
    a, b, c, d = four(x)
    highest = largest(a, b, c, d)
    scale = highest / float32(127)
    up = spread(float32(127) / highest if highest > 0 else float32(0))
    a, b, c, d = rounded(a * up), rounded(b * up), rounded(c * up), rounded(d * up)
    store_low_bytes(out, a)
    store_low_bytes(out + 8, b)
    store_low_bytes(out + 32, c)
    store_low_bytes(out + 40, d)
    return scale, scale * total(to_floats(a + b + c + d))


@jit
def _nibbles(sum, weights, x, scale):  # type: ignore[no-untyped-def]
    """Add a pair of blocks, their 32 bytes of weights in a register, to eight lanes of sums."""
    codes = dot_pairs(low_nibbles(weights), load_bytes(x))
    codes = codes + dot_pairs(high_nibbles(weights), load_bytes(x + 32))
    return sum + to_floats(sum_pairs(codes)) * scale


@part
def nibbles4(weights, scales, mins, times, x, blocks):  # type: ignore[no-untyped-def]
    """Dot products of four rows of nibbles with an int8 vector.

    Addresses of each row's weights, scales and mins; a min counts `times` times.
    """
    (w0, w1, w2, w3), (s0, s1, s2, s3), (m0, m1, m2, m3) = weights, scales, mins
    sum0 = sum1 = sum2 = sum3 = least = spread(float32(0))
    for pair in range(blocks // 2):
        w, s, here = pair * 32, pair * 4, x + pair * PAIR_BYTES
        scale = four_pairs(s0 + s, s1 + s, s2 + s, s3 + s) * load_floats(here + 64)
        sums = load_floats(here + 96) * spread(times)
        least = least + four_pairs(m0 + s, m1 + s, m2 + s, m3 + s) * sums
        sum0 = _nibbles(sum0, load_bytes(w0 + w), here, spread_lane(scale, 0))
        sum1 = _nibbles(sum1, load_bytes(w1 + w), here, spread_lane(scale, 1))
        sum2 = _nibbles(sum2, load_bytes(w2 + w), here, spread_lane(scale, 2))
        sum3 = _nibbles(sum3, load_bytes(w3 + w), here, spread_lane(scale, 3))
    if blocks % 2:
        w, s, here = blocks // 2 * 32, blocks // 2 * 4, x + blocks // 2 * PAIR_BYTES
        scale = four_halves(s0 + s, s1 + s, s2 + s, s3 + s) * load_floats(here + 64)
        sums = load_floats(here + 96) * spread(times)
        least = least + four_halves(m0 + s, m1 + s, m2 + s, m3 + s) * sums
        sum0 = _nibbles(sum0, load_half(w0 + w), here, spread_lane(scale, 0))
        sum1 = _nibbles(sum1, load_half(w1 + w), here, spread_lane(scale, 1))
        sum2 = _nibbles(sum2, load_half(w2 + w), here, spread_lane(scale, 2))
        sum3 = _nibbles(sum3, load_half(w3 + w), here, spread_lane(scale, 3))
    return totals(sum0, sum1, sum2, sum3) + halves_sum(least)


@jit
def _codes(sum, low, high, x, scale):  # type: ignore[no-untyped-def]
    codes = dot_pairs(low, load_bytes(x)) + dot_pairs(high, load_bytes(x + 32))
    return sum + to_floats(sum_pairs(codes)) * (scale * load_floats(x + 64))


@jit
def nibbles_by4(w, s, m, times, x, stride, blocks):  # type: ignore[no-untyped-def]
    """Return what `nibbles4` does for one row, unpacked once, and four vectors.

    They stand `stride` bytes apart. Each number is the same sum in the same order.
    """
    x1, x2, x3 = x + stride, x + 2 * stride, x + 3 * stride
    sum0 = sum1 = sum2 = sum3 = spread(float32(0))
    for pair in range(blocks // 2):
        at, weights = pair * PAIR_BYTES, load_bytes(w + pair * 32)
        low, high, scale = low_nibbles(weights), high_nibbles(weights), spread_halves(s + pair * 4)
        sum0 = _codes(sum0, low, high, x + at, scale)
        sum1 = _codes(sum1, low, high, x1 + at, scale)
        sum2 = _codes(sum2, low, high, x2 + at, scale)
        sum3 = _codes(sum3, low, high, x3 + at, scale)
    if blocks % 2:
        pair = blocks // 2
        at, weights = pair * PAIR_BYTES, load_half(w + pair * 32)
        low, high, scale = low_nibbles(weights), high_nibbles(weights), spread_half(s + pair * 4, 4)
        sum0 = _codes(sum0, low, high, x + at, scale)
        sum1 = _codes(sum1, low, high, x1 + at, scale)
        sum2 = _codes(sum2, low, high, x2 + at, scale)
        sum3 = _codes(sum3, low, high, x3 + at, scale)

    # In a loop of their own: there are not registers enough for both.
    least0 = least1 = least2 = least3 = spread(float32(0))
    for pair in range(blocks // 2):
        at, least = pair * PAIR_BYTES + 96, spread_halves(m + pair * 4) * spread(times)
        least0 = least0 + least * load_floats(x + at)
        least1 = least1 + least * load_floats(x1 + at)
        least2 = least2 + least * load_floats(x2 + at)
        least3 = least3 + least * load_floats(x3 + at)
    if blocks % 2:
        pair = blocks // 2
        at, least = pair * PAIR_BYTES + 96, spread_half(m + pair * 4, 4) * spread(times)
        least0 = least0 + least * load_floats(x + at)
        least1 = least1 + least * load_floats(x1 + at)
        least2 = least2 + least * load_floats(x2 + at)
        least3 = least3 + least * load_floats(x3 + at)
    return totals(sum0, sum1, sum2, sum3) + lanes_sum(least0, least1, least2, least3)


@jit
def _bytes_block(w, x):  # type: ignore[no-untyped-def]
    """Multiply a block of bytes with its half at `x` and the other 32 bytes on: eight int32."""
    return dot_quads(w, x) + dot_quads(w + 16, x + 32)


@jit
def _bytes_pair(sum, w, s, x):  # type: ignore[no-untyped-def]
    codes = fold(_bytes_block(w, x), _bytes_block(w + 32, x + 16))
    return sum + to_floats(codes) * (spread_halves(s) * load_floats(x + 64))


@jit
def _bytes_last(sum, w, s, x):  # type: ignore[no-untyped-def]
    codes = _bytes_block(w, x)
    codes = fold(codes, codes)  # the upper lanes meet a scale of zero
    return sum + to_floats(codes) * (spread_half(s, 4) * load_floats(x + 64))


@part
def bytes4(weights, scales, step, x, blocks):  # type: ignore[no-untyped-def]
    """Dot products of four rows of bytes with an int8 vector.

    Addresses of each row's weights and scales; `step` bytes from scale to scale.
    """
    (w0, w1, w2, w3), (s0, s1, s2, s3) = weights, scales
    sum0 = sum1 = sum2 = sum3 = spread(float32(0))
    for pair in range(blocks // 2):
        w, s, here = pair * 64, pair * 2 * step, x + pair * PAIR_BYTES
        sum0 = _bytes_pair(sum0, w0 + w, s0 + s, here)
        sum1 = _bytes_pair(sum1, w1 + w, s1 + s, here)
        sum2 = _bytes_pair(sum2, w2 + w, s2 + s, here)
        sum3 = _bytes_pair(sum3, w3 + w, s3 + s, here)
    if blocks % 2:
        w, s, here = blocks // 2 * 64, blocks // 2 * 2 * step, x + blocks // 2 * PAIR_BYTES
        sum0 = _bytes_last(sum0, w0 + w, s0 + s, here)
        sum1 = _bytes_last(sum1, w1 + w, s1 + s, here)
        sum2 = _bytes_last(sum2, w2 + w, s2 + s, here)
        sum3 = _bytes_last(sum3, w3 + w, s3 + s, here)
    return totals(sum0, sum1, sum2, sum3)


@jit
def bytes_by4(w, s, step, x, stride, blocks):  # type: ignore[no-untyped-def]
    """Return what `bytes4` does for one row and four vectors, `stride` bytes apart."""
    x1, x2, x3 = x + stride, x + 2 * stride, x + 3 * stride
    sum0 = sum1 = sum2 = sum3 = spread(float32(0))
    for pair in range(blocks // 2):
        weights, scale, at = w + pair * 64, s + pair * 2 * step, pair * PAIR_BYTES
        sum0 = _bytes_pair(sum0, weights, scale, x + at)
        sum1 = _bytes_pair(sum1, weights, scale, x1 + at)
        sum2 = _bytes_pair(sum2, weights, scale, x2 + at)
        sum3 = _bytes_pair(sum3, weights, scale, x3 + at)
    if blocks % 2:
        pair = blocks // 2
        weights, scale, at = w + pair * 64, s + pair * 2 * step, pair * PAIR_BYTES
        sum0 = _bytes_last(sum0, weights, scale, x + at)
        sum1 = _bytes_last(sum1, weights, scale, x1 + at)
        sum2 = _bytes_last(sum2, weights, scale, x2 + at)
        sum3 = _bytes_last(sum3, weights, scale, x3 + at)
    return totals(sum0, sum1, sum2, sum3)


@jit
def _exact_nibbles(sum, w, s, m, part, x):  # type: ignore[no-untyped-def]
    codes = float_nibbles(w, False) * load_floats(x)
    codes = codes + float_nibbles(w + 8, False) * load_floats(x + 32)
    codes = codes + float_nibbles(w, True) * load_floats(x + 64)
    codes = codes + float_nibbles(w + 8, True) * load_floats(x + 96)
    return sum + codes * spread_half(s, 8) + spread_half(m, 8) * part


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
    return sum + codes * spread_half(s, 8)


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
def dot4(m, row0, row1, row2, row3, x):  # type: ignore[no-untyped-def]
    """Dot products of four rows, by number, of a quantised `matvec.MATRIX` with a packed vector.

    Four lanes, before the scales of whole rows that int8 has.
    """
    blocks = m.columns // BLOCK
    weights = (
        m.data + row0 * m.stride,
        m.data + row1 * m.stride,
        m.data + row2 * m.stride,
        m.data + row3 * m.stride,
    )
    at = (
        row0 * m.scale_stride,
        row1 * m.scale_stride,
        row2 * m.scale_stride,
        row3 * m.scale_stride,
    )
    scales = (m.scales + at[0], m.scales + at[1], m.scales + at[2], m.scales + at[3])
    if m.bits == 4:
        mins = (m.mins + at[0], m.mins + at[1], m.mins + at[2], m.mins + at[3])
        if m.exact:
            return exact_nibbles4(weights, scales, mins, m.times, x, blocks)
        return nibbles4(weights, scales, mins, m.times, x, blocks)
    if m.exact:
        return exact_bytes4(weights, scales, m.scale_step, x, blocks)
    return bytes4(weights, scales, m.scale_step, x, blocks)


@jit
def dot_by4(m, row, x, stride):  # type: ignore[no-untyped-def]
    """Dot products of one row, by number, with four packed int8 vectors: four lanes, as `dot4`."""
    blocks, at = m.columns // BLOCK, row * m.scale_stride
    w, s = m.data + row * m.stride, m.scales + at
    if m.bits == 4:
        return nibbles_by4(w, s, m.mins + at, m.times, x, stride, blocks)
    return bytes_by4(w, s, m.scale_step, x, stride, blocks)
