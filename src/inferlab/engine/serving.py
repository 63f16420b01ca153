"""The engine for many requests: they come and go between steps, and share every pass they can."""

from __future__ import annotations

import itertools
import time
from collections import deque

import torch

from inferlab.engine.blocks import BlockPool
from inferlab.engine.llm import LLM, Prompt
from inferlab.engine.paged_cache import PagedCache
from inferlab.engine.request import Request, answer
from inferlab.engine.sampling import SamplingParams
from inferlab.engine.scheduler import Plan, Scheduler
from inferlab.engine.trace import Event
from inferlab.errors import InferlabError

_CPU_BYTES = 1 << 30  # of keys and values, if nobody says how many
_GPU_SHARE = 0.8  # of the memory that the weights left free


class Engine:
    """Continuous batching over one model: `submit` requests, and call `step` while `busy`.

    A step takes one token further every row that writes, in one decode step, and reads up to
    `step_tokens` less that many of prompts, each chunk in a pass of its own. `kv_tokens` positions
    of cache, in blocks of `block`, serve all; what two prompts begin with in common is computed
    once, unless `prefix_reuse` is off. In float32 a request's greedy tokens are those that it
    gets alone, whatever runs beside it. One thread owns an engine.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        kv_tokens: int | None = None,
        block: int = 16,
        max_batch: int = 16,
        step_tokens: int = 256,
        prefix_reuse: bool = True,
    ) -> None:
        if llm.ranks > 1:
            raise InferlabError("an Engine is one process: several ranks answer by LLM alone")
        for name, value in (("block", block), ("kv_tokens", kv_tokens)):
            if value is not None and value < 1:
                raise InferlabError(f"{name} must be 1 or more tokens, not {value}")
        tokens = _kv_tokens(llm, max_batch) if kv_tokens is None else kv_tokens
        self.llm = llm
        self.blocks = BlockPool(-(-tokens // block), block, reuse=prefix_reuse)
        self.scheduler = Scheduler(self.blocks, max_batch=max_batch, step_tokens=step_tokens)
        model = llm.model
        self.cache = PagedCache(
            model.config, self.blocks.total, block, model.device, model.dtype, llm.cache_kernels
        )
        self.steps = self.preemptions = 0
        self._ids = itertools.count(1)
        self._touched: list[Request] = []  # got a token, or ended

    @property
    def waiting(self) -> deque[Request]:
        """Requests in the queue, the next one first."""
        return self.scheduler.waiting

    @property
    def running(self) -> list[Request]:
        """Requests that hold blocks, the oldest first."""
        return self.scheduler.running

    @property
    def busy(self) -> bool:
        """Whether a step has something to do or to say."""
        return bool(self.waiting or self.running or self._touched)

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        arrived: float | None = None,
    ) -> Request:
        """Queue a prompt that arrived at this time of `time.perf_counter`, or now.

        Raises InferlabError if it can't be run. An answer that would need more positions than
        the whole cache has ends there, with "length".
        """
        arrived = time.perf_counter() if arrived is None else arrived
        request = self.llm.request(prompt, params or SamplingParams(), arrived)
        most = self.blocks.total * self.blocks.size
        if len(request.prompt_ids) > most:
            raise InferlabError(
                f"prompt has {len(request.prompt_ids)} tokens: "
                f"the whole KV cache holds {most}; raise kv_tokens"
            )
        request.room = min(request.room, most - len(request.prompt_ids) + 1)
        request.id = next(self._ids)
        request.events.append(Event(arrived, "arrived"))
        if request.done:
            self._end(request, arrived)
        else:
            self.scheduler.add(request)
        return request

    def cancel(self, request: Request) -> None:
        """End a request where it is and free its blocks; nothing if it is done."""
        if not request.done:
            request.end("cancelled")
            self._end(request, time.perf_counter())

    def step(self) -> list[Request]:
        """Run one step; return the requests that got a token or ended since the last one."""
        if self.waiting or self.running:
            plan = self.scheduler.plan()
            self._note(plan)
            if plan.decode:
                self._decode(plan.decode)
            for request, tokens in plan.chunks:
                self._read(request, tokens)
            self.steps += 1
        touched, self._touched = self._touched, []
        return touched

    def check(self) -> None:
        """Assert the invariants of blocks and schedule. Raises AssertionError."""
        self.scheduler.check()

    def _note(self, plan: Plan) -> None:
        now = time.perf_counter()
        for request, lost in plan.preempted:
            request.events.append(Event(now, "preempted", lost))
        self.preemptions += len(plan.preempted)
        for request in plan.scheduled:
            if not request.token_ids:
                request.cached_tokens = request.computed
            request.events.append(Event(now, "scheduled", request.computed))

    def _decode(self, requests: list[Request]) -> None:
        """One token more for each of these."""
        began = time.perf_counter()
        lengths = [r.computed for r in requests]
        rows = self.cache.rows([r.table for r in requests], lengths)
        weights = self.llm.model.streamed_bytes / len(requests)
        for request, length in zip(requests, lengths, strict=True):
            request.count_step(weights, self.llm.kv_bytes(length))
        logits = self.llm.decode([r.token_ids[-1] for r in requests], rows)
        for request in requests:
            self.scheduler.fill(request, 1)
        self._take(requests, logits, began)

    def _read(self, request: Request, tokens: int) -> None:
        """Compute so many more tokens of a request; the last of them brings its next token."""
        began, first = time.perf_counter(), request.computed
        ids = torch.tensor([request.ids[first : first + tokens]], device=self.llm.model.device)
        row = self.cache.rows([request.table], [first])
        logits = self.llm.model.forward(ids, row.positions(tokens), row)
        self.scheduler.fill(request, tokens)
        request.events.append(Event(time.perf_counter(), "chunk", tokens, began))
        if request.computed == request.length:
            self._take([request], logits)

    def _take(
        self, requests: list[Request], logits: torch.Tensor, began: float | None = None
    ) -> None:
        try:
            answer(requests, logits)
        except InferlabError:  # of some row: the others' answers go on
            for request, row in zip(requests, logits, strict=True):
                try:
                    answer([request], row[None])
                except InferlabError as error:
                    request.end("error", str(error))
        for request in requests:
            now = time.perf_counter()
            if request.finish_reason != "error":
                now = request.start + request.token_times[-1]
                request.events.append(Event(now, "token", began_s=began))
            if request.done:
                self._end(request, now)
            else:
                self._touched.append(request)

    def _end(self, request: Request, now: float) -> None:
        self.scheduler.remove(request)
        request.events.append(Event(now, "finished"))
        self._touched.append(request)


def _kv_tokens(llm: LLM, max_batch: int) -> int:
    """Return how many positions to keep, for `max_batch` sequences of the whole context at most."""
    import psutil

    device, most = llm.model.device, max_batch * llm.model.config.max_context
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0] * _GPU_SHARE)
    else:
        free = min(_CPU_BYTES, psutil.virtual_memory().available // 4)
    # Bytes of one position more: a window's are at its beginning what all others' are for ever.
    return max(1, min(most, int(free // llm.kv_bytes(1))))
