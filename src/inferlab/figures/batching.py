"""Who shares the trip: schedules as Gantt charts, what a batch gains and costs, what chunks do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferlab.errors import InferlabError
from inferlab.figures.draw import blank, canvas, note
from inferlab.figures.draw import rows as lines
from inferlab.figures.style import PALETTE
from inferlab.theory import units
from inferlab.theory.queueing import Served

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS = "os^D"
_SMALL: dict[str, Any] = {"fontsize": 9.5, "ha": "center", "va": "top"}


def schedules(served: Mapping[str, Served], title: str | None = None) -> Figure:
    """Draw who waits, reads and writes when, a line a request, a panel for each of `served`.

    The grey is a wait for a seat, the wide block a prompt, each tick a token. Without a `title`
    the finding is how long the first takes against the last.
    """
    ends = {name: max(r.pieces[-1] for r in one.requests) for name, one in served.items()}
    first, *_, last = ends if len(ends) > 1 else [*ends, *ends]
    slow, fast = ends[first], ends[last]
    found = f"The same requests take {_time(slow)} {first}, {_time(fast)} {last}"
    count = len(next(iter(served.values())).requests)
    figure = blank(title or found, 0.7 + len(served) * (0.75 + 0.17 * count))
    panels = figure.subplots(len(served), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, one) in zip(panels, served.items(), strict=True):
        lines(axes, [str(number + 1) for number in range(count)])
        axes.tick_params(axis="y", labelsize=8)
        for at, (request, start) in enumerate(zip(one.requests, one.started, strict=True)):
            _bar(axes, at, request.scheduled, start, "wait", 0.5)
            _bar(axes, at, start, request.pieces[0], "compute")
            _ticks(axes, at, request.pieces[1:], 0.36, 0.9)
        axes.set_title(f"{name}: {one.steps} steps", fontsize=10.5, fontweight="normal", pad=5)
    panels[-1].set(xlim=(0, 1.02 * max(ends.values())), xlabel=f"{_unit(slow)[1]} since the start")
    panels[-1].xaxis.set_major_formatter(lambda value, _: f"{value * _unit(slow)[0]:g}")
    return figure


def _bar(axes: Axes, at: int, start: float, end: float, role: str, alpha: float = 1.0) -> None:
    if end > start:
        axes.barh(at, end - start, left=start, height=0.72, color=PALETTE[role], alpha=alpha)


def _time(seconds: float) -> str:
    return units.seconds_text(seconds).replace(" ", "\u00a0")  # no line breaks in it


def _ticks(axes: Axes, at: int, times: Sequence[float], half: float, width: float) -> None:
    """Draw a tick at each time as one broken line: hundreds of them stay light."""
    x = [value for time in times for value in (time, time, math.nan)]
    y = [at - half, at + half, math.nan] * len(times)
    axes.plot(x, y, color=PALETTE["bytes"], linewidth=width, solid_capstyle="butt")


def _unit(most: float) -> tuple[float, str]:
    return (1, "seconds") if most >= 2 else (1e3, "milliseconds")


def tradeoff(
    curves: Sequence[Mapping[str, Any]], rings: Sequence[Mapping[str, Any]] = ()
) -> Figure:
    """Draw tokens a second of all against the time that each waits for a token.

    `curves` (predicted, lines) and `rings` (measured) hold `label`, `batches`, `tpot` in seconds
    and `rate` in tokens a second; ends carry their batch. Up is cheap, left is quick.
    """
    from matplotlib.ticker import LogLocator

    if not (curves or rings):
        raise InferlabError("tradeoff needs one curve, or one set of rings")
    one = (rings or curves)[0]
    figure, axes = canvas(
        f"{one['batches'][-1]} answers at once: {one['rate'][-1] / one['rate'][0]:.0f} times the "
        f"tokens, each {one['tpot'][-1] / one['tpot'][0]:.1f} times as slow",
        3.9,
    )
    for curve in curves:
        axes.plot(curve["tpot"], curve["rate"], color=PALETTE["bytes"])
        note(axes, curve["tpot"][0], curve["rate"][0] / 1.3, curve["label"], "bytes", **_SMALL)
    for number, curve in enumerate(rings):
        axes.plot(
            curve["tpot"],
            curve["rate"],
            _MARKS[number % 4] + "--",
            color=PALETTE["ink"],
            linewidth=0.8,
            markerfacecolor="none",
            markeredgewidth=1.5,
        )
        last = (curve["tpot"][-1], curve["rate"][-1] * 1.28)
        note(axes, *last, curve["label"], **_SMALL | {"va": "bottom"})
        for at in (0, -1):
            text = f"\u2009{curve['batches'][at]}"
            note(axes, curve["tpot"][at] * 1.04, curve["rate"][at], text, fontsize=9, va="top")
    drawn = [*curves, *rings]
    low = min(t for one in drawn for t in one["tpot"])
    high = max(t for one in drawn for t in one["tpot"])
    slow = min(r for one in drawn for r in one["rate"])
    fast = max(r for one in drawn for r in one["rate"])
    axes.set(xscale="log", yscale="log", xlim=(low / 1.5, high * 2.6), ylim=(slow / 2, fast * 2.6))
    for axis, span in ((axes.xaxis, high / low), (axes.yaxis, fast / slow)):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < 40 else (1,)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{1e3 * value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set(xlabel="ms for each token of an answer (TPOT)", ylabel="tokens/s of all answers")
    axes.minorticks_off()
    return figure


def gain(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw tokens a second against the batch, a line for each length of the past.

    Each curve is a `theory.batching.sweep` with its `label`; it is drawn fully as far as its
    caches fit, and dotted beyond.
    """
    figure, axes = canvas(
        f"The longer the past, the earlier a batch stops paying: {curves[0]['rate'][-1]:,.0f} "
        f"tokens/s at most, or {curves[-1]['rate'][-1]:,.0f}",
        3.9,
    )
    for curve in curves:
        batches, rate, most = curve["batches"], curve["rate"], curve["most"]
        inside = [at for at, n in enumerate(batches) if most is None or n <= most]
        role = "bytes" if most is None else "kv"
        axes.plot(batches, rate, ":", color=PALETTE[role], linewidth=1.6)
        axes.plot([batches[i] for i in inside], [rate[i] for i in inside], color=PALETTE[role])
        if most is not None and most < batches[-1]:
            last = inside[-1]
            axes.plot(batches[last], rate[last], "o", color=PALETTE[role], markersize=6)
        note(axes, batches[-1], rate[-1], f" {curve['label']}", role, va="center", fontsize=9.5)
    axes.set(xscale="log", yscale="log", xlim=(1, curves[0]["batches"][-1] * 5))
    ticks = [n for n in (1, 4, 16, 64, 256, 1024) if n <= curves[0]["batches"][-1]]
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.minorticks_off()
    axes.set(xlabel="answers in a step", ylabel="tokens/s of all answers")
    return figure


