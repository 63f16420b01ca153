"""What all stills share: a page-sized canvas, a title that states a finding, words next to things.

Figures are built without pyplot, so that a notebook shows each of them once and none stays open.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from inferlab.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches. Narrow, so that letters keep a readable size when a phone scales the figure down.
WIDTH = 5.6


def canvas(title: str, height: float = 3.2, **axes: Any) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes under `title`, folded to its width."""
    figure = blank(title, height)
    return figure, figure.add_subplot(**axes)


def blank(title: str, height: float) -> Figure:
    """Return a figure with nothing on it but its title."""
    style.use()
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.06)
    figure = Figure(figsize=(WIDTH, height), layout=layout)
    figure.suptitle(
        fold(title), x=0.01, ha="left", fontsize=13, fontweight="bold", linespacing=1.25
    )
    return figure


def fold(text: str, width: int = 52) -> str:
    """Return `text` in as few lines of `width` letters as it needs, and those of like length."""
    lines = len(textwrap.wrap(text, width))
    while len(textwrap.wrap(text, width - 1)) == lines and width > 12:
        width -= 1
    return textwrap.fill(text, width)


def rows(axes: Axes, names: list[str]) -> None:
    """Turn `axes` into a chart of horizontal bars, the first name on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def note(axes: Axes, x: float, y: float, text: str, role: str = "ink", **more: Any) -> None:
    """Write `text` at a data point in the colour of a role, as far from it as its spaces say."""
    room = len(text) - len(text.lstrip(" "))
    after = len(text) - len(text.rstrip(" "))
    text = "\u00a0" * room + text.strip(" ") + "\u00a0" * after  # SVG drops plain spaces
    axes.text(x, y, text, color=style.PALETTE[role], **more)
