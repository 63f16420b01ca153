"""Offered load against what comes of it, and how long people waited for their first token."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferlab.errors import InferlabError
from inferlab.figures.draw import blank, canvas, note
from inferlab.figures.style import PALETTE
from inferlab.theory import units

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cliff(
    curve: Mapping[str, Any] | None, measured: Mapping[str, Any] | None = None, label: str = ""
) -> Figure:
    """Draw requests a second that were answered and that kept every promise, over those offered.

    `curve` is drawn as lines and `measured` as rings; each holds `rates`, `answered` and `good`,
    all in requests a second. Look at the grey between the two: answers that came too late.
    """
    first = curve or measured
    if not first or len(first["rates"]) < 2:
        raise InferlabError("a cliff needs two rates or more")
    figure, axes = canvas(_finding(first), 3.7)
    rates = first["rates"]
    ends = [*rates, *(measured["rates"] if measured else ())]
    top = max(*first["answered"], *(measured["answered"] if measured else ()))
    look: dict[str, Any] = {"linewidth": 2.6}
    if curve:
        axes.plot(rates, curve["answered"], color=PALETTE["ink"], **look)
        axes.plot(rates, curve["good"], color=PALETTE["bytes"], **look)
        axes.fill_between(rates, curve["good"], curve["answered"], color=PALETTE["wait"], alpha=0.2)
    if measured:
        for name, role, mark in (("answered", "ink", "s"), ("good", "bytes", "o")):
            axes.plot(
                measured["rates"],
                measured[name],
                mark + ("" if curve else "-"),
                color=PALETTE[role],
                markersize=8,
                markerfacecolor="none",
                markeredgewidth=2,
            )
        axes.plot([], [])
    axes.plot([0, top * 1.12], [0, top * 1.12], color=PALETTE["soft"], linewidth=1, linestyle="--")
    note(axes, top * 1.1, top * 1.13, "all that is asked", "soft", fontsize=9.5, va="bottom")
    last = max(ends)
    note(axes, last, first["answered"][-1] + 0.04 * top, "answered", ha="right", va="bottom")
    place = rates.index(max(r for r in rates if r <= 0.8 * last)) if rates[0] <= 0.8 * last else 0
    note(axes, last, first["good"][-1] + 0.04 * top, "in time", "bytes", ha="right", va="bottom")
    middle = (first["good"][place] + first["answered"][place]) / 2
    if first["answered"][place] - first["good"][place] > 0.25 * top:
        note(axes, rates[place], middle, "answered too late", "wait", ha="center", va="center")
    axes.set(xlim=(0, last * 1.03), ylim=(0, top * 1.28))
    axes.set(xlabel="requests offered a second", ylabel="requests a second")
    if measured and label:
        note(axes, 0.01 * last, top * 1.22, f"□ ○  {label}", fontsize=9.5, va="top")
    return figure


def _finding(curve: Mapping[str, Any]) -> str:
    most, good = max(curve["answered"]), max(curve["good"])
    at = curve["rates"][curve["good"].index(good)]
    end, last = curve["good"][-1], curve["rates"][-1]
    if not good:
        return f"Up to {most:.2g} requests a second are answered, none of them in time"
    if end > 0.7 * good:
        return f"Up to {last:.2g} requests a second, {end:.2g} of {most:.2g} answers come in time"
    return (
        f"Offered {at:.2g} requests a second, {good:.2g} are answered in time; offered "
        f"{last:.2g}, {f'only {end:.1g}' if end > 0.005 * good else 'none'}"
    )


def waits(ttft: Sequence[float], promise: float | None = None) -> Figure:
    """Draw for every wait the share of requests whose first token came within it.

    `ttft` in seconds, one a request; the line of `promise` cuts off those that came too late.
    """
    if not ttft:
        raise InferlabError("ttft is empty: no request got a first token")
    ordered = sorted(ttft)
    shares = [(number + 1) / len(ordered) for number in range(len(ordered))]
    half = ordered[(len(ordered) - 1) // 2]
    if promise is None:
        title = f"Half of {len(ordered)} requests saw their first token within "
        title += units.seconds_text(half)
    else:
        kept = sum(wait <= promise for wait in ordered) / len(ordered)
        title = f"{100 * kept:.0f} % of {len(ordered)} first tokens came within the promised "
        title += units.seconds_text(promise)
    figure, axes = canvas(title, 3.0)
    axes.step([0, *ordered], [0, *shares], where="post", color=PALETTE["bytes"], linewidth=2.6)
    if promise is not None:
        axes.axvline(promise, color=PALETTE["ink"], linewidth=1.5)
        note(axes, promise, 1.04, " promised", fontsize=10, va="bottom")
    end = max(ordered[-1], promise or 0.0)
    axes.set(xlim=(0, end * 1.15), ylim=(0, 1.15))
    axes.set_yticks([0, 0.5, 0.9, 1], ["0", "50 %", "90 %", "all"])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel="seconds until the first token", ylabel="requests")
    return figure


def crowd(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a closed loop: tokens a second and TTFT against the requests under way.

    Each row has `concurrency`, `measured` and `predicted` tokens a second, and `ttft` in seconds.
    Look at where the upper line goes flat: from there on more users buy waiting alone.
    """
    if len(rows) < 2:
        raise InferlabError("rows: a crowd needs two or more")
    under_way = [row["concurrency"] for row in rows]
    knee = next(
        (a for a, b in itertools.pairwise(rows) if b["measured"] < 1.02 * a["measured"]),
        rows[-1],
    )
    gain = rows[-1]["measured"] / knee["measured"]
    longer = rows[-1]["ttft"] / knee["ttft"]
    figure = blank(
        f"From {knee['concurrency']} to {under_way[-1]} users: {gain:.2f} times the tokens, "
        f"{longer:.0f} times the wait",
        4.2,
    )
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(under_way, [row["predicted"] for row in rows], color=PALETTE["ink"])
    above.plot(
        under_way,
        [row["measured"] for row in rows],
        "o",
        color=PALETTE["ink"],
        markerfacecolor="none",
        markersize=8,
    )
    middle = rows[len(rows) // 2]
    text = "line: predicted from TTFT and TPOT\nrings: measured"
    note(above, under_way[-1], middle["measured"] * 0.45, text, fontsize=9.5, ha="right")
    above.set(ylabel="tokens a second", ylim=(0, None))
    below.plot(under_way, [row["ttft"] for row in rows], "o-", color=PALETTE["wait"])
    last = rows[-1]
    said = f"{units.seconds_text(last['ttft'])} "
    note(below, last["concurrency"], last["ttft"], said, "wait", ha="right", va="bottom")
    below.set(ylabel="seconds to the\nfirst token", xlabel="requests under way", ylim=(0, None))
    below.set_xlim(0, under_way[-1] * 1.04)
    return figure


def prices(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw dollars for a million tokens over the load: all tokens, and those that came in time.

    Each row has `rate`, `all` and `good`, the latter None where nothing came in time.
    """
    kept = [row for row in rows if row["good"] is not None]
    if not kept:
        raise InferlabError("rows: at no rate did anything come in time")
    best = min(kept, key=lambda row: row["good"])
    figure, axes = canvas(
        f"A million tokens in time cost the least at {best['rate']:.3g} requests a second: "
        f"${best['good']:.2f}",
        3.3,
    )
    rates = [row["rate"] for row in rows]
    axes.plot(rates, [row["all"] for row in rows], color=PALETTE["ink"], linewidth=2.2)
    axes.plot([r["rate"] for r in kept], [r["good"] for r in kept], color=PALETTE["bytes"])
    axes.plot(best["rate"], best["good"], "o", color=PALETTE["bytes"], markersize=8)
    note(axes, rates[-1], rows[-1]["all"] * 0.93, "all tokens", ha="right", va="top")
    ceiling = best["good"] * 6
    place = min(kept, key=lambda row: (row["rate"] <= best["rate"], abs(row["good"] - ceiling / 2)))
    words = "tokens in time "
    note(axes, place["rate"], place["good"], words, "bytes", ha="right", va="center")
    axes.set(xlim=(0, rates[-1] * 1.03), ylim=(0, ceiling))
    axes.set(xlabel="requests offered a second", ylabel="$ for a million output tokens")
    return figure


def timeline(data: Mapping[str, Any]) -> Figure:
    """Draw one answer after Enter: the wait in the queue, the prompt's block, a tick a token.

    Takes the data of explorer "timeline": `start` with `queue`, `prefill` and `tpot` in seconds
    and `tokens`.
    """
    start = data["start"]
    queue, prefill, tpot, tokens = (start[n] for n in ("queue", "prefill", "tpot", "tokens"))
    ttft, total = queue + prefill, queue + prefill + (tokens - 1) * tpot
    title = f"{units.seconds_text(ttft)} of pause, then a single token: it has no TPOT"
    if tokens > 1:
        title = (
            f"{units.seconds_text(ttft)} of pause, then a token every {units.seconds_text(tpot)}: "
            f"{tokens} tokens take {units.seconds_text(total)}"
        )
    figure, axes = canvas(title, 2.0)
    axes.barh(0, queue, height=0.8, color=PALETTE["wait"])
    axes.barh(0, prefill, left=queue, height=0.8, color=PALETTE["compute"])
    for number in range(tokens):
        at = ttft + number * tpot
        axes.plot([at, at], [-0.4, 0.4], color=PALETTE["bytes"], linewidth=1.6)
    note(axes, 0, 0.55, "TTFT: the pause", "ink", fontsize=10)
    if tokens > 1:
        middle = min(max(ttft + (total - ttft) / 2, 0.35 * total), 0.6 * total)
        note(axes, middle, 0.55, "TPOT: the gap between ticks", "bytes", fontsize=10)
    axes.set(xlim=(-0.005 * total, 1.01 * total), ylim=(-0.5, 1.0), yticks=[])
    axes.set_xlabel("seconds after Enter")
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    return figure
