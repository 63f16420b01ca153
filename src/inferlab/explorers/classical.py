"""A shallow formula against stacked matrices: chapter 01's animation."""

from __future__ import annotations

from typing import Any

from inferlab.explorers import Explorer, show
from inferlab.figures import classical as drawing
from inferlab.figures import style
from inferlab.theory import classical, costs
from inferlab.theory.costs import Part
from inferlab.theory.shapes import ModelShape

Row = dict[str, Any]


def rows(shape: ModelShape, comparisons: float, depth: int) -> list[Row]:
    """Return what one answer costs: digits by four classical models, then a token of `shape`.

    `comparisons` are those of a forest for one picture, `depth` the longest walk of a tree; all
    in float32 at batch 1.
    """
    lenet = classical.lenet5()
    step = costs.decode_step(shape, 0, dtype="fp32")
    block = Part(step.parts["projections"].flops, step.parts["projections"].bytes)
    block = (block + step.parts["ffn"]) * (1 / shape.layers)
    found = [
        ("linear SVM", classical.logistic_regression(64, 10), 1, "ten dot products"),
        ("logistic regression", classical.logistic_regression(64, 10), 1, "ten dot products"),
        ("random forest", classical.random_forest(comparisons), depth, "a hundred walks"),
        ("LeNet-5", sum(lenet.values(), Part()), len(lenet), "five layers, one after another"),
        (f"a block of {shape.name}", block, 7, "seven matrices"),
        (shape.name, step.total, 7 * shape.layers + 1, "all blocks and the vocabulary"),
    ]
    return [
        {"name": name, "flops": part.flops, "bytes": part.bytes, "steps": steps, "what": what}
        for name, part, steps, what in found
    ]


def shallow(shape: ModelShape, comparisons: float, depth: int) -> Explorer:
    """Return animation "shallow": operations of one answer, model by model. See `rows`."""
    models = sorted(rows(shape, comparisons, depth), key=lambda row: row["flops"])
    first, last = models[0], models[-1]
    alt = (
        f"One answer of {len(models)} models on a logarithmic axis of operations, from "
        f"{first['flops']:,.0f} for {first['name']} to {last['flops']:.3g} for {last['name']}."
    )
    still = style.themed(drawing.answers(models), alt=alt).html
    return show("shallow", {"models": models}, alt=alt, still=still)
