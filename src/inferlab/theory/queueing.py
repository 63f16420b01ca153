"""Arrivals, queues, and a server of many requests that runs in no time at all.

`serve` plays a continuous-batching engine event by event: the same schedule as the real one, with
the time of each step taken from a function instead of a chip. `mg1_wait` is what theory says of a
queue before one server; the simulator with a batch of one must agree with it.

All times are seconds.
"""

from __future__ import annotations

import math
import random
import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from inferlab.errors import InferlabError
from inferlab.theory import costs, formats, latency, roofline
from inferlab.theory.hardware import Hardware
from inferlab.theory.latency import RequestTimes
from inferlab.theory.shapes import ModelShape

# Arrivals


def arrivals(rate: float, count: int, *, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Return when each of `count` requests arrives, the first at 0, `rate` a second on average.

    The gaps are gamma distributed with shape `burstiness`: 1 is a Poisson process, less comes in
    bursts, more comes evenly, and infinity is a metronome. The same seed gives the same pattern
    at every rate, stretched.
    """
    if not rate > 0 or math.isinf(rate):
        raise InferlabError(f"rate is {rate:g}: it must be positive requests a second")
    if count < 1:
        raise InferlabError(f"count is {count}: it must be at least 1")
    if not burstiness > 0:
        raise InferlabError(f"burstiness is {burstiness:g}: it must be positive; 1 is Poisson")
    draw = random.Random(seed)
    times = [0.0]
    for _ in range(count - 1):
        gap = 1.0
        if not math.isinf(burstiness):
            gap = draw.gammavariate(burstiness, 1 / burstiness)
        times.append(times[-1] + gap / rate)
    return times


# One queue, one server, in closed form


def mg1_wait(rate: float, service: float, cv2: float = 0.0) -> float:
    """Return the mean wait before service begins: Poisson arrivals, one server, first come first.

    `service` is the mean time of service and `cv2` its variance over the mean's square (the
    formula of Pollaczek and Khinchine). Raises where the queue would grow without end.
    """
    if not (rate >= 0 and service > 0 and cv2 >= 0):
        raise InferlabError("rate and cv2 must not be negative, and service must be positive")
    busy = rate * service
    if busy >= 1:
        raise InferlabError(f"rate x service is {busy:.3g}: from 1 on the queue grows without end")
    return busy / (1 - busy) * (1 + cv2) / 2 * service


def md1_wait(rate: float, service: float) -> float:
    """Return `mg1_wait` where every request takes exactly `service`."""
    return mg1_wait(rate, service, 0.0)


def mm1_wait(rate: float, service: float) -> float:
    """Return `mg1_wait` where times of service are exponential: twice as long as if all equal."""
    return mg1_wait(rate, service, 1.0)


# What a step costs


@dataclass(frozen=True, slots=True)
class Step:
    """What one engine step does: `rows` answers get a token, `chunks` of prompts are read.

    `context` counts the cached tokens that the rows look back at, all rows together.
    """

    rows: int
    chunks: tuple[int, ...] = ()
    context: int = 0


@dataclass(frozen=True)
class PassCosts:
    """The seconds of a step, out of the seconds of passes that were measured one by one.

    `decode` maps answers in a decode step to its seconds, with next to nothing behind them;
    `prefill` maps tokens of a prompt in a pass to its seconds; `per_context` is what each cached
    token adds. Between the given sizes runs a straight line, beyond the last one as well.

    As in `inferlab.engine`, the rows of a step share a pass and each chunk has one of its own. In
    a `mixed` step rows and chunks ride through the weights together, as they do in vLLM, and the
    price is that of a pass with as many tokens.
    """

    decode: Mapping[int, float]
    prefill: Mapping[int, float]
    per_context: float = 0.0
    mixed: bool = False

    def __post_init__(self) -> None:
        for name in ("decode", "prefill"):
            table = getattr(self, name)
            if not table or min(table) < 1 or min(table.values()) <= 0:
                raise InferlabError(f"{name} must map sizes from 1 on to positive seconds")

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> PassCosts:
        """Return the costs that a record of `inferlab record` holds: medians of its samples."""

        def table(part: str, size: str) -> dict[int, float]:
            pairs = zip(record[part][size], record[part]["samples"], strict=True)
            return {int(count): statistics.median(samples) for count, samples in pairs}

        past = table("context", "tokens")
        least, most = min(past), max(past)
        slope = (past[most] - past[least]) / (most - least) if most > least else 0.0
        return cls(table("batch", "answers"), table("passes", "tokens"), max(0.0, slope))

    @classmethod
    def predicted(
        cls,
        shape: ModelShape,
        chip: Hardware,
        dtype: str | None = None,
        *,
        mixed: bool = True,
        sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
    ) -> PassCosts:
        """Return the costs of a perfect engine: the roofline time of each pass."""
        dtype = dtype or chip.default_dtype

        def seconds(cost: costs.Cost) -> float:
            return roofline.place(cost, chip, dtype).seconds

        kv = costs.kv_bytes_per_token(shape, formats.activation_format(dtype))
        return cls(
            {n: seconds(costs.decode_step(shape, 0, n, dtype=dtype)) for n in sizes},
            {n: seconds(costs.prefill(shape, n, dtype=dtype)) for n in sizes},
            kv / chip.bandwidth,
            mixed,
        )

    @cached_property
    def _lines(self) -> tuple[Callable[[int], float], Callable[[int], float]]:
        return _line(self.decode), _line(self.prefill)

    def __call__(self, step: Step) -> float:
        """Return the seconds of `step`."""
        decode, prefill = self._lines
        seconds = step.context * self.per_context
        tokens = sum(step.chunks)
        if not tokens:
            return seconds + decode(step.rows)
        if self.mixed:
            return seconds + prefill(tokens + step.rows)
        return seconds + (decode(step.rows) if step.rows else 0.0) + sum(map(prefill, step.chunks))


def _line(table: Mapping[int, float]) -> Callable[[int], float]:
    """Return the table as a function: straight between its points, flat below the first."""
    sizes = sorted(table)
    known: dict[int, float] = dict(table)

    def at(size: int) -> float:
        if size not in known:
            place = bisect_left(sizes, size)
            if place == 0:
                known[size] = table[sizes[0]]
            elif len(sizes) == 1:
                known[size] = table[sizes[0]] * size / sizes[0]
            else:
                low, high = sizes[min(place, len(sizes) - 1) - 1], sizes[min(place, len(sizes) - 1)]
                slope = (table[high] - table[low]) / (high - low)
                known[size] = table[low] + slope * (size - low)
        return known[size]

    return at


# The server


@dataclass(frozen=True, slots=True)
class Job:
    """A request: when it `arrived`, tokens of its `prompt`, tokens of its `output`."""

    arrived: float
    prompt: int
    output: int


@dataclass
class Served:
    """What became of the jobs: `requests` in their order, and how the server spent its time.

    `started` is when a job's prompt was first touched; `busy` the seconds that steps took; `steps`
    their number; `rows` the answers in all of them together.
    """

    requests: list[RequestTimes]
    started: list[float]
    busy: float = 0.0
    steps: int = 0
    rows: int = 0

    @property
    def waits(self) -> list[float]:
        """Seconds that each job waited until the server began to read it."""
        return [s - r.scheduled for s, r in zip(self.started, self.requests, strict=True)]


@dataclass
class _Reading:
    """A job on its way through prefill: tokens of its prompt that are still to be read."""

    number: int
    left: int
    cached: int = field(default=0)


def serve(
    jobs: Sequence[Job],
    seconds: Callable[[Step], float],
    *,
    max_batch: int = 16,
    step_tokens: int = 256,
    concurrency: int | None = None,
) -> Served:
    """Play the jobs through a continuous-batching server and return when each token came.

    First come, first served. A step gives every answer under way one token, and spends what is
    left of `step_tokens` on chunks of prompts in order of arrival; at most `max_batch` requests
    are under way. The step that reads the last of a prompt gives its first token. `seconds` says
    how long a step takes; its tokens are handed out at its end, and a job that arrives meanwhile
    waits for it. Memory is taken to be enough, so nobody is preempted.

    With `concurrency` the jobs' times are ignored: so many arrive at 0, and each one that ends
    makes room for the next (a closed loop).
    """
    _check(jobs, max_batch, step_tokens, concurrency)
    order = sorted(range(len(jobs)), key=lambda number: jobs[number].arrived)
    scheduled = [job.arrived for job in jobs]
    if concurrency is not None:
        scheduled = [0.0] * len(jobs)
    later = deque(order if concurrency is None else order[concurrency:])
    waiting: deque[int] = deque([] if concurrency is None else order[:concurrency])
    reading: list[_Reading] = []
    ends: list[float] = []  # of each step
    first = [0] * len(jobs)  # the step that gave a job its first token
    leaving: dict[int, list[int]] = {}  # jobs by the step that gives them their last
    started = [0.0] * len(jobs)
    served = Served([], started)
    now, rows, context = 0.0, 0, 0

    while later or waiting or reading or rows:
        if concurrency is None:
            if not (waiting or reading or rows):
                now = max(now, scheduled[later[0]])  # idle until somebody comes
            while later and scheduled[later[0]] <= now:
                waiting.append(later.popleft())
        chunks, budget = [], step_tokens - rows
        touched = []
        for one in reading:
            if not budget:
                break
            touched.append((one, min(one.left, budget)))
            budget -= touched[-1][1]
        while budget and waiting and rows + len(reading) < max_batch:
            number = waiting.popleft()
            started[number] = now
            one = _Reading(number, jobs[number].prompt)
            reading.append(one)
            touched.append((one, min(one.left, budget)))
            budget -= touched[-1][1]
        chunks = [size for _, size in touched]
        behind = sum(one.cached for one, _ in touched)
        spent = seconds(Step(rows, tuple(chunks), context + behind))
        if not spent > 0:
            raise InferlabError(f"seconds of a step are {spent}: they must be positive")
        now += spent
        served.busy += spent
        served.rows += rows
        context += rows
        step = len(ends)
        ends.append(now)
        for one, size in touched:
            one.left -= size
            one.cached += size
            if not one.left:
                first[one.number] = step
                rows += 1
                context += one.cached
                leaving.setdefault(step + jobs[one.number].output - 1, []).append(one.number)
        reading = [one for one in reading if one.left]
        for number in leaving.pop(step, ()):
            rows -= 1
            context -= jobs[number].prompt + jobs[number].output - 1
            if concurrency is not None and later:
                scheduled[later[0]] = now
                waiting.append(later.popleft())
    served.steps = len(ends)
    served.requests = [
        RequestTimes(scheduled[number], tuple(ends[first[number] : first[number] + job.output]))
        for number, job in enumerate(jobs)
    ]
    return served


def _check(jobs: Sequence[Job], max_batch: int, step_tokens: int, concurrency: int | None) -> None:
    if max_batch < 1:
        raise InferlabError(f"max_batch is {max_batch}: it must be at least 1")
    if step_tokens <= max_batch:
        raise InferlabError(
            f"step_tokens is {step_tokens}: it must be more than max_batch, {max_batch}, or the "
            "rows that write would leave nothing for prompts"
        )
    if concurrency is not None and concurrency < 1:
        raise InferlabError(f"concurrency is {concurrency}: it must be at least 1")
    for number, job in enumerate(jobs):
        if job.prompt < 1 or job.output < 1 or job.arrived < 0:
            raise InferlabError(
                f"jobs[{number}]: prompt and output must be at least 1 and arrived not negative"
            )


def jobs(
    rate: float,
    count: int,
    *,
    prompt: int | tuple[int, int] = 64,
    output: int | tuple[int, int] = 32,
    burstiness: float = 1.0,
    seed: int = 0,
) -> list[Job]:
    """Return `count` jobs that arrive as `arrivals` says.

    Lengths are a number, or a range (low, high) to draw from evenly, ends included; the seed gives
    the same lengths at every rate.
    """
    lengths = draw_lengths(count, prompt=prompt, output=output, seed=seed)
    times = arrivals(rate, count, burstiness=burstiness, seed=seed)
    return [Job(at, p, o) for at, (p, o) in zip(times, lengths, strict=True)]


def draw_lengths(
    count: int, *, prompt: int | tuple[int, int], output: int | tuple[int, int], seed: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield tokens of prompt and output of `count` requests. See `jobs`."""
    draw = random.Random(f"lengths {seed}")
    ranges = []
    for name, given in (("prompt", prompt), ("output", output)):
        low, high = given if isinstance(given, tuple) else (given, given)
        if not 1 <= low <= high:
            raise InferlabError(f"{name} is {given}: give tokens from 1 on, or a range of them")
        ranges.append((low, high))
    for _ in range(count):
        yield draw.randint(*ranges[0]), draw.randint(*ranges[1])


