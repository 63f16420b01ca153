"""A machine's two numbers as two bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferlab.errors import InferlabError
from inferlab.figures.draw import canvas, note, rows
from inferlab.figures.style import PALETTE
from inferlab.theory import units

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def two_bars(
    bandwidth: float, flops: float, *, name: str = "This machine", dtype: str = ""
) -> Figure:
    """Draw bytes per second beside operations per second, on one scale of things per second.

    `flops` are operations per second in format `dtype`.
    """
    if bandwidth <= 0 or flops <= 0:
        raise InferlabError(
            "bandwidth and flops must be positive, in bytes and operations a second"
        )
    ratio = flops / bandwidth
    if ratio >= 1:
        title = f"{name} can do {ratio:,.3g} operations in the time of fetching one byte"
    else:
        title = f"{name} can fetch {1 / ratio:,.3g} bytes in the time of one operation"
    figure, axes = canvas(title, 2.1)
    rows(axes, ["bytes", f"operations\n({dtype})" if dtype else "operations"])
    axes.barh([0, 1], [bandwidth, flops], height=0.56, color=[PALETTE["bytes"], PALETTE["compute"]])
    gap = 0.02 * max(bandwidth, flops)
    for row, value, role, text in (
        (0, bandwidth, "bytes", units.rate_text(bandwidth)),
        (1, flops, "compute", units.rate_text(flops, "FLOP")),
    ):
        note(axes, value + gap, row, text, role, va="center", fontweight="bold")
    axes.set_xlim(0, 1.28 * max(bandwidth, flops))
    axes.xaxis.set_major_formatter(lambda value, _: units.count_text(value, ""))
    axes.set_xlabel("bytes, or operations, per second")
    return figure
