"""A day at the engine with no model: its own scheduler and blocks, and theory's time for each pass.

What is scheduled, chunked, shared and preempted is decided by the code that serves real requests.
Only the passes are left out: each takes what `theory` says of it on some chip. So the film of a
busy engine is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inferlab.engine import trace
from inferlab.engine.blocks import BlockPool
from inferlab.engine.request import Request
from inferlab.engine.sampling import SamplingParams
from inferlab.engine.scheduler import Plan, Scheduler
from inferlab.errors import InferlabError
from inferlab.theory import costs, roofline
from inferlab.theory.hardware import Hardware
from inferlab.theory.shapes import ModelShape

_STEPS = 100_000


@dataclass(frozen=True)
class Arrival:
    """Somebody who asks: when, with which prompt, and for how long an answer."""

    name: str
    at: float
    """Seconds."""
    prompt: Sequence[int]
    """Token ids; who begins with the same ones shares blocks."""
    answer: int
    """Tokens."""


@dataclass(frozen=True)
class Frame:
    """One step: what ran in it, and who held which block when it ended. Requests by their id."""

    began_s: float
    ended_s: float
    decode: list[int]
    chunks: list[tuple[int, int]]
    scheduled: list[tuple[int, int]]
    """Who came from the queue, and how many tokens of the cache they found."""
    preempted: list[int]
    tables: dict[int, list[int]]
    """The blocks of each who runs."""
    kept: list[int]
    """Blocks that are free, but whose content can still be found."""
    blocks: int
    """All there are."""

    @property
    def holders(self) -> list[list[int]]:
        """For each block who holds it."""
        found: list[list[int]] = [[] for _ in range(self.blocks)]
        for who, table in self.tables.items():
            for index in table:
                found[index].append(who)
        return found


@dataclass(frozen=True)
class Film:
    """Requests with their events, and the steps in which they ran."""

    requests: list[Request]
    names: list[str]
    frames: list[Frame]
    block: int
    """Tokens of a block."""

    def as_dict(self) -> dict[str, Any]:
        """Return what pictures take: strict JSON, times in seconds since the first arrival."""
        told = trace.as_dicts(self.requests)
        steps = [
            {
                "from": frame.began_s,
                "to": frame.ended_s,
                "decode": frame.decode,
                "chunks": [list(chunk) for chunk in frame.chunks],
                "scheduled": [list(entry) for entry in frame.scheduled],
                "preempted": frame.preempted,
                "holders": frame.holders,
                "kept": sorted(frame.kept),
            }
            for frame in self.frames
        ]
        requests = [{"name": name} | one for name, one in zip(self.names, told, strict=True)]
        return {"block": self.block, "requests": requests, "steps": steps}


class _Pool(BlockPool):
    @property
    def kept(self) -> list[int]:
        return list(self._kept)


@dataclass
class _Clock:
    """The time of passes: theory's, of one model on one chip."""

    shape: ModelShape
    chip: Hardware
    dtype: str
    now: float = field(default=0.0)

    def spend(self, cost: costs.Cost) -> None:
        self.now += roofline.place(cost, self.chip, self.dtype).seconds

    def decode(self, contexts: Sequence[int]) -> None:
        middle = round(sum(contexts) / len(contexts))
        self.spend(costs.decode_step(self.shape, middle, len(contexts), dtype=self.dtype))

    def chunk(self, tokens: int, context: int) -> None:
        self.spend(costs.prefill(self.shape, tokens, context=context, dtype=self.dtype))


def rehearse(
    arrivals: Sequence[Arrival],
    shape: ModelShape,
    chip: Hardware,
    dtype: str = "bf16",
    *,
    blocks: int,
    block: int = 16,
    max_batch: int = 8,
    step_tokens: int = 64,
) -> Film:
    """Return the film of these arrivals before an engine with so many blocks, until all is quiet.

    A step is one decode pass for all rows that write, then one pass for each chunk, as in
    `Engine`. Raises InferlabError where a prompt or its answer can never fit.
    """
    pool = _Pool(blocks, block)
    scheduler = Scheduler(pool, max_batch=max_batch, step_tokens=step_tokens)
    clock = _Clock(shape, chip, dtype)
    coming = sorted(arrivals, key=lambda one: one.at)
    requests = [_request(number, one, blocks * block) for number, one in enumerate(coming, 1)]
    queue, frames = list(requests), []
    while queue or scheduler.waiting or scheduler.running:
        if not (scheduler.waiting or scheduler.running):
            clock.now = max(clock.now, queue[0].start)
        while queue and queue[0].start <= clock.now:
            scheduler.add(queue.pop(0))
        began, plan = clock.now, scheduler.plan()
        _run(plan, scheduler, clock)
        frames.append(
            Frame(
                began,
                clock.now,
                [request.id for request in plan.decode],
                [(request.id, tokens) for request, tokens in plan.chunks],
                [(r.id, e.tokens) for r in plan.scheduled for e in r.events if e.time_s == began],
                [request.id for request, _ in plan.preempted],
                {request.id: list(request.table) for request in scheduler.running},
                pool.kept,
                blocks,
            )
        )
        if len(frames) == _STEPS:
            raise InferlabError(f"arrivals keep the engine busy for more than {_STEPS:,} steps")
    return Film(requests, [one.name for one in coming], frames, block)


def _request(number: int, one: Arrival, room: int) -> Request:
    if len(one.prompt) + one.answer - 1 > room:
        raise InferlabError(
            f"{one.name} needs {len(one.prompt) + one.answer - 1} positions: all blocks hold {room}"
        )
    params = SamplingParams(max_new_tokens=one.answer, ignore_eos=True)
    request = Request(list(one.prompt), params, context=room + 1, start=one.at)
    request.id = number
    request.events.append(trace.Event(one.at, "arrived"))
    return request


def _run(plan: Plan, scheduler: Scheduler, clock: _Clock) -> None:
    """Take a step's requests further, as `Engine.step` does, with tokens that mean nothing."""
    began = clock.now
    for request, lost in plan.preempted:
        request.events.append(trace.Event(began, "preempted", lost))
    for request in plan.scheduled:
        if not request.token_ids:
            request.cached_tokens = request.computed
        request.events.append(trace.Event(began, "scheduled", request.computed))
    if plan.decode:
        clock.decode([request.computed for request in plan.decode])
        for request in plan.decode:
            scheduler.fill(request, 1)
            _take(request, scheduler, clock.now, began)
    for request, tokens in plan.chunks:
        began = clock.now
        clock.chunk(tokens, request.computed)
        scheduler.fill(request, tokens)
        request.events.append(trace.Event(clock.now, "chunk", tokens, began))
        if request.computed == request.length:
            _take(request, scheduler, clock.now)


def _take(request: Request, scheduler: Scheduler, now: float, began: float | None = None) -> None:
    request.take(-(request.id << 20) - len(request.token_ids), now)  # like nobody else's
    request.events.append(trace.Event(now, "token", began_s=began))
    if request.done:
        scheduler.remove(request)
        request.events.append(trace.Event(now, "finished"))
