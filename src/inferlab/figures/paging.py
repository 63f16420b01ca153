"""Where the cache lives: rows that were reserved, blocks that were taken, and what is in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferlab.figures.draw import blank, canvas, note
from inferlab.figures.draw import rows as lines
from inferlab.figures.style import PALETTE
from inferlab.theory import paging

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES = 4


def memory(lengths: Sequence[int], positions: int, longest: int, block: int) -> Figure:
    """Draw a memory of `positions` twice: rows for the longest answer, and blocks for what is said.

    Green is said, pale green is held for what may never be said. The memory is folded into lines.
    """
    line = positions / _LINES
    ways = (
        (f"a row of {longest:,} each", longest, lambda some: paging.reserved(some, longest)),
        (f"blocks of {block}", block, lambda some: paging.in_blocks(some, block)),
    )
    seated = [paging.admitted(lengths, positions, room) for _, _, room in ways]
    shares = [100 * sum(some) / positions for some in seated]
    figure = blank(
        f"Reserved rows seat {len(seated[0])} of {len(lengths)} and fill {shares[0]:.0f} % of the "
        f"memory, blocks seat {len(seated[1])} and fill {shares[1]:.0f} %",
        3.1,
    )
    panels = figure.subplots(2, 1)
    for axes, (name, unit, _), some in zip(panels, ways, seated, strict=True):

        def draw(first: float, last: float, axes: Axes = axes, **look: Any) -> None:
            for number in range(_LINES):
                left, right = max(first, number * line), min(last, (number + 1) * line)
                if right > left:
                    axes.barh(number, right - left, left=left - number * line, height=0.8, **look)

        draw(0, positions, color="none", edgecolor=PALETTE["rule"], linewidth=0.8)
        at = 0
        for length in some:
            held = -(-length // unit) * unit
            draw(at, at + held, color=PALETTE["kv"], alpha=0.22)
            draw(at, at + max(length - line / 250, 0), color=PALETTE["kv"])
            at += held
        axes.set(xlim=(-0.005 * line, 1.005 * line), ylim=(_LINES - 0.4, -0.6))
        axes.axis("off")
        axes.set_title(name, fontsize=10.5, fontweight="normal", pad=3)
    return figure


def block_sizes(lengths: Sequence[int], sizes: Sequence[int]) -> Figure:
    """Draw the share of held memory that is in use against the size of a block."""
    shares = [100 * paging.in_blocks(lengths, size).share for size in sizes]
    sixteen = 100 * paging.in_blocks(lengths, 16).share
    figure, axes = canvas(f"Blocks of 16 tokens waste {100 - sixteen:.1f} % of what is held", 3.0)
    axes.plot(sizes, shares, "o-", color=PALETTE["kv"], markersize=5)
    for size, share in zip(sizes, shares, strict=True):
        if size in (1, 16, 256, sizes[-1]):
            note(axes, size, share - 6, f"{share:.0f} %", ha="center", va="top", fontsize=10)
    axes.set(xscale="log", ylim=(0, 108), xlabel="tokens of a block", ylabel="in use, %")
    axes.set_xticks(list(sizes), [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    return figure


def pool(film: Mapping[str, Any], at: int) -> Figure:
    """Draw the blocks of a pool after step `at`: who holds them, and what stands in them.

    `film` is what `measure.paging.watch` returns. Dashed blocks are free, but can be found again.
    """
    blocks = film["steps"][at]["blocks"]
    held = sum(bool(block["holders"]) for block in blocks)
    shared = sum(len(block["holders"]) > 1 for block in blocks)
    across = 4
    down = -(-len(blocks) // across)
    figure, axes = canvas(
        f"After step {at + 1}, {held} of {len(blocks)} blocks are held, {shared} by more than one",
        0.8 + 0.62 * down,
    )
    for index, block in enumerate(blocks):
        x, y = index % across, index // across
        look: dict[str, Any] = {"color": "none", "edgecolor": PALETTE["rule"], "linewidth": 1}
        if block["holders"] or block["kept"]:
            look["edgecolor"] = PALETTE["kv"]
        if block["kept"]:
            look["linestyle"] = "--"
        axes.bar(x + 0.5, 0.86, width=0.94, bottom=y + 0.07, **look)
        if block["holders"]:
            alpha = 0.18 if len(block["holders"]) == 1 else 0.36
            axes.bar(x + 0.5, 0.86, width=0.94, bottom=y + 0.07, color=PALETTE["kv"], alpha=alpha)
        note(axes, x + 0.07, y + 0.3, str(index), "soft", fontsize=9, va="center")
        note(
            axes,
            x + 0.93,
            y + 0.3,
            " ".join(block["holders"]),
            fontweight="bold",
            va="center",
            ha="right",
        )
        text = "".join(block["text"]).strip().replace("\n", "↵")
        text = text if len(text) <= 21 else text[:20] + "…"
        note(axes, x + 0.07, y + 0.68, text, fontsize=8.5, va="center")
    axes.set(xlim=(0, across), ylim=(down, 0))
    axes.axis("off")
    return figure


def first_tokens(answers: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the time to first token of requests that begin alike, the first one on top.

    Each has `label`, `seconds`, and of its `tokens` the `cached` ones, which were not read again.
    """
    first, last = answers[0]["seconds"], answers[-1]["seconds"]
    longest = max(one["seconds"] for one in answers)
    figure, axes = canvas(
        f"With its beginning known, a first token comes {first / last:.1f} times as soon",
        0.9 + 0.5 * len(answers),
    )
    lines(axes, [one["label"] for one in answers])
    for at, one in enumerate(answers):
        axes.barh(at, one["seconds"], height=0.6, color=PALETTE["compute"])
        text = f" {one['cached']:,} of {one['tokens']:,} tokens found"
        note(axes, one["seconds"], at, text, "kv", va="center", fontsize=10)
    axes.set(xlim=(0, 1.75 * longest), xlabel="seconds to the first token")
    return figure
