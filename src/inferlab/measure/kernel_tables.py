"""What `inferlab bench kernels` prints: times, machine code, traffic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from inferlab.kernels.gpu.compiled import Compiled
from inferlab.theory import units


def times(found: Mapping[str, Any]) -> Table:
    """Show what `kernels.bench` found: a line for each op, size and backend."""
    made = _table("Op", "Work", "Backend", "Median", "Rate", "Of the limit")
    for case in found["cases"]:
        for index, (backend, side) in enumerate(case["backends"].items()):
            if case["memory_bound"]:
                rate = units.rate_text(side["bytes_per_second"])
            else:
                rate = units.text(side["flops_per_second"], "FLOP/s")
            first = (case["op"], case["label"]) if not index else ("", "")
            shown = (backend, units.seconds_text(side["seconds"]), rate, f"{side['fraction']:.0%}")
            made.add_row(*first, *shown)
    return made


def machine_code(found: Iterable[Compiled]) -> Group:
    """Show what a compiler made of each kernel: a table an op, a line for each target."""
    kernels: dict[str, dict[str, list[Compiled]]] = {}
    for one in found:
        kernels.setdefault(one.op, {}).setdefault(one.label, []).append(one)
    tables = []
    for op, configurations in kernels.items():
        columns = ("Shared", "Regs", "Spilled", "Matrix", "16 B loads", "")
        tables.append(_table(op, "Target", *columns))
        for label, some in configurations.items():
            for index, one in enumerate(some):
                tables[-1].add_row(
                    "" if index else escape(label),
                    one.target,
                    units.binary_bytes_text(one.shared_bytes),
                    str(one.registers),
                    units.bytes_text(one.spilled_bytes),
                    str(one.matrix_instructions),
                    f"{one.wide_loads} of {one.loads}",
                    _verdict(one.good, "; ".join(one.faults)),
                )
    return Group(*tables)


def traffic(found: Iterable[Mapping[str, Any]]) -> Table:
    """Show what each kernel moves against the fewest bytes that it must."""
    made = _table("Op", "Work", "Must move", "Loads", "Stores", "Ratio", "")
    for one in found:
        fault = "moves too little" if one["ratio"] < 1 else "moves too much"
        if one["outside_bytes"]:
            fault = f"{units.bytes_text(one['outside_bytes'])} outside its tensors"
        verdict = _verdict(one["good"], fault)
        if one["good"] and not one["memory_bound"]:
            verdict = Text("not bound by memory")
        made.add_row(
            one["op"],
            one["label"],
            units.bytes_text(one["fewest_bytes"]),
            units.bytes_text(one["loaded_bytes"]),
            units.bytes_text(one["stored_bytes"]),
            f"{one['ratio']:.3f}",
            verdict,
        )
    return made


def _verdict(good: bool, fault: str) -> Text:
    return Text("good", "green") if good else Text(fault, "bold red")


def _table(*columns: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        words = not index or column in ("Work", "Target", "Backend", "")
        made.add_column(column, justify="left" if words else "right", no_wrap=column == "Op")
    return made
