"""The one exception that the command line turns into a single clear line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InferlabError(ValueError):
    """Bad input. The message is one line that names the field and says what would be right."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InferlabError:
    """Return the error for an unknown `name`, with the nearest known ones.

    `kind` is the field as the user knows it, such as "model" or "device".
    """
    names = sorted(known)
    folded = {n.casefold(): n for n in names}
    near = [folded[n] for n in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.4)]
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(names)}"
    return InferlabError(f"unknown {kind} {name!r}: {hint}")
