"""Where bandwidth comes from: how many pins a memory has, and how fast each of them toggles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from inferlab.figures.draw import canvas, note
from inferlab.figures.style import PALETTE
from inferlab.theory import hardware
from inferlab.theory.hardware import Hardware

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Chips that carry a label: enough to read the picture by, few enough not to overlap.
NAMED = {
    "k20x": (1.08, 1.0, "left"),
    "p100-sxm2": (0.93, 1.0, "right"),
    "h100-sxm": (0.93, 1.0, "right"),
    "b200-sxm": (1.0, 1.12, "center"),
    "t4": (1.0, 0.88, "center"),
    "rtx-5090": (1.0, 1.12, "center"),
    "epyc-9654": (1.08, 1.0, "left"),
}
#: Bandwidths along which a line is drawn, in bytes per second, and the pins at which it is named.
LINES = {0.25e12: 1000, 1e12: 1000, 4e12: 1900, 16e12: 5200}


def plot(chips: Sequence[Hardware] | None = None) -> Figure:
    """Draw pins against the rate of each; along a diagonal the bandwidth is the same.

    Look at the two corners: few fast pins on a board, or thousands of slow ones in stacks beside
    the die.
    """
    chips = chips or [chip for chip in hardware.all() if chip.pin_bandwidth]
    figure, axes = canvas(
        "Bandwidth is pins times rate: stacks bring the pins, boards push the rate", 3.9
    )
    low, high = 150, 14_000
    pins = np.array([low, high])
    for rate, at in LINES.items():
        axes.plot(pins, 8 * rate / pins / 1e9, color=PALETTE["rule"], linewidth=1)
        text = f"{rate / 1e12:g} TB/s" if rate >= 1e12 else f"{rate / 1e9:g} GB/s"
        note(axes, at, 8 * rate / 1e9 / at, f" {text}", "soft", fontsize=9, va="bottom")
    for chip in chips:
        assert chip.bus_bits is not None
        assert chip.pin_rate is not None
        rate = chip.pin_rate / 1e9
        stacked = chip.memory_type.startswith("HBM")
        role = "bytes" if stacked else "wait"
        axes.plot(chip.bus_bits, rate, "o" if stacked else "s", color=PALETTE[role], alpha=0.85)
        if chip.key in NAMED:
            right, up, side = NAMED[chip.key]
            name = chip.name.replace("Tesla ", "").replace(" SXM2", "").replace(" SXM", "")
            name = name.replace(" (1 socket)", "")
            va = "center" if up == 1 else "bottom" if up > 1 else "top"
            where = (chip.bus_bits * right, rate * up)
            note(axes, *where, name, role, ha=side, va=va, fontsize=9.5)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(1, 45),
        xlabel="data pins",
        ylabel="Gbit/s a pin",
    )
    axes.set_xticks([256, 1024, 4096], ["256", "1,024", "4,096"])
    axes.set_yticks([1, 2, 5, 10, 20, 40], ["1", "2", "5", "10", "20", "40"])
    axes.minorticks_off()
    axes.grid(visible=False)
    return figure