def sweep(
    rates: Sequence[float],
    seconds: Callable[[Step], float],
    slo: Mapping[str, float],
    *,
    count: int = 300,
    seeds: Sequence[int] = (0, 1, 2),
    prompt: int | tuple[int, int] = 64,
    output: int | tuple[int, int] = 32,
    burstiness: float = 1.0,
    max_batch: int = 16,
    step_tokens: int = 256,
) -> dict[str, list[float]]:
    """Return what comes of `count` requests at each of the offered `rates`, over all seeds.

    `answered` and `good` are requests a second, all of them and those that keep every promise in
    `slo`; `tokens` are output tokens a second, `good_tokens` those of requests that keep them,
    `attained` is the share of requests that do, and `ttft` the median wait for the first token.
    """
    if not seeds:
        raise InferlabError("seeds is empty: give at least one")
    names = ("answered", "good", "tokens", "good_tokens", "attained", "ttft")
    found: dict[str, list[float]] = {"rates": list(rates), **{name: [] for name in names}}
    for rate in rates:
        runs = [
            serve(
                jobs(rate, count, prompt=prompt, output=output, burstiness=burstiness, seed=seed),
                seconds,
                max_batch=max_batch,
                step_tokens=step_tokens,
            ).requests
            for seed in seeds
        ]
        total = sum(map(latency.duration, runs))
        every = [one for run in runs for one in run]
        good = [one for one in every if latency.meets(one, slo)]
        found["answered"].append(len(every) / total)
        found["good"].append(len(good) / total)
        found["tokens"].append(latency.throughput(every, total))
        found["good_tokens"].append(latency.throughput(good, total))
        found["attained"].append(latency.attainment(every, slo))
        found["ttft"].append(latency.percentile(latency.ttft(every), 50))
    return found
