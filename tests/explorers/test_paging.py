"""The film of a pool says of each step what its data hold."""

from __future__ import annotations

import pytest

from inferlab.errors import InferlabError
from inferlab.explorers import paging as explorer
from inferlab.explorers import script


def block(*holders: str, kept: bool = False, text: tuple[str, ...] = ()) -> dict:
    return {"holders": list(holders), "kept": kept, "text": list(text)}


def step(blocks: list[dict], tables: dict[str, list[int]], **events) -> dict:
    nothing = {key: [] for key in ("came", "scheduled", "preempted", "finished", "waiting")}
    return nothing | events | {"blocks": blocks, "tables": tables}


ONE = ("You", " are", " a", " patient")
TWO = (" guide", ".", " Answer", " in")
FILM = {
    "size": 4,
    "requests": {
        "A": {"prompt": "You are a patient guide. Answer in a word.", "answer": " Yes"},
        "B": {"prompt": "You are a patient guide.", "answer": " No"},
    },
    "steps": [
        step(
            [block("A", text=ONE), block("A", text=TWO), block()],
            {"A": [0, 1]},
            came=["A"],
            scheduled=[["A", 0]],
        ),
        step(
            [block("A", "B", text=ONE), block("A", text=TWO), block("B", text=("\n", "x"))],
            {"A": [0, 1], "B": [0, 2]},
            came=["B"],
            scheduled=[["B", 4]],
        ),
        step(
            [block("A", text=ONE), block("A", text=TWO), block("A", text=("z",))],
            {"A": [0, 1, 2]},
            preempted=["B"],
            waiting=["B"],
        ),
        step(
            [block(kept=True, text=ONE), block(kept=True, text=TWO), block()],
            {},
            finished=["A"],
        ),
    ],
}


def test_views_count_what_the_steps_hold(visit):
    page = visit(f"<script>const explorer = {script('blocks')};</script>").page
    views = page.evaluate("(film) => film.steps.map((_, at) => explorer.view(film, at))", FILM)
    for one, seen in zip(FILM["steps"], views, strict=True):
        blocks = list(enumerate(one["blocks"]))
        assert seen["held"] == [i for i, b in blocks if b["holders"]]
        assert seen["shared"] == [i for i, b in blocks if len(b["holders"]) > 1]
        assert seen["kept"] == [i for i, b in blocks if b["kept"]]
        assert seen["empty"] == [i for i, b in blocks if not (b["holders"] or b["kept"])]
    assert [seen["fresh"] for seen in views] == [[0, 1], [0, 2], [2], []]
    said = [" ".join(seen["happened"]) for seen in views]
    assert said[0] == "A comes. A finds nothing and computes its prompt."
    assert "B finds its first 4 tokens in 1 block" in said[1]
    assert "B is preempted" in said[2]
    assert "B waits. A writes a token." in said[2]
    assert said[3] == "A is done. Its full blocks are free, but kept."


def test_the_film_steps_and_tells(visit):
    visited = visit(explorer.blocks(FILM).html, reduced_motion=True)
    page = visited.page
    assert "Step 2." in page.locator(".happened").inner_text()  # most blocks are shared here
    assert (
        "3 of 3 blocks are held, 1 of them more than once" in page.locator(".counts").inner_text()
    )
    page.get_by_label("Step", exact=True).focus()
    page.keyboard.press("ArrowRight")
    assert "Step 3." in page.locator(".happened").inner_text()
    assert "waits" in page.locator("tbody").inner_text()
    page.keyboard.press("End")
    assert "2 free ones can be found again" in page.locator(".counts").inner_text()
    assert "↵" not in page.locator(".live svg").text_content()
    assert not visited.problems


def test_a_film_without_steps_is_refused():
    with pytest.raises(InferlabError, match="nobody came"):
        explorer.blocks({"size": 4, "requests": {}, "steps": []})
