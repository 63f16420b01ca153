"""Inside a chip: where its rate comes from, its memories, who makes which tile.

`waves` and `tiles` are the stills of the animations of those names and take their data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferlab.errors import InferlabError
from inferlab.figures.draw import canvas, fold, note, rows
from inferlab.figures.style import PALETTE
from inferlab.theory import inside, units
from inferlab.theory.hardware import Hardware

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def steps(chips: Sequence[Hardware]) -> Figure:
    """Draw what makes up the rate of each chip: a lane, a core, all cores, matrix units."""
    if not chips:
        raise InferlabError("chips is empty: at least one is needed")
    found = [inside.steps(chip) for chip in chips]
    lanes = [each["one lane"] for each in found]
    figure, axes = canvas(
        f"One lane does {min(lanes) / 1e9:.1f} to {max(lanes) / 1e9:.1f} GFLOP/s on each chip; "
        "the rest is their number",
        1.3 + 1.15 * len(chips),
    )
    names, at = [], 0.0
    ticks = []
    for chip, ladder in zip(chips, found, strict=True):
        core = inside.core_word(chip)
        for number, (name, rate) in enumerate(ladder.items()):
            role = "compute" if name == "matrix units" else "ink"
            axes.barh(
                at,
                rate - 1e9,
                left=1e9,
                height=0.66,
                color=PALETTE["compute"],
                alpha=1.0 if name == "matrix units" else 0.35 + 0.2 * number,
            )
            text = units.rate_text(rate, "FLOP")
            note(axes, rate * 1.15, at, text, role, va="center", fontsize=10)
            names.append(name.replace("core", core))
            ticks.append(at)
            at += 0.8
        note(axes, 1.1e9, at - 0.8 * len(ladder) - 0.62, chip.name, va="center", fontweight="bold")
        at += 0.95
    axes.set_yticks(ticks, names)
    axes.set(xscale="log", xlim=(1e9, 3e16), ylim=(at - 0.9, -1.1))
    axes.tick_params(axis="y", length=0)
    axes.minorticks_off()
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_xticks(
        [1e9, 1e11, 1e13, 1e15], [units.count_text(v, "") for v in (1e9, 1e11, 1e13, 1e15)]
    )
    axes.set_xlabel("operations per second (log scale)")
    return figure


def memories(chip: Hardware) -> Figure:
    """Draw the chip's memories by size and rate, nearest on top, with the wait of each."""
    ladder = inside.levels(chip)
    near, far = ladder[0], ladder[-1]
    figure, axes = canvas(
        f"{chip.name}: each step away holds more and is slower, from "
        f"{units.rate_text(near.rate, digits=2)} to {units.rate_text(far.rate)}",
        3.4,
    )
    rows(axes, [level.name for level in ladder])
    for row, level in enumerate(ladder):
        axes.barh(
            row,
            level.rate - 1e12,
            left=1e12,
            height=0.5,
            color=PALETTE["bytes"],
            alpha=1.0 - 0.2 * row,
        )
        note(
            axes,
            level.rate * 1.08,
            row,
            units.rate_text(level.rate, digits=2 if row < len(ladder) - 1 else 3),
            "bytes",
            va="center",
            fontweight="bold",
        )
        each = f"{level.copies} × {units.binary_bytes_text(level.size / level.copies)} = "
        size = units.bytes_text(level.size)
        wait = f", a load waits {units.seconds_text(level.latency, 2)}" if level.latency else ""
        text = (each if level.copies > 1 else "") + size + wait
        note(axes, 1.08e12, row + 0.4, text, fontsize=9.5, va="center")
    axes.set(xscale="log", xlim=(1e12, 3e15))
    axes.set_ylim(len(ladder) - 0.35, -0.5)
    axes.minorticks_off()
    axes.set_xticks([1e12, 1e13, 1e14, 1e15], ["1 TB/s", "10", "100", "1,000"])
    axes.set_xlabel("bytes per second, all copies together (log scale)")
    return figure


