"""The ladder from a Python loop to a library: operations per second at each rung."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferlab.errors import InferlabError
from inferlab.figures.draw import blank, note, rows
from inferlab.figures.style import PALETTE
from inferlab.theory import units

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(ladders: Mapping[str, Sequence[Any]], limits: Mapping[str, tuple[float, str]]) -> Figure:
    """Draw each ladder's rungs on one logarithmic scale, with what limits it.

    `ladders` maps a problem's name to its rungs (`name`, `flops` per second or None, `lacks`);
    `limits` maps it to (operations per second, what sets them). Roles: a limit that the memory
    sets begins with "memory" and is blue, any other is orange.
    """
    if not ladders:
        raise InferlabError("ladders is empty: at least one is needed")
    gains = []
    for name, rungs in ladders.items():
        known = [rung.flops for rung in rungs if rung.flops]
        gains.append(f"{known[-1] / known[0]:,.0f} times for a {name}")
    figure = blank(
        "From a Python loop to a library: " + ", ".join(gains),
        0.9 + sum(0.75 + 0.36 * len(rungs) for rungs in ladders.values()),
    )
    panels = figure.subplots(len(ladders), 1, sharex=True, squeeze=False)[:, 0]
    rates = [rung.flops for rungs in ladders.values() for rung in rungs if rung.flops]
    low = min(rates) / 3
    high = max([*rates, *(limit for limit, _ in limits.values())])
    for axes, (name, rungs) in zip(panels, ladders.items(), strict=True):
        limit, what = limits[name]
        role = "bytes" if what.startswith("memory") else "compute"
        rows(axes, [rung.name for rung in rungs])
        for row, rung in enumerate(rungs):
            if rung.flops is None:
                note(axes, limit * 1.3, row, f"needs {rung.lacks}", "soft", va="center")
                continue
            axes.barh(row, rung.flops - low, left=low, height=0.6, color=PALETTE["compute"])
            share = 100 * rung.flops / limit
            part = f"{share:.0f}" if share >= 10 else f"{share:.2g}"
            text = f"{units.rate_text(rung.flops, 'FLOP')}, {part} %"
            note(axes, 1.3 * max(limit, rung.flops), row, text, va="center", fontsize=10)
        axes.axvline(limit, color=PALETTE[role], linewidth=2)
        axes.set_title(f"{name}, % of {what}", fontsize=11, fontweight="normal")
    for axes in panels:
        axes.set(xscale="log", xlim=(low, high * 120))
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(lambda value, _: units.count_text(value, ""))
    panels[-1].set_xlabel("operations per second (log scale)")
    return figure
