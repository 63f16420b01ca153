"""Rows and blocks, counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlab.errors import InferlabError
from inferlab.theory import paging
from inferlab.theory.paging import Room

LENGTHS = st.lists(st.integers(1, 500), min_size=1, max_size=20)


def test_by_hand():
    assert paging.reserved([1, 10], 64) == Room(128, 11)
    assert paging.in_blocks([1, 16, 17], 16) == Room(16 + 16 + 32, 34)
    assert Room(8, 2).share == 0.25
    assert paging.in_blocks([7, 300], 1).share == 1


@given(LENGTHS, st.integers(1, 64))
def test_blocks_waste_less_than_a_block_a_row(lengths, block):
    room = paging.in_blocks(lengths, block)
    assert 0 <= room.held - room.used < block * len(lengths)
    assert room.held % block == 0


@given(LENGTHS, st.integers(0, 5000))
def test_the_first_come_in_as_long_as_there_is_room(lengths, positions):
    def room(some):
        return paging.in_blocks(some, 16)

    seated = paging.admitted(lengths, positions, room)
    assert seated == lengths[: len(seated)]
    assert not seated or room(seated).held <= positions
    if len(seated) < len(lengths):
        assert room(lengths[: len(seated) + 1]).held > positions


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: paging.reserved([], 5), "lengths must be one or more"),
        (lambda: paging.in_blocks([0], 5), "from 1 on"),
        (lambda: paging.in_blocks([3], 0), "block is 0"),
        (lambda: paging.reserved([9], 5), "one of the lengths is 9"),
    ],
)
def test_nonsense_is_refused(act, message):
    with pytest.raises(InferlabError, match=message):
        act()