def streams(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Figure:
    """Draw answers as they arrive: a tick a token, a wide block where a prompt is read.

    Each row has `label`, `ticks` and `blocks` (start, end), in seconds. Without a `title` the
    finding is the longest gap of the first row and of the last that has ticks and no blocks.
    """
    ticking = [row for row in rows if len(row["ticks"]) > 2 and not row["blocks"]]
    if not ticking:
        raise InferlabError("streams needs a row with three ticks or more and no blocks")
    worst = [max(b - a for a, b in zip(r["ticks"], r["ticks"][1:])) for r in ticking]  # noqa: B905
    found = f"Between two of your tokens: {_time(worst[0])}, or with chunks {_time(worst[-1])}"
    figure, axes = canvas(title or found, 0.9 + 0.42 * len(rows))
    lines(axes, [row["label"] for row in rows])
    end = max(t for row in rows for t in (*row["ticks"], *(b for _, b in row["blocks"])))
    for at, row in enumerate(rows):
        for start, stop in row["blocks"]:
            width = max(stop - start - 0.002 * end, 0.001 * end)
            axes.barh(at, width, left=start, height=0.6, color=PALETTE["compute"])
        _ticks(axes, at, row["ticks"], 0.3, 1.2)
    scale, unit = _unit(end)
    axes.set(xlim=(-0.01 * end, 1.02 * end), xlabel=unit)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * scale:g}")
    return figure


def chunks(found: Mapping[str, Any]) -> Figure:
    """Draw what the size of a chunk does to those who write and to the one who waits.

    `found` is what `theory.batching.chunked` returns. Look for the place from which the orange
    line hardly falls any more, and the blue one begins to rise.
    """
    sizes, gap, ttft = found["chunks"], found["gap"], found["ttft"]
    figure = blank(
        f"Chunks of {sizes[0]} to {sizes[-1]:,} tokens: gaps of {_time(gap[0])} to "
        f"{_time(gap[-1])}, a first token after {_time(ttft[0])} to "
        f"{_time(ttft[-1])}",
        3.9,
    )
    axes = figure.add_subplot()
    for values, role, text in (
        (ttft, "compute", "the newcomer's first token"),
        (gap, "bytes", "the others' longest gap"),
    ):
        axes.plot(sizes, values, "o-", color=PALETTE[role], markersize=4.5)
        note(axes, sizes[0], values[0] * 1.22, text, role, va="bottom", fontsize=10)
    axes.axhline(found["quiet"], color=PALETTE["wait"], linewidth=1.4, linestyle="--")
    note(axes, sizes[0], found["quiet"] / 1.12, "their gap while nobody reads", "wait", va="top")
    axes.set(xscale="log", yscale="log", ylim=(found["quiet"] / 2.2, max(ttft) * 2.4))
    ticks = [n for n in sizes if n in (64, 256, 1024, 4096, sizes[-1])]
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.yaxis.set_major_formatter(lambda value, _: f"{1e3 * value:,g}")
    axes.minorticks_off()
    axes.set(xlabel="tokens of the prompt in a step", ylabel="milliseconds")
    return figure
