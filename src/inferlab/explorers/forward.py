"""A token on its way through the layers: chapter 06's animation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferlab.errors import InferlabError
from inferlab.explorers import Explorer, show
from inferlab.figures import forward as drawing
from inferlab.figures import style
from inferlab.theory import costs, formats, roofline, units
from inferlab.theory.costs import Cost
from inferlab.theory.hardware import Hardware
from inferlab.theory.shapes import ModelShape

Case = tuple[ModelShape, Hardware, str]


def sink(cases: Sequence[Case]) -> Explorer:
    """Return animation "sink": a token sinks, weights stream. See `sink_data`."""
    data = sink_data(cases)
    stops = data["cases"][0]["stops"]
    moved, shape = sum(stop["bytes"] for stop in stops), cases[0][0]
    alt = (
        f"A token sinks through the {shape.layers} layers of {shape.name}, and each fetches its "
        f"weights from memory: {units.bytes_text(moved)} for one token."
    )
    still = style.themed(drawing.stack(shape, cases[0][2]), alt=alt).html
    return show("sink", data, alt=alt, still=still)


def sink_data(cases: Sequence[Case]) -> dict[str, Any]:
    """Return what animation "sink" shows for each (model, chip, dtype).

    `stops` are the embedding's row, each layer, and the output: bytes, operations and roofline
    seconds of each, for a token with no past. Layers count as equal shares of a decode step.
    """
    if not cases:
        raise InferlabError("cases is empty: at least one (model, chip, dtype) is needed")
    shown = []
    for number, (shape, chip, dtype) in enumerate(cases):
        step = costs.decode_step(shape, 0, dtype=dtype)
        body = Cost({name: part for name, part in step.parts.items() if name != "logits"})
        layer = Cost({name: part * (1 / shape.layers) for name, part in body.parts.items()})
        row = shape.hidden * formats.bytes_per_element(dtype)
        stops = [{"name": "Its row of the table", "bytes": row, "flops": 0.0}]
        stops[0]["seconds"] = row / chip.bandwidth
        for index in range(shape.layers):
            stops.append(_stop(f"Layer {index + 1} of {shape.layers}", layer, chip, dtype))
        head = Cost({"logits": step.parts["logits"]})
        stops.append(_stop("The vocabulary", head, chip, dtype))
        label = f"{shape.name} on {chip.name}"
        shown.append({"key": str(number), "label": label, "layers": shape.layers, "stops": stops})
    return {"cases": shown}


def _stop(name: str, cost: Cost, chip: Hardware, dtype: str) -> dict[str, Any]:
    seconds = roofline.place(cost, chip, dtype).seconds
    return {"name": name, "bytes": cost.bytes, "flops": cost.flops, "seconds": seconds}
