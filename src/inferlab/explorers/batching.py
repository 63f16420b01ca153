"""The batch as a Gantt chart: the explorer of chapter 12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferlab.explorers import Explorer, show
from inferlab.figures import batching as drawing
from inferlab.figures import style
from inferlab.theory import batching, queueing, units
from inferlab.theory.queueing import Job, PassCosts

START: dict[str, Any] = {"mode": "static", "maxBatch": 4, "stepTokens": 256}


def gantt(
    loads: Mapping[str, Sequence[Job]], machines: Mapping[str, PassCosts], **start: Any
) -> Explorer:
    """Return explorer "gantt": loads and machines by their label, from `START` changed by `start`.

    A machine is the price of its passes, each chunk in one of its own.
    """
    data = gantt_data(loads, machines, **start)
    settings = data["start"]
    jobs, prices = next(iter(loads.values())), next(iter(machines.values()))
    limit = {"max_batch": settings["maxBatch"]}
    served = {
        "static": batching.static(jobs, prices, **limit),
        "continuous": queueing.serve(jobs, prices, step_tokens=settings["stepTokens"], **limit),
    }
    ends = {key: max(r.pieces[-1] for r in one.requests) for key, one in served.items()}
    alt = (
        f"{len(jobs)} requests, one a line, {settings['maxBatch']} at a time: batches that end "
        f"together take {units.seconds_text(ends['static'])}, a batch that anyone joins at any "
        f"step {units.seconds_text(ends['continuous'])}; settings change the schedule, the batch "
        "and the tokens of a step."
    )
    title = f"{len(jobs)} requests, and anyone joins at any step"
    figure = drawing.schedules({"continuous": served["continuous"]}, title)
    still = style.themed(figure, alt=alt).html
    return show("gantt", data, alt=alt, still=still)


def gantt_data(
    loads: Mapping[str, Sequence[Job]], machines: Mapping[str, PassCosts], **start: Any
) -> dict[str, Any]:
    """Return what explorer "gantt" plays: jobs, prices of passes, and where it starts."""
    return {
        "loads": [
            {
                "key": str(number),
                "label": label,
                "jobs": [
                    {"arrived": job.arrived, "prompt": job.prompt, "output": job.output}
                    for job in jobs
                ],
            }
            for number, (label, jobs) in enumerate(loads.items())
        ],
        "machines": [
            {"key": str(number), "label": label} | price_data(prices)
            for number, (label, prices) in enumerate(machines.items())
        ],
        "start": {"load": "0", "machine": "0"} | START | start,
    }


def price_data(prices: PassCosts) -> dict[str, Any]:
    """Return the tables of `prices` as lists of (size, seconds), in order of size."""
    return {
        "decode": sorted(map(list, prices.decode.items())),
        "prefill": sorted(map(list, prices.prefill.items())),
        "per_context": prices.per_context,
    }
