"""The tables at the back of the book: chips and models to sort, and others' results to look up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from inferlab.explorers import Explorer, show
from inferlab.figures import scoreboard as drawing
from inferlab.figures import style
from inferlab.theory import costs, hardware, measurements, models, units
from inferlab.theory.measurements import Measurement

Row = dict[str, Any]


def chips() -> Explorer:
    """Return the catalog of chips as a table to sort."""
    columns = [
        ("name", "Chip", "name"),
        ("year", "Year", "number"),
        ("rate", "FLOP/s, 16 bit", "number"),
        ("fp8", "FLOP/s, fp8", "number"),
        ("fp32", "FLOP/s, fp32", "number"),
        ("bandwidth", "Bandwidth", "number"),
        ("ridge", "Ridge, FLOP/B", "number"),
        ("memory", "Memory", "number"),
        ("sweep", "One sweep", "number"),
        ("kind", "Memory type", "text"),
        ("l2", "Last cache", "number"),
        ("source", "Source", "long"),
    ]
    caption = "Chips of the catalog: dense rates, capacities as devices report them"
    return _table(columns, [_chip(each) for each in hardware.all()], caption, "ridge")


def model_shapes() -> Explorer:
    """Return the catalog of models as a table to sort."""
    columns = [
        ("name", "Model", "name"),
        ("params", "Parameters, billion", "number"),
        ("active", "Active, billion", "number"),
        ("layers", "Layers", "number"),
        ("hidden", "Width", "number"),
        ("heads", "Heads", "number"),
        ("kv_heads", "KV heads", "number"),
        ("streamed", "Bytes a token, bf16", "number"),
        ("kv", "KV bytes a token", "number"),
        ("context", "Context", "number"),
        ("source", "Source", "long"),
    ]
    caption = "Models of the catalog: shapes, and what a token moves at 16 bits"
    return _table(columns, [_model(key) for key in models.names()], caption, "params")


def scoreboard() -> Explorer:
    """Return every published measurement that has a bound, set against it."""
    data = scoreboard_data()
    best = max(row["fraction"] for row in data["rows"])
    alt = (
        f"{len(data['rows'])} published measurements against the least time that their bytes and "
        f"operations need: none is above the roof, and the best reaches {100 * best:.0f} % of it."
    )
    still = style.themed(drawing.plot(data["rows"]), alt=alt).html
    return show("scoreboard", data, alt=alt, still=still)


def scoreboard_data() -> dict[str, Any]:
    """Return what explorer "scoreboard" shows, a row a measurement."""
    rows = []
    for each in measurements.published():
        fraction, bound = each.fraction_of_bound(), each.bound_seconds()
        if fraction is not None:
            rows.append(
                {
                    "kind": "decode" if each.is_decode else "prefill",
                    "title": f"{each.model}, {each.weights}, {_devices(each)}",
                    "engine": each.engine,
                    "detail": _detail(each),
                    "source": each.source,
                    "bound_s": bound,
                    "seconds": each.seconds,
                    "fraction": fraction,
                }
            )
    return {"rows": rows}


def _devices(each: Measurement) -> str:
    return each.device if each.chips == 1 else f"{each.chips} × {each.device}"


def _detail(each: Measurement) -> str:
    number = f"{each.value:,.4g}"
    if each.metric == "ttft_ms":
        return f"{number} ms to the first token of a prompt of {each.prompt:,}"
    unit = "tokens/s" if each.metric == "decode_tok_s" else "ms a token"
    return f"{number} {unit} after a prompt of {each.prompt:,}"


def _chip(each: hardware.Hardware) -> Row:
    wide = each.default_dtype
    sixteen = wide if wide != "fp32" else None
    return {
        "name": each.name,
        "year": _number(each.year, str(each.year)),
        "rate": _rate(each.flops.get(sixteen) if sixteen else None),
        "fp8": _rate(each.flops.get("fp8")),
        "fp32": _rate(each.flops.get("fp32")),
        "bandwidth": _number(each.bandwidth, units.rate_text(each.bandwidth)),
        "ridge": _number(each.ridge(wide), f"{each.ridge(wide):.1f} ({wide})"),
        "memory": _number(each.memory_bytes, units.bytes_text(each.memory_bytes or 0)),
        "sweep": _number(each.sweep_seconds, units.seconds_text(each.sweep_seconds or 0)),
        "kind": each.memory_type,
        "l2": _number(each.l2_bytes, units.bytes_text(each.l2_bytes or 0)),
        "source": each.source,
    }


def _model(key: str) -> Row:
    shape = models.get(key)
    streamed, kv = costs.streamed_weight_bytes(shape), costs.kv_bytes_per_token(shape)
    return {
        "name": shape.name,
        "params": _number(shape.params, _billions(shape.params)),
        "active": _number(shape.active_params, _billions(shape.active_params)),
        "layers": _number(shape.layers, str(shape.layers)),
        "hidden": _number(shape.hidden, f"{shape.hidden:,}"),
        "heads": _number(shape.heads, str(shape.heads)),
        "kv_heads": _number(shape.kv_heads, str(shape.kv_heads)),
        "streamed": _number(streamed, units.bytes_text(streamed)),
        "kv": _number(kv, f"{kv:,.0f}"),
        "context": _number(shape.max_context, f"{shape.max_context:,}"),
        "source": shape.source,
    }


def _number(value: float | None, text: str) -> list[Any] | None:
    return None if value is None else [value, text.strip()]


def _billions(count: float) -> str:
    return f"{count / 1e9:.3g}"


def _rate(value: float | None) -> list[Any] | None:
    return None if value is None else [value, units.text(value, "FLOP/s")]


def _table(
    columns: Sequence[tuple[str, str, str]], rows: list[Row], caption: str, sort: str
) -> Explorer:
    named = [dict(zip(("key", "title", "kind"), column, strict=True)) for column in columns]
    data = {"columns": named, "rows": rows, "caption": caption, "sort": [sort, "descending"]}
    return show("table", data, alt=caption, still=_plain(named, rows))


def _plain(columns: Sequence[Mapping[str, str]], rows: Sequence[Row]) -> str:
    """Return the table as HTML that needs no script."""

    def cell(row: Row, key: str) -> str:
        value = row[key]
        return f"<td>{escape(value[1] if isinstance(value, list) else value or '–')}</td>"

    head = "".join(f"<th>{escape(column['title'])}</th>" for column in columns)
    cells = ("".join(cell(row, column["key"]) for column in columns) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return (
        '<div style="overflow-x:auto"><table class="table">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
