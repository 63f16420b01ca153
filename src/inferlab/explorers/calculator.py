"""The Calculator's data: the catalogs, and the setting it starts in."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from inferlab.explorers import Explorer, show
from inferlab.explorers.catalog import catalog
from inferlab.figures import roofline, style
from inferlab.theory import explain, hardware, measurements, models, units

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
    settings = START | start
    data = {"catalog": catalog(), "start": settings, "link": link, "published": _published()}
    return show("calculator", data, alt=ALT, still=still(settings))


def still(settings: Mapping[str, Any]) -> str:
    """Return the roofline of the Calculator's first state, for paper and for notebook viewers."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shape, chip = models.get(settings["model"]), hardware.get(settings["chip"])
    names = ("prompt", "batch", "context", "dtype", "kvDtype", "chips")
    prefill, decode = explain.place(shape, chip, *(settings[name] for name in names))
    speed = settings["batch"] / decode.seconds
    where = f"{settings['chips']} × {chip.name}"
    title = f"{shape.name} on {where}: at most {speed:,.4g} tokens/s"
    with mpl.rc_context():
        style.use()
        figure = Figure()
        axes = figure.add_subplot()
        roofline.draw(axes, {"prefill": prefill, "decode": decode})
        axes.set_title(title)
        first = units.seconds_text(prefill.seconds)
        return style.themed(figure, alt=f"{title}; first token after {first} at best.").html


def _published() -> dict[str, float]:
    """Return how near to the limit others came when they decoded for one user."""
    reached = [
        fraction
        for each in measurements.published()
        if each.is_decode and each.batch == 1 and (fraction := each.fraction_of_bound())
    ]
    return {"count": len(reached), "median": statistics.median(reached), "best": max(reached)}
