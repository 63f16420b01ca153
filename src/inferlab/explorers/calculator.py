"""The Calculator's data: the catalogs, and the setting it starts in."""

from __future__ import annotations

import statistics
from typing import Any

from inferlab.explorers import Explorer, show
from inferlab.explorers.catalog import catalog
from inferlab.theory import measurements

#: A 70B on one H100: too large for it, which is the first thing to learn.
START: dict[str, Any] = {
    "model": "llama-2-70b",
    "chip": "h100-sxm",
    "chips": 1,
    "dtype": "bf16",
    "kvDtype": None,
    "prompt": 2000,
    "context": 2000,
    "batch": 1,
    "price": 2.0,
    # "Your machine", until the reader types its numbers: a plain laptop.
    "ownBandwidth": 50.0,
    "ownSpeed": 1.0,
    "ownMemory": 16.0,
}
ALT = (
    "Calculator: choose a model, a format, chips, prompt length, context and users, and read where "
    "prefill and decode stand on the roofline, whether it fits in memory, and how fast and dear "
    "tokens can be."
)


def calculator(*, link: bool = False, **start: Any) -> Explorer:
    """Return the Calculator, starting from `START` changed by `start`.

    With `link` the settings are kept in the page's address, so that they can be sent to someone.
    """
    data = {"catalog": catalog(), "start": START | start, "link": link, "published": _published()}
    return show("calculator", data, alt=ALT)


def _published() -> dict[str, float]:
    """Return how near to the limit others came when they decoded for one user."""
    reached = [
        fraction
        for each in measurements.published()
        if each.is_decode and each.batch == 1 and (fraction := each.fraction_of_bound())
    ]
    return {"count": len(reached), "median": statistics.median(reached), "best": max(reached)}
