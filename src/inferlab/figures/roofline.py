"""The roofline: attainable operations per second against operations per byte, both axes log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from inferlab.errors import InferlabError
from inferlab.figures.draw import canvas
from inferlab.figures.style import PALETTE
from inferlab.theory import units
from inferlab.theory.roofline import Placement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = Placement | tuple[float, float]


def plot(
    peak: float,
    bandwidth: float,
    points: Mapping[str, Point],
    *,
    measured: Mapping[str, tuple[float, float]] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the roof of `peak` FLOP/s and `bandwidth` bytes/s, and work under it by name.

    `points` are predictions: placements, or pairs of intensity (FLOP/B) and FLOP/s. `measured`
    pairs are drawn as rings; one that bears a prediction's name says what share of it was reached.
    Blue work waits for bytes, orange work for arithmetic; prefill, like
    all compute-bound work, is a block, decode a tick.
    """
    if peak <= 0 or bandwidth <= 0:
        raise InferlabError("peak and bandwidth must be positive, in operations and bytes a second")
    if not points and not measured:
        raise InferlabError("points is empty: a roofline needs work to place")
    ridge = peak / bandwidth
    placed = {name: _pair(point) for name, point in points.items()}
    figure, axes = canvas(title or _finding(placed or dict(measured or {}), ridge), 3.9)
    _roof(axes, peak, bandwidth, [x for x, _ in (*placed.values(), *(measured or {}).values())])
    rings = dict(measured or {})
    for name, (intensity, rate) in placed.items():
        reached = (
            f"\nmeasured: {rings[name][1] / rate:.0%}".replace("%", " %") if name in rings else ""
        )
        _mark(axes, intensity, rate, compute=intensity > ridge)
        ring = rings[name][1] if name in rings else rate
        _name(axes, name + reached, intensity, min(rate, ring))
    for name, (intensity, rate) in rings.items():
        axes.plot(
            intensity,
            rate,
            "o",
            markersize=8,
            markerfacecolor="none",
            markeredgewidth=1.6,
            markeredgecolor=PALETTE["ink"],
        )
        if name not in placed:
            _name(axes, name, intensity, rate)
    return figure


def climb(
    peak: float,
    bandwidth: float,
    sweeps: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str | None = None,
) -> Figure:
    """Draw families of measured kernels under the roof: (intensity, FLOP/s) pairs by name.

    Each family has rings of its own kind, joined by a thin line.
    """
    if not any(sweeps.values()):
        raise InferlabError("sweeps is empty: a measured roofline needs points")
    figure, axes = canvas(title or _reached(peak, bandwidth, sweeps), 4.1)
    every = [point for points in sweeps.values() for point in points]
    lowest = min(rate for _, rate in every) / 2
    _roof(axes, peak, bandwidth, [x for x, _ in every], lowest)
    ink = PALETTE["ink"]
    for row, ((kind, sign), (name, points)) in enumerate(
        zip(_RINGS.items(), sweeps.items(), strict=False)
    ):
        across, up = zip(*points, strict=True)
        axes.plot(across, up, color=ink, linewidth=0.6, alpha=0.5)
        axes.plot(
            across,
            up,
            kind,
            markersize=7.5,
            markerfacecolor="none",
            markeredgecolor=ink,
            markeredgewidth=1.5,
        )
        # Low on the right there is room: rings above the slope came out of a cache.
        line = 0.15 + 0.085 * (len(sweeps) - 1 - row)
        axes.text(0.98, line, f"{sign} {name}", color=ink, transform=axes.transAxes, ha="right")
    return figure


#: Kinds of rings, one a family, and the letter that looks like each.
_RINGS = {"o": "○", "D": "◇", "^": "△", "s": "□"}


