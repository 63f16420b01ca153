"""Blocks: handed out, shared, found again, and never held by nobody or by one too many."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from inferlab.engine.blocks import BlockPool
from inferlab.errors import InferlabError


def kept(pool, tokens, table=None):
    """Take blocks for `tokens` and make the full ones findable, as a scheduler does."""
    table = list(table or [])
    while len(table) * pool.size < len(tokens):
        table.append(pool.take())
    for place in range(len(tokens) // pool.size):
        table[place] = pool.keep(table, place, tokens[place * pool.size : (place + 1) * pool.size])
    return table


def test_blocks_run_out_and_come_back():
    pool = BlockPool(3, 4)
    table = [pool.take() for _ in range(3)]
    assert (pool.free, pool.used) == (0, 3)
    with pytest.raises(InferlabError, match="all 3 blocks of the KV cache are in use"):
        pool.take()
    pool.release(table)
    assert (pool.free, pool.used) == (3, 0)
    pool.check([])


def test_a_prefix_is_found_by_its_tokens_and_by_what_stands_before_it():
    pool = BlockPool(8, 2)
    first = kept(pool, [1, 2, 3, 4, 5])
    assert pool.match([1, 2, 3, 4, 9]) == first[:2]
    assert pool.match([1, 2, 9, 9, 9]) == first[:1]
    assert pool.match([3, 4, 5]) == []  # the same tokens at another place are another content
    assert pool.match([9, 9, 3, 4, 5]) == []
    pool.check([first])


def test_the_last_token_is_left_to_compute():
    pool = BlockPool(8, 2)
    table = kept(pool, [1, 2, 3, 4])
    assert pool.match([1, 2, 3, 4]) == table[:1]
    assert pool.match([1, 2, 3, 4, 5]) == table[:2]
    assert pool.match([1, 2]) == []


def test_free_blocks_are_found_until_they_are_handed_out_and_the_oldest_go_first():
    pool = BlockPool(4, 2)
    pool.release(kept(pool, [1, 2]))
    pool.release(kept(pool, [3, 4]))
    assert pool.free == 4
    assert pool.cached == 2
    empty = [pool.take(), pool.take()]  # those that hold nothing
    assert pool.match([1, 2, 0])
    assert pool.match([3, 4, 0])
    pool.take()
    assert not pool.match([1, 2, 0])
    assert pool.match([3, 4, 0])
    assert len(set(empty)) == 2


def test_what_begins_a_prompt_is_handed_out_after_what_ends_it():
    pool = BlockPool(3, 1)
    pool.release(kept(pool, [1, 2, 3]))
    pool.take()
    assert len(pool.match([1, 2, 3, 4])) == 2


def test_a_content_whose_beginning_is_gone_is_not_found_behind_another():
    """A block's number is used again; what stood after its old content must not follow the new."""
    pool = BlockPool(2, 1)
    first = kept(pool, [1, 2])
    pool.release(first)
    pool.hold(first[1])  # someone keeps [2], found behind [1]
    block = pool.take()  # [1] is gone
    assert block == first[0]
    pool.keep([block], 0, [7])
    assert pool.match([7, 2, 0]) == [block]


def test_the_same_content_twice_is_held_once():
    pool = BlockPool(4, 2)
    first, second = kept(pool, [1, 2]), kept(pool, [1, 2])
    assert first == second
    assert pool.used == 1
    pool.check([first, second])


def test_without_reuse_nothing_is_found():
    pool = BlockPool(4, 2, reuse=False)
    table = kept(pool, [1, 2, 3, 4])
    assert pool.match([1, 2, 3, 4, 5]) == []
    pool.check([table])


def test_bad_sizes():
    for total, size in ((0, 4), (4, 0)):
        with pytest.raises(InferlabError, match="a pool needs"):
            BlockPool(total, size)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(0, 1), min_size=1, max_size=9)), max_size=40
    ),
    st.integers(1, 4),
)
def test_any_life_of_a_pool_keeps_its_books(actions, size):
    pool, tables = BlockPool(12, size), []
    for leave, tokens in actions:
        if leave and tables:
            pool.release(tables.pop(len(tokens) % len(tables))[0])
        else:
            shared = pool.match(tokens)
            for block in shared:
                pool.hold(block)
            if pool.needed(len(tokens)) - len(shared) > pool.free:
                pool.release(shared)
                continue
            tables.append((kept(pool, tokens, shared), tokens))
        pool.check([table for table, _ in tables])
        for table, own in tables:  # whoever holds a prefix is found by it
            full = max(0, (len(own) - 1) // size)
            assert pool.match(own)[:full] == table[:full]
    for table, _ in tables:
        pool.release(table)
    assert pool.free == 12
