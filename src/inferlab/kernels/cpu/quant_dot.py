"""Dot products of eight quantised rows with one vector, the vector packed to meet them.

Formats are those of `kernels.quantised`, the rows in groups of eight (`Quantised.in_groups`): each
lane of a register belongs to a row, so that nothing need be moved between lanes, and elements of
the vector are repeated for all of them. With weights scale * code + min, a block of 32 adds
scale * sum(code * x) + min * sum(x): the sums over whole numbers are where the work is. A vector is
packed once and then meets every row of a matrix, in one of three ways:

- int8 (`INT8`), for nibbles: each block of x has a step of its own, and each half of it (elements
  0-7 and 16-23, or the others) is rounded to 8 bits in a whole number of them, up to `MOST_STEPS`.
  Into `down` SwiGLU sends outliers, and each then coarsens 16 elements instead of 32; to bring both
  halves together costs next to nothing, since their sums are multiplied by whole numbers anyway. A
  block takes `BYTES_BYTES`: its 32 int8; as float32 their step, and their sum; and as int16, twice
  each, how many steps the one half is rounded in, and the other.
- int16 (`INT16`), for bytes: products of two bytes overflow the sums of the fast instruction, and
  without it more bits cost nothing. A block takes `SHORTS_BYTES`: its 32 int16, of each four the
  middle two exchanged, since so they come out of a register of bytes or nibbles; and as float32
  their step, and their sum.
- float32 (`FLOAT32`), for both: a block takes `FLOATS_BYTES`: its 32 float32, and their sum.

Where matrices of both kinds meet a vector, the int8 blocks stand behind the int16 ones.
"""

from __future__ import annotations

import numpy as np
from numpy import float32, int64

from inferlab.kernels.cpu.jit import floats, jit, longs, part, prefetch
from inferlab.kernels.cpu.vector import (
    dot_pairs,
    dot_shorts,
    eight_halves,
    float_byte,
    float_nibble,
    high_nibbles,
    lane,
    larger,
    load_bytes,
    load_floats,
    low_nibbles,
    rounded,
    signed_byte,
    spread,
    spread_bytes,
    spread_shorts,
    store_floats,
    store_low_bytes,
    store_low_shorts,
    swap_middle,
    to_floats,
    total,
    turned,
)

BLOCK = 32
FLOAT32, INT8, INT16 = 1, 2, 4
"""How vectors meet a matrix; a sum of them says how a vector is packed that meets several."""
BYTES_BYTES = 48
SHORTS_BYTES = 72
FLOATS_BYTES = 132
MOST_STEPS = 255
_AHEAD = 2048  # bytes from the weights that are met to those that are fetched meanwhile
HIGHEST = 32767
_TWICE = 0x10001  # times an int16: the same number twice


def packed_bytes(columns: int) -> int:
    """Return the bytes that a vector of `columns` elements takes when packed, in whatever way."""
    return columns // BLOCK * max(BYTES_BYTES + SHORTS_BYTES, FLOATS_BYTES)


@part
def _bytes_at(columns):  # type: ignore[no-untyped-def]
    """Where a packed vector's int8 begin."""
    return columns // BLOCK * SHORTS_BYTES


@jit
def pack(x, columns, ways, out):  # type: ignore[no-untyped-def]
    """Pack the `columns` float32 at `x`, a multiple of 32, to `packed_bytes` at `out`."""
    blocks = columns // BLOCK
    if ways & FLOAT32:
        for block in range(blocks):
            _pack_floats(x + block * 128, out + block * FLOATS_BYTES)
    if ways & INT16:
        for block in range(blocks):
            _pack_shorts(x + block * 128, out + block * SHORTS_BYTES)
    if ways & INT8:
        for block in range(blocks):
            _pack_bytes(x + block * 128, out + _bytes_at(columns) + block * BYTES_BYTES)


@part
def _four(x):  # type: ignore[no-untyped-def]
    """Read the 32 float32 of a block."""
    return load_floats(x), load_floats(x + 32), load_floats(x + 64), load_floats(x + 96)


