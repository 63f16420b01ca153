"""Requests in time: who waited, read and wrote, and what they held in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferlab.figures.draw import blank, note, rows
from inferlab.figures.style import PALETTE
from inferlab.theory import units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def spans(events: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return from when to when a request waited, read and wrote, out of its events.

    Keys are "wait", "read" and "write"; a token is a moment, its two times are equal.
    """
    found: dict[str, list[tuple[float, float]]] = {"wait": [], "read": [], "write": []}
    since = 0.0
    for event in events:
        time, kind = event["time_s"], event["kind"]
        if kind == "scheduled":
            found["wait"].append((since, time))
        elif kind == "chunk":
            found["read"].append((event.get("began_s", since), time))
        elif kind == "token":
            found["write"].append((time, time))
        if kind != "finished":
            since = time
    return found


def lives(data: Mapping[str, Any], you: str) -> Figure:
    """Draw every request of a trace in time and, where the trace has steps, the blocks they hold.

    `data` has `requests` as `engine.trace.as_dicts` gives them, each with a `name`, and perhaps
    `steps` with the `holders` of each block. Look along the row of `you`, then down: what the
    others do in the same moment is why yours takes as long as it does.
    """
    requests, steps = data["requests"], data.get("steps")
    mine = next(one for one in requests if one["name"] == you)
    parts = spans(mine["events"])
    waited = sum(to - since for since, to in parts["wait"])
    first, last = parts["write"][0][0], parts["write"][-1][0]
    title = (
        f"{you.capitalize()} waited {units.seconds_text(waited)}, then read for "
        f"{units.seconds_text(first - waited)} and wrote for {units.seconds_text(last - first)}"
    )
    origin = min(one["arrived_s"] for one in requests)
    figure = blank(title, 1.5 + 0.36 * len(requests) + (1.6 if steps else 0))
    if steps:
        axes, memory = figure.subplots(
            2, 1, sharex=True, height_ratios=(0.36 * len(requests) + 0.2, 1.5)
        )
        _blocks(memory, steps, mine["id"])
    else:
        axes = memory = figure.add_subplot()
    rows(axes, [one["name"] for one in requests])
    end = 0.0
    for at, one in enumerate(requests):
        start, found = one["arrived_s"] - origin, spans(one["events"])
        for since, to in found["wait"]:
            axes.barh(at + 0.24, to - since, left=start + since, height=0.28, color=PALETTE["wait"])
        for since, to in found["read"]:
            axes.barh(at, to - since, left=start + since, height=0.76, color=PALETTE["compute"])
        times = [start + time for time, _ in found["write"]]
        axes.vlines(times, at - 0.38, at + 0.38, color=PALETTE["bytes"], linewidth=1.2)
        end = max(end, start + one["events"][-1]["time_s"])
    axes.set_xlim(-0.01 * end, 1.01 * end)
    memory.set_xlabel("seconds")
    return figure


def _blocks(axes: Axes, steps: Sequence[Mapping[str, Any]], you: int) -> None:
    """Fill the blocks held: yours below, others' above them, then what can still be found."""
    total = len(steps[0]["holders"])
    edges = [steps[0]["from"], *(step["to"] for step in steps)]
    mine = [sum(you in holders for holders in step["holders"]) for step in steps]
    held = [sum(bool(holders) for holders in step["holders"]) for step in steps]
    kept = [now + len(step["kept"]) for now, step in zip(held, steps, strict=True)]
    layers = (
        ([0] * len(steps), mine, 1.0),
        (mine, held, 0.45),
        (held, kept, 0.16),
    )
    for low, high, strength in layers:
        axes.stairs(high, edges, baseline=low, fill=True, color=PALETTE["kv"], alpha=strength)
    axes.set(ylim=(0, total * 1.3), ylabel="blocks", yticks=[0, total])
    axes.axhline(total, color=PALETTE["soft"], linewidth=1)
    note(
        axes,
        0,
        total * 1.06,
        "yours dark, others' lighter, lightest: free, but still to be found",
        "kv",
        fontsize=10,
    )
