"""What a pass's operations, or its bytes, are made of: one stacked bar for each way of counting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from inferlab.errors import InferlabError
from inferlab.figures.draw import canvas, fold, note, rows
from inferlab.figures.style import PALETTE
from inferlab.theory import units
from inferlab.theory.costs import Cost

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Shown name, the parts of a cost that it gathers, and how it is coloured as operations and bytes.
_GROUPS = (
    ("weights", ("weights", "projections", "ffn", "logits"), ("compute", 1.0), ("bytes", 1.0)),
    ("attention", ("attention",), ("compute", 0.5), ("kv", 0.65)),
    ("KV write", ("kv_write",), ("kv", 1.0), ("kv", 1.0)),
    ("activations", ("activations",), ("wait", 1.0), ("bytes", 0.55)),
    ("scores", ("scores",), ("wait", 0.5), ("bytes", 0.25)),
)


def grouped(cost: Cost, quantity: Literal["flops", "bytes"]) -> dict[str, float]:
    """Return operations or bytes of `cost` by the groups that a bar shows, empty ones left out."""
    known = {part for _, parts, _, _ in _GROUPS for part in parts}
    for name in cost.parts:
        if name not in known:
            raise InferlabError(f"part {name!r} of the cost: one of {', '.join(sorted(known))}")
    sums = {
        name: sum(getattr(cost.parts[part], quantity) for part in parts if part in cost.parts)
        for name, parts, _, _ in _GROUPS
    }
    return {name: value for name, value in sums.items() if value}


def bars(
    accounts: Mapping[str, Cost],
    quantity: Literal["flops", "bytes"] = "flops",
    *,
    title: str | None = None,
) -> Figure:
    """Draw one stacked bar of operations or bytes for each account of the same pass.

    `accounts` are costs by name, such as `nominal.prefill_accounts` returns; scores that are
    written out can be added to one as `Cost({"scores": Part(0, costs.score_bytes(...))})`.
    """
    if not accounts:
        raise InferlabError("accounts is empty: a bar needs at least one cost")
    unit = "FLOP" if quantity == "flops" else "B"
    sums = {name: grouped(cost, quantity) for name, cost in accounts.items()}
    totals = [sum(groups.values()) for groups in sums.values()]
    figure, axes = canvas(title or _finding(list(accounts), totals, unit), 1.7 + 0.46 * len(sums))
    rows(axes, [fold(name, 20) for name in sums])
    longest = max(totals)
    named: dict[str, tuple[float, str, float]] = {}
    for row, groups in enumerate(sums.values()):
        start = 0.0
        for name, _, as_flops, as_bytes in _GROUPS:
            value = groups.get(name, 0.0)
            role, alpha = as_flops if quantity == "flops" else as_bytes
            axes.barh(row, value, left=start, height=0.62, color=PALETTE[role], alpha=alpha)
            if value > named.get(name, (0.0, "", 0.0))[0]:
                named[name] = (value, role, start + value / 2)
            start += value
        text = units.count_text(start, unit, 4)
        note(axes, start + 0.012 * longest, row, text, va="center", fontweight="bold")
    # Each colour once, in words, above the bars.
    place = 0.0
    for name, (_, role, middle) in named.items():
        place = max(place, min(middle - 0.03 * longest, longest))
        note(axes, place, -0.52, name, role, fontsize=10.5, va="bottom")
        place += (0.022 * len(name) + 0.03) * longest
    axes.set_ylim(len(sums) - 0.5, -0.95)
    axes.set_xlim(0, 1.3 * longest)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: units.count_text(value, ""))
    axes.set_xlabel("operations in the pass (FLOP)" if unit == "FLOP" else "bytes in the pass")
    return figure


def _finding(names: list[str], totals: list[float], unit: str) -> str:
    first, last = (units.count_text(total, unit) for total in (totals[0], totals[-1]))
    if len(names) == 1:
        return f"{names[0]}: {first}"
    return f"{first} or {last}: it depends on what is counted"
