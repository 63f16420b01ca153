"""What the explorer of chapter 11 shows is what `theory` says, on random settings."""

from __future__ import annotations

import json
import random

import pytest

from inferlab.explorers import memory, script
from inferlab.explorers.catalog import catalog
from inferlab.theory import costs, hardware, limits, models, roofline


def settings(count: int) -> list[dict]:
    draw = random.Random(11)
    chips = [chip for chip in hardware.all() if chip.memory_bytes]
    return [
        {
            "model": draw.choice(models.names()),
            "chip": draw.choice(chips).key,
            "chips": draw.choice((1, 2, 4, 8, 16)),
            "kvDtype": draw.choice((None, "bf16", "fp8", "q8_0", "q4_0")),
            "users": draw.choice((1, 2, 8, 64, 512)),
            "context": draw.choice((1, int(2 ** draw.uniform(0, 17)), 131_072)),
        }
        for _ in range(count)
    ]


def expected(case: dict) -> dict:
    shape, chip = models.get(case["model"]), hardware.get(case["chip"])
    dtype, context, users = chip.default_dtype, case["context"], case["users"]
    kv = case["kvDtype"] or dtype

    def step(length: int) -> float:
        cost = costs.decode_step(shape, length, users, dtype=dtype, kv_dtype=kv)
        return roofline.place(cost, chip, dtype, case["chips"]).seconds

    return {
        "perToken": costs.kv_bytes_per_token(shape, kv),
        "cache": costs.kv_bytes(shape, context, kv),
        "caches": users * costs.kv_bytes(shape, context, kv),
        "weights": costs.weight_bytes(shape, dtype),
        "capacity": chip.memory_bytes * case["chips"],
        "fit": limits.sequences_that_fit(
            shape, chip, context, dtype=dtype, kv_dtype=kv, chips=case["chips"]
        ),
        "tpot": step(context),
        "empty": step(0),
    }


def test_every_number_is_theorys(visit):
    cases = settings(200)
    page = visit(
        f"<script>const explorer = {script('kv-memory')};\n"
        f"const catalog = {json.dumps(catalog())};</script>"
    ).page
    found = page.evaluate(
        "cases => cases.map((one) => explorer.calculate(catalog, one, one.context))", cases
    )
    for case, got in zip(cases, found, strict=True):
        for name, value in expected(case).items():
            assert got[name] == pytest.approx(value, rel=1e-9), (case, name)


def test_growing_conversations_fill_the_memory(visit):
    visited = visit(memory.kv_memory(users=8).html, reduced_motion=True)
    page = visited.page
    said = page.locator(".caption")
    scrub = page.get_by_label("Tokens in each conversation")
    scrub.focus()
    page.keyboard.press("Home")
    assert "Nothing said yet" in said.inner_text()
    page.keyboard.press("End")
    assert "131,072 tokens each" in said.inner_text()
    assert "do not fit" in said.inner_text()
    users = page.get_by_label("Users at the same time")
    users.focus()
    page.keyboard.press("Home")
    assert "do not fit" not in said.inner_text()
    assert "42.9 GB a user" in said.inner_text().replace("\u00a0", " ")
    page.get_by_label("Format of the cache").select_option("fp8")
    assert "21.5 GB a user" in said.inner_text().replace("\u00a0", " ")
    assert not visited.problems


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_phone(visit, theme):
    page = visit(memory.kv_memory().html, width=360, theme=theme, reduced_motion=True).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    words = page.locator(".live svg text").all()
    assert all(word.bounding_box()["x"] >= 0 for word in words)
    assert all(box["x"] + box["width"] <= 361 for box in (w.bounding_box() for w in words))