@part
def _most(found):  # type: ignore[no-untyped-def]
    found = larger(found, turned(found, 4))
    found = larger(found, turned(found, 2))
    return lane(larger(found, turned(found, 1)), 0)


@part
def _pack_floats(x, to):  # type: ignore[no-untyped-def]
    a, b, c, d = _four(x)
    store_floats(to, a)
    store_floats(to + 32, b)
    store_floats(to + 64, c)
    store_floats(to + 96, d)
    floats(to + 128, 1)[0] = total(a + b + c + d)


@part
def _pack_shorts(x, to):  # type: ignore[no-untyped-def]
    a, b, c, d = _four(x)
    highest = _most(larger(larger(a, b), larger(c, d)))  # NaN if one is
    up = spread(float32(HIGHEST) / highest if highest > 0 else float32(0))
    p, q, r, s = rounded(a * up), rounded(b * up), rounded(c * up), rounded(d * up)
    store_low_shorts(to, swap_middle(p))
    store_low_shorts(to + 16, swap_middle(q))
    store_low_shorts(to + 32, swap_middle(r))
    store_low_shorts(to + 48, swap_middle(s))
    two, step = floats(to + 64, 2), highest / float32(HIGHEST)
    two[0], two[1] = step, step * total(to_floats(p + q + r + s))


@part
def _steps(most, inverse):  # type: ignore[no-untyped-def]
    """Return in how many steps to round what is at most so large, and 1 over their size."""
    steps = float32(1)
    if most * inverse * float32(MOST_STEPS) > steps:  # false for NaN
        steps = min(np.ceil(most * inverse * float32(MOST_STEPS)), float32(MOST_STEPS))
    return int64(steps), spread(float32(127 * MOST_STEPS) * inverse / steps)


@jit
def _pack_bytes(x, to):  # type: ignore[no-untyped-def]
    a, b, c, d = _four(x)
    one, other = _most(larger(a, c)), _most(larger(b, d))
    highest = max(one, other) if one == one and other == other else one + other  # NaN if one is
    inverse = float32(1) / highest if highest > 0 else float32(0)
    first, up = _steps(one, inverse)
    p, r = rounded(a * up), rounded(c * up)
    others, up = _steps(other, inverse)
    q, s = rounded(b * up), rounded(d * up)
    store_low_bytes(to, p)
    store_low_bytes(to + 8, q)
    store_low_bytes(to + 16, r)
    store_low_bytes(to + 24, s)
    sum = total(to_floats(p + r)) * float32(first) + total(to_floats(q + s)) * float32(others)
    two, step = floats(to + 32, 2), highest / float32(127 * MOST_STEPS)
    two[0], two[1] = step, step * sum
    longs(to + 40, 1)[0] = _TWICE * (first + (others << 32))


@part
def _fetch(w, size):  # type: ignore[no-untyped-def]
    for line in range(0, size, 64):
        prefetch(w + _AHEAD + line)


@part
def _scaled(sum, codes, scale, x):  # type: ignore[no-untyped-def]
    return sum + to_floats(codes) * (scale * spread(floats(x, 1)[0]))


@part
def _meet_nibbles(sum, quads, scale, least, x):  # type: ignore[no-untyped-def]
    """Add a block of eight rows, unpacked, and one vector."""
    (a, b, c, d), (e, f, g, h) = quads
    first = dot_pairs(a, spread_bytes(x)) + dot_pairs(b, spread_bytes(x + 4))
    first = first + (dot_pairs(e, spread_bytes(x + 16)) + dot_pairs(f, spread_bytes(x + 20)))
    others = dot_pairs(c, spread_bytes(x + 8)) + dot_pairs(d, spread_bytes(x + 12))
    others = others + (dot_pairs(g, spread_bytes(x + 24)) + dot_pairs(h, spread_bytes(x + 28)))
    codes = dot_shorts(first, spread_shorts(x + 40)) + dot_shorts(others, spread_shorts(x + 44))
    return _scaled(sum, codes, scale, x + 32) + least * spread(floats(x + 36, 1)[0])


