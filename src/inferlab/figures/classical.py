"""What one answer of each kind of model costs, standing still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferlab.figures.draw import canvas, note, rows
from inferlab.figures.style import PALETTE
from inferlab.theory import units

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def answers(models: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw operations and bytes of one answer of each model, on one logarithmic axis.

    Look at the two bars of each: they are about as long, whatever the model.
    """
    ratio = models[-1]["flops"] / models[0]["flops"]
    figure, axes = canvas(
        f"From the first to the last {units.text(ratio)} times the work, and as many more bytes",
        0.9 + 0.5 * len(models),
    )
    for at, model in enumerate(models):
        for shift, key, role in ((-0.18, "flops", "compute"), (0.18, "bytes", "bytes")):
            axes.barh(at + shift, model[key], color=PALETTE[role], height=0.34)
        note(
            axes,
            max(model["flops"], model["bytes"]) * 1.4,
            at,
            f"{model['flops'] / model['bytes']:.2g} a byte",
            va="center",
            fontsize=10,
        )
    rows(axes, [model["name"] for model in models])
    axes.set(xscale="log", xlim=(100, 300 * max(m["flops"] for m in models)))
    axes.set_xlabel("operations, and bytes")
    return figure


def rates(sides: Sequence[int], bytes_per_second: Sequence[float]) -> Figure:
    """Draw how fast a square dense layer of each width reads its weights.

    Look for the steps: there it outgrows a cache.
    """
    best = max(bytes_per_second) / 1e9
    figure, axes = canvas(f"A dense layer reads its weights at up to {best:.0f} GB/s", 3.0)
    axes.plot(sides, [b / 1e9 for b in bytes_per_second], "o-", color=PALETTE["bytes"])
    axes.set(xscale="log", ylim=(0, None), xlabel="width of the layer", ylabel="GB/s")
    axes.set_xticks(sides, [f"{n:,}" for n in sides], fontsize=9)
    axes.minorticks_off()
    return figure
