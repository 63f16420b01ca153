"""The engine's scheduler and blocks with theory's times: deterministic, and as the engine does."""

from __future__ import annotations

import json

import pytest

from inferlab.engine import trace
from inferlab.errors import InferlabError
from inferlab.explorers.trace import trace_data
from inferlab.measure.rehearsal import Arrival, rehearse
from inferlab.theory import costs, models, roofline
from inferlab.theory.hardware import Hardware

SMALL = models.get("smollm2-135m")
CHIP = Hardware("two-cores", "two cores", {"fp32": 80e9}, 16e9)


def prompt(who: int, own: int, shared: int = 0) -> list[int]:
    return [*range(shared), *range(1000 * who, 1000 * who + own)]


BUSY = [
    Arrival("A", 0.0, prompt(1, 20, shared=32), 90),
    Arrival("B", 0.1, prompt(2, 40), 80),
    Arrival("C", 0.75, prompt(3, 150), 14),
    Arrival("you", 0.9, prompt(4, 22, shared=32), 32),
    Arrival("D", 1.2, prompt(5, 30), 40),
]


def play(arrivals=BUSY, **settings):
    return rehearse(arrivals, SMALL, CHIP, "fp32", **({"blocks": 22} | settings))


def seconds(cost: costs.Cost) -> float:
    return roofline.place(cost, CHIP, "fp32").seconds


def test_one_request_takes_the_time_of_its_passes():
    (request,) = play([Arrival("you", 2.0, prompt(1, 100), 5)]).requests
    read = [(0, 64), (64, 36)]
    passes = [seconds(costs.prefill(SMALL, n, context=c, dtype="fp32")) for c, n in read]
    passes += [seconds(costs.decode_step(SMALL, 100 + i, dtype="fp32")) for i in range(4)]
    times = [sum(passes[: 2 + i]) for i in range(5)]
    assert request.token_times == pytest.approx(times)
    kinds = [event.kind for event in request.events]
    assert kinds == ["arrived", "scheduled", "chunk", "chunk", *["token"] * 5, "finished"]


def test_a_step_is_one_pass_for_all_who_write_and_one_for_each_chunk():
    film = play()
    assert any(len(frame.decode) == 2 and frame.chunks for frame in film.frames)
    for frame in film.frames:
        tokens = sum(n for _, n in frame.chunks) + len(frame.decode)
        assert tokens <= 64
        spent = sum(seconds(costs.prefill(SMALL, n, dtype="fp32")) for _, n in frame.chunks)
        assert frame.ended_s - frame.began_s >= 0.99 * spent


def test_everything_at_once_happens():
    film = play()
    by_name = dict(zip(film.names, film.requests, strict=True))
    assert all(len(r.token_ids) == one.answer for r, one in zip(film.requests, BUSY, strict=True))
    assert by_name["you"].cached_tokens == 32
    assert [e.kind for e in by_name["D"].events].count("preempted") == 1
    (queued,) = (e.time_s - 0.9 for e in by_name["you"].events if e.kind == "scheduled")
    assert queued > 0.5
    assert max(sum(map(bool, frame.holders)) for frame in film.frames) == 22
    shared = {tuple(sorted(h)) for frame in film.frames for h in frame.holders if len(h) > 1}
    assert shared == {(1, 4)}
    assert not any(film.frames[-1].holders)
    assert len(film.frames[-1].kept) > 10


def test_a_block_is_held_or_free_and_only_what_is_full_is_shared():
    for frame in play().frames:
        held = {i for i, who in enumerate(frame.holders) if who}
        assert not held & set(frame.kept)
        assert len(held) + len(frame.kept) <= frame.blocks
        assert sum(len(table) for table in frame.tables.values()) == sum(map(len, frame.holders))


def test_the_same_arrivals_make_the_same_film_as_strict_json():
    one, two = (json.dumps(play().as_dict(), allow_nan=False) for _ in range(2))
    assert one == two
    assert len(one) < 80_000
    told = trace.chrome(play().requests)["traceEvents"]
    assert {event["name"] for event in told} >= {"waiting", "prefill", "decode step", "preempted"}


def test_nonsense_is_refused():
    with pytest.raises(InferlabError, match="you needs 401 positions: all blocks hold 352"):
        play([Arrival("you", 0.0, prompt(1, 400), 2)])
    with pytest.raises(InferlabError, match=r"step_tokens must be more"):
        play(step_tokens=4)
    with pytest.raises(InferlabError, match="me"):
        trace_data(play().as_dict(), "me")
