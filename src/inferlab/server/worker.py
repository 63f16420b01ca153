"""The thread that owns the engine.

An engine is no thread's but one's. HTTP lives on an event loop in another thread; commands go in
by a queue and are obeyed between two steps, and what a step brings goes out to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from inferlab.engine.sampling import SamplingParams, TokenLogprob
from inferlab.errors import InferlabError
from inferlab.server.protocol import ApiError

if TYPE_CHECKING:
    from inferlab.engine.request import Request
    from inferlab.engine.serving import Engine
    from inferlab.engine.trace import Event
    from inferlab.server.metrics import Metrics

log = logging.getLogger("inferlab.server")


@dataclass(frozen=True)
class Update:
    """What happened to one request of a call since its last update."""

    index: int
    """The place of the request's prompt in the call."""
    text: str
    events: list[Event]
    logprobs: list[TokenLogprob]
    done: bool


class Call:
    """The prompts of one HTTP request on their way: iterate over the updates as they come.

    That raises ApiError if the engine fails or stops in between, or the call's seconds are over.
    The prompts arrived at this time of `time.perf_counter`. If the call is traced an update comes
    for every event, else only for text.
    """

    def __init__(
        self,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        *,
        arrived: float,
        seconds: float,
        traced: bool = False,
    ) -> None:
        self.prompts, self.params, self.arrived, self.traced = prompts, params, arrived, traced
        self.requests: list[Request] = []
        """The engine's requests, once `accepted`; the event loop reads those that are done."""
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds
        self._queue: asyncio.Queue[Update | Exception | None] = asyncio.Queue()
        self._left = len(prompts)

    async def accepted(self) -> None:
        """Wait until the engine has taken all prompts. Raises InferlabError if it cannot."""
        await self._next()

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Update:
        if not self._left:
            raise StopAsyncIteration
        update = await self._next()
        assert update is not None
        self._left -= update.done
        return update

    async def _next(self) -> Update | None:
        try:
            async with asyncio.timeout_at(self._deadline):
                item = await self._queue.get()
        except TimeoutError:
            message = "the request took longer than it may"
            raise ApiError(504, message, code="timeout") from None
        if isinstance(item, Exception):
            raise item
        return item

    def post(self, item: Update | Exception | None) -> None:
        """Hand something to the event loop, from the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)


@dataclass(eq=False)
class _Seat:
    """A request in the engine, and how much of it was told."""

    call: Call
    index: int
    request: Request
    events: int = 0
    tokens: int = 0
    logprobs: int = 0


class Worker:
    """Runs an engine in a thread of its own: `submit`, `cancel` and `stop` are for the others.

    At most `max_waiting` requests wait beside those that the engine runs at a time. `history`
    keeps the last requests that finished, for the trace.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        *,
        max_batch: int = 16,
        max_waiting: int = 128,
        history: int = 100,
    ) -> None:
        self.engine, self.metrics = engine, metrics
        self.capacity = max_batch + max_waiting
        self.history: deque[Request] = deque(maxlen=history)
        self.dead: str | None = None
        """Why the engine takes no more requests; None while it does."""
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._seats: list[_Seat] = []
        self._load = 0  # requests that came and have not left
        self._lock = threading.Lock()  # of `_load`, and of the last word of a dying thread
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(self, call: Call) -> None:
        """Queue a call's prompts, from the event loop's thread. Raises ApiError at once."""
        if len(call.prompts) > self.capacity:
            most = f"prompt may be at most {self.capacity} at a time, not {len(call.prompts)}"
            raise ApiError(400, most, param="prompt")
        with self._lock:
            if self.dead:
                raise _stopped(self.dead)
            if self._load + len(call.prompts) > self.capacity:
                raise ApiError(429, "too many requests wait: try again", code="overloaded")
            self._load += len(call.prompts)
            self._commands.put(partial(self._submit, call))

    def cancel(self, call: Call) -> None:
        """Let a call end before the next step, from any thread; nothing if it has ended."""
        self._commands.put(partial(self._cancel, call))

    def stop(self, seconds: float = 10.0) -> None:
        """End every call with an error, then the thread; wait for it so many seconds."""
        self._commands.put(partial(self._end, "the server is shutting down"))
        if self._thread.is_alive():
            self._thread.join(seconds)

    # On the engine's thread

    def _run(self) -> None:
        while not self.dead:
            try:
                self._obey()
                if self.engine.busy and not self.dead:
                    self.engine.step()
                self._publish()
            except Exception as error:
                log.exception("the engine failed")
                self._recover(error)

    def _obey(self) -> None:
        """Carry out what came in; with nothing else to do, wait for it."""
        wait = not self.engine.busy
        with contextlib.suppress(queue.Empty):
            while not self.dead:
                self._commands.get(wait)()
                wait = False

    def _submit(self, call: Call) -> None:
        try:
            for prompt in call.prompts:
                request = self.engine.submit(prompt, call.params, arrived=call.arrived)
                call.requests.append(request)
        except Exception as error:
            for request in call.requests:
                self.engine.cancel(request)
            self._leave(len(call.prompts))
            if isinstance(error, InferlabError):
                call.post(error)
                return
            call.post(_failure(error))
            raise
        call.post(None)
        self._seats += [_Seat(call, index, request) for index, request in enumerate(call.requests)]

    def _cancel(self, call: Call) -> None:
        for request in call.requests:
            if not request.done:
                self.engine.cancel(request)

    def _publish(self) -> None:
        """Tell each call what the last step, or a command, brought it."""
        for seat in self._seats:
            request = seat.request
            events = request.events[seat.events :]
            logprobs = request.logprobs[seat.logprobs :]
            self.metrics.output_tokens.inc(len(request.token_ids) - seat.tokens)
            seat.events += len(events)
            seat.logprobs += len(logprobs)
            seat.tokens = len(request.token_ids)
            text, done = request.new_text(), request.done
            if text or done or logprobs or (seat.call.traced and events):
                seat.call.post(Update(seat.index, text, events, logprobs, done))
            if done:
                self.metrics.finished(request)
                self.history.append(request)
        ended = sum(seat.request.done for seat in self._seats)
        if ended:
            self._seats = [seat for seat in self._seats if not seat.request.done]
            self._leave(ended)

    def _recover(self, error: Exception) -> None:
        """Fail whoever is in the engine, and go on with an empty one; or die if it is broken."""
        self._fail(_failure(error))
        try:
            if self.engine.busy:
                self.engine.step()  # tells who was cancelled
            self.engine.check()
            assert not self.engine.busy, "requests are left in an engine that should be empty"
        except Exception as broken:
            log.exception("the engine is broken")
            self._end(f"the engine is broken ({broken})")

    def _end(self, why: str) -> None:
        with self._lock:
            self.dead = why
        self._fail(_stopped(why))
        with contextlib.suppress(queue.Empty):
            while True:  # whoever came before `dead` was set, and no one after
                command = self._commands.get_nowait()
                if isinstance(command, partial) and command.func == self._submit:
                    command.args[0].post(_stopped(why))

    def _fail(self, error: Exception) -> None:
        for seat in self._seats:
            with contextlib.suppress(Exception):  # it may be what failed
                self.engine.cancel(seat.request)
            seat.call.post(error)
        self._leave(len(self._seats))
        self._seats = []

    def _leave(self, requests: int) -> None:
        with self._lock:
            self._load -= requests


def _failure(error: Exception) -> ApiError:
    text = f"the engine failed: {type(error).__name__}: {error}"
    return ApiError(500, text, code="engine_error")


def _stopped(why: str) -> ApiError:
    return ApiError(503, why, code="stopped")
