"""What a tiled product reads equals a count, load by load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlab.errors import InferlabError
from inferlab.theory import tiles

SIZES = st.integers(1, 40)


@given(m=SIZES, n=SIZES, k=SIZES, rows=SIZES, columns=SIZES, depth=SIZES)
def test_loads_equal_a_count_of_what_each_program_asks_for(m, n, k, rows, columns, depth):
    count = 0
    for top in range(0, m, rows):
        for left in range(0, n, columns):
            for start in range(0, k, depth):
                deep = min(depth, k - start)
                count += min(rows, m - top) * deep + deep * min(columns, n - left)
    assert tiles.loads(m, n, k, rows, columns) == count


def test_a_larger_tile_reads_less_in_proportion():
    small, large = (tiles.loads(4096, 4096, 4096, side, side) for side in (1, 128))
    assert small == 2 * 4096**3
    assert small / large == 128
    assert tiles.reuse(4096, 4096, 4096, 128, 128) == 64


def test_operations_per_byte_grow_with_the_tile():
    per_byte = [tiles.matmul(4096, 4096, 4096, side, side).intensity for side in (1, 32, 128)]
    assert per_byte[0] == pytest.approx(0.5, rel=0.001)
    assert per_byte[2] == pytest.approx(64, rel=0.02)
    whole = tiles.matmul(4096, 4096, 4096, 4096, 4096)
    assert whole.bytes == 3 * 2 * 4096**2


def test_a_tile_has_to_fit():
    assert tiles.shared_bytes(128, 128, 64) == 32 * 1024
    assert tiles.accumulator_bytes(128, 256) == 128 * 1024
    assert tiles.programs(1000, 1000, 128, 128) == 64


def test_a_size_of_nothing_is_named():
    with pytest.raises(InferlabError, match="columns is 0"):
        tiles.loads(4, 4, 4, 4, 0)
