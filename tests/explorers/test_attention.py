"""The score grid and the share of attention show what `theory` says."""

from __future__ import annotations

import pytest

from inferlab.explorers import attention
from inferlab.theory import limits, models

LLAMA = models.get("llama-2-70b")


def test_shares_are_theorys_for_every_model_and_length():
    data = attention.share_data("llama-2-70b", 2048)
    assert {one["key"] for one in data["models"]} == set(models.names())
    for one in data["models"]:
        shape = models.get(one["key"])
        for tokens, share in zip(data["tokens"], one["shares"], strict=True):
            assert share == limits.attention_share(shape, tokens)
        if one["half"]:
            assert limits.attention_share(shape, round(one["half"])) == pytest.approx(0.5, abs=0.01)


def test_the_grid_counts_half_a_square(visit):
    visited = visit(attention.score_grid(LLAMA).html, reduced_motion=True)
    page = visited.page
    facts, length = page.locator(".facts"), page.get_by_label("Tokens of the text")
    assert "10" in facts.locator("dd").first.inner_text()
    assert page.locator(".score").count() == 10
    assert page.locator(".never").count() == 6
    length.focus()
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    tokens = 2048
    assert facts.locator("dd").first.inner_text() == f"{tokens * (tokens + 1) // 2:,}"
    assert facts.locator("dd").last.inner_text().replace("\u00a0", " ") == "1.9 %"
    page.get_by_label("Tokens that have looked back").focus()
    page.keyboard.press("Home")
    assert "Token 1 looks at itself" in page.locator(".caption").inner_text()
    assert not visited.problems


def test_the_share_of_each_model_can_be_read(visit):
    visited = visit(attention.share().html)
    page = visited.page
    said = page.locator(".caption")
    assert "1.9 %" in said.inner_text().replace("\u00a0", " ")
    page.get_by_label("Model", exact=True).select_option("smollm2-135m")
    assert "25 %" in said.inner_text().replace("\u00a0", " ")
    page.get_by_label("Model", exact=True).select_option("gpt-oss-20b")
    assert "do not all see" in said.inner_text()
    assert not visited.problems


@pytest.mark.parametrize("make", [lambda: attention.score_grid(LLAMA), attention.share])
def test_they_fit_a_phone(visit, make):
    page = visit(make().html, width=360, reduced_motion=True).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    boxes = [word.bounding_box() for word in page.locator(".live svg text").all()]
    assert all(box["x"] >= -1 and box["x"] + box["width"] <= 361 for box in boxes)
