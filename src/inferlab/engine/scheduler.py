"""Who runs in the next step: continuous batching with chunked prefill, first come first served.

Iteration-level scheduling is Orca's (Yu et al., OSDI 2022); reading prompts in chunks beside the
rows that write is Sarathi-Serve's (Agrawal et al., OSDI 2024, arXiv:2403.02310).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from inferlab.engine.blocks import BlockPool
from inferlab.engine.request import Request
from inferlab.errors import InferlabError


@dataclass
class Plan:
    """One step: a token for each of `decode`, then so many tokens of each prompt in `chunks`."""

    decode: list[Request] = field(default_factory=list)
    chunks: list[tuple[Request, int]] = field(default_factory=list)
    scheduled: list[Request] = field(default_factory=list)
    """Those that came from the queue."""
    preempted: list[tuple[Request, int]] = field(default_factory=list)
    """Those that went back, with the tokens of cache that they lost."""


class Scheduler:
    """Requests that wait and requests that run, each in the order in which they arrived.

    A step has `step_tokens` tokens. Each of the rows that write gets one; what is left goes to
    prompts, the oldest first, so a long prompt is read in chunks and stops nobody. A request
    enters when there are blocks for all that it has so far. When a row needs one more block and
    none is free, the youngest that runs is preempted: it gives its blocks back and will be read
    again, its answer so far included. The oldest is never preempted, so it ends, and so does
    everyone after it.
    """

    def __init__(self, blocks: BlockPool, *, max_batch: int, step_tokens: int) -> None:
        if max_batch < 1:
            raise InferlabError(f"max_batch must be 1 or more, not {max_batch}")
        if step_tokens <= max_batch:
            raise InferlabError(
                f"step_tokens must be more than max_batch, {max_batch}, not {step_tokens}: "
                "the rows that write would leave nothing for prompts"
            )
        self.blocks, self.max_batch, self.step_tokens = blocks, max_batch, step_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a request, behind all that came before."""
        self.waiting.append(request)

    def plan(self) -> Plan:
        """Return the next step, with blocks for all that it will write."""
        plan = Plan()
        for request in list(self.running):
            # The youngest is preempted first, so nobody who has been planned loses its place.
            if request in self.running and request.writes and self._grow(request, plan):
                plan.decode.append(request)
        budget = self.step_tokens - len(plan.decode)
        for request in self.running:
            if not request.writes and budget:
                budget -= self._chunk(request, budget, plan)
        while self.waiting and budget and len(self.running) < self.max_batch:
            request = self.waiting[0]
            if not self._enter(request):
                break
            plan.scheduled.append(self.waiting.popleft())
            self.running.append(request)
            budget -= self._chunk(request, budget, plan)
        return plan

    def fill(self, request: Request, tokens: int) -> None:
        """Count `tokens` more positions of a request as computed; full blocks can be found."""
        size = self.blocks.size
        first, request.computed = request.computed // size, request.computed + tokens
        ids = request.ids
        for place in range(first, request.computed // size):
            inside = ids[place * size : (place + 1) * size]
            request.table[place] = self.blocks.keep(request.table, place, inside)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is, and free its blocks."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._free(request)

    def check(self) -> None:
        """Assert that blocks, rows and order are as they should be. Raises AssertionError."""
        self.blocks.check([request.table for request in self.running])
        assert len(self.running) <= self.max_batch, "more rows than max_batch"
        order = [request.id for request in (*self.running, *self.waiting)]
        assert order == sorted(set(order)), f"not in order of arrival: {order}"
        for request in self.waiting:
            assert not request.table, "one who waits holds blocks"
            assert not request.computed, "one who waits has computed positions"
        for request in self.running:
            room = len(request.table) * self.blocks.size
            assert request.computed < request.length, "nothing is left to compute"
            assert request.computed <= room, "more positions than blocks"
            assert not request.done, "one who is done runs"

    def _chunk(self, request: Request, budget: int, plan: Plan) -> int:
        tokens = min(budget, request.length - request.computed)
        plan.chunks.append((request, tokens))
        return tokens

    def _enter(self, request: Request) -> bool:
        """Give a request blocks for all tokens that it has, shared ones first, if there are any."""
        blocks, ids = self.blocks, request.ids
        shared = blocks.match(ids)
        for index in shared:
            blocks.hold(index)
        fresh = blocks.needed(len(ids)) - len(shared)
        # A block to spare for every row, or the next steps would send it back at once.
        if fresh + len(self.running) > blocks.free:
            blocks.release(shared)
            return False
        request.table = shared + [blocks.take() for _ in range(fresh)]
        request.computed = len(shared) * blocks.size
        return True

    def _grow(self, request: Request, plan: Plan) -> bool:
        """Make room for one more position, at the cost of younger ones; False if at its own."""
        while self.blocks.needed(request.computed + 1) > len(request.table):
            if self.blocks.free:
                request.table.append(self.blocks.take())
                continue
            victim = self.running.pop()
            plan.preempted.append((victim, victim.computed))
            self._free(victim)
            self.waiting.appendleft(victim)
            if victim is request:
                return False
        return True

    def _free(self, request: Request) -> None:
        self.blocks.release(request.table)
        request.table, request.computed = [], 0
