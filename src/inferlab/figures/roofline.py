"""The roofline: attainable operations per second against operations per byte, both axes log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from inferlab.figures.style import PALETTE
from inferlab.theory import units
from inferlab.theory.roofline import Placement

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(axes: Axes, points: Mapping[str, Placement]) -> None:
    """Draw the roof that all `points` share, and each point where its work runs under it.

    A point's height is its operations over its time, so a pass whose parts take turns hangs a
    little below the roof.
    """
    ridge = next(iter(points.values())).ridge
    peak = max(point.attainable * max(1.0, ridge / point.intensity) for point in points.values())
    low = min(0.5, *(point.intensity / 2 for point in points.values()))
    high = max(1e4, *(point.intensity * 2 for point in points.values()))
    compute, memory, ink = PALETTE["compute"], PALETTE["bytes"], PALETTE["ink"]
    axes.plot([low, ridge], [peak * low / ridge, peak], color=memory)
    axes.plot([ridge, high], [peak, peak], color=compute)
    axes.axvline(ridge, color=PALETTE["wait"], linewidth=0.8, linestyle=(0, (3, 4)))
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(peak * low / ridge / 2, peak * 5),
        xlabel="operations per byte moved (FLOP/B)",
        ylabel="FLOP/s",
    )
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: units.count_text(value, "").strip())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.text(
        high, peak * 1.25, units.count_text(peak, "FLOP/s"), color=compute, ha="right", va="bottom"
    )
    axes.text(
        ridge * 0.6,
        peak / 1.3,
        units.rate_text(peak / ridge),
        color=memory,
        ha="right",
        va="bottom",
    )
    axes.text(ridge * 1.15, axes.get_ylim()[0] * 1.3, f"ridge {ridge:.4g}", color=ink)
    for name, point in points.items():
        height = point.flops / point.seconds
        wide = point.bound == "compute"
        axes.plot(
            point.intensity,
            height,
            marker="s" if wide else "|",
            markersize=11,
            markeredgewidth=0 if wide else 3,
            color=compute if wide else memory,
        )
        axes.text(point.intensity * 1.25, height / 1.2, name, color=ink, va="top")