def programs(owners: Sequence[int], block: int, size: int) -> Figure:
    """Draw a vector and who wrote each element: `owners` holds a program's number, or -1.

    Elements past `size` belong to the last program's block and are masked.
    """
    if len(owners) < size:
        raise InferlabError(f"owners has {len(owners)} entries: {size} elements are to be drawn")
    count = max(owners) + 1
    spare = count * block - size
    figure, axes = canvas(
        f"{count} programs add {size} numbers, {block} each; the last one masks {spare}",
        1.25 + 0.42 * count,
    )
    rows(axes, [f"program {number}" for number in range(count)])
    for number in range(count):
        for place in range(block):
            at = number * block + place
            mine = at < size and owners[at] == number
            axes.barh(
                number,
                0.86,
                left=place + 0.07,
                height=0.62,
                color=PALETTE["compute"] if mine else "none",
                edgecolor=PALETTE["compute" if mine else "wait"],
                linewidth=0.8,
                linestyle="-" if mine else (0, (2, 1.5)),
            )
        note(
            axes,
            block + 0.35,
            number,
            f"{number * block} to {min(size, (number + 1) * block) - 1}",
            va="center",
            fontsize=10,
        )
    axes.set_xlim(0, block * 1.3)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.grid(visible=False)
    axes.set_xlabel("elements of a program's tile, and their places in the vector", loc="left")
    return figure


def waves(data: Mapping[str, Any]) -> Figure:
    """Draw how many waves each chip needs for a product, and how long it takes."""
    jobs = []
    for way in data["ways"]:
        for chip in way["chips"]:
            job = next(each for each in chip["jobs"] if each["side"] == data["start"])
            jobs.append((chip, way, job))
    ratio = jobs[0][2]["seconds"] / jobs[1][2]["seconds"]
    figure, axes = canvas(
        f"{jobs[0][2]['tiles']:,} tiles: {jobs[0][2]['waves']} waves on {jobs[0][0]['cores']} "
        f"cores, {jobs[1][2]['waves']} on {jobs[1][0]['cores']} SMs, {ratio:.0f} times faster",
        1.2 + 0.55 * len(jobs),
    )
    rows(axes, [fold(f"{chip['name']}, {way['label']}", 24) for chip, way, _ in jobs])
    longest = max(job["seconds"] for _, _, job in jobs)
    for row, (_, _, job) in enumerate(jobs):
        for wave in range(job["waves"]):
            last = job["tiles"] / (job["busy"] * job["waves"])
            full = min(1.0, (job["tiles"] - wave * last) / last)
            axes.barh(
                row,
                0.9 * job["wave_s"],
                left=wave * job["wave_s"],
                height=0.6 * full,
                color=PALETTE["compute"],
            )
        text = f"{job['waves']} waves, {units.seconds_text(job['seconds'])}"
        note(axes, job["seconds"] + 0.015 * longest, row, text, va="center", fontsize=10)
    axes.set_xlim(0, 1.65 * longest)
    axes.xaxis.set_major_formatter(lambda value, _: f"{1e3 * value:g}")
    axes.set_xlabel("milliseconds (height: share of cores at work)")
    return figure


def tiles(data: Mapping[str, Any]) -> Figure:
    """Draw what a product loads for each side of its tiles, between no tiles and each once."""
    names = ["no tiles", *(f"{each['side']} × {each['side']}" for each in data["tiles"])]
    loaded = [data["untiled_bytes"], *(each["bytes"] for each in data["tiles"])]
    names, loaded = [*names, "each number once"], [*loaded, data["fewest_bytes"]]
    chosen = next(each for each in data["tiles"] if each["side"] == data["start"])
    figure, axes = canvas(
        f"Tiles of {chosen['side']} × {chosen['side']} load "
        f"{data['untiled_bytes'] / chosen['bytes']:.0f} times less than no tiles",
        1.2 + 0.36 * len(names),
    )
    rows(axes, names)
    low = data["fewest_bytes"] / 2
    for row, value in enumerate(loaded):
        strong = value == chosen["bytes"]
        alpha = 1.0 if strong else 0.5
        axes.barh(row, value - low, left=low, height=0.6, color=PALETTE["bytes"], alpha=alpha)
        note(axes, value * 1.1, row, units.bytes_text(value), "bytes", va="center")
    axes.set(xscale="log", xlim=(low, data["untiled_bytes"] * 6))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: units.bytes_text(value))
    axes.set_xlabel(f"loaded by a product of {data['side']} × {data['side']} (log scale)")
    return figure
