"""What a person feels: TTFT, TPOT, ITL, end-to-end time; and what a service delivers: goodput.

Definitions follow vLLM's serving benchmark and DistServe. Time to first token runs from the
moment a request was *scheduled* to arrive, so that a load generator that falls behind cannot
hide a queue. All times are seconds on one clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inferlab.errors import InferlabError, unknown


@dataclass(frozen=True)
class RequestTimes:
    """When one request was due and when each piece of its answer came.

    `pieces` are the times of pieces with content; a chunk that carries only a role or a usage
    count is none. At a client a piece may hold several tokens, so `output_tokens` is the count
    that the server reported; left out, every piece is a token. `finished` is when the stream
    ended; it matters for an answer without content. A `failed` request has no latencies and
    meets no promise, but it was asked for and stays in every denominator.
    """

    scheduled: float
    pieces: tuple[float, ...] = ()
    output_tokens: int | None = None
    finished: float | None = None
    failed: bool = False

    def __post_init__(self) -> None:
        if any(
            later < earlier for earlier, later in zip(self.pieces, self.pieces[1:], strict=False)
        ):
            raise InferlabError("pieces must be in the order in which they came")

    @property
    def tokens(self) -> int:
        """Output tokens of the answer."""
        return len(self.pieces) if self.output_tokens is None else self.output_tokens

    @property
    def ttft(self) -> float | None:
        """Time to first token: first content since the scheduled arrival. None without content."""
        return self.pieces[0] - self.scheduled if self.pieces and not self.failed else None

    @property
    def e2e(self) -> float | None:
        """End-to-end time: last content since the scheduled arrival."""
        if self.failed:
            return None
        end = self.pieces[-1] if self.pieces else self.finished
        return None if end is None else end - self.scheduled

    @property
    def tpot(self) -> float | None:
        """Time per output token: (E2E - TTFT) / (N - 1). None for an answer of one token."""
        if self.failed or not self.pieces or self.tokens < 2:
            return None
        return (self.pieces[-1] - self.pieces[0]) / (self.tokens - 1)

    @property
    def itl(self) -> tuple[float, ...]:
        """Inter-token latencies: the gaps between pieces. The wait for the first is not one."""
        if self.failed:
            return ()
        return tuple(b - a for a, b in zip(self.pieces, self.pieces[1:], strict=False))


def ttft(requests: Iterable[RequestTimes]) -> list[float]:
    """Return the time to first token of each request that has one."""
    return [r.ttft for r in requests if r.ttft is not None]


def tpot(requests: Iterable[RequestTimes]) -> list[float]:
    """Return the time per output token of each request of two tokens or more."""
    return [r.tpot for r in requests if r.tpot is not None]


def e2e(requests: Iterable[RequestTimes]) -> list[float]:
    """Return the end-to-end time of each request that ended."""
    return [r.e2e for r in requests if r.e2e is not None]


def itl(requests: Iterable[RequestTimes]) -> list[float]:
    """Return the gaps of all requests in one pool: long answers weigh more than in TPOT."""
    return [gap for r in requests for gap in r.itl]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated between neighbours as numpy does by default."""
    if not values:
        raise InferlabError("percentile of no values")
    if not 0 <= percent <= 100:
        raise InferlabError(f"percent is {percent}: it must be between 0 and 100")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def duration(requests: Sequence[RequestTimes]) -> float:
    """Return the time from the first scheduled arrival to the last thing that came back."""
    ends = [end for r in requests for end in (*r.pieces[-1:], r.finished) if end is not None]
    if not ends:
        raise InferlabError("requests hold no time at which anything came back")
    taken = max(ends) - min(r.scheduled for r in requests)
    if taken <= 0:
        raise InferlabError("requests took no time: the clock of their times does not move")
    return taken


def throughput(requests: Sequence[RequestTimes], seconds: float | None = None) -> float:
    """Return output tokens per second of the requests that did not fail."""
    seconds = duration(requests) if seconds is None else seconds
    return sum(r.tokens for r in requests if not r.failed) / seconds


def meets(request: RequestTimes, slos: Mapping[str, float]) -> bool:
    """Return whether a request keeps every promise in `slos`: seconds by "ttft", "tpot", "e2e".

    An answer of one token has no TPOT and breaks no promise about it; one with no content has
    no TTFT and keeps none.
    """
    for name in slos:
        if name not in ("ttft", "tpot", "e2e"):
            raise unknown("SLO", name, ("ttft", "tpot", "e2e"))
    if request.failed or request.ttft is None:
        return False
    felt = {"ttft": request.ttft, "tpot": request.tpot, "e2e": request.e2e}
    return all((felt[name] or 0.0) <= promise for name, promise in slos.items())


def goodput(
    requests: Sequence[RequestTimes], slos: Mapping[str, float], seconds: float | None = None
) -> float:
    """Return requests per second that keep every promise."""
    seconds = duration(requests) if seconds is None else seconds
    return sum(meets(r, slos) for r in requests) / seconds


def attainment(requests: Sequence[RequestTimes], slos: Mapping[str, float]) -> float:
    """Return the share of all requests, failed ones too, that keep every promise."""
    if not requests:
        raise InferlabError("attainment of no requests")
    return sum(meets(r, slos) for r in requests) / len(requests)


def sustainable_rate(attained: Mapping[float, float], target: float = 0.9) -> float | None:
    """Return the highest tried rate up to which every rate attains `target`.

    DistServe's paper calls this rate, per GPU, goodput. `attained` maps requests per second to
    the share that kept the promises. None if already the lowest rate misses.
    """
    best = None
    for rate in sorted(attained):
        if attained[rate] < target:
            break
        best = rate
    return best


def total_seconds(ttft: float, tpot: float, tokens: int) -> float:
    """Return TTFT + (N - 1) TPOT: an identity for one request, by what TPOT means."""
    return ttft + (tokens - 1) * tpot


def closed_loop_throughput(concurrency: int, ttft: float, tpot: float, tokens: int) -> float:
    """Return tokens per second with `concurrency` requests always under way.

    Little's law: requests under way = rate x time each takes.
    """
    return concurrency * tokens / total_seconds(ttft, tpot, tokens)
