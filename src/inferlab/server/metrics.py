"""What `/metrics` shows: counters and histograms of requests, and the engine as it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from inferlab.engine.request import Request
    from inferlab.engine.serving import Engine

_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_STEP_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)


class Metrics:
    """The server's own registry: nothing that another part of the process counts is in it."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._registry = engine, CollectorRegistry()
        self._registry.register(self)  # calls `collect`
        self.output_tokens = self._counter("output_tokens", "Tokens generated")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended requests")
        self._cached = self._counter(
            "cached_prompt_tokens", "Prompt tokens of ended requests that the cache held"
        )
        self._requests = self._counter("requests", "Requests that ended", "reason")
        self.rejected = self._counter("rejected", "Requests refused, by HTTP status", "status")
        self._ttft = self._histogram("ttft", "From arrival to the first token", _FIRST_S)
        self._tpot = self._histogram("tpot", "Time per output token after the first", _STEP_S)
        self._e2e = self._histogram("e2e", "From arrival to the last token", _FIRST_S)

    def finished(self, request: Request) -> None:
        """Count a request that ended, however it did."""
        completion = request.completion()
        self._requests.labels(completion.finish_reason).inc()
        self._prompt_tokens.inc(completion.prompt_tokens)
        self._cached.inc(completion.cached_tokens)
        if completion.ttft_s is not None:
            self._ttft.observe(completion.ttft_s)
            self._e2e.observe(completion.token_times[-1])
        if completion.tpot_s is not None:
            self._tpot.observe(completion.tpot_s)

    def text(self) -> bytes:
        """Return all of it in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's own figures, read as it runs."""
        engine, blocks = self._engine, self._engine.blocks
        yield _gauge("requests_waiting", "Requests in the queue", len(engine.waiting))
        yield _gauge("requests_running", "Requests that hold blocks", len(engine.running))
        yield _gauge("kv_blocks", "Blocks of the KV cache in all", blocks.total)
        yield _gauge("kv_blocks_free", "Blocks that a request could get now", blocks.free)
        yield CounterMetricFamily(
            "inferlab_preemptions", "Requests sent back to the queue", value=engine.preemptions
        )
        yield CounterMetricFamily("inferlab_steps", "Steps of the engine", value=engine.steps)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"inferlab_{name}", what, labels, registry=self._registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        name = f"inferlab_{name}_seconds"
        return Histogram(name, what, buckets=buckets, registry=self._registry)


def _gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"inferlab_{name}", what, value=value)