@part
def _quads(w):  # type: ignore[no-untyped-def]
    """Unpack a block of eight rows of nibbles: elements 0-15, four by four, then 16-31."""
    a, b, c, d = load_bytes(w), load_bytes(w + 32), load_bytes(w + 64), load_bytes(w + 96)
    low = low_nibbles(a), low_nibbles(b), low_nibbles(c), low_nibbles(d)
    return low, (high_nibbles(a), high_nibbles(b), high_nibbles(c), high_nibbles(d))


@part
def nibbles8(m, planes, x):  # type: ignore[no-untyped-def]
    """Dot products of a group of eight rows of nibbles with an int8 vector."""
    (w, s, least), sum = planes, spread(float32(0))
    for block in range(m.columns // BLOCK):
        _fetch(w + block * 128, 128)
        scale = eight_halves(s + block * 16)
        low = eight_halves(least + block * 16) * spread(m.times)
        sum = _meet_nibbles(sum, _quads(w + block * 128), scale, low, x + block * BYTES_BYTES)
    return sum


@part
def nibbles8_by4(m, planes, x, stride):  # type: ignore[no-untyped-def]
    """Return what `nibbles8` does for each of four vectors, which stand `stride` bytes apart.

    What is unpacked serves all of them; each number is the same sum in the same order.
    """
    w, s, least = planes
    x1, x2, x3 = x + stride, x + 2 * stride, x + 3 * stride
    sum0 = sum1 = sum2 = sum3 = spread(float32(0))
    for block in range(m.columns // BLOCK):
        _fetch(w + block * 128, 128)
        quads, at = _quads(w + block * 128), block * BYTES_BYTES
        scale = eight_halves(s + block * 16)
        low = eight_halves(least + block * 16) * spread(m.times)
        sum0 = _meet_nibbles(sum0, quads, scale, low, x + at)
        sum1 = _meet_nibbles(sum1, quads, scale, low, x1 + at)
        sum2 = _meet_nibbles(sum2, quads, scale, low, x2 + at)
        sum3 = _meet_nibbles(sum3, quads, scale, low, x3 + at)
    return sum0, sum1, sum2, sum3


@part
def _pairs(w):  # type: ignore[no-untyped-def]
    """Unpack four bytes of each of eight rows: two registers of int16."""
    w = load_bytes(w)
    return signed_byte(w, 0), signed_byte(w, 1)


@part
def _meet_pairs(pairs, x):  # type: ignore[no-untyped-def]
    return dot_shorts(pairs[0], spread_shorts(x)) + dot_shorts(pairs[1], spread_shorts(x + 4))


@part
def bytes8(m, planes, x):  # type: ignore[no-untyped-def]
    """Dot products of a group of eight rows of bytes with an int16 vector."""
    (w, s, _), sum = planes, spread(float32(0))
    for block in range(m.columns // BLOCK):
        here, v = w + block * 256, x + block * SHORTS_BYTES
        _fetch(here, 256)
        codes = _meet_pairs(_pairs(here), v)
        for quad in range(1, 8):
            codes = codes + _meet_pairs(_pairs(here + quad * 32), v + quad * 8)
        sum = _scaled(sum, codes, eight_halves(s + block * m.scale_step), v + 64)
    return sum


@part
def bytes8_by4(m, planes, x, stride):  # type: ignore[no-untyped-def]
    """Return what `bytes8` does for each of four vectors, which stand `stride` bytes apart."""
    w, s, _ = planes
    x1, x2, x3 = x + stride, x + 2 * stride, x + 3 * stride
    sum0 = sum1 = sum2 = sum3 = spread(float32(0))
    for block in range(m.columns // BLOCK):
        here, at = w + block * 256, block * SHORTS_BYTES
        _fetch(here, 256)
        pairs, scale = _pairs(here), eight_halves(s + block * m.scale_step)
        codes0, codes1 = _meet_pairs(pairs, x + at), _meet_pairs(pairs, x1 + at)
        codes2, codes3 = _meet_pairs(pairs, x2 + at), _meet_pairs(pairs, x3 + at)
        for quad in range(1, 8):
            pairs, v = _pairs(here + quad * 32), at + quad * 8
            codes0 = codes0 + _meet_pairs(pairs, x + v)
            codes1 = codes1 + _meet_pairs(pairs, x1 + v)
            codes2 = codes2 + _meet_pairs(pairs, x2 + v)
            codes3 = codes3 + _meet_pairs(pairs, x3 + v)
        sum0 = _scaled(sum0, codes0, scale, x + at + 64)
        sum1 = _scaled(sum1, codes1, scale, x1 + at + 64)
        sum2 = _scaled(sum2, codes2, scale, x2 + at + 64)
        sum3 = _scaled(sum3, codes3, scale, x3 + at + 64)
    return sum0, sum1, sum2, sum3


@part
def _element(x, at):  # type: ignore[no-untyped-def]
    return spread(floats(x + at * 4, 1)[0])


@part
def _exact_bytes(w, x):  # type: ignore[no-untyped-def]
    w = load_bytes(w)
    first = float_byte(w, 0) * _element(x, 0) + float_byte(w, 1) * _element(x, 1)
    return first + float_byte(w, 2) * _element(x, 2) + float_byte(w, 3) * _element(x, 3)


@part
def _exact_nibbles(w, x):  # type: ignore[no-untyped-def]
    w = load_bytes(w)
    low = float_nibble(w, 0) * _element(x, 0) + float_nibble(w, 2) * _element(x, 1)
    low = low + float_nibble(w, 4) * _element(x, 2) + float_nibble(w, 6) * _element(x, 3)
    high = float_nibble(w, 1) * _element(x, 16) + float_nibble(w, 3) * _element(x, 17)
    high = high + float_nibble(w, 5) * _element(x, 18) + float_nibble(w, 7) * _element(x, 19)
    return low + high


@part
def exact8(m, planes, x):  # type: ignore[no-untyped-def]
    """Dot products of a group of eight rows with a vector of float32."""
    (w, s, least), sum = planes, spread(float32(0))
    for block in range(m.columns // BLOCK):
        v, codes = x + block * FLOATS_BYTES, spread(float32(0))
        if m.bits == 4:
            for quad in range(4):
                codes = codes + _exact_nibbles(w + block * 128 + quad * 32, v + quad * 16)
            low = eight_halves(least + block * 16) * spread(m.times)
            sum = sum + low * _element(v, 32)
        else:
            for quad in range(8):
                codes = codes + _exact_bytes(w + block * 256 + quad * 32, v + quad * 16)
        sum = sum + codes * eight_halves(s + block * m.scale_step)
    return sum


@part
def planes_of(m, group):  # type: ignore[no-untyped-def]
    """Addresses of a group's weights, scales and mins."""
    at = group * (m.columns // BLOCK * m.scale_step)
    return m.data + group * m.stride, m.scales + at, m.mins + at


@part
def dot8(m, group, x):  # type: ignore[no-untyped-def]
    """Dot products of a group, by number, of a quantised `matvec.MATRIX` with a packed vector.

    Eight lanes, before the scales of whole rows that int8 has.
    """
    planes = planes_of(m, group)
    if m.meets == INT8:
        return nibbles8(m, planes, x + _bytes_at(m.columns))
    if m.meets == INT16:
        return bytes8(m, planes, x)
    return exact8(m, planes, x)


@part
def dot8_by4(m, group, x, stride):  # type: ignore[no-untyped-def]
    """Return what `dot8` does for each of four packed vectors, `stride` bytes apart; no float32."""
    planes = planes_of(m, group)
    if m.meets == INT8:
        return nibbles8_by4(m, planes, x + _bytes_at(m.columns), stride)
    return bytes8_by4(m, planes, x, stride)
