"""The simulated server against closed forms, against a slow twin, and against what must hold."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlab.errors import InferlabError
from inferlab.theory import costs, hardware, latency, models, queueing, roofline
from inferlab.theory.queueing import Job, PassCosts, Step

COSTS = PassCosts({1: 0.010, 16: 0.025}, {1: 0.010, 64: 0.040, 256: 0.130}, per_context=1e-6)


# Arrivals


def test_poisson_arrivals_have_the_rate_and_the_spread_that_they_should():
    times = queueing.arrivals(4.0, 20_000, seed=3)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert times[0] == 0.0
    assert statistics.mean(gaps) == pytest.approx(1 / 4, rel=0.03)
    assert statistics.variance(gaps) / statistics.mean(gaps) ** 2 == pytest.approx(1, rel=0.06)


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_gamma_arrivals_are_more_or_less_bursty(burstiness):
    times = queueing.arrivals(2.0, 20_000, burstiness=burstiness, seed=1)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.5, rel=0.06)
    cv2 = statistics.variance(gaps) / statistics.mean(gaps) ** 2
    assert cv2 == pytest.approx(1 / burstiness, rel=0.12)


def test_a_metronome_ticks_and_a_seed_decides():
    assert queueing.arrivals(2.0, 4, burstiness=math.inf) == [0.0, 0.5, 1.0, 1.5]
    one, two = (queueing.arrivals(r, 50, seed=7) for r in (1.0, 2.0))
    assert one == [2 * t for t in two]
    assert one != queueing.arrivals(1.0, 50, seed=8)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rate": 0.0}, "rate"),
        ({"rate": math.nan}, "rate"),
        ({"rate": math.inf}, "rate"),
        ({"count": 0}, "count"),
        ({"burstiness": 0.0}, "burstiness"),
    ],
)
def test_arrivals_that_make_no_sense_are_refused(change, field):
    with pytest.raises(InferlabError, match=field):
        queueing.arrivals(**({"rate": 1.0, "count": 3} | change))


# Closed forms


def test_waits_in_closed_form():
    assert queueing.md1_wait(0.5, 1.0) == 0.5
    assert queueing.mm1_wait(0.5, 1.0) == 1.0
    assert queueing.mg1_wait(0.0, 1.0, 5.0) == 0.0
    with pytest.raises(InferlabError, match="without end"):
        queueing.md1_wait(2.0, 0.5)
    with pytest.raises(InferlabError, match="service"):
        queueing.md1_wait(2.0, 0.0)


def mean_wait(rate, service, jobs, seconds):
    """Return the mean wait at batch 1, and its standard error from batches of jobs."""
    served = queueing.serve(jobs, seconds, max_batch=1, step_tokens=1024)
    waits = served.waits[len(jobs) // 20 :]  # the queue begins empty
    size = len(waits) // 20
    means = [statistics.mean(waits[i * size : (i + 1) * size]) for i in range(20)]
    return statistics.mean(waits), statistics.stdev(means) / math.sqrt(20)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_batch_of_one_is_the_queue_of_the_textbook(load, seed):
    """M/D/1: all requests alike, one at a time."""
    output, step = 5, 0.02
    service = step * output
    jobs = queueing.jobs(load / service, 6_000, prompt=8, output=output, seed=seed)
    mean, error = mean_wait(load / service, service, jobs, lambda _: step)
    assert mean == pytest.approx(queueing.md1_wait(load / service, service), abs=4 * error)
    assert error < 0.15 * mean


@pytest.mark.parametrize("load", [0.4, 0.7])
def test_answers_of_random_length_wait_as_pollaczek_and_khinchine_say(load):
    """Geometric lengths with mean m: variance over mean squared is 1 - 1/m, near M/M/1."""
    mean_output, step = 20, 0.01
    service = mean_output * step
    draw = random.Random(5)
    times = queueing.arrivals(load / service, 8_000, seed=2)
    stop = 1 / mean_output
    outputs = [1 + int(math.log(1 - draw.random()) / math.log(1 - stop)) for _ in times]
    jobs = [Job(at, 4, n) for at, n in zip(times, outputs, strict=True)]
    mean, error = mean_wait(load / service, service, jobs, lambda _: step)
    expected = queueing.mg1_wait(load / service, service, 1 - stop)
    assert mean == pytest.approx(expected, abs=4 * error)
    assert expected == pytest.approx(queueing.mm1_wait(load / service, service), rel=0.03)


# The server


def slow_twin(jobs, seconds, max_batch, step_tokens):
    """The same server, token by token, from its description and with none of its bookkeeping."""
    times = [[] for _ in jobs]
    read = [0] * len(jobs)
    order = sorted(range(len(jobs)), key=lambda i: jobs[i].arrived)
    admitted, now = [], 0.0
    while any(len(t) < j.output for t, j in zip(times, jobs, strict=True)):
        here = [i for i in order if jobs[i].arrived <= now and len(times[i]) < jobs[i].output]
        if not here:
            now = min(j.arrived for j in jobs if j.arrived > now)
            continue
        admitted = [i for i in admitted if len(times[i]) < jobs[i].output]
        rows = [i for i in admitted if times[i]]
        budget, chunks = step_tokens - len(rows), {}
        for i in here:
            if i in rows or budget == 0:
                continue
            if i not in admitted:
                if len(admitted) == max_batch:
                    break
                admitted.append(i)
            chunks[i] = min(jobs[i].prompt - read[i], budget)
            budget -= chunks[i]
        context = sum(jobs[i].prompt + len(times[i]) - 1 for i in rows)
        context += sum(read[i] for i in chunks)
        now += seconds(Step(len(rows), tuple(chunks.values()), context))
        for i in rows:
            times[i].append(now)
        for i, size in chunks.items():
            read[i] += size
            if read[i] == jobs[i].prompt:
                times[i].append(now)
    return times


LOADS = st.lists(
    st.tuples(st.floats(0, 1.5), st.integers(1, 700), st.integers(1, 30)), min_size=1, max_size=12
)


@settings(deadline=None, max_examples=80)
@given(LOADS, st.integers(1, 5), st.sampled_from([6, 16, 256]))
def test_it_is_its_slow_twin(load, max_batch, step_tokens):
    jobs = [Job(*one) for one in load]
    served = queueing.serve(jobs, COSTS, max_batch=max_batch, step_tokens=step_tokens)
    expected = slow_twin(jobs, COSTS, max_batch, step_tokens)
    for request, times in zip(served.requests, expected, strict=True):
        assert request.pieces == pytest.approx(times, rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(LOADS, st.integers(1, 5), st.sampled_from([6, 16, 256]))
def test_no_request_is_lost_and_no_rule_broken(load, max_batch, step_tokens):
    jobs = [Job(*one) for one in load]
    seen: list[Step] = []

    def seconds(step):
        seen.append(step)
        return COSTS(step)

    served = queueing.serve(jobs, seconds, max_batch=max_batch, step_tokens=step_tokens)
    assert [r.tokens for r in served.requests] == [j.output for j in jobs]
    assert sum(sum(s.chunks) for s in seen) == sum(j.prompt for j in jobs)
    assert sum(s.rows for s in seen) == served.rows == sum(j.output - 1 for j in jobs)
    assert all(s.rows + len(s.chunks) <= max_batch for s in seen)
    assert all(s.rows + sum(s.chunks) <= step_tokens for s in seen)
    assert all(s.rows or s.chunks for s in seen)
    assert served.steps == len(seen)
    assert served.busy == pytest.approx(sum(map(COSTS, seen)))
    for request, start in zip(served.requests, served.started, strict=True):
        assert request.scheduled <= start < request.pieces[0]
    first_come = sorted(range(len(jobs)), key=lambda i: jobs[i].arrived)
    starts = [served.started[i] for i in first_come]
    assert starts == sorted(starts)


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_a_closed_loop_keeps_so_many_under_way(concurrency):
    jobs = [Job(0.0, 20, 10)] * 40
    served = queueing.serve(jobs, COSTS, max_batch=8, concurrency=concurrency)
    spans = [(r.scheduled, r.pieces[-1]) for r in served.requests]
    end = max(end for _, end in spans)
    for at in [0.1 * end, 0.3 * end, 0.6 * end]:
        assert sum(start <= at < stop for start, stop in spans) == concurrency
    mean = statistics.mean(stop - start for start, stop in spans)
    rate = latency.throughput(served.requests)
    # Little's law, but for the last few, whose places stay empty.
    assert rate == pytest.approx(concurrency * 10 / mean, rel=0.1)


def test_the_same_jobs_take_the_same_time():
    jobs = queueing.jobs(3.0, 200, prompt=(10, 300), output=(1, 60), seed=4)
    assert jobs == queueing.jobs(3.0, 200, prompt=(10, 300), output=(1, 60), seed=4)
    assert jobs != queueing.jobs(3.0, 200, prompt=(10, 300), output=(1, 60), seed=5)
    first, second = queueing.serve(jobs, COSTS), queueing.serve(jobs, COSTS)
    assert first == second
    faster = queueing.jobs(6.0, 200, prompt=(10, 300), output=(1, 60), seed=4)
    assert [(j.prompt, j.output) for j in faster] == [(j.prompt, j.output) for j in jobs]


def test_ten_thousand_requests_are_quick():
    """The best of three: other work on the machine only adds to it."""
    jobs = queueing.jobs(20.0, 10_000, prompt=(10, 300), output=(1, 100))
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        queueing.serve(jobs, COSTS)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 3


def test_throughput_saturates_and_goodput_falls():
    """What chapter 14 is about, at a third of its size."""
    slo = {"ttft": 0.5, "tpot": 0.05}
    found = queueing.sweep([2.0, 8.0, 32.0, 64.0], COSTS, slo, count=400, seeds=(0,))
    assert found["rates"] == [2.0, 8.0, 32.0, 64.0]
    tokens, good = found["tokens"], found["good"]
    assert tokens[0] < tokens[1] < tokens[2]
    assert tokens[3] == pytest.approx(tokens[2], rel=0.05)
    assert good[1] > good[0]
    assert good[3] < 0.2 * good[1]
    assert found["ttft"] == sorted(found["ttft"])
    for answered, kept, tokens, kept_tokens, share in zip(
        *(found[n] for n in ("answered", "good", "tokens", "good_tokens", "attained")), strict=True
    ):
        assert kept == pytest.approx(share * answered)
        assert tokens == pytest.approx(32 * answered)
        assert kept_tokens == pytest.approx(32 * kept)


def test_a_sweep_is_the_runs_of_its_seeds():
    slo, rate = {"ttft": 0.2}, 10.0
    runs = [queueing.serve(queueing.jobs(rate, 50, seed=seed), COSTS).requests for seed in (3, 4)]
    seconds = sum(latency.duration(run) for run in runs)
    kept = sum(latency.meets(one, slo) for run in runs for one in run)
    found = queueing.sweep([rate], COSTS, slo, count=50, seeds=(3, 4))
    assert found["good"] == [pytest.approx(kept / seconds)]
    assert found["answered"] == [pytest.approx(100 / seconds)]
    with pytest.raises(InferlabError, match="seeds"):
        queueing.sweep([1.0], COSTS, slo, seeds=())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_batch": 0}, "max_batch"),
        ({"step_tokens": 16}, "step_tokens"),
        ({"concurrency": 0}, "concurrency"),
        ({"jobs": [Job(0, 1, 0)]}, r"jobs\[0\]"),
        ({"jobs": [Job(0, 0, 1)]}, r"jobs\[0\]"),
        ({"seconds": lambda _: 0.0}, "seconds"),
    ],
)
def test_a_server_that_makes_no_sense_is_refused(change, field):
    with pytest.raises(InferlabError, match=field):
        queueing.serve(**({"jobs": [Job(0, 1, 1)], "seconds": COSTS} | change))


def test_lengths_that_make_no_sense_are_refused():
    with pytest.raises(InferlabError, match="prompt"):
        queueing.jobs(1.0, 3, prompt=(9, 3))
    with pytest.raises(InferlabError, match="output"):
        queueing.jobs(1.0, 3, output=0)


def test_nobody_comes():
    assert queueing.serve([], COSTS).requests == []


# What a step costs


def test_costs_are_read_off_the_measured_passes():
    apart = PassCosts({1: 1.0, 3: 2.0}, {2: 4.0, 6: 6.0}, per_context=0.5)
    assert apart(Step(1)) == 1.0
    assert apart(Step(2)) == 1.5
    assert apart(Step(5)) == 3.0  # beyond the last point
    assert apart(Step(0, (1,))) == 4.0  # below the first one
    assert apart(Step(0, (4,))) == 5.0
    assert apart(Step(1, (2, 6), context=4)) == 1.0 + 4.0 + 6.0 + 2.0
    together = PassCosts({1: 1.0, 3: 2.0}, {2: 4.0, 6: 6.0}, mixed=True)
    assert together(Step(2, (1, 1))) == 5.0
    assert together(Step(2)) == 1.5
    assert PassCosts({1: 1.0}, {2: 4.0})(Step(0, (4,))) == 8.0
    with pytest.raises(InferlabError, match="prefill"):
        PassCosts({1: 1.0}, {})
    with pytest.raises(InferlabError, match="decode"):
        PassCosts({0: 1.0}, {1: 1.0})


def test_costs_come_from_a_record():
    record = {
        "batch": {"answers": [1, 4], "samples": [[0.2, 0.1, 0.3], [0.5]]},
        "passes": {"tokens": [1, 8], "samples": [[0.2], [0.9, 0.7]]},
        "context": {"tokens": [1, 101], "samples": [[0.2], [0.3]]},
    }
    found = PassCosts.of_record(record)
    assert (found.decode, found.prefill) == ({1: 0.2, 4: 0.5}, {1: 0.2, 8: 0.8})
    assert found.per_context == pytest.approx(0.001)
    assert not found.mixed


def test_costs_of_a_perfect_engine_are_the_rooflines():
    shape, chip = models.get("llama-3.1-8b"), hardware.get("h100-sxm")
    found = PassCosts.predicted(shape, chip)
    for rows in (1, 64, 512):
        step = costs.decode_step(shape, 0, rows)
        assert found(Step(rows)) == roofline.place(step, chip).seconds
        # A past of a thousand tokens behind each row is read over the same bus. Where that makes
        # attention's part wait for bytes, as here, both ways of counting agree.
        step = roofline.place(costs.decode_step(shape, 1000, rows), chip).seconds
        assert found(Step(rows, (), 1000 * rows)) == pytest.approx(step, rel=0.02)
    assert found(Step(0, (1024,))) == roofline.place(costs.prefill(shape, 1024), chip).seconds
    assert found(Step(24, (1000,))) == found(Step(0, (1024,)))
