"""The price of a pass: its time against the number of tokens in it, flat and then a slope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inferlab.errors import InferlabError
from inferlab.figures.draw import canvas, note
from inferlab.figures.style import PALETTE
from inferlab.theory import costs, limits, roofline
from inferlab.theory.hardware import Hardware
from inferlab.theory.shapes import ModelShape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Tokens in a pass, four to each doubling above 8.
TOKENS = tuple(sorted({1, 2, 3, 4, 5, 6, 7, *(round(2 ** (n / 4)) for n in range(12, 41)), 1024}))


def curve(
    shape: ModelShape,
    hardware: Hardware,
    dtype: str = "bf16",
    *,
    label: str | None = None,
    tokens: Sequence[int] = TOKENS,
    stored: Mapping[str, float] | None = None,
    arithmetic: str | None = None,
) -> dict[str, Any]:
    """Return the predicted price of passes over `tokens` tokens, nothing cached before them.

    `arithmetic` is the format that an engine multiplies in, where it is not the best that the chip
    has for `dtype`. The dict holds `label`, `tokens`, `seconds` (the roofline time of each pass,
    its parts added) and `knee`, the number of tokens at ridge x bytes per weight / 2.
    """
    if arithmetic:
        hardware = replace(hardware, flops={arithmetic: hardware.flops[arithmetic]})
    placed = [
        roofline.place(costs.prefill(shape, n, dtype=dtype, stored=stored), hardware, dtype)
        for n in tokens
    ]
    return {
        "label": label or dtype,
        "tokens": list(tokens),
        "seconds": [each.seconds for each in placed],
        "knee": limits.knee_tokens(hardware, dtype),
    }


def step_curve(
    shape: ModelShape,
    hardware: Hardware,
    dtype: str,
    *,
    label: str | None = None,
    answers: Sequence[int] = tuple(range(1, 17)),
    stored: Mapping[str, float] | None = None,
    arithmetic: str | None = None,
) -> dict[str, Any]:
    """Return the predicted price of decode steps that `answers` share, as `curve` does.

    The tokens of such a pass are those of as many answers, one each, that have just begun.
    """
    if arithmetic:
        hardware = replace(hardware, flops={arithmetic: hardware.flops[arithmetic]})
    steps = [costs.decode_step(shape, 0, n, dtype=dtype, stored=stored) for n in answers]
    return {
        "label": label or dtype,
        "tokens": list(answers),
        "seconds": [roofline.place(step, hardware, dtype).seconds for step in steps],
        "knee": limits.knee_tokens(hardware, dtype),
    }


def price(
    curves: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[str, Any]] = (),
    *,
    title: str | None = None,
    across: str = "tokens in the pass",
) -> Figure:
    """Draw the time of a pass against its tokens, both axes logarithmic; `across` names them.

    `curves` are dicts as `curve` returns them, the first drawn strongest: blue where a pass waits
    for bytes, orange where it waits for arithmetic, a dot at the knee between. `measured` are
    dicts with `label`, `tokens` and `seconds`, drawn as rings.
    """
    if not curves:
        raise InferlabError("curves is empty: the price of a pass needs at least one prediction")
    seen = _measured_finding(measured[0], curves[0]["knee"]) if measured else None
    figure, axes = canvas(title or seen or _finding(curves), 3.9)
    for number, one in enumerate(curves):
        _curve(axes, one, strong=number == 0)
    if not measured:
        _explain(axes, curves[0])
    for number, points in enumerate(measured):
        axes.plot(
            points["tokens"],
            points["seconds"],
            marker="os^D"[number % 4],
            linestyle="none",
            markersize=6.5,
            markerfacecolor="none",
            markeredgewidth=1.5,
            markeredgecolor=PALETTE["ink"],
        )
        # Times rise to the right, so there is room to the upper left of the last one.
        last, height = max(zip(points["tokens"], points["seconds"], strict=True))
        note(axes, last / 1.5, height * 1.2, points["label"], fontsize=10, ha="right", va="bottom")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=across,
        ylabel="milliseconds a pass",
    )
    ends = [n for one in (*curves, *measured) for n in one["tokens"]]
    axes.set_xlim(min(ends) / 1.15, max(ends) * 1.25)
    times = [t for one in (*curves, *measured) for t in one["seconds"]]
    axes.set_ylim(min(times) / 2.1, max(times) * 1.5)
    axes.minorticks_off()
    ticks = [n for n in (1, 4, 16, 64, 256, 1024, 4096) if min(ends) <= n <= max(ends)]
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    steps = [m * 10.0**p for p in range(-7, 4) for m in (1, 2, 5)]
    marks = [t for t in steps if axes.get_ylim()[0] <= t <= axes.get_ylim()[1]]
    if len(marks) > 7:
        marks = [t for t in marks if f"{t:e}".startswith("1")]
    axes.set_yticks(marks, [f"{1e3 * t:,g}" for t in marks])
    return figure


def _finding(curves: Sequence[Mapping[str, Any]]) -> str:
    first = curves[0]
    text = f"Up to {_count(first['knee'])} tokens share a pass at the price of one"
    if len(curves) > 1:
        text += f"; in {curves[1]['label']}, up to {_count(curves[1]['knee'])}"
    return text


def _measured_finding(points: Mapping[str, Any], knee: float) -> str | None:
    """Say what rings show on both sides of the knee, or nothing if they lie on one side only."""
    price = dict(zip(points["tokens"], points["seconds"], strict=True))
    shared = max((n for n in price if 1 < n <= knee), default=None)
    longest = max(price)
    if 1 not in price or shared is None or longest <= knee:
        return None
    few, many = price[shared] / price[1], price[longest] / price[1]
    return (
        f"{shared:,} tokens in a pass took {_count(few)} times as long as one, "
        f"{longest:,} took {_count(many)} times"
    )


def faster(wide: Mapping[str, Any], narrow: Mapping[str, Any]) -> str:
    """Say how much faster a step was with narrow weights, for one answer and for the most."""
    times = [a / b for a, b in zip(wide["seconds"], narrow["seconds"], strict=True)]
    return (
        f"In {narrow['label']} a step of one answer was {_count(times[0])} times as fast as in "
        f"{wide['label']}, a step of {narrow['tokens'][-1]} answers {_count(times[-1])} times"
    )


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _explain(axes: Any, one: Mapping[str, Any]) -> None:
    """Mark where decode and prefill stand on a curve, and say what another token costs there."""
    tokens, seconds, knee = one["tokens"], one["seconds"], one["knee"]
    if not tokens[0] < knee < tokens[-1] / 2:
        return
    tick = {"marker": "|", "markersize": 17, "markeredgewidth": 3.5}
    block = {"marker": "s", "markersize": 12, "markeredgewidth": 0}
    axes.plot(tokens[0], seconds[0], color=PALETTE["bytes"], clip_on=False, **tick)
    axes.plot(tokens[-1], seconds[-1], color=PALETTE["compute"], clip_on=False, **block)
    bold = {"fontweight": "bold"}
    note(axes, tokens[0], seconds[0] * 1.24, "decode", "bytes", va="bottom", **bold)
    note(axes, tokens[-1] / 1.2, seconds[-1], "prefill", "compute", ha="right", va="center", **bold)
    flat = tokens[0] ** 0.35 * knee**0.65
    height = _at(tokens, seconds, flat) * 1.1
    note(axes, flat, height, "one more token rides along", "bytes", ha="center", va="bottom")
    steep = knee**0.6 * tokens[-1] ** 0.4
    height = _at(tokens, seconds, steep)
    note(axes, steep / 1.12, height, "each token is paid for", "compute", ha="right", va="bottom")


def _curve(axes: Any, one: Mapping[str, Any], *, strong: bool) -> None:
    tokens, seconds, knee = one["tokens"], one["seconds"], one["knee"]
    look = {"linewidth": 3.0 if strong else 1.8, "linestyle": "-" if strong else (0, (5, 1.6))}
    height = _at(tokens, seconds, knee)
    inside = tokens[0] < knee < tokens[-1]
    cut = [(n, t) for n, t in zip(tokens, seconds, strict=True) if n < knee]
    rest = [(n, t) for n, t in zip(tokens, seconds, strict=True) if n >= knee]
    if inside:
        cut, rest = [*cut, (knee, height)], [(knee, height), *rest]
    for points, role in ((cut, "bytes"), (rest, "compute")):
        if points:
            axes.plot(*zip(*points, strict=True), color=PALETTE[role], **look)
    note(axes, tokens[0] * 1.12, seconds[0] / 1.12, one["label"], "bytes", va="top", fontsize=11)
    if inside:
        axes.plot(knee, height, "o", color=PALETTE["ink"], markersize=7 if strong else 5.5)
        above = knee < 3 * tokens[0]  # below it stands the curve's own label
        note(
            axes,
            knee * 1.06,
            height * (1.2 if above else 1 / 1.16),
            _count(knee),
            fontweight="bold" if strong else "normal",
            va="bottom" if above else "top",
            ha="center" if above else "left",
        )


def _at(tokens: Sequence[float], seconds: Sequence[float], wanted: float) -> float:
    """Return the time at `wanted` tokens, by a straight line between the two nearest."""
    for (n0, t0), (n1, t1) in zip(
        zip(tokens, seconds, strict=True),
        zip(tokens[1:], seconds[1:], strict=True),
        strict=False,
    ):
        if n0 <= wanted <= n1:
            return t0 + (t1 - t0) * (wanted - n0) / (n1 - n0)
    return seconds[-1] if wanted > tokens[-1] else seconds[0]
