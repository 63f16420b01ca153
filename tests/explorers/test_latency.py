"""What the explorer of chapter 14 shows is what `theory.latency` says, on random settings."""

from __future__ import annotations

import random

import pytest

from inferlab.explorers import latency as explorer
from inferlab.explorers import script
from inferlab.theory import latency
from inferlab.theory.latency import RequestTimes

RECORD = {
    "model": "SmolLM2-135M",
    "prompt": "Why is the sky blue?",
    "pieces": [
        {"t": 0.14, "text": "The", "tokens": 1},
        {"t": 0.15, "text": " sky", "tokens": 1},
        {"t": 0.19, "text": " is", "tokens": 1},
        {"t": 0.20, "text": ".", "tokens": 0},
    ],
}


def settings(count: int) -> list[dict]:
    draw = random.Random(14)
    made = []
    for number in range(count):
        one = {
            "queue": draw.choice((0, draw.uniform(0, 40))),
            "prefill": draw.uniform(0.01, 10),
            "tpot": draw.uniform(0.001, 1),
            "tokens": draw.choice((1, 2, draw.randint(3, 60))),
            "pieces": None,
        }
        if number % 3 == 0:  # a recorded stream, gaps of all sizes
            one["pieces"] = sorted(draw.uniform(0, 5) for _ in range(one["tokens"]))
        made.append(one)
    return made


def expected(one: dict, promise: dict) -> dict:
    times = one["pieces"]
    if times is None:
        first = one["queue"] + one["prefill"]
        times = [first + i * one["tpot"] for i in range(one["tokens"])]
    request = RequestTimes(0.0, tuple(times))
    return {
        "ttft": request.ttft,
        "tpot": request.tpot,
        "e2e": request.e2e,
        "ttft_kept": latency.meets(request, {"ttft": promise["ttft"]}),
        "tpot_kept": latency.meets(request, {"tpot": promise["tpot"]}),
    }


def test_every_number_is_theorys(visit):
    cases, promise = settings(300), {"ttft": 1.5, "tpot": 0.2}
    page = visit(f"<script>const explorer = {script('timeline')};</script>").page
    found = page.evaluate(
        "([cases, promise]) => cases.map((one) => explorer.calculate(one, promise))",
        [cases, promise],
    )
    kept = 0
    for case, got in zip(cases, found, strict=True):
        want = expected(case, promise)
        kept += want["ttft_kept"] and want["tpot_kept"]
        for name, value in want.items():
            assert got[name] == (value if value is None else pytest.approx(value, rel=1e-9)), name
        if got["tpot"] is not None:
            total = latency.total_seconds(got["ttft"], got["tpot"], len(got["pieces"]))
            assert total == pytest.approx(got["e2e"], rel=1e-9)
    assert 20 < kept < 280


def test_it_says_what_the_sliders_set(visit):
    visited = visit(explorer.timeline(RECORD, tokens=20).html, reduced_motion=True)
    page = visited.page
    said = page.locator(".sum")
    verdict = page.locator(".verdict")

    def words(at) -> str:
        return at.inner_text().replace("\u00a0", " ")

    assert "TTFT 200 ms = 200 ms of prefill" in words(said)
    assert "200 ms + 19 × 30 ms = 770 ms" in words(said).replace("TTFT + ", "200 ms + ")
    assert "Kept" in words(verdict)
    queue = page.get_by_label("Others before you")
    queue.focus()
    page.keyboard.press("End")
    assert "TTFT 40.2 s = 40 s in the queue + 200 ms of prefill" in words(said)
    assert "Broken by the first token" in words(verdict)
    page.get_by_label("Time per token (TPOT)").focus()
    page.keyboard.press("End")
    assert "Broken by the first token and the pace" in words(verdict)
    tokens = page.get_by_label("Tokens of the answer")
    tokens.focus()
    page.keyboard.press("Home")
    assert "there is no TPOT, and it is not zero" in words(said)
    assert "Broken by the first token:" in words(verdict)
    page.get_by_text("a recorded request's", exact=True).click()
    assert "SmolLM2-135M answered" in words(page.locator(".answer"))
    assert "TTFT 140 ms" in words(said)
    assert "2 × 25 ms = 190 ms" in words(said)
    queue.focus()
    page.keyboard.press("Home")  # back to numbers of one's own
    assert "The answer, at your pace" in words(page.locator(".answer"))
    assert not visited.problems


def test_a_piece_of_no_token_belongs_to_the_one_before():
    pieces = explorer.timeline_data(RECORD)["recorded"]["pieces"]
    assert [one["text"] for one in pieces] == ["The", " sky", " is."]
