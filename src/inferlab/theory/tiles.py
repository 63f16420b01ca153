"""What a matrix product reads when it is made tile by tile.

`a` is M x K, `b` is K x N. One program makes one tile of the result, `rows` x `columns`, and for
that it reads `rows` rows of `a` and `columns` columns of `b`, whole, a piece of K at a time.
"""

from __future__ import annotations

from inferlab.errors import InferlabError
from inferlab.theory.costs import Part


def programs(m: int, n: int, rows: int, columns: int) -> int:
    """Return the number of tiles of an M x N result."""
    _sizes(m=m, n=n, rows=rows, columns=columns)
    return -(-m // rows) * -(-n // columns)


def loads(m: int, n: int, k: int, rows: int, columns: int) -> int:
    """Return how many numbers all programs read from memory, caches left aside.

    `a` comes once for each column of tiles and `b` once for each row of tiles:
    M K ceil(N / columns) + K N ceil(M / rows).
    """
    _sizes(m=m, n=n, k=k, rows=rows, columns=columns)
    return m * k * -(-n // columns) + k * n * -(-m // rows)


def matmul(m: int, n: int, k: int, rows: int, columns: int, *, element: float = 2) -> Part:
    """Return operations and bytes of the product: all loads, and the result stored once."""
    return Part(2.0 * m * n * k, element * (loads(m, n, k, rows, columns) + m * n))


def reuse(m: int, n: int, k: int, rows: int, columns: int) -> float:
    """Return how many multiply-adds each number that is read takes part in."""
    return m * n * k / loads(m, n, k, rows, columns)


def shared_bytes(rows: int, columns: int, depth: int, *, element: float = 2) -> float:
    """Return what a program holds of `a` and `b` at a time, with pieces `depth` deep."""
    _sizes(rows=rows, columns=columns, depth=depth)
    return element * depth * (rows + columns)


def accumulator_bytes(rows: int, columns: int, *, element: float = 4) -> float:
    """Return the bytes of the sums of one tile, which stay in registers."""
    _sizes(rows=rows, columns=columns)
    return element * rows * columns


def _sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise InferlabError(f"{name} is {size}: it must be at least 1")
