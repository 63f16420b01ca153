"""Blocks of KV cache: who holds which, which are free, and which hold a prefix worth finding again.

A block has room for the keys and values of `size` consecutive tokens. A sequence holds a list of
them, its block table (PagedAttention: Kwon et al. 2023, arXiv:2309.06180). Several sequences may
hold one block as long as it is full: then nobody writes into it, and it needs no copy.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from inferlab.errors import InferlabError

Key = tuple[int, tuple[int, ...]]
"""What a full block holds: the serial number of what stands before it (0: nothing), its tokens."""


@dataclass
class _Block:
    holders: int = 0
    key: Key | None = None  # once it is full and can be found again
    serial: int = 0  # of this content; never used again for another


class BlockPool:
    """`total` blocks of `size` tokens each, named by their index.

    A block without a holder is free. If its content can be found again it stays findable until
    the block is handed out; those that hold nothing are handed out first, then the content that
    was let go longest ago. With `reuse` off nothing is ever found.
    """

    def __init__(self, total: int, size: int, *, reuse: bool = True) -> None:
        if total < 1 or size < 1:
            raise InferlabError(f"a pool needs 1 block of 1 token or more, not {total} of {size}")
        self.total, self.size, self.reuse = total, size, reuse
        self._blocks = [_Block() for _ in range(total)]
        self._empty = deque(range(total))
        self._kept: OrderedDict[int, None] = OrderedDict()  # free, but findable; oldest first
        self._found: dict[Key, int] = {}
        self._serials = 0

    @property
    def free(self) -> int:
        """Blocks that `take` can hand out now."""
        return len(self._empty) + len(self._kept)

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return self.total - self.free

    @property
    def cached(self) -> int:
        """Blocks whose content `match` can find, held or free."""
        return len(self._found)

    @property
    def kept(self) -> list[int]:
        """Free blocks whose content `match` can still find, those to be handed out next first."""
        return list(self._kept)

    def needed(self, tokens: int) -> int:
        """Return how many blocks so many tokens take."""
        return -(-tokens // self.size)

    def take(self) -> int:
        """Return a free block, now held once. Raises InferlabError if there is none."""
        if self._empty:
            index = self._empty.popleft()
        elif self._kept:
            index, _ = self._kept.popitem(last=False)
            self._forget(index)
        else:
            raise InferlabError(f"all {self.total} blocks of the KV cache are in use")
        self._blocks[index].holders = 1
        return index

    def hold(self, index: int) -> None:
        """Hold a block once more, a free one that `match` found too."""
        block = self._blocks[index]
        if not block.holders:
            del self._kept[index]
        block.holders += 1

    def release(self, table: Sequence[int]) -> None:
        """Let go of a sequence's blocks, once each.

        The last go first: what begins like many prompts is handed out latest.
        """
        for index in reversed(table):
            block = self._blocks[index]
            block.holders -= 1
            if block.holders:
                continue
            if block.key is None:
                self._empty.append(index)
            else:
                self._kept[index] = None

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks that hold the longest known beginning of `tokens`, none of them taken.

        The last token is left out: somebody must compute it, since the answer starts from its
        logits. A dict finds a candidate by its hash and then compares every token.
        """
        found: list[int] = []
        before = 0
        for start in range(0, len(tokens) - self.size, self.size):
            index = self._found.get((before, tuple(tokens[start : start + self.size])))
            if index is None:
                break
            found.append(index)
            before = self._blocks[index].serial
        return found

    def keep(self, table: Sequence[int], place: int, tokens: Sequence[int]) -> int:
        """Make the full block at `place` of a sequence's table findable; return its block.

        `tokens` are those in it; all blocks before it are kept already. If another block holds
        the same after the same, that one is returned, now held in place of this one.
        """
        if not self.reuse:
            return table[place]
        index, block = table[place], self._blocks[table[place]]
        key = (self._blocks[table[place - 1]].serial if place else 0, tuple(tokens))
        known = self._found.get(key)
        if known is not None and known != index:
            self.hold(known)
            self.release([index])
            return known
        if known is None:
            self._serials += 1
            block.key, block.serial = key, self._serials
            self._found[key] = index
        return index

    def check(self, tables: Sequence[Sequence[int]]) -> None:
        """Assert that blocks are free, or held as often as `tables` name them, and found rightly.

        Raises AssertionError.
        """
        held = [0] * self.total
        for table in tables:
            assert len(set(table)) == len(table), f"a table names a block twice: {table}"
            for index in table:
                held[index] += 1
        assert [b.holders for b in self._blocks] == held, "holders differ from the tables"
        free = [*self._empty, *self._kept]
        assert sorted(free) == [i for i, n in enumerate(held) if not n], "free blocks differ"
        for key, index in self._found.items():
            assert self._blocks[index].key == key, f"block {index} is found by another's key"
            assert len(key[1]) == self.size, f"block {index} is not full"
        named = sum(b.key is not None for b in self._blocks)
        assert named == len(self._found), "a key without an entry"
        assert all(self._blocks[i].key is None for i in self._empty), "an empty block has a key"

    def _forget(self, index: int) -> None:
        block = self._blocks[index]
        if block.key is not None:
            del self._found[block.key]
        block.key = None
