"""Blocks that are taken, shared, let go and found again: the explorer of chapter 13."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferlab.errors import InferlabError
from inferlab.explorers import Explorer, show
from inferlab.figures import paging as drawing
from inferlab.figures import style


def blocks(film: Mapping[str, Any], rest: int | None = None) -> Explorer:
    """Return explorer "blocks" over what `measure.paging.watch` saw; stills show step `rest`.

    Left out, that is the step in which most blocks are shared, the last of them.
    """
    steps = film["steps"]
    if not steps:
        raise InferlabError("film has no steps: nobody came")
    if rest is None:
        rest = max(range(len(steps)), key=lambda at: (_shared(steps[at]), at))
    total, names = len(steps[0]["blocks"]), list(film["requests"])
    found = sum(tokens for step in steps for _, tokens in step["scheduled"])
    alt = (
        f"{total} blocks of {film['size']} tokens, step by step, while {len(names)} requests come "
        f"and go: blocks are taken, held by several at once, let go and found again; {found} "
        "tokens are found in all."
    )
    still = style.themed(drawing.pool(film, rest), alt=alt).html
    return show("blocks", {**film, "rest": rest}, alt=alt, still=still)


def _shared(step: Mapping[str, Any]) -> int:
    return sum(len(block["holders"]) > 1 for block in step["blocks"])
