"""What the film of many requests says of a step is what the engine's scheduler did in it."""

from __future__ import annotations

import json

import pytest

from inferlab.explorers import script
from inferlab.explorers import trace as traces
from inferlab.figures import trace as drawing
from inferlab.measure.rehearsal import Arrival, rehearse
from inferlab.theory import models
from inferlab.theory.hardware import Hardware

CHIP = Hardware("two-cores", "two cores", {"fp32": 80e9}, 16e9)
SHARED = range(32)
FILM = rehearse(
    [
        Arrival("A", 0.0, [*SHARED, *range(1000, 1020)], 90),
        Arrival("B", 0.1, [*range(2000, 2040)], 80),
        Arrival("C", 0.75, [*range(3000, 3150)], 14),
        Arrival("you", 0.9, [*SHARED, *range(4000, 4022)], 32),
        Arrival("D", 1.2, [*range(5000, 5030)], 40),
    ],
    models.get("smollm2-135m"),
    CHIP,
    "fp32",
    blocks=22,
)
SEEN = FILM.as_dict()
CAPTION = (
    "document.querySelector('[data-explorer]').shadowRoot.querySelector('.caption').textContent"
)


def test_every_step_says_who_held_how_much(visit):
    page = visit(traces.trace(SEEN, "you").html, reduced_motion=True).page
    page.wait_for_timeout(150)
    page.locator(".player input").focus()
    page.keyboard.press("Home")
    for number, step in enumerate(SEEN["steps"]):
        said = page.evaluate(CAPTION)
        assert said.startswith(f"Step {number + 1}, at "), said
        held = sum(map(bool, step["holders"]))
        assert f"{held} of 22 blocks are held" in said
        for _, tokens in step["chunks"]:
            assert f"{tokens} token" in said
        assert ("memory is full" in said) == bool(step["preempted"])
        assert ("in memory already" in said) == any(found for _, found in step["scheduled"])
        page.keyboard.press("ArrowRight")
    assert page.evaluate(CAPTION).startswith("All answers are complete after 3.94")


def test_sentences_agree_with_their_subjects(visit):
    page = visit(f"<script>const film = {script('trace')};</script>").page
    step = {"decode": [], "chunks": [], "scheduled": [], "preempted": []}
    names = "new Map([[1, 'A'], [2, 'B'], [4, 'you']])"

    def tell(**more) -> str:
        return page.evaluate(f"film.tell({json.dumps(step | more)}, {names}, 4)")

    assert tell(decode=[1]) == "A writes a token."
    assert tell(decode=[4]) == "You write a token."
    assert tell(decode=[1, 2, 4]) == "A, B and you write a token each."
    assert tell(chunks=[[4, 1], [2, 62]]) == "You read 1 token. B reads 62 tokens."
    assert tell(scheduled=[[4, 32], [2, 0]]) == (
        "You enter and find 32 tokens in memory already. B enters."
    )
    assert tell(preempted=[2]) == "B must give all blocks back and wait: memory is full."


@pytest.mark.parametrize("number", range(5))
def test_page_and_figure_read_events_alike(visit, number):
    page = visit(f"<script>const lib = {script('lib/fold')};</script>").page
    one = SEEN["requests"][number]
    life = page.evaluate(f"lib.fold({json.dumps(one['events'])})")
    found = drawing.spans(one["events"])
    assert [(w["from"], w["to"]) for w in life["waits"]] == found["wait"]
    assert [(c["from"], c["to"]) for c in life["chunks"]] == found["read"]
    assert life["tokens"] == [time for time, _ in found["write"]]
    assert len(life["tokens"]) == one["output_tokens"]
    assert life["cached"] == one["cached_tokens"]
