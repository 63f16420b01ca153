"""What a KV cache saves as an answer grows: operations, and time on one machine or another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from inferlab.figures.draw import canvas, note
from inferlab.figures.style import PALETTE
from inferlab.theory import costs, roofline
from inferlab.theory.hardware import Hardware
from inferlab.theory.shapes import ModelShape

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def totals(
    shape: ModelShape, chip: Hardware, dtype: str, tokens: int, *, cache: bool
) -> list[tuple[float, float]]:
    """Return operations and seconds to write 1, 2, ... `tokens` tokens after a prompt of one.

    The roofline time of each pass; without a cache each pass is a prefill of all so far.
    """
    passes = list(costs.generation(shape, 1, tokens, cache=cache, dtype=dtype))
    flops = accumulate(each.flops for each in passes)
    seconds = accumulate(roofline.place(each, chip, dtype).seconds for each in passes)
    return list(zip(flops, seconds, strict=True))


def curve(
    shape: ModelShape, chip: Hardware, dtype: str, tokens: int, label: str = ""
) -> dict[str, Any]:
    """Return how many times a cache saves, over tokens written: `flops` and `seconds`."""
    without, kept = (totals(shape, chip, dtype, tokens, cache=cache) for cache in (False, True))
    pairs = list(zip(without, kept, strict=True))
    return {
        "label": label or f"{shape.name}, {chip.name}",
        "tokens": list(range(1, tokens + 1)),
        "flops": [a[0] / b[0] for a, b in pairs],
        "seconds": [a[1] / b[1] for a, b in pairs],
    }


def plot(curves: Sequence[dict[str, Any]], measured: dict[str, Any] | None = None) -> Figure:
    """Draw the saving over the tokens of an answer, both axes logarithmic.

    The operations of the first curve in orange, the time of each in blue; `measured` holds
    `tokens`, `ratios` and a `label`. Look at how far below the operations the times stay.
    """
    saved = curves[0]["flops"][-1]
    times = [each["seconds"][-1] for each in curves]
    figure, axes = canvas(
        f"{saved:.0f} times fewer operations, but {min(times):.1f} to {max(times):.0f} times "
        "less time",
        3.7,
    )
    last = curves[0]["tokens"][-1]
    axes.plot(curves[0]["tokens"], curves[0]["flops"], color=PALETTE["compute"], linewidth=2.5)
    note(axes, last, saved, " operations", "compute", va="center", fontsize=10)
    for each in curves:
        axes.plot(each["tokens"], each["seconds"], color=PALETTE["bytes"], linewidth=2.5)
        words = each["label"].replace(", ", ",\n ")
        note(axes, last, each["seconds"][-1], f" {words}", "bytes", va="center", fontsize=10)
    if measured:
        axes.plot(
            measured["tokens"],
            measured["ratios"],
            "o",
            color=PALETTE["ink"],
            markerfacecolor="none",
        )
        note(
            axes,
            measured["tokens"][-1],
            measured["ratios"][-1] * 1.25,
            measured["label"],
            ha="right",
            fontsize=10,
        )
    axes.set(xscale="log", yscale="log", xlim=(1, last * 6), ylim=(0.8, saved * 2))
    axes.set(xlabel="tokens written", ylabel="times saved")
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    return figure
