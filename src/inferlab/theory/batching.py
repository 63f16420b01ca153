"""Who shares a pass: batches that end together, what a batch gains and costs, what chunks do.

The continuous counterpart of `static` is `queueing.serve`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inferlab.errors import InferlabError
from inferlab.theory import costs, formats, limits, queueing, roofline
from inferlab.theory.hardware import Hardware
from inferlab.theory.latency import RequestTimes
from inferlab.theory.queueing import Job, PassCosts, Served, Step
from inferlab.theory.shapes import ModelShape

#: Answers in a decode step, and tokens of a prompt in a pass, at which prices are worked out.
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (1, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)


def pass_costs(
    shape: ModelShape, chip: Hardware, dtype: str = "bf16", *, chips: int = 1, mixed: bool = False
) -> PassCosts:
    """Return the least seconds of passes on a chip, as `queueing.serve` takes them.

    What a cached token adds is the reading of its keys and values. Windows are not counted: for
    models that have them it is too much.
    """

    def seconds(cost: costs.Cost) -> float:
        return roofline.place(cost, chip, dtype, chips).seconds

    kv = costs.kv_bytes_per_token(shape, formats.activation_format(dtype))
    return PassCosts(
        decode={n: seconds(costs.decode_step(shape, 0, n, dtype=dtype)) for n in ROWS},
        prefill={n: seconds(costs.prefill(shape, n, dtype=dtype)) for n in TOKENS},
        per_context=kv / (chip.bandwidth * chips),
        mixed=mixed,
    )


@dataclass
class Static(Served):
    """What became of the jobs; `wasted` are rows that were computed for answers already over."""

    wasted: int = 0


def static(jobs: Sequence[Job], seconds: Callable[[Step], float], *, max_batch: int = 16) -> Static:
    """Play the jobs through a server whose batches begin together and end together.

    Whoever has arrived is taken, up to `max_batch`. All their prompts are read in the first step,
    and then the batch writes until its longest answer is over; the others' rows stay in it. Who
    arrives meanwhile waits for its end.
    """
    if max_batch < 1:
        raise InferlabError(f"max_batch is {max_batch}: it must be at least 1")
    queue = sorted(range(len(jobs)), key=lambda number: jobs[number].arrived)
    pieces: list[list[float]] = [[] for _ in jobs]
    served = Static([], [0.0] * len(jobs))
    now = 0.0
    while queue:
        now = max(now, jobs[queue[0]].arrived)
        batch = [number for number in queue if jobs[number].arrived <= now][:max_batch]
        queue = queue[len(batch) :]
        for step in range(max(jobs[number].output for number in batch)):
            alive = [number for number in batch if jobs[number].output > step]
            if step:
                context = sum(jobs[number].prompt + step - 1 for number in alive)
                spent = seconds(Step(len(batch), context=context))
                served.rows += len(alive)
                served.wasted += len(batch) - len(alive)
            else:
                spent = seconds(Step(0, tuple(jobs[number].prompt for number in batch)))
                for number in batch:
                    served.started[number] = now
            now += spent
            served.busy += spent
            served.steps += 1
            for number in alive:
                pieces[number].append(now)
    served.requests = [
        RequestTimes(job.arrived, tuple(times)) for job, times in zip(jobs, pieces, strict=True)
    ]
    return served


def sweep(
    shape: ModelShape,
    chip: Hardware,
    batches: Sequence[int],
    context: int = 0,
    *,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    chips: int = 1,
) -> dict[str, Any]:
    """Return what a growing batch does: `batches`, `tpot` (seconds), `rate` (tokens/s of all).

    `most` is the largest batch whose caches of `context` tokens fit, None if nothing says.
    """
    steps = [costs.decode_step(shape, context, n, dtype=dtype, kv_dtype=kv_dtype) for n in batches]
    tpot = [roofline.place(step, chip, dtype, chips).seconds for step in steps]
    most = None
    if context:
        most = limits.sequences_that_fit(
            shape, chip, context, dtype=dtype, kv_dtype=kv_dtype, chips=chips
        )
    return {
        "batches": list(batches),
        "tpot": tpot,
        "rate": [n / t for n, t in zip(batches, tpot, strict=True)],
        "most": most,
    }


def chunked(
    seconds: Callable[[Step], float], prompt: int, chunks: Sequence[int], *, readers: int = 1
) -> dict[str, Any]:
    """Return what chunks of a prompt do to `readers` whose answers are being written.

    For each of `chunks` (tokens of the prompt in a step): `gap`, the longest time that a reader
    waits for a token, and `ttft`, the time until the prompt's own first token; both in seconds.
    `quiet` is the gap while nobody else is there.
    """
    answer = max(-(-prompt // min(chunks)) + 3, 8)
    first = [Job(0.0, 1, answer)] * readers
    calm = queueing.serve(first, seconds, max_batch=readers + 1, step_tokens=readers + prompt)
    before = calm.requests[0].pieces
    quiet = before[2] - before[1]
    arrived = (before[1] + before[2]) / 2
    gaps, waits = [], []
    for size in chunks:
        served = queueing.serve(
            [*first, Job(arrived, prompt, 1)],
            seconds,
            max_batch=readers + 1,
            step_tokens=readers + size,
        )
        gaps.append(max(served.requests[0].itl))
        waits.append(served.requests[-1].ttft)
    return {"chunks": list(chunks), "gap": gaps, "ttft": waits, "quiet": quiet}
