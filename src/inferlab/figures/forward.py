"""A model from the side: where its bytes are, how deep and wide models are, and experts touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferlab.figures.draw import canvas, note, rows
from inferlab.figures.style import PALETTE
from inferlab.theory import costs, units
from inferlab.theory.shapes import ModelShape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Models that carry a label in `depths`: where it stands, right and up of the point.
NAMED = {
    "smollm2-135m": (1.1, 8),
    "llama-3.2-1b": (1.12, 0),
    "llama-3.1-8b": (1.12, -3),
    "llama-2-70b": (1.12, 0),
    "llama-3.1-405b": (0.86, 4),
    "qwen3-32b": (0.84, 5),
    "deepseek-v3": (1.3, 1),
    "gpt-oss-120b": (0.98, 12),
}


def stack(shape: ModelShape, dtype: str) -> Figure:
    """Draw where the bytes of one token come from: attention, feed-forward, vocabulary."""
    parts = costs.weight_bytes_by_part(shape, dtype, 1)
    total = sum(parts.values())
    names = {"projections": "attention", "ffn": "feed-forward", "logits": "vocabulary"}
    figure, axes = canvas(
        f"{shape.name}: {units.bytes_text(total)} for one token, most of it feed-forward", 2.0
    )
    for at, (part, name) in enumerate(names.items()):
        axes.barh(at, parts[part] / 1e9, color=PALETTE["bytes"], height=0.62)
        share = f" {units.bytes_text(parts[part])}, {100 * parts[part] / total:.0f} %, {name}"
        note(axes, parts[part] / 1e9, at, share, va="center", fontsize=10)
    rows(axes, [""] * len(names))
    axes.set(xlim=(0, 1.75 * max(parts.values()) / 1e9), xlabel="GB")
    return figure


def depths(shapes: Sequence[ModelShape]) -> Figure:
    """Draw each model's layers against its width; mixtures of experts as squares.

    Look at the squares: they hold more weights than their depth lets one think.
    """
    figure, axes = canvas(
        "Dense models grow deeper and wider; experts add weights without either", 3.6
    )
    for shape in shapes:
        mixed = shape.experts is not None
        colour = PALETTE["kv" if mixed else "bytes"]
        size = 3 + 2.2 * max(0.0, (shape.params / 1e8)) ** 0.25
        axes.plot(
            shape.hidden,
            shape.layers,
            "s" if mixed else "o",
            color=colour,
            markersize=size,
            alpha=0.75,
            markeredgewidth=0,
        )
        if shape.key in NAMED:
            right, up = NAMED[shape.key]
            role = "kv" if mixed else "bytes"
            at = (shape.hidden * right, shape.layers + up)
            side = "left" if right > 0.95 else "right"
            note(axes, *at, shape.name, role, va="center", ha=side, fontsize=9.5)
    axes.set(xscale="log", xlim=(450, 40_000), ylim=(0, 140))
    axes.set(xlabel="width: numbers in a token's vector", ylabel="layers")
    axes.set_xticks([576, 2048, 8192, 16_384], ["576", "2,048", "8,192", "16,384"])
    axes.minorticks_off()
    return figure


def experts(shape: ModelShape, batches: Sequence[int]) -> Figure:
    """Draw the weights that one step streams against the users in it: few, then nearly all.

    Look at how soon the curve leaves the active parameters.
    """
    touched = [costs.streamed_weight_bytes(shape, batch=batch) / 1e9 for batch in batches]
    figure, axes = canvas(
        f"{shape.name}: {touched[0]:.0f} GB for one user, {touched[-1]:.0f} GB for {batches[-1]}",
        3.0,
    )
    axes.plot(batches, touched, "o-", color=PALETTE["bytes"], linewidth=2.2)
    total = costs.weight_bytes(shape) / 1e9
    axes.axhline(total, color=PALETTE["wait"], linestyle="--", linewidth=1)
    note(axes, batches[0], total, "all of it", "wait", va="bottom", fontsize=10)
    axes.set(xscale="log", ylim=(0, 1.12 * total), xlabel="users in a step", ylabel="GB a step")
    axes.set_xticks(batches, [str(b) for b in batches])
    axes.minorticks_off()
    return figure
