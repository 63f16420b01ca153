"""Two rates against each other: what two chips gained, and what an engine reached of its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferlab.figures.draw import canvas, note, rows
from inferlab.figures.style import PALETTE
from inferlab.theory import trends

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bars(older: str, newer: str, counting: str) -> Figure:
    """Draw growth of compute and bandwidth from one chip of `trends.LINE` to another.

    Look at which bar is longer. `counting` is one of `trends.COUNTINGS`.
    """
    chips = {each.chip.key: each for each in trends.history(counting)}
    before, after = chips[older], chips[newer]
    growth = {
        f"compute, {after.dtype}": (after.flops / before.flops, "compute"),
        "bandwidth": (after.bandwidth / before.bandwidth, "bytes"),
    }
    compute, moved = (value for value, _ in growth.values())
    verdict = (
        f"arithmetic gained {compute / moved:.3g} times on the bus"
        if compute > moved
        else f"the bus gained {moved / compute:.3g} times on arithmetic"
    )
    figure, axes = canvas(f"{before.chip.name} to {after.chip.name}: {verdict}", 1.9)
    for at, (value, role) in enumerate(growth.values()):
        axes.barh(at, value, color=PALETTE[role], height=0.6)
        note(axes, value, at, f" {value:.3g} times", role, va="center")
    rows(axes, list(growth))
    axes.set(xlim=(0, 1.25 * max(compute, moved)), xlabel=f"growth, counted in {counting}")
    return figure


def reached(rate: float, limit: float, where: str) -> Figure:
    """Draw a measured rate against its limit, both in tokens per second.

    Look at the gap between the bar and the line.
    """
    figure, axes = canvas(f"{100 * rate / limit:.0f} % of the limit on {where}", 1.6)
    axes.barh(0, rate, color=PALETTE["bytes"], height=0.6)
    axes.axvline(limit, color=PALETTE["ink"], linewidth=3)
    note(axes, rate, -0.42, f"{rate:.1f} measured", "bytes", ha="right", fontsize=10)
    note(axes, limit, 0.5, f"{limit:.1f} at most ", ha="right", fontsize=10)
    rows(axes, [""])
    axes.set(xlim=(0, 1.1 * max(rate, limit)), xlabel="tokens a second")
    return figure
