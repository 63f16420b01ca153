"""What happened to a request and when, for reading by eye, by program, and in Perfetto."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from inferlab.engine.request import Request

Kind = Literal["arrived", "scheduled", "chunk", "token", "preempted", "finished"]


@dataclass(frozen=True)
class Event:
    """Something happened at `time_s` (seconds of `time.perf_counter`).

    `tokens` are those found in the cache (scheduled), read (chunk) or thrown out (preempted).
    A pass that began at `began_s` ended at `time_s`.
    """

    time_s: float
    kind: Kind
    tokens: int = 0
    began_s: float | None = None


def as_dicts(requests: Iterable[Request]) -> list[dict[str, Any]]:
    """Return each request with its events, times in seconds since it arrived; strict JSON."""
    return [
        {
            "id": request.id,
            "arrived_s": request.start,
            "prompt_tokens": len(request.prompt_ids),
            "cached_tokens": request.cached_tokens,
            "output_tokens": len(request.token_ids),
            "finish_reason": request.finish_reason,
            "events": [event_dict(event, request.start) for event in request.events],
        }
        for request in requests
    ]


def event_dict(event: Event, start: float) -> dict[str, Any]:
    """Return one event, its times in seconds since `start`."""
    made: dict[str, Any] = {"time_s": event.time_s - start, "kind": event.kind}
    if event.tokens:
        made["tokens"] = event.tokens
    if event.began_s is not None:
        made["began_s"] = event.began_s - start
    return made


def chrome(requests: Iterable[Request]) -> dict[str, Any]:
    """Return requests in Chrome's trace format: one line each, to be opened in Perfetto.

    Its times are microseconds, here since the first arrival. Waiting is a slice, and so is each
    chunk of a prompt and each decode step; a preemption is a mark.
    """
    requests = list(requests)
    origin = min((r.start for r in requests), default=0.0)
    out: list[dict[str, Any]] = []

    def put(request: Request, name: str, phase: str, began: float, **more: Any) -> None:
        out.append(
            {"name": name, "ph": phase, "pid": 1, "tid": request.id}
            | {"ts": (began - origin) * 1e6, "cat": "request"}
            | more
        )

    for request in requests:
        name = f"request {request.id}: {len(request.prompt_ids)} tokens in"
        put(request, "thread_name", "M", origin, args={"name": name})
        waits_since: float | None = None
        for event in request.events:
            if event.kind == "scheduled" and waits_since is not None:
                length = (event.time_s - waits_since) * 1e6
                put(
                    request,
                    "waiting",
                    "X",
                    waits_since,
                    dur=length,
                    args={"cached_tokens": event.tokens},
                )
                waits_since = None
            elif event.kind in ("arrived", "preempted"):
                waits_since = event.time_s
            if event.kind in ("preempted", "finished"):
                put(request, event.kind, "i", event.time_s, s="t")
            elif event.began_s is not None:
                label = "prefill" if event.kind == "chunk" else "decode step"
                length = (event.time_s - event.began_s) * 1e6
                put(request, label, "X", event.began_s, dur=length, args={"tokens": event.tokens})
    return {"traceEvents": out, "displayTimeUnit": "ms"}
