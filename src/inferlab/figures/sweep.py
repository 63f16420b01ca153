"""How long chips take to read all of their memory once: capacity over bandwidth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from inferlab.figures.draw import canvas, note
from inferlab.figures.style import PALETTE
from inferlab.theory import hardware

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The chip with the most memory bandwidth that its maker sold for servers, from 2012 on.
FLAGSHIPS = (
    "k20x",
    "k40",
    "p100-sxm2",
    "v100-sxm2-32gb",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "h100-sxm",
    "mi300x",
    "h200-sxm",
    "b200-sxm",
)


class Sweep(NamedTuple):
    """One chip's sweep of memory: `seconds` is `memory_bytes` / `bandwidth`."""

    name: str
    year: int
    memory_bytes: float
    bandwidth: float
    seconds: float
    flagship: bool


def chips() -> list[Sweep]:
    """Return every chip of the catalog whose memory is known, oldest first."""
    found = [
        Sweep(
            chip.name.replace("Tesla ", ""),
            chip.year,
            chip.memory_bytes,
            chip.bandwidth,
            chip.memory_bytes / chip.bandwidth,
            chip.key in FLAGSHIPS,
        )
        for chip in hardware.all()
        if chip.memory_bytes and chip.year and chip.year >= 2012
    ]
    return sorted(found, key=lambda sweep: (sweep.year, sweep.seconds))


def plot(sweeps: Iterable[Sweep] | None = None) -> Figure:
    """Draw each chip's sweep over the years: flagships in a band, other cards in grey."""
    sweeps = list(chips() if sweeps is None else sweeps)
    flagships = [sweep for sweep in sweeps if sweep.flagship]
    times = [1e3 * sweep.seconds for sweep in flagships]
    low, high = min(times), max(times)
    first, last = flagships[0], max(flagships, key=lambda sweep: (sweep.year, sweep.bandwidth))
    figure, axes = canvas(
        f"Reading all of its memory once takes a flagship {low:.0f} to {high:.0f} ms, "
        f"in {first.year} as in {last.year}",
        3.9,
    )
    axes.axhspan(low, high, color=PALETTE["bytes"], alpha=0.12, linewidth=0)
    middle = (low + high) / 2
    for sweep in sweeps:
        ms = 1e3 * sweep.seconds
        role = "bytes" if sweep.flagship else "wait"
        size = 8 if sweep.flagship else 4.5
        axes.plot(sweep.year, ms, "o", color=PALETTE[role], markersize=size, markeredgewidth=0)
        if sweep.flagship:
            above = ms > middle
            note(
                axes,
                sweep.year,
                ms + (1.6 if above else -1.8),
                short(sweep.name),
                role,
                ha="center",
                va="bottom" if above else "top",
                fontsize=10,
            )
        elif not low / 1.1 < ms < high * 1.1:
            if ms < low:
                note(
                    axes,
                    sweep.year,
                    ms - 1.6,
                    sweep.name,
                    role,
                    ha="center",
                    va="top",
                    fontsize=9.5,
                )
            else:
                note(axes, sweep.year + 0.22, ms, sweep.name, role, va="center", fontsize=9.5)
    growth = [
        getattr(last, field) / getattr(first, field) for field in ("memory_bytes", "bandwidth")
    ]
    note(
        axes,
        first.year - 0.6,
        1.5,
        f"{short(first.name)} to {short(last.name)}:\n"
        f"{growth[0]:.0f} times the memory, {growth[1]:.0f} times the bandwidth",
        fontsize=10.5,
        va="bottom",
        linespacing=1.4,
    )
    years = [sweep.year for sweep in sweeps]
    axes.set(
        xlim=(min(years) - 0.9, max(years) + 1.4),
        ylim=(0, None),
        ylabel="milliseconds for one sweep",
    )
    axes.set_xticks(range(min(years), max(years) + 1, 2))
    axes.grid(axis="x", visible=False)
    return figure


def short(name: str) -> str:
    """Return a chip's name without its board."""
    for board in (" SXM2 32GB", " SXM2", " SXM"):
        name = name.replace(board, "")
    return name.replace("GB", " GB")
