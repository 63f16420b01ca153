"""Many requests in one engine, step by step, and the blocks that they hold: chapter 15."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferlab.errors import InferlabError, unknown
from inferlab.explorers import Explorer, show
from inferlab.figures import style
from inferlab.figures import trace as drawing


def trace(film: Mapping[str, Any], you: str) -> Explorer:
    """Return animation "trace" of a film, from the side of the request named `you`.

    `film` has `requests` as `engine.trace` tells them, each with a `name`; `steps`, each with
    `from`, `to`, `decode`, `chunks`, `scheduled`, `preempted`, `holders` and `kept`; and the
    tokens of a `block`.
    """
    data = trace_data(film, you)
    alt = (
        f"{len(data['requests'])} requests in one engine: grey while they wait, a block while "
        "their prompt is read, a tick for each token; below, who holds which of "
        f"{len(data['steps'][0]['holders'])} blocks of memory."
    )
    still = style.themed(drawing.lives(data, you), alt=alt).html
    return show("trace", data, alt=alt, still=still)


def trace_data(film: Mapping[str, Any], you: str) -> dict[str, Any]:
    """Return what animation "trace" plays. Raises InferlabError if a field makes no sense."""
    names = [one["name"] for one in film["requests"]]
    if you not in names:
        raise unknown("request", you, names)
    if not film["steps"]:
        raise InferlabError("steps is empty: the film needs at least one")
    return {"you": you, **film}
