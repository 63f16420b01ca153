"""Where the ridge of chips stands, by year and number format; from their datasheets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from inferlab.figures.draw import canvas, note
from inferlab.figures.style import PALETTE
from inferlab.figures.sweep import FLAGSHIPS, short
from inferlab.theory import hardware

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Sold for inference or for less power: the arithmetic of a flagship's generation, a thinner bus.
CARDS = ("t4", "a10", "h100-pcie", "l4", "l40s")
SINCE = 2022  # from here on the flagships' 16-bit ridge has been level
_NARROW = ("fp8", "fp4")
#: Who is drawn with its narrower formats, and on which side their names stand.
_LIFTED = {"h100-sxm": "left", "b200-sxm": "right"}
_SHIFT = {"h200-sxm": -0.2, "b200-sxm": 0.3}  # two of one year, side by side
_SIDES = {
    "left": (-0.22, 1.0, "right", "center"),
    "right": (0.22, 1.0, "left", "center"),
    "above": (0.0, 1.13, "center", "bottom"),
    "over": (0.1, 1.13, "right", "bottom"),
    "below": (0.0, 0.87, "center", "top"),
    "under": (-0.15, 0.87, "left", "top"),
}
#: Where each name stands, and what it says if not the chip's own name.
_NAMES = {
    "k20x": ("under", "K20X, fp32"),
    "k40": ("right", "K40, fp32"),
    "p100-sxm2": ("left", ""),
    "v100-sxm2-32gb": ("left", ""),
    "a100-sxm-40gb": ("over", ""),
    "a100-sxm-80gb": ("below", ""),
    "h100-sxm": ("left", ""),
    "mi300x": ("above", ""),
    "h200-sxm": ("below", ""),
    "b200-sxm": ("right", ""),
    "t4": ("left", ""),
    "a10": ("right", ""),
    "h100-pcie": ("left", ""),
    "l4": ("above", "L4, L40S"),
    "l40s": ("above", " "),  # under the same name as its neighbour
}


class Ridge(NamedTuple):
    """One chip in one number format: `value` is its FLOP/s over its bytes/s."""

    key: str
    name: str
    year: int
    dtype: str
    value: float


def flagships(dtype: str | None = None) -> list[Ridge]:
    """Return the flagships that multiply in `dtype`, oldest first; by default each in 16 bits.

    Without units for 16 bits a chip stands in its fp32.
    """
    return _ridges(FLAGSHIPS, dtype)


def cards() -> list[Ridge]:
    """Return the inference cards in 16 bits, oldest first."""
    return _ridges(CARDS, None)


def level() -> tuple[float, float]:
    """Return the lowest and the highest 16-bit ridge of flagships since `SINCE`."""
    values = [ridge.value for ridge in flagships() if ridge.year >= SINCE]
    return min(values), max(values)


def _ridges(keys: tuple[str, ...], dtype: str | None) -> list[Ridge]:
    found = []
    for key in keys:
        chip = hardware.get(key)
        wanted = dtype or chip.default_dtype
        if wanted in chip.flops and chip.year:
            name = short(chip.name.replace("Tesla ", ""))
            found.append(Ridge(key, name, chip.year, wanted, chip.ridge(wanted)))
    return sorted(found, key=lambda ridge: (ridge.year, ridge.value))


def plot() -> Figure:
    """Draw the ridges over the years: 16 bits in bold, inference cards in grey, narrower above."""
    low, high = level()
    main = flagships()
    last = max(ridge.year for ridge in main)
    figure, axes = canvas(
        f"At 16 bits a flagship's ridge has stood between {low:.0f} and {high:.0f} since {SINCE}; "
        "narrower formats lift it",
        4.3,
    )
    axes.fill_between([SINCE - 0.4, last + 0.7], low, high, color=PALETTE["wait"], alpha=0.14)
    for key in _LIFTED:
        narrow = [ridge for dtype in _NARROW for ridge in _ridges((key,), dtype)]
        foot = hardware.get(key).ridge("bf16")
        top = max(ridge.value for ridge in narrow)
        axes.plot([_x(narrow[0])] * 2, [foot, top], color=PALETTE["compute"], linewidth=1.1)
        for ridge in narrow:
            axes.plot(_x(ridge), ridge.value, "s", color=PALETTE["compute"], markersize=6.5)
            across, _, anchor, _ = _SIDES[_LIFTED[key]]
            look = {"fontsize": 9.5, "ha": anchor, "va": "center"}
            note(axes, _x(ridge) + across, ridge.value, ridge.dtype, "compute", **look)
    for ridge, role, size in [(r, "wait", 5) for r in cards()] + [(r, "ink", 8) for r in main]:
        fill = "none" if ridge.dtype == "fp32" else PALETTE[role]
        tone = PALETTE[role]
        axes.plot(_x(ridge), ridge.value, "o", markersize=size, color=tone, markerfacecolor=fill)
        side, text = _NAMES[ridge.key]
        across, up, anchor, foot_of = _SIDES[side]
        look = {"fontsize": 9.5, "ha": anchor, "va": foot_of}
        note(axes, _x(ridge) + across, ridge.value * up, text or ridge.name, role, **look)
    axes.set(
        yscale="log",
        xlim=(2011.2, last + 1.9),
        ylim=(9, 1700),
        ylabel="ridge: operations per byte (FLOP/B)",
    )
    axes.minorticks_off()
    axes.set_yticks([10, 30, 100, 300, 1000], ["10", "30", "100", "300", "1,000"])
    axes.set_xticks(range(2012, last + 1, 2))
    axes.grid(axis="x", visible=False)
    return figure


def _x(ridge: Ridge) -> float:
    return ridge.year + _SHIFT.get(ridge.key, 0.0)
