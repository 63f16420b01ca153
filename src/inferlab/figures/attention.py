"""Attention in pictures: what a head looks at, the grid of scores, and what the square costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inferlab.figures.draw import blank, canvas, note
from inferlab.figures.style import PALETTE
from inferlab.theory import limits
from inferlab.theory.shapes import ModelShape

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def head(words: Sequence[str], weights: Sequence[Sequence[float]], row: int, title: str) -> Figure:
    """Draw what one head takes from each token: a row a token, darker where it takes more.

    `weights` [T, T] are its rows; `row` is framed. Look along the framed row: its dark cell is
    the token that this head looked up.
    """
    count = len(words)
    figure, axes = canvas(title, 1.2 + 0.3 * count)
    for t in range(count):
        for other in range(t + 1):
            share = float(weights[t][other])
            axes.add_patch(_cell(other, t, PALETTE["compute"], share))
    frame = _cell(0, row, "none", 1.0, row + 1)
    frame.set_edgecolor(PALETTE["ink"])
    frame.set_linewidth(1.6)
    axes.add_patch(frame)
    axes.set(xlim=(0, count), ylim=(count, 0))
    axes.set_xticks([i + 0.5 for i in range(count)], words, rotation=55, ha="right", fontsize=10)
    axes.set_yticks([i + 0.5 for i in range(count)], words, fontsize=10)
    axes.set(xlabel="looks at", ylabel="token")
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    return figure


def _cell(x: float, y: float, colour: str, alpha: float, width: float = 1) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, 1, facecolor=colour, alpha=alpha, edgecolor="none", linewidth=0)


def grids(sizes: Sequence[int] = (4, 24)) -> Figure:
    """Draw the score grids of texts of some lengths, the half that is never computed in grey."""
    words = [f"{n} tokens: {n * (n + 1) // 2} scores of {n * n}" for n in sizes]
    figure = blank("Twice the text, four times the grid", 3.0)
    for at, n in enumerate(sizes):
        axes = figure.add_subplot(1, len(sizes), at + 1)
        for i in range(n):
            axes.add_patch(_cell(0, i, PALETTE["compute"], 0.75, i + 1))
            axes.add_patch(_cell(i + 1, i, PALETTE["wait"], 0.25, n - i - 1))
        axes.set(xlim=(0, n), ylim=(n, 0), aspect="equal", xlabel=words[at])
        axes.set_xticks(range(n + 1), [""] * (n + 1))
        axes.set_yticks(range(n + 1), [""] * (n + 1))
        axes.grid(visible=True, color=PALETTE["rule"], linewidth=0.5)
        axes.tick_params(length=0)
    return figure


def shares(shapes: Sequence[ModelShape], lengths: Sequence[int]) -> Figure:
    """Draw what share of a prefill's operations grows with the square of its length.

    Look at where a curve crosses a half: far out for a large model, early for a small one.
    """
    figure, axes = canvas("The square matters late, and later for larger models", 3.2)
    for shape in shapes:
        values = [100 * limits.attention_share(shape, n) for n in lengths]
        axes.plot(lengths, values, color=PALETTE["compute"], linewidth=2.2)
        note(axes, lengths[-1], values[-1], f" {shape.name}", va="center", fontsize=10)
    axes.axhline(50, color=PALETTE["wait"], linestyle="--", linewidth=1)
    axes.set(xscale="log", xlim=(lengths[0], lengths[-1] * 8), ylim=(0, 100))
    axes.set(xlabel="tokens of the prompt", ylabel="% of the operations")
    axes.set_xticks([100, 1000, 10_000, 100_000], ["100", "1,000", "10,000", "100,000"])
    return figure


def slope(
    tokens: Sequence[int], seconds: Sequence[float], bytes_: Sequence[float], rise: float
) -> Figure:
    """Draw time and memory of written-out attention against the length, both axes logarithmic.

    `rise` is the measured slope of the time at the end. Look at the parallel to a line of slope 2.
    """
    figure = blank(f"Twice the tokens, {2**rise:.1f} times the time: a slope of {rise:.1f}", 3.2)
    for at, (values, role, label) in enumerate(
        (([1e3 * s for s in seconds], "compute", "ms"), ([b / 1e6 for b in bytes_], "bytes", "MB"))
    ):
        axes = figure.add_subplot(1, 2, at + 1)
        axes.plot(tokens, values, "o-", color=PALETTE[role], linewidth=2)
        last = values[-1]
        guide = [last * (n / tokens[-1]) ** 2 for n in tokens]
        axes.plot(tokens, guide, color=PALETTE["wait"], linestyle="--", linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
        shown = [tokens[0], tokens[-1]]
        axes.set_xticks(shown, [f"{n:,}" for n in shown])
        axes.minorticks_off()
    return figure


def lens(words: Sequence[str], sure: Sequence[float], title: str) -> Figure:
    """Draw what each layer would say next: its likeliest token, and how sure it is.

    Look for the layer at which the answer appears.
    """
    count = len(words)
    figure, axes = canvas(title, 0.9 + 0.19 * count)
    for at, (word, share) in enumerate(zip(words, sure, strict=True)):
        last = word == words[-1]
        axes.barh(at, 100 * share, color=PALETTE["compute" if last else "wait"], height=0.75)
        note(axes, 100 * share, at, f" {word}", va="center", fontsize=9)
    axes.set(xlim=(0, 125), ylim=(-0.7, count - 0.3), xlabel="% sure", ylabel="layer")
    axes.set_yticks(range(0, count, 5), [str(n + 1) for n in range(0, count, 5)])
    axes.grid(axis="y", visible=False)
    return figure
