"""A server on a free port, before an engine that plays its part by the letter or the real one."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import openai
import pytest
import tiny
from tiny import EOS, ByteTokenizer

from inferlab.engine import LLM, SamplingParams
from inferlab.engine.sampling import TokenLogprob
from inferlab.engine.serving import Engine
from inferlab.engine.trace import Event
from inferlab.model import source, synthetic
from inferlab.server import run
from inferlab.server.app import Settings, create
from inferlab.server.metrics import Metrics
from inferlab.server.worker import Worker

BLOCK = 16


class FakeEngine:
    """Answers with the prompt in capitals, a byte a step; has the interface of `Engine`.

    `delay` is a step's seconds. What `failure` holds is raised by the next step; what `broken`
    holds, by `check`. A prompt that ends with "poison" ends in an error of its own.
    """

    def __init__(self, llm: LLM, *, max_batch: int = 4, blocks: int = 256) -> None:
        self.llm, self.max_batch = llm, max_batch
        self.waiting, self.running = deque(), []
        self.blocks = SimpleNamespace(total=blocks, free=blocks, used=0)
        self.steps = self.preemptions = 0
        self.delay, self.failure, self.broken = 0.0, None, None
        self._ids = itertools.count(1)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, prompt, params=None, *, arrived=None):
        request = self.llm.request(prompt, params or SamplingParams(), arrived)
        request.id = next(self._ids)
        request.events.append(Event(request.start, "arrived"))
        if request.done:
            self._end(request)
        else:
            self.waiting.append(request)
        return request

    def cancel(self, request) -> None:
        if not request.done:
            request.end("cancelled")
            self._end(request)

    def step(self):
        time.sleep(self.delay)
        if self.failure is not None:
            error, self.failure = self.failure, None
            raise error
        self.steps += 1
        while self.waiting and len(self.running) < self.max_batch:
            request = self.waiting.popleft()
            self.running.append(request)
            now = time.perf_counter()
            request.events += [
                Event(now, "scheduled"),
                Event(now, "chunk", len(request.prompt_ids), now),
            ]
        touched = list(self.running)
        for request in touched:
            answer = bytes(i for i in request.prompt_ids if i < 256).decode(errors="replace")
            ids = [*answer.upper().encode(), EOS]
            if answer.endswith("poison"):
                request.end("error", "logits are not finite")
                self._end(request)
                continue
            token = ids[len(request.token_ids) % len(ids)]
            if request.token_ids:
                request.count_step(1000 / len(touched), 10.0)
            if request.params.logprobs is not None:
                request.logprobs.append(TokenLogprob(token, -0.5, {token: -0.5, 33: -1.5}))
            now = time.perf_counter()
            request.take(token, now)
            request.events.append(Event(now, "token", began_s=now))
            if request.done:
                self._end(request)
        self._count()
        return touched

    def check(self) -> None:
        if self.broken is not None:
            raise self.broken
        self._count()

    def _end(self, request) -> None:
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        request.events.append(Event(time.perf_counter(), "finished"))
        self._count()

    def _count(self) -> None:
        lengths = [len(r.prompt_ids) + len(r.token_ids) for r in self.running]
        self.blocks.used = sum(-(-n // BLOCK) for n in lengths)
        self.blocks.free = self.blocks.total - self.blocks.used


class Running:
    """A server that runs in this process; `client` speaks OpenAI's protocol, `http` plain HTTP."""

    def __init__(self, engine, settings: Settings | None = None, **limits) -> None:
        self.engine = engine
        self.worker = Worker(engine, Metrics(engine), **limits)
        self._held = run.bind("127.0.0.1", 0)
        self.address, self.port = run.url(self._held), self._held.getsockname()[1]
        self.settings = settings or Settings(hosts={"localhost", "127.0.0.1", "[::1]"})
        self._listens = threading.Event()
        self.server = run.Server(create(self.worker, self.settings), self.worker, self._listens.set)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._held]})

    def __enter__(self) -> Running:
        self.worker.start()
        self._thread.start()
        assert self._listens.wait(120)
        key = self.settings.api_key or "none"
        self.http = httpx.Client(
            base_url=self.address, timeout=120, headers={"Authorization": f"Bearer {key}"}
        )
        self.client = openai.OpenAI(
            base_url=f"{self.address}/v1", api_key=key, max_retries=0, timeout=120
        )
        return self

    def __exit__(self, *error) -> None:
        self.http.close()
        self.client.close()
        self.stop()

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(120)
        assert not self._thread.is_alive()

    def ask(self, path="completions", **body) -> httpx.Response:
        return self.http.post(f"/v1/{path}", json=body)

    def metric(self, name: str) -> float:
        """Return the value of one line of /metrics, such as "inferlab_requests_waiting"."""
        lines = self.http.get("/metrics").text.splitlines()
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + " "))

    def until(self, truth, seconds: float = 60.0) -> None:
        """Wait until `truth()` holds; fail if it never does."""
        end = time.monotonic() + seconds
        while not truth():
            assert time.monotonic() < end, "it never came to be"
            time.sleep(0.005)


@pytest.fixture(scope="session")
def llm() -> LLM:
    """A tiny random model whose tokens are bytes."""
    model = synthetic.transformer(tiny.config(max_position_embeddings=512), seed=7, spread=0.3)
    return LLM(model, ByteTokenizer(answer=b""), name="tiny", kernels="torch")


@pytest.fixture
def serving() -> Iterator[object]:
    """Return a function that starts a server before an engine; all end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(Running(*args, **more))


@pytest.fixture(scope="module")
def shared(llm) -> Iterator[Running]:
    """A server for tests that leave nothing behind."""
    with Running(FakeEngine(llm)) as running:
        yield running


@pytest.fixture
def fake(llm, serving) -> Running:
    """A server before the engine that answers in capitals."""
    return serving(FakeEngine(llm))


@pytest.fixture
def make_fake(llm, serving):
    """Return a function that starts such a server with settings and limits of one's own."""
    return lambda settings=None, *, batch=4, **limits: serving(
        FakeEngine(llm, max_batch=batch), settings, max_batch=batch, **limits
    )


@pytest.fixture
def real(llm, serving) -> Running:
    """A server before the real engine and the tiny model."""
    return serving(Engine(llm, kv_tokens=2048, max_batch=8, step_tokens=64), max_batch=8)


@pytest.fixture(scope="session")
def smollm2() -> LLM:
    """The real model, on this machine's best kernels."""
    if source.installed() is None:
        pytest.skip("SmolLM2 is not installed: make setup")
    llm = LLM.load(device="cpu")
    llm.warm_up()
    return llm