def _reached(
    peak: float, bandwidth: float, sweeps: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """Say how near each of the two roofs the best ring came."""
    every = [point for points in sweeps.values() for point in points]
    ridge = peak / bandwidth
    sides = (
        ("slanted", [rate / (bandwidth * x) for x, rate in every if x <= ridge]),
        ("flat", [rate / peak for x, rate in every if x > ridge]),
    )
    said = [f"{max(found):.0%} of the {side} roof" for side, found in sides if found]
    return f"Measured: up to {_and(said)}".replace("%", " %")


def draw(axes: Axes, points: Mapping[str, Placement]) -> None:
    """Draw the roof that all `points` share, and each point where its work runs under it.

    A point's height is its operations over its time, so a pass whose parts take turns hangs a
    little below the roof.
    """
    ridge = next(iter(points.values())).ridge
    peak = max(point.attainable * max(1.0, ridge / point.intensity) for point in points.values())
    _roof(axes, peak, peak / ridge, [point.intensity for point in points.values()])
    for name, point in points.items():
        _mark(axes, *_pair(point), compute=point.bound == "compute")
        _name(axes, name, *_pair(point))


def _pair(point: Point) -> tuple[float, float]:
    if isinstance(point, Placement):
        return point.intensity, point.flops / point.seconds
    return point


def _roof(
    axes: Axes,
    peak: float,
    bandwidth: float,
    intensities: list[float],
    lowest: float = math.inf,
) -> None:
    ridge = peak / bandwidth
    low = min(0.5, ridge / 8, *(x / 2 for x in intensities))
    high = max(ridge * 20, *(x * 8 for x in intensities))
    compute, memory = PALETTE["compute"], PALETTE["bytes"]
    floor = min(lowest, bandwidth * low / 2)
    axes.fill_between(
        [low, ridge, high],
        [bandwidth * low, peak, peak],
        floor,
        color=PALETTE["wait"],
        alpha=0.08,
        linewidth=0,
    )
    axes.plot([low, ridge], [bandwidth * low, peak], color=memory, linewidth=2.6)
    axes.plot([ridge, high], [peak, peak], color=compute, linewidth=2.6)
    axes.plot(
        [ridge, ridge], [floor, peak], color=PALETTE["wait"], linewidth=0.9, linestyle=(0, (3, 4))
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(floor, peak * 4),
        xlabel="operations per byte moved (FLOP/B)",
        ylabel="operations per second (FLOP/s)",
    )
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: units.count_text(value, "").strip())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    rate = units.count_text(peak, "FLOP/s")
    axes.text(high, peak * 1.4, rate, color=compute, ha="right", va="bottom", fontweight="bold")
    middle = (low * ridge) ** 0.5
    axes.text(
        middle / 1.25,
        bandwidth * middle * 1.25,
        units.rate_text(bandwidth),
        color=memory,
        ha="right",
        va="bottom",
        fontweight="bold",
    )
    axes.text(ridge * 1.12, floor * 1.35, f"ridge {ridge:.3g}", color=PALETTE["ink"])


def _mark(axes: Axes, intensity: float, rate: float, *, compute: bool) -> None:
    axes.plot(
        intensity,
        rate,
        marker="s" if compute else "|",
        markersize=12 if compute else 17,
        markeredgewidth=0 if compute else 3.5,
        color=PALETTE["compute" if compute else "bytes"],
    )


def _name(axes: Axes, name: str, intensity: float, rate: float) -> None:
    """Write a point's name under the roof: to the right of it, or below near the right edge."""
    low, high = axes.get_xlim()
    below = intensity > (low * high) ** 0.5
    axes.text(
        intensity if below else intensity * 1.4,
        rate / (1.9 if below else 1.5),
        name,
        color=PALETTE["ink"],
        ha="center" if below else "left",
        va="top",
        linespacing=1.4,
    )


def _finding(points: Mapping[str, tuple[float, float]], ridge: float) -> str:
    """Say which work waits for what."""
    bytes_ = [name for name, (intensity, _) in points.items() if intensity <= ridge]
    arithmetic = [name for name in points if name not in bytes_]
    said = [
        f"{_and(names)} wait{'s' if len(names) == 1 else ''} for {what}"
        for names, what in ((bytes_, "bytes"), (arithmetic, "arithmetic"))
        if names
    ]
    text = ", ".join(said)
    return text[0].upper() + text[1:]


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
