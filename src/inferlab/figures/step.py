"""Where the time of one pass goes: prediction beside the clock, and the whole as a waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferlab.errors import InferlabError
from inferlab.figures.draw import canvas, note, rows
from inferlab.figures.style import PALETTE, ROLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def prediction(compute: float, memory: float, measured: float, *, what: str = "step") -> Figure:
    """Draw two predicted times and the measured one, in seconds, for one pass called `what`."""
    for field, value in (("compute", compute), ("memory", memory), ("measured", measured)):
        if value <= 0:
            raise InferlabError(f"{field} is {value}: it must be a time in seconds above 0")
    better, name = max((memory, "bytes"), (compute, "arithmetic"))
    other, second = min((memory, "bytes"), (compute, "arithmetic"))
    if better <= measured:
        title = (
            f"The {name} alone explain{'s' if name == 'arithmetic' else ''} "
            f"{_share(better / measured)} of the {what}, the {second} {_share(other / measured)}"
        )
    else:
        title = (
            f"The {what} took {_share(measured / better)} of what the {name} predict: "
            "one of the two numbers is off"
        )
    figure, axes = canvas(title, 2.4)
    rows(axes, ["operations ÷\noperations/s", "bytes ÷\nbytes/s", "the clock"])
    values = [compute, memory, measured]
    axes.barh(
        range(3), values, height=0.56, color=[PALETTE[r] for r in ("compute", "bytes", "wait")]
    )
    for row, (value, role) in enumerate(zip(values, ("compute", "bytes", "ink"), strict=True)):
        text = _time(value, max(values))
        note(axes, value + 0.015 * max(values), row, text, role, va="center", fontweight="bold")
    _clock(axes, max(values))
    return figure


def waterfall(
    parts: Sequence[tuple[str, float, str]], measured: float | None = None, *, what: str = "step"
) -> Figure:
    """Draw the parts of one pass, each starting where the last one ended, then their sum.

    A part is (name, seconds, role), its role one of "compute", "bytes", "kv" and "wait". What
    `measured` has beyond their sum is drawn as a part of its own, waiting.
    """
    shown = list(parts)
    for name, seconds, role in shown:
        if role not in ROLES[:4]:
            raise InferlabError(f"role of {name} is {role!r}: one of {', '.join(ROLES[:4])}")
        if seconds < 0:
            raise InferlabError(f"seconds of {name} is {seconds}: it must not be negative")
    known = sum(seconds for _, seconds, _ in shown)
    total = known if measured is None else measured
    if measured is not None and measured > known:
        shown.append(("everything else", measured - known, "wait"))
    waits = sum(seconds for _, seconds, role in shown if role == "wait")
    moves = sum(seconds for _, seconds, role in shown if role in ("bytes", "kv"))
    whole = max(known, total)
    byte, wait = _share(moves / whole), _share(waits / whole)
    if moves >= waits:
        title = f"{byte} of a {what} is bytes on their way, {wait} is overhead"
    else:
        title = f"{wait} of a {what} is overhead, not bytes: those take {byte}"
    names = [name for name, _, _ in shown] + [f"the whole {what}"]
    figure, axes = canvas(title, 1.5 + 0.36 * len(names))
    rows(axes, names)
    start = 0.0
    for row, (_, seconds, role) in enumerate(shown):
        axes.barh(row, seconds, left=start, height=0.6, color=PALETTE[role])
        end = start + seconds
        axes.plot([end, end], [row + 0.3, row + 0.7], color=PALETTE["soft"], linewidth=0.9)
        text = f"{_time(seconds, whole)}, {_share(seconds / whole)}"
        note(axes, end + 0.015 * whole, row, text, role if role != "wait" else "ink", va="center")
        start = end
    axes.barh(len(shown), total, height=0.6, color="none", edgecolor=PALETTE["ink"], linewidth=1.4)
    note(
        axes,
        total + 0.015 * whole,
        len(shown),
        _time(total, whole),
        va="center",
        fontweight="bold",
    )
    _clock(axes, whole, room=1.34)
    return figure


def _share(value: float) -> str:
    return f"{100 * value:.2g} %" if value < 0.0995 else f"{100 * value:.0f} %"


def _time(seconds: float, longest: float) -> str:
    """Return a time in the unit of the axis, so that the bars' numbers can be compared."""
    return f"{seconds:.3g} s" if longest >= 1 else f"{1e3 * seconds:.3g} ms"


def _clock(axes: Axes, longest: float, room: float = 1.2) -> None:
    scale, unit = (1, "seconds") if longest >= 1 else (1e3, "milliseconds")
    axes.set_xlim(0, room * longest)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * scale:,.4g}")
    axes.set_xlabel(unit)
