"""Load for an engine in this very process, with no HTTP between: what the simulator imitates."""

from __future__ import annotations

import time
from collections.abc import Sequence

from inferlab import machine
from inferlab.engine import LLM, SamplingParams
from inferlab.engine.request import Request
from inferlab.engine.serving import Engine
from inferlab.measure import batch, passes
from inferlab.theory.latency import RequestTimes
from inferlab.theory.queueing import Job, PassCosts

ANSWERS = (1, 2, 4, 8, 16)
PROMPTS = (16, 32, 64, 128, 256)
CONTEXTS = (1, 512)
_FEWEST = 3  # jobs of a hurried run


def costs(llm: LLM) -> PassCosts:
    """Return the seconds of this machine's passes, medians of several, for the simulator."""
    return PassCosts.of_record(
        {
            "batch": {
                "answers": ANSWERS,
                "samples": [batch.step_samples(llm, count) for count in ANSWERS],
            },
            "passes": passes.price_samples(llm, PROMPTS),
            "context": {
                "tokens": CONTEXTS,
                "samples": [passes.decode_samples(llm, past) for past in CONTEXTS],
            },
        }
    )


def play(engine: Engine, jobs: Sequence[Job]) -> list[RequestTimes]:
    """Submit each job when it arrives, run the engine meanwhile, and return the times of all.

    An open loop: a job that arrives during a step counts from then, though the engine sees it at
    the step's end. Prompts are random tokens, and answers go on past their end. Times are seconds
    since the first step could begin. The first three jobs alone where `machine.hurried`.
    """
    if machine.hurried():
        jobs = jobs[:_FEWEST]
    ids = passes.random_ids(engine.llm, sum(job.prompt for job in jobs))
    order = sorted(range(len(jobs)), key=lambda number: jobs[number].arrived)
    prompts: dict[int, list[int]] = {}
    cut = 0
    for number, job in enumerate(jobs):
        prompts[number] = ids[cut : cut + job.prompt]
        cut += job.prompt
    requests: dict[int, Request] = {}
    start = time.perf_counter()
    while len(requests) < len(jobs) or engine.busy:
        now = time.perf_counter() - start
        while len(requests) < len(jobs) and jobs[order[len(requests)]].arrived <= now:
            number = order[len(requests)]
            job = jobs[number]
            params = SamplingParams(max_new_tokens=job.output, ignore_eos=True)
            requests[number] = engine.submit(prompts[number], params, arrived=start + job.arrived)
        if engine.busy:
            engine.step()
        else:
            time.sleep(max(0.0, jobs[order[len(requests)]].arrived - now))
    return [
        RequestTimes(job.arrived, tuple(job.arrived + at for at in requests[number].token_times))
        for number, job in enumerate(jobs)
    ]
