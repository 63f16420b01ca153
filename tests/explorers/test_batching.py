"""The Gantt chart schedules like the servers of `theory`, and like the engine's own scheduler."""

from __future__ import annotations

import random

import pytest

from inferlab.explorers import batching as explorer
from inferlab.explorers import script
from inferlab.theory import batching, hardware, models, queueing
from inferlab.theory.queueing import Job, PassCosts

EIGHT, H100 = models.get("llama-3.1-8b"), hardware.get("h100-sxm")
PRICES = batching.pass_costs(EIGHT, H100)
ANSWERS = (12, 60, 20, 44, 16, 100)
LOADS = {
    "six at once": [Job(0.0, 200, n) for n in ANSWERS],
    "a long prompt": [Job(0.0, 50, 60), Job(0.1, 2048, 8)],
}
MACHINES = {
    "8B, H100": PRICES,
    "slow": PassCosts({1: 0.016, 16: 0.05}, {1: 0.016, 64: 0.14, 1024: 1.7}, 1e-6),
}


def settings(count: int) -> list[dict]:
    draw = random.Random(12)
    return [
        {
            "jobs": [
                {
                    "arrived": draw.choice((0.0, draw.uniform(0, 0.5))),
                    "prompt": draw.choice((1, draw.randint(2, 300), draw.randint(300, 3000))),
                    "output": draw.choice((1, 2, draw.randint(3, 60))),
                }
                for _ in range(draw.randint(1, 14))
            ],
            "machine": draw.choice(list(MACHINES)),
            "mode": draw.choice(("static", "continuous")),
            "maxBatch": draw.choice((1, 2, 3, 4, 8, 16)),
            "stepTokens": draw.choice((32, 64, 256, 4096)),
        }
        for _ in range(count)
    ]


def test_every_schedule_is_theorys(visit):
    cases = settings(300)
    page = visit(f"<script>const explorer = {script('gantt')};</script>").page
    prices = {name: explorer.price_data(one) for name, one in MACHINES.items()}
    found = page.evaluate(
        """([cases, prices]) => cases.map((one) => {
            const run = explorer.simulate(one.jobs, prices[one.machine], one);
            return { ...run, ...explorer.summary(run), count: run.steps.length }; })""",
        [cases, prices],
    )
    for case, got in zip(cases, found, strict=True):
        jobs = [Job(**one) for one in case["jobs"]]
        seconds, limit = MACHINES[case["machine"]], case["maxBatch"]
        if case["mode"] == "static":
            served = batching.static(jobs, seconds, max_batch=limit)
            assert got["wasted"] == served.wasted
        else:
            served = queueing.serve(jobs, seconds, max_batch=limit, step_tokens=case["stepTokens"])
            assert got["wasted"] == 0
        assert (got["count"], got["rows"]) == (served.steps, served.rows)
        assert got["busy"] == pytest.approx(served.busy, rel=1e-9)
        gaps = [gap for request in served.requests for gap in request.itl]
        assert got["gap"] == pytest.approx(max(gaps, default=0), rel=1e-9)
        for request, seen, start in zip(
            served.requests, got["requests"], served.started, strict=True
        ):
            assert seen["pieces"] == pytest.approx(request.pieces, rel=1e-9)
            assert seen["started"] == pytest.approx(start, rel=1e-9)


def test_theorys_server_schedules_like_the_engine():
    """Step by step, the rows and chunks of the scheduler that serves real requests."""
    scheduler = pytest.importorskip("inferlab.engine.scheduler")
    from inferlab.engine.blocks import BlockPool
    from inferlab.engine.request import Request
    from inferlab.engine.sampling import SamplingParams

    for case in settings(60):
        jobs = [Job(0.0, one["prompt"], one["output"]) for one in case["jobs"]]
        steps: list[queueing.Step] = []

        def seconds(step, steps=steps):
            steps.append(step)
            return 1.0

        limits = {"max_batch": case["maxBatch"], "step_tokens": case["stepTokens"]}
        queueing.serve(jobs, seconds, **limits)
        real = scheduler.Scheduler(BlockPool(5000, 16), **limits)
        for number, job in enumerate(jobs):
            params = SamplingParams(max_new_tokens=job.output, ignore_eos=True)
            prompt = [-number * 10_000 - i for i in range(job.prompt)]
            request = Request(prompt, params, context=100_000, start=0.0)
            request.id = number
            real.add(request)
        for step in steps:
            plan = real.plan()
            assert len(plan.decode) == step.rows
            assert tuple(size for _, size in plan.chunks) == step.chunks
            read = [request.computed for request in plan.decode]
            read += [request.computed for request, _ in plan.chunks]
            assert sum(read) == step.context
            for request, size in [*((r, 1) for r in plan.decode), *plan.chunks]:
                real.fill(request, size)
                if request.computed == request.length:
                    request.take(-1 - request.id, 0.0)
                    if request.done:
                        real.remove(request)
        assert not real.running
        assert not real.waiting


def test_settings_change_the_schedule(visit):
    visited = visit(explorer.gantt(LOADS, MACHINES).html, reduced_motion=True)
    page = visited.page

    def said(name: str) -> str:
        return page.locator(name).inner_text().replace("\u00a0", " ")

    jobs = LOADS["six at once"]
    served = batching.static(jobs, PRICES, max_batch=4)
    assert f"in {served.steps} steps" in said(".sum")
    assert f"{served.wasted} rows were computed" in said(".sum")
    page.get_by_text("continuous", exact=True).click()
    other = queueing.serve(jobs, PRICES, max_batch=4, step_tokens=256)
    assert f"in {other.steps} steps" in said(".sum")
    batch = page.get_by_label("Answers at a time")
    batch.focus()
    page.keyboard.press("Home")
    alone = queueing.serve(jobs, PRICES, max_batch=1, step_tokens=256)
    assert f"in {alone.steps} steps" in said(".sum")
    page.get_by_text("a long prompt", exact=True).click()
    page.get_by_label("Time", exact=True).focus()
    page.keyboard.press("Home")
    assert "step 1. 0 answers get a token, 50 tokens of prompts are read, 0 wait" in said(".now")
    page.keyboard.press("End")
    assert "all is quiet" in said(".now")
    assert not visited.problems
