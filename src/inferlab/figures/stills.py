"""What moves, standing still: one picture for each animation, for paper and notebook viewers.

Each function takes the data that the animation of the same name takes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inferlab.figures.draw import blank, canvas, note, rows
from inferlab.figures.style import PALETTE
from inferlab.theory import units

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def request(data: Mapping[str, Any]) -> Figure:
    """Draw a request's passes in time: prefill as a block, decode as ticks, the text above."""
    passes = data["passes"]
    first, end = passes[0], passes[-1]["to"]
    colour = {"compute": PALETTE["compute"], "memory": PALETTE["bytes"]}
    answer = textwrap.wrap("".join(one["text"] for one in passes).strip(), 66)
    shown = answer if len(answer) <= 4 else [*answer[:3], f"{answer[3]} …"]
    title = (
        f"One pass reads the prompt's {first['tokens']} tokens, "
        f"{len(passes) - 1} more write a token each"
    )
    figure = blank(title, 1.9 + 0.2 * len(shown))
    axes = figure.add_subplot()
    axes.set(
        xlim=(-0.005 * end, 1.01 * end),
        ylim=(0, 2 + 0.55 * len(shown)),
        xlabel="seconds after Enter",
    )
    axes.barh(0.6, first["to"], height=0.9, color=colour[first["bound"]])
    for one in passes[1:]:
        axes.plot([one["to"]] * 2, [0.15, 1.05], color=colour[one["bound"]], linewidth=1.8)
    note(axes, 0, 1.2, "prefill", "compute" if first["bound"] == "compute" else "bytes")
    note(axes, max(first["to"], 0.14 * end), 1.2, "decode, a tick a token", "bytes")
    top = 2 + 0.55 * len(shown)
    note(axes, 0, top, "\n".join(shown), fontsize=10, va="top", linespacing=1.35)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    return figure


