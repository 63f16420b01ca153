"""The roofline explorer: any chip's roof, kernels that move under it, and the reader's own work."""

from __future__ import annotations

from typing import Any

from inferlab.explorers import Explorer, show
from inferlab.explorers.catalog import catalog
from inferlab.figures import roofline as roof
from inferlab.figures import style
from inferlab.theory import hardware, kernels
from inferlab.theory.costs import Part
from inferlab.theory.roofline import Placement, place

#: What the explorer begins with; "rows" is where its film starts.
START: dict[str, Any] = {
    "chip": "h100-sxm",
    "dtype": "bf16",
    "rows": 1,
    "heads": 8,
    "side": 4096,
    "own": 20.0,
    # "Your machine", until the reader types its numbers: a plain laptop.
    "ownBandwidth": 50.0,
    "ownSpeed": 1.0,
}
# The sizes that have no control, as the module has them.
LIST, CONTEXT, HEAD, SIDE = 1 << 24, 4096, 128, 8192


def roofline(**start: Any) -> Explorer:
    """Return the explorer, starting from `START` changed by `start`."""
    settings = START | start
    known = catalog()
    data = {"catalog": {key: known[key] for key in ("chips", "formats")}, "start": settings}
    chip = hardware.get(settings["chip"])
    alt = (
        f"The roofline of a chip, at first {chip.name}: a matrix climbs the slanted roof as it "
        "meets more rows at once and turns onto the flat one at the ridge. Other kernels stand "
        "beside it, and the reader can put work of any intensity there."
    )
    return show("roofline", data, alt=alt, still=_still(settings, alt))


def placements(settings: dict[str, Any]) -> dict[str, Placement]:
    """Return where the explorer's kernels stand for a state of its controls, a chip by its key."""
    dtype, chip = settings["dtype"], hardware.get(settings["chip"])
    side = settings["side"]
    work = {
        "add": kernels.vector_add(LIST, dtype),
        "attention": kernels.decode_attention(CONTEXT, settings["heads"], HEAD, dtype),
        "matrix": kernels.matmul(settings["rows"], SIDE, SIDE, dtype),
        "product": kernels.matmul(side, side, side, dtype),
        "own": Part(settings["own"], 1.0),
    }
    return {name: place(part, chip, dtype) for name, part in work.items()}


def _still(settings: dict[str, Any], alt: str) -> str:
    """Return the picture with the matrix at four numbers of rows, for paper."""
    dtype, chip = settings["dtype"], hardware.get(settings["chip"])
    points = {
        f"{rows:,} row" + "s" * (rows > 1): placements(settings | {"rows": rows})["matrix"]
        for rows in (1, 16, 256, 4096)
    }
    points["adding lists"] = placements(settings)["add"]
    title = f"{chip.name} in {dtype}: a matrix climbs as it meets more rows at once"
    figure = roof.plot(chip.peak(dtype), chip.bandwidth, points, title=title)
    return style.themed(figure, alt=alt).html
