"""Published results below the roof, standing still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferlab.figures import style
from inferlab.figures.style import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw each measurement's fraction of its bound against the bound, in seconds.

    Each row has `kind` ("decode" or "prefill"), `bound_s` and `fraction`. Look at how far the
    points stay below 100 %, and that those of short times stay furthest.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        style.use()
        figure = Figure()
        axes = figure.add_subplot()
        for kind, colour, label in (
            ("decode", PALETTE["bytes"], "decode, one user"),
            ("prefill", PALETTE["compute"], "first token"),
        ):
            mine = [row for row in rows if row["kind"] == kind]
            if not mine:
                continue
            axes.plot(
                [1e3 * row["bound_s"] for row in mine],
                [100 * row["fraction"] for row in mine],
                "o",
                color=colour,
                alpha=0.55,
                label=label,
            )
        best = max(row["fraction"] for row in rows)
        axes.axhline(100, color=PALETTE["ink"], linewidth=2)
        axes.set(
            xscale="log",
            ylim=(0, 108),
            xlabel="least time, ms",
            ylabel="% of the roof",
            title=f"Nobody passes the roof; the best reaches {100 * best:.0f} % of it",
        )
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        if len({row["kind"] for row in rows}) > 1:
            axes.legend(loc="lower right")
    return figure
