"""What a run under load comes to: percentiles, throughput, goodput, and what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferlab.errors import InferlabError
from inferlab.measure.load import Outcome, Run, Target
from inferlab.theory import latency, units

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

PERCENTILES = (50, 90, 99)
TARGET = 0.9
"""Share of requests that must keep every promise at a sustainable rate."""
LATE = 0.05
"""A generator that sends its 99th percentile later than this share of the median TTFT is late."""
_LEAST_LATE = 0.005  # seconds: what a timer may be off by on a busy machine


def summary(run: Run, slo: Mapping[str, float]) -> dict[str, Any]:
    """Return the figures of one run: seconds, tokens and requests a second, shares.

    A percentile that no request has is None. Failed requests stand in `requests` and lower
    `attainment`; they have no latencies. `send_lag_s` tells how late the generator itself was.
    """
    times = run.times
    done = [one for one in run.outcomes if not one.times.failed]
    seconds = latency.duration(times)
    made: dict[str, Any] = {
        "rate": run.rate,
        "concurrency": run.concurrency,
        "requests": len(times),
        "failed": len(times) - len(done),
        "errors": dict(Counter(one.error for one in run.outcomes if one.error)),
        "seconds": seconds,
        "requests_per_second": len(done) / seconds,
        "tokens_per_second": latency.throughput(times, seconds),
        "prompt_tokens": _mean([o.prompt_tokens for o in done]),
        "cached_tokens": _mean([o.cached_tokens for o in done]),
        "output_tokens": _mean([o.times.tokens for o in done]),
        "ttft_s": spread(latency.ttft(times)),
        "tpot_s": spread(latency.tpot(times)),
        "itl_s": spread(latency.itl(times)),
        "e2e_s": spread(latency.e2e(times)),
        "goodput": latency.goodput(times, slo, seconds) if slo else None,
        "attainment": latency.attainment(times, slo) if slo else None,
        "send_lag_s": spread([one.lag for one in run.outcomes]),
        "warm_ups": len(run.warm_ups),
        "warm_ups_failed": sum(one.times.failed for one in run.warm_ups),
        "warm_up_ttft_s": latency.ttft([one.times for one in run.warm_ups]),
        "outcomes": [_outcome(one) for one in run.outcomes],
    }
    made["kept_up"] = _kept_up(made)
    return made


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return `count`, `mean`, `max` and percentiles of values; None where there are none."""
    found: dict[str, float | int | None] = {"count": len(values)}
    found["mean"] = sum(values) / len(values) if values else None
    for percent in PERCENTILES:
        found[f"p{percent}"] = latency.percentile(values, percent) if values else None
    found["max"] = max(values) if values else None
    return found


def sustainable(runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the highest rate of the sweep up to which 90 % of requests keep every promise."""
    attained = {
        run["rate"]: run["attainment"]
        for run in runs
        if run["rate"] is not None and run["attainment"] is not None
    }
    return latency.sustainable_rate(attained, TARGET)


def whole(
    target: Target, runs: Sequence[Mapping[str, Any]], slo: Mapping[str, float]
) -> dict[str, Any]:
    """Return what `inferlab bench load --json` prints: the server, the promises, every run."""
    return {
        "url": target.url,
        "model": target.model,
        "chat": target.chat,
        "slo": dict(slo),
        "highest_rate": sustainable(runs),
        "attainment_asked": TARGET,
        "runs": list(runs),
    }


def verdict(found: Mapping[str, Any]) -> str:
    """Say up to which rate the promises hold."""
    promised = ", ".join(
        f"{name.upper()} {units.seconds_text(value)}" for name, value in found["slo"].items()
    )
    if found["highest_rate"] is None:
        return f"At no rate that was tried {TARGET:.0%} of requests kept {promised}."
    return (
        f"{TARGET:.0%} of requests or more kept {promised} up to {found['highest_rate']:g} "
        "requests/s."
    )


def picture(runs: Sequence[Mapping[str, Any]], slo: Mapping[str, float]) -> Figure:
    """Draw a sweep of rates as the cliff of goodput, and a single run by its waits."""
    from inferlab.figures import goodput

    if len(runs) > 1 and slo and runs[0]["rate"] is not None:
        return goodput.cliff(None, points(runs))
    return goodput.waits(
        [wait for run in runs for o in run["outcomes"] if (wait := o["ttft_s"]) is not None],
        slo.get("ttft"),
    )


def points(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the runs of a sweep for `figures.goodput.cliff`, in order of rate."""
    ordered = sorted(runs, key=lambda run: run["rate"])
    return {
        "rates": [run["rate"] for run in ordered],
        "answered": [run["requests_per_second"] for run in ordered],
        "good": [run["goodput"] for run in ordered],
    }


def _mean(counts: Sequence[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) / len(known) if known else None


def _outcome(one: Outcome) -> dict[str, Any]:
    times = one.times
    return {
        "scheduled_s": times.scheduled,
        "lag_s": one.lag,
        "ttft_s": times.ttft,
        "tpot_s": times.tpot,
        "e2e_s": times.e2e,
        "output_tokens": times.tokens,
        "error": one.error,
    }


def _kept_up(made: Mapping[str, Any]) -> bool:
    allowed = max(_LEAST_LATE, LATE * (made["ttft_s"]["p50"] or 0.0))
    return bool(made["send_lag_s"]["p99"] <= allowed)


def table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Show runs, a line each: the median and the 99th percentile of what a person feels."""
    from rich import box
    from rich.table import Table

    if not runs:
        raise InferlabError("runs is empty: there is nothing to show")
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    by_rate = runs[0]["rate"] is not None
    names = ["requests/s" if by_rate else "under way", "TTFT p50", "p99", "TPOT p50", "p99"]
    for name in [*names, "tok/s", "good/s", "kept", "failed"]:
        made.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        felt = [
            units.seconds_text(value) if (value := run[name][key]) is not None else "–"
            for name, key in (
                ("ttft_s", "p50"),
                ("ttft_s", "p99"),
                ("tpot_s", "p50"),
                ("tpot_s", "p99"),
            )
        ]
        made.add_row(
            f"{run['rate']:g}" if by_rate else str(run["concurrency"]),
            *felt,
            f"{run['tokens_per_second']:.1f}",
            "–" if run["goodput"] is None else f"{run['goodput']:.2f}",
            "–" if run["attainment"] is None else f"{run['attainment']:.0%}",
            str(run["failed"] or "–"),
        )
    return made


def remarks(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a reader of the table must know: warm-ups, lateness, caches, errors."""
    said = []
    first = runs[0]
    if first["warm_ups"]:
        slowest = max(first["warm_up_ttft_s"], default=None)
        took = f", the slowest with a TTFT of {units.seconds_text(slowest)}" if slowest else ""
        many = "" if first["warm_ups"] == 1 else "s"
        said.append(f"{first['warm_ups']} warm-up{many} left out{took}.")
    for run in runs:
        at = f"{run['rate']:g} requests/s" if run["rate"] else f"{run['concurrency']} under way"
        if not run["kept_up"]:
            lag = units.seconds_text(run["send_lag_s"]["p99"])
            said.append(
                f"At {at} this generator fell behind: it sent 1 % of its requests {lag} late or "
                "later, and TTFT holds that. Use a machine that is less busy."
            )
        if run["cached_tokens"]:
            share = run["cached_tokens"] / run["prompt_tokens"]
            said.append(
                f"At {at} {share:.0%} of the prompts' tokens came from the server's prefix cache; "
                "another --seed gives prompts that it has not seen."
            )
        said += [f"At {at} {count} failed: {error}" for error, count in run["errors"].items()]
    return said
