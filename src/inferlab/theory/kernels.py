"""What single kernels cost: their operations, and the fewest bytes that they can move.

`costs` counts a whole pass through a model; these are the pieces that one meets alone, under a
roofline or in a benchmark. Weights are stored as `dtype`; vectors, keys and values travel in its
activation format.
"""

from __future__ import annotations

from inferlab.errors import InferlabError
from inferlab.theory import formats
from inferlab.theory.costs import Part


def vector_sum(size: int, dtype: str = "bf16") -> Part:
    """Return the cost of adding up a list: an addition for each number that is read."""
    return chain(size, 0, dtype)


def chain(size: int, steps: int, dtype: str = "bf16") -> Part:
    """Return the cost of `steps` multiply-adds on each number of a list, and of their sum."""
    _at_least(1, size=size)
    _at_least(0, steps=steps)
    return Part((2.0 * steps + 1) * size, size * _element(dtype))


def vector_add(size: int, dtype: str = "bf16") -> Part:
    """Return the cost of adding two lists into a third."""
    _at_least(1, size=size)
    return Part(float(size), 3 * size * _element(dtype))


def matmul(rows: int, inner: int, columns: int, dtype: str = "bf16") -> Part:
    """Return the cost of `rows` vectors of `inner` numbers times weights [columns, inner].

    The weights come once, in `dtype`; vectors go in and out.
    """
    _at_least(1, rows=rows, inner=inner, columns=columns)
    vectors = rows * (inner + columns) * _element(dtype)
    weights = inner * columns * formats.bytes_per_element(dtype)
    return Part(2.0 * rows * inner * columns, vectors + weights)


def decode_attention(context: int, heads: int, size: int = 128, dtype: str = "bf16") -> Part:
    """Return the cost of one new token's attention over the keys and values of one KV head.

    `heads` query heads of `size` share it: a product with each key and one with each value.
    """
    _at_least(1, context=context, heads=heads, size=size)
    return Part(4.0 * heads * context * size, 2 * context * size * _element(dtype))


def _element(dtype: str) -> float:
    return formats.bytes_per_element(formats.activation_format(dtype))


def _at_least(least: int, **counts: int) -> None:
    for name, count in counts.items():
        if count < least:
            raise InferlabError(f"{name} is {count}: it must be at least {least}")
