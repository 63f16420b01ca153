"""Stop strings: find them in text that arrives in pieces, and never show part of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Text passes through; it ends before the first stop string to be completed.

    Which one is first does not depend on how the text is cut into pieces: it is the one that ends
    earliest, and of those that end together the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.hit = False
        self._held = ""

    def push(self, text: str) -> str:
        """Take a piece of text and return what can be shown; sets `hit` at a stop string.

        The end of the text stays back as long as it could begin a stop string.
        """
        if self.hit or not self.stops:
            return "" if self.hit else text
        text = self._held + text
        found = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            self.hit, self._held = True, ""
            return text[: min(found)[1]]
        keep = max(_overlap(text, stop) for stop in self.stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return what was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop` without completing it."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
