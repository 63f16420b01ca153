"""Keys and values in memory: how much a model keeps of each token, and where it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferlab.figures.draw import canvas, note, rows
from inferlab.figures.style import PALETTE
from inferlab.theory import costs, units
from inferlab.theory.shapes import ModelShape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONTEXTS = tuple(range(0, 131_073, 4096))


def growth(shapes: Sequence[ModelShape], contexts: Sequence[int] = CONTEXTS) -> Figure:
    """Draw each model's cache of one conversation against its tokens, beside its weights.

    Look at where a green line meets the blue one of the same model: there the past is as large as
    the model. A line that bends has layers with a window.
    """
    first = shapes[0]
    per_token = costs.kv_bytes_per_token(first)
    figure, axes = canvas(f"{first.name} keeps {per_token / 1024:,.0f} KiB of every token", 3.4)
    for shape in shapes:
        sizes = [costs.kv_bytes(shape, n) / 1e9 for n in contexts]
        axes.plot(contexts, sizes, color=PALETTE["kv"], linewidth=2.5)
        note(axes, contexts[-1], sizes[-1], f" {shape.name}", "kv", va="center", fontsize=10)
        if shape is first:
            weights = costs.weight_bytes(shape) / 1e9
            axes.axhline(weights, color=PALETTE["bytes"], linewidth=2)
            note(axes, 0, weights * 0.965, " its weights", "bytes", va="top", fontsize=10)
    axes.set(xlim=(0, contexts[-1] * 1.32), ylim=(0, None), xlabel="tokens", ylabel="GB")
    axes.set_xticks([0, 32_768, 65_536, 98_304, 131_072], ["0", "32k", "64k", "96k", "128k"])
    return figure


def per_token(shapes: Sequence[ModelShape], labels: Mapping[str, str]) -> Figure:
    """Draw the bytes that each model keeps of one token, with a word on how it shares them.

    `labels` maps a model's key to that word. Look at the spread, and at how little it follows
    the models' size.
    """
    sizes = [costs.kv_bytes_per_token(shape) for shape in shapes]
    most, least = max(sizes), min(sizes)
    figure, axes = canvas(
        f"A token leaves {units.binary_bytes_text(least)} to {units.binary_bytes_text(most)} "
        "behind, and size says little about it",
        0.9 + 0.36 * len(shapes),
    )
    for at, (shape, size) in enumerate(zip(shapes, sizes, strict=True)):
        axes.barh(at, size / 1024, color=PALETTE["kv"], height=0.66)
        text = f" {size / 1024:,.3g} KiB, {labels[shape.key]}"
        note(axes, size / 1024, at, text, va="center", fontsize=10)
    rows(axes, [shape.name for shape in shapes])
    axes.set(xlim=(0, 1.75 * most / 1024), xlabel="KiB a token, 16 bits")
    return figure


def steps(curves: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Draw the time of a decode step against its context; predicted as a line, measured as rings.

    Each curve has `label`, `contexts`, `seconds`, `role` and, where it was measured, `measured`
    True. Look at the slope: it is the cache, read once a step.
    """
    figure, axes = canvas(title, 3.2)
    for curve in curves:
        times = [1e3 * value for value in curve["seconds"]]
        style = "o" if curve.get("measured") else "-"
        colour = PALETTE[curve["role"]]
        axes.plot(
            curve["contexts"], times, style, color=colour, linewidth=2.2, markerfacecolor="none"
        )
        note(axes, curve["contexts"][-1], times[-1], f" {curve['label']}", curve["role"])
    axes.set(xlim=(0, 1.3 * max(c["contexts"][-1] for c in curves)), ylim=(0, None))
    axes.set(xlabel="tokens in the cache", ylabel="ms for one step")
    return figure