def thirty_ms(data: Mapping[str, Any]) -> Figure:
    """Draw the two times of one decode step, and the tokens whose arithmetic would have fitted."""
    case = next(each for each in data["cases"] if each["key"] == data["start"])
    compute, memory = case["compute_s"], case["memory_s"]
    step = max(compute, memory)
    seats = int(step / compute)
    figure = blank(
        f"{case['model']} on {case['chip']}: {1e3 * compute:.2g} ms of arithmetic, "
        f"{1e3 * memory:.3g} ms of bytes",
        3.6,
    )
    bars, room = figure.subplots(2, 1, height_ratios=(1, 1.1))
    rows(bars, ["arithmetic", "bytes"])
    bars.barh(0, step, height=0.56, color=PALETTE["wait"], alpha=0.25)
    bars.barh([0, 1], [compute, memory], height=0.56, color=[PALETTE["compute"], PALETTE["bytes"]])
    note(
        bars,
        max(0.03 * step, compute + 0.02 * step),
        0,
        "waiting for bytes",
        va="center",
        fontsize=10,
    )
    bars.set_xlim(0, step * 1.01)
    bars.xaxis.set_major_formatter(lambda value, _: f"{1e3 * value:g}")
    bars.set_xlabel("milliseconds")
    across = 50
    down = math.ceil(seats / across)
    for seat in range(seats):
        x, y = seat % across, -(seat // across)
        room.plot(
            x,
            y,
            "s",
            markersize=4.6,
            markeredgecolor=PALETTE["compute"],
            markeredgewidth=0.8,
            markerfacecolor="none" if seat else PALETTE["compute"],
        )
    room.set(xlim=(-0.8, across), ylim=(-max(down, 3) - 0.2, 1.6))
    note(
        room,
        -0.5,
        0.7,
        f"{seats} tokens of arithmetic would have fitted; one comes out",
        "compute",
        fontsize=10.5,
    )
    room.axis("off")
    return figure


def loop(data: Mapping[str, Any]) -> Figure:
    """Draw each pass as a line of text: what went in, and the token that came out."""
    steps = data["steps"][:7]
    text = [_seen(piece) for piece in data["prompt"]]
    figure, axes = canvas(
        f"{len(data['steps'])} tokens take {len(data['steps'])} passes, each of them through all "
        f"{units.bytes_text(data['bytes_per_pass'])} of weights",
        0.9 + 0.34 * len(steps),
    )
    rows(axes, [f"pass {number + 1}" for number in range(len(steps))])
    known, fresh = "", " ".join(text)
    middle = 0.62
    for number, step in enumerate(steps):
        chosen = _seen(step["text"])
        into = (fresh, "") if number == 0 else (known, fresh)
        axes.text(
            middle,
            number,
            _end(into[0]),
            color=PALETTE["ink" if number == 0 else "wait"],
            fontweight="bold" if number == 0 else "normal",
            va="center",
            ha="right",
        )
        out = f"{into[1]}  →  {chosen}" if into[1] else f" →  {chosen}"
        note(axes, middle + 0.015, number, out, va="center", fontweight="bold")
        known, fresh = f"{known} {fresh}".strip(), chosen
    axes.set(xlim=(0, 1), xticks=[])
    axes.spines["bottom"].set_visible(False)
    axes.grid(visible=False)
    return figure


def shared_trip(data: Mapping[str, Any]) -> Figure:
    """Draw arithmetic and bytes of passes of ever more tokens, as pairs of bars."""
    form = data["formats"][0]
    by_tokens = {one["tokens"]: one for one in form["passes"]}
    wanted = [n for n in (1, 64, 256, 512, 1024) if n in by_tokens]
    most = by_tokens[wanted[-1]]
    ratio = {key: most[key] / by_tokens[1][key] for key in ("flops", "bytes")}
    figure, axes = canvas(
        f"{wanted[-1]:,} tokens cost {ratio['flops']:,.0f} times the arithmetic of one, "
        f"but {ratio['bytes']:.2f} times its bytes",
        1.2 + 0.5 * len(wanted),
    )
    rows(axes, [f"{n:,} token{'' if n == 1 else 's'}" for n in wanted])
    longest = max(max(by_tokens[n]["compute_s"], by_tokens[n]["memory_s"]) for n in wanted)
    for row, n in enumerate(wanted):
        for key, role, up in (("compute_s", "compute", -0.19), ("memory_s", "bytes", 0.19)):
            value = by_tokens[n][key]
            axes.barh(row + up, value, height=0.34, color=PALETTE[role])
            label = f"{1e3 * value:.3g} ms" + (
                {"compute_s": " of arithmetic", "memory_s": " of bytes"}[key] if row == 0 else ""
            )
            note(axes, value + 0.012 * longest, row + up, label, role, va="center", fontsize=9.5)
    axes.set_xlim(0, 1.17 * longest)
    axes.xaxis.set_major_formatter(lambda value, _: f"{1e3 * value:g}")
    axes.set_xlabel(f"milliseconds, {data['model']} on {data['chip']}, weights in {form['label']}")
    return figure


def _end(text: str, most: int = 36) -> str:
    return text if len(text) <= most else "… " + text[-most:].split(" ", 1)[-1]


def _seen(text: str) -> str:
    """Return a token as a reader sees it: no leading space, line breaks by a sign."""
    return text.replace("\n", "↵").strip() or "␣"


def memory_wall(data: Mapping[str, Any]) -> Figure:
    """Draw how far arithmetic, counted in each way, and bandwidth have grown, chip by chip."""
    countings = data["countings"]
    points = countings[0]["points"]
    gaps = [one["points"][-1]["compute"] / one["points"][-1]["moved"] for one in countings]
    figure, axes = canvas(
        f"From {points[0]['name']} to {points[-1]['name']} arithmetic gained {min(gaps):.1f} to "
        f"{max(gaps):.0f} times on bandwidth: it depends on the format",
        3.7,
    )
    places = range(len(points))
    for one in countings:
        growth = [point["compute"] for point in one["points"]]
        axes.plot(places, growth, color=PALETTE["compute"], linewidth=1.8)
        note(axes, places[-1] + 0.15, growth[-1], one["label"], "compute", va="center", fontsize=10)
    moved = [point["moved"] for point in points]
    axes.plot(places, moved, color=PALETTE["bytes"], linewidth=3)
    note(axes, places[-1] + 0.15, moved[-1] * 1.25, "bandwidth", "bytes", fontsize=10)
    axes.set(yscale="log", ylabel=f"times what {points[0]['name']} had")
    axes.set_xlim(-0.3, len(points) + 0.6)
    axes.set_xticks(places, [f"{p['name']}\n{p['year']}" for p in points], fontsize=9)
    return figure


def ceiling(data: Mapping[str, Any]) -> Figure:
    """Draw the limit at the start and after each attack alone, as tokens a second together."""
    start, walls = data["start"], data["walls"]

    def limit(**change: Any) -> tuple[float, float]:
        wanted = start | change
        wall = next(w for w in walls if all(w[key] == wanted[key] for key in wanted))
        return wall["user"], wall["total"]

    most = {key: max(wall[key] for wall in walls) for key in ("chips", "users")}
    narrow = walls[-1]["dtype"]
    shown = {
        "as it is": limit(),
        f"{most['chips']} chips": limit(chips=most["chips"]),
        f"weights in {narrow}": limit(dtype=narrow),
        f"{most['users']} users": limit(users=most["users"]),
    }
    figure, axes = canvas("Three ways to move the wall, each alone", 2.6)
    for at, (user, total) in enumerate(shown.values()):
        axes.barh(at, total, height=0.62, color=PALETTE["compute"], alpha=0.45)
        axes.barh(at, user, height=0.62, color=PALETTE["bytes"])
        words = f" {user:,.0f} a user" + (f", {total:,.0f} together" if total > user else "")
        note(axes, total, at, words, va="center", fontsize=10)
    rows(axes, list(shown))
    axes.set(xscale="log", xlim=(1, 600 * max(total for _, total in shown.values())))
    axes.set_xlabel("tokens a second at most")
    return figure


def append(data: Mapping[str, Any]) -> Figure:
    """Draw the positions that each token computes: a triangle without a cache, a line with one."""
    count = len(data["cases"][0]["without"])
    figure, axes = canvas(
        f"{count} tokens: {count * (count + 1) // 2} positions computed without a cache, "
        f"{count} with one",
        3.0,
    )
    places = range(1, count + 1)
    axes.bar(places, list(places), width=0.8, color=PALETTE["compute"], alpha=0.5)
    axes.bar(places, [1] * count, width=0.8, color=PALETTE["compute"])
    note(axes, 1, count * 0.88, "pale: forgotten, all again", "compute")
    note(axes, 1, count * 0.76, "full: remembered, a single one", "compute")
    axes.set(xlabel="token of the answer", ylabel="positions computed")
    return figure
