"""The tables and the scoreboard at the back of the book: complete, sortable, true."""

from __future__ import annotations

import pytest

from inferlab.explorers import reference
from inferlab.theory import hardware, measurements, models


def test_every_bounded_measurement_is_on_the_board_and_none_passes_the_roof():
    rows = reference.scoreboard_data()["rows"]
    bounded = [m for m in measurements.published() if m.fraction_of_bound() is not None]
    assert len(rows) == len(bounded) >= 80
    assert all(0 < row["fraction"] < 1 for row in rows)
    assert {row["kind"] for row in rows} == {"decode", "prefill"}
    for row in rows:
        assert row["fraction"] == pytest.approx(row["bound_s"] / row["seconds"])
        assert row["source"]


def table(visit, explorer, **options):
    visited = visit(explorer.html, **options)
    page = visited.page
    page.wait_for_selector(".live tbody tr")
    return visited, page


def names(page):
    return page.locator(".live tbody th").all_text_contents()


def test_chips_can_be_sorted_and_found(visit):
    visited, page = table(visit, reference.chips())
    known = {chip.name for chip in hardware.all()}
    assert set(names(page)) == known
    ridges = sorted(hardware.all(), key=lambda c: -c.ridge(c.default_dtype))
    assert names(page)[0] == ridges[0].name
    page.get_by_role("button", name="Bandwidth").click()
    assert names(page) == [c.name for c in sorted(hardware.all(), key=lambda c: -c.bandwidth)]
    page.get_by_role("button", name="Bandwidth").press("Enter")
    assert names(page)[0] == min(hardware.all(), key=lambda c: c.bandwidth).name
    header = page.locator(".live thead th[aria-sort]")
    assert header.get_attribute("aria-sort") == "ascending"
    page.get_by_label("Find", exact=True).fill("h100")
    assert set(names(page)) == {name for name in known if "H100" in name}
    assert not visited.problems


def test_what_is_unknown_sorts_last_either_way(visit):
    _, page = table(visit, reference.chips())
    lacking = {c.name for c in hardware.all() if "fp8" not in c.flops}
    for _ in range(2):
        page.get_by_role("button", name="FLOP/s, fp8").click()
        assert set(names(page)[-len(lacking) :]) == lacking


def test_models_have_a_row_each(visit):
    _, page = table(visit, reference.model_shapes())
    assert len(names(page)) == len(models.names())
    assert names(page)[0] == max(models.all(), key=lambda shape: shape.params).name


@pytest.mark.parametrize("width", [360, 1280])
def test_a_table_scrolls_in_its_own_frame(visit, width):
    _, page = table(visit, reference.chips(), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_point_of_the_scoreboard_says_whose_it_is(visit):
    visited = visit(reference.scoreboard().html)
    page = visited.page
    rows = reference.scoreboard_data()["rows"]
    decode = [row for row in rows if row["kind"] == "decode"]
    best = max(decode, key=lambda row: row["fraction"])
    page.wait_for_selector("circle.chosen")
    assert page.locator("circle.point").count() == len(decode)
    assert best["title"] in page.locator(".said").inner_text()
    first = next(row for row in decode if row is not best)
    page.get_by_label("Measurement", exact=True).select_option(str(rows.index(first)))
    assert first["source"] in page.locator(".said").inner_text()
    page.get_by_text("First token", exact=True).click()
    assert page.locator("circle.point").count() == len(rows) - len(decode)
    chosen = page.locator("circle.chosen").bounding_box()
    other = page.locator("circle.point:not(.chosen)").first.bounding_box()
    before = page.locator(".said").inner_text()
    page.mouse.move(other["x"] + other["width"] / 2, other["y"] + other["height"] / 2)
    assert chosen is not None
    assert page.locator(".said").inner_text() != before
    assert not visited.problems


def test_no_point_is_drawn_above_the_roof(visit):
    page = visit(reference.scoreboard().html).page
    page.wait_for_selector("circle.chosen")
    roof = float(page.locator(".roof").get_attribute("y1"))
    for circle in page.locator("circle.point").all():
        assert float(circle.get_attribute("cy")) > roof
