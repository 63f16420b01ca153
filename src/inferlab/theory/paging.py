"""How much of a memory for keys and values is in use: in reserved rows, or in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferlab.errors import InferlabError


@dataclass(frozen=True)
class Room:
    """Positions that sequences have (`held`), and those in which a token stands (`used`)."""

    held: int
    used: int

    @property
    def share(self) -> float:
        """The share of what is held that is in use."""
        return self.used / self.held


def reserved(lengths: Sequence[int], longest: int) -> Room:
    """Return the room of sequences of these lengths, each with a row for the longest possible."""
    _check(lengths, "longest", longest)
    if max(lengths) > longest:
        raise InferlabError(f"longest is {longest}: one of the lengths is {max(lengths)}")
    return Room(len(lengths) * longest, sum(lengths))


def in_blocks(lengths: Sequence[int], block: int) -> Room:
    """Return the room of sequences of these lengths, each in as many blocks as it needs."""
    _check(lengths, "block", block)
    return Room(sum(-(-length // block) * block for length in lengths), sum(lengths))


def admitted(
    lengths: Sequence[int], positions: int, room: Callable[[Sequence[int]], Room]
) -> list[int]:
    """Return the lengths, from the first on, that fit into so many positions by `room`."""
    count = 0
    while count < len(lengths) and room(lengths[: count + 1]).held <= positions:
        count += 1
    return list(lengths[:count])


def _check(lengths: Sequence[int], name: str, value: int) -> None:
    if not lengths or min(lengths) < 1:
        raise InferlabError("lengths must be one or more numbers of tokens from 1 on")
    if value < 1:
        raise InferlabError(f"{name} is {value}: it must be 1 token or more")
