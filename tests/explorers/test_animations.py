"""Animations play, pause and scrub in a real browser; their data are what theory says."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from inferlab.errors import InferlabError
from inferlab.explorers import batching as gantts
from inferlab.explorers import classical, forward, html, latency, paging, scenes
from inferlab.explorers import hardware as machines
from inferlab.explorers import trace as traces
from inferlab.measure.rehearsal import Arrival, rehearse
from inferlab.theory import batching, costs, formats, hardware, limits, models, roofline, trends
from inferlab.theory.queueing import Job

LLAMA, SMOL = models.get("llama-2-70b"), models.get("smollm2-135m")
H100, H200, CPU = (hardware.get(name) for name in ("h100-sxm", "h200-sxm", "epyc-9654"))
XEON = hardware.get("xeon-8480")
WORDS = re.findall(
    r" ?\w+|\W", "The capital of France is Paris. It lies on the Seine, since long ago."
)
RECORD = {
    "prompt": "What is the capital of France?",
    "prompt_tokens": 37,
    "model": "SmolLM2-135M",
    "pieces": [{"text": word, "t": 0.3 + 0.4 * i} for i, word in enumerate(WORDS)],
}
STEPS = [
    {"text": " Paris", "candidates": [(" Paris", 0.71), (" the", 0.08), (" a", 0.05)]},
    {"text": ".", "candidates": [(".", 0.6), (",", 0.3), ("\n", 0.02)]},
    {"text": "\n"},
]
PROMPTS = {"A": [*range(52)], "you": [*range(32), *range(90, 120)], "B": [*range(200, 330)]}
ARRIVALS = [Arrival(name, 0.3 * i, prompt, 24) for i, (name, prompt) in enumerate(PROMPTS.items())]
FILM = rehearse(ARRIVALS, SMOL, XEON, "bf16", blocks=14).as_dict()
GANTT = (
    {"six at once": [Job(0.0, 200, n) for n in (12, 60, 20, 44, 16, 100)]},
    {"8B on an H100": batching.pass_costs(models.get("llama-3.1-8b"), H100)},
)
QUIET = {key: [] for key in ("came", "scheduled", "preempted", "finished", "waiting")}
POOL = {
    "size": 4,
    "requests": {name: {"prompt": "Once upon a time there was", "answer": ""} for name in "AB"},
    "steps": [
        QUIET
        | {
            "tables": {"A": list(range(held)), "B": [0, 6]},
            "blocks": [
                {
                    "holders": ["A"] * (index < held) + ["B"] * (index in (0, 6)),
                    "kept": index > 8,
                    "text": ["Once", " upon", " a", " hippopotamus"] if index != 8 else [],
                }
                for index in range(12)
            ],
        }
        for held in (2, 3, 4, 5, 6)
    ],
}
DATA = {
    "request": scenes.request_data(RECORD, SMOL, CPU, "bf16"),
    "thirty-ms": scenes.thirty_ms_data(
        [(LLAMA, H200, "bf16"), (LLAMA, H100, "bf16"), (SMOL, H100, "bf16")]
    ),
    "loop": scenes.loop_data(
        ["The", " capital", " of", " France", " is"], STEPS, model="SmolLM2", bytes_per_pass=5.4e8
    ),
    "shared-trip": scenes.shared_trip_data(LLAMA, H100),
    "waves": machines.waves_data(XEON, H100),
    "tiles": machines.tile_loads_data(),
    "memory-wall": scenes.memory_wall_data(),
    "ceiling": scenes.ceiling_data(LLAMA, H100),
    "append": scenes.append_data([(LLAMA, H100, "bf16"), (SMOL, CPU, "bf16")]),
    "shallow": {
        "models": sorted(classical.rows(SMOL, 780, 12), key=lambda row: row["flops"]),
    },
    "timeline": latency.timeline_data(RECORD),
    "trace": traces.trace_data(FILM, "you"),
    "gantt": gantts.gantt_data(*GANTT),
    "blocks": POOL | {"rest": len(POOL["steps"]) - 1},
    "sink": forward.sink_data([(LLAMA, H100, "bf16"), (SMOL, CPU, "bf16")]),
}
NAMES = list(DATA)


# Data


def test_a_request_costs_what_theory_says_of_each_pass():
    passes = DATA["request"]["passes"]
    assert [one["text"] for one in passes] == WORDS
    prefill = costs.prefill(SMOL, 37)
    assert (passes[0]["flops"], passes[0]["bytes"]) == (prefill.flops, prefill.bytes)
    for number, one in enumerate(passes[1:]):
        step = costs.decode_step(SMOL, 37 + number)
        assert (one["flops"], one["bytes"]) == (step.flops, step.bytes)
        assert one["bound"] == "memory"
    assert all(a["to"] == b["from"] for a, b in itertools.pairwise(passes))


def test_a_piece_of_several_tokens_pays_for_several_passes():
    record = RECORD | {"pieces": [{"text": "a", "t": 0.3}, {"text": "é", "t": 0.4, "tokens": 2}]}
    pair = scenes.request_data(record, SMOL, CPU, "bf16")["passes"][1]
    assert pair["bytes"] == sum(costs.decode_step(SMOL, 37 + i).bytes for i in range(2))


def test_text_that_was_held_back_costs_no_pass():
    late = [{"text": "a", "t": 0.3}, {"text": "b", "t": 0.4}, {"text": "c", "t": 0.41, "tokens": 0}]
    passes = scenes.request_data(RECORD | {"pieces": late}, SMOL, CPU, "bf16")["passes"]
    assert [(one["text"], one["to"]) for one in passes] == [("a", 0.3), ("bc", 0.4)]


def test_times_that_fall_are_refused():
    record = RECORD | {"pieces": [{"text": "a", "t": 0.3}, {"text": "b", "t": 0.2}]}
    with pytest.raises(InferlabError, match=r"pieces\[1\]\.t"):
        scenes.request_data(record, SMOL, CPU, "bf16")


def test_thirty_ms_are_the_roofline_of_a_decode_step():
    """Claims 22 and 23: a ratio of the two numbers of the chip, and near 30 ms for 70B."""
    for case, (shape, chip) in zip(
        DATA["thirty-ms"]["cases"], [(LLAMA, H200), (LLAMA, H100), (SMOL, H100)], strict=True
    ):
        step = roofline.place(costs.decode_step(shape, 0), chip)
        assert case["compute_s"] == step.compute_seconds
        assert case["memory_s"] == step.memory_seconds
        assert case["memory_s"] / case["compute_s"] == pytest.approx(chip.ridge("bf16"), rel=0.001)
        assert case["fits"] == limits.fits(shape, chip, 0)
        assert 4 < case["paces"][0] * case["memory_s"] < 9
    assert DATA["thirty-ms"]["cases"][0]["memory_s"] == pytest.approx(0.0286, rel=0.01)


def test_shared_trips_are_theorys_passes():
    for form in DATA["shared-trip"]["formats"]:
        dtype = form["key"]
        assert form["bytes_per_weight"] == formats.bytes_per_element(dtype)
        assert form["ridge"] == H100.ridge(dtype)
        for one in form["passes"]:
            cost = costs.prefill(LLAMA, one["tokens"], dtype=dtype)
            placed = roofline.place(cost, H100, dtype)
            assert (one["compute_s"], one["memory_s"], one["seconds"]) == (
                placed.compute_seconds,
                placed.memory_seconds,
                placed.seconds,
            )


@pytest.mark.parametrize(
    "show",
    [
        lambda: scenes.request(RECORD, SMOL, CPU, "bf16"),
        lambda: scenes.thirty_ms([(LLAMA, H200, "bf16")]),
        lambda: scenes.loop(["The"], STEPS, model="SmolLM2", bytes_per_pass=5.4e8),
        lambda: scenes.shared_trip(LLAMA, H100),
        lambda: machines.waves(XEON, H100),
        lambda: machines.tile_loads(),
        lambda: scenes.memory_wall(),
        lambda: scenes.ceiling(LLAMA, H100),
        lambda: scenes.append([(LLAMA, H100, "bf16")], 12),
        lambda: classical.shallow(SMOL, 780, 12),
        lambda: traces.trace(FILM, "you"),
        lambda: forward.sink([(LLAMA, H100, "bf16")]),
        lambda: latency.timeline(RECORD),
        lambda: gantts.gantt(*GANTT),
        lambda: paging.blocks(POOL),
    ],
)
def test_an_animation_comes_with_words_and_a_still(show):
    shown = show()
    assert len(repr(shown)) > 60
    assert "<svg" in shown.html
    assert len(shown.html) < 150_000
    assert shown.html == show().html


# In the browser


SHADOW = "document.querySelector('[data-explorer]').shadowRoot"
PLAYING = f"() => {SHADOW}.querySelector('.player').dataset.playing"
POSITION = f"() => Number({SHADOW}.querySelector('.player input').value)"
PICTURE = f"() => {SHADOW}.querySelector('.live').innerHTML"


@pytest.fixture
def film(visit):
    """Return `film(name, **settings)`: the animation on a page of its own."""

    def open_(name: str, **settings):
        return visit(html(name, DATA[name], alt=f"Animation {name}"), **settings)

    return open_


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_it_plays_by_itself_and_stands_still_when_paused(film, name):
    seen = film(name)
    page = seen.page
    page.wait_for_function(f"({POSITION})() > 20")
    assert page.evaluate(PLAYING) == "true"
    early = page.evaluate(PICTURE)
    page.wait_for_function(f"({POSITION})() > 120")
    assert page.evaluate(PICTURE) != early
    page.locator(".play").click()
    assert page.evaluate(PLAYING) == "false"
    where, picture = page.evaluate(POSITION), page.evaluate(PICTURE)
    page.wait_for_timeout(300)
    assert page.evaluate(POSITION) == where
    assert page.evaluate(PICTURE) == picture
    assert seen.problems == []


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_the_keyboard_steps_through_it_and_back(film, name):
    seen = film(name)
    page = seen.page
    scrub = page.locator(".player input")
    scrub.focus()
    page.keyboard.press("Home")
    start = page.evaluate(PICTURE)
    pictures = [start]
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        pictures.append(page.evaluate(PICTURE))
    assert len(set(pictures)) == 4
    assert page.evaluate(PLAYING) == "false"
    for expected in reversed(pictures[:-1]):
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(PICTURE) == expected
    page.keyboard.press("Space")
    assert page.evaluate(PLAYING) == "true"
    page.keyboard.press("Space")
    assert page.evaluate(PLAYING) == "false"
    assert seen.problems == []


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_readers_who_want_calm_see_the_end_and_can_step(film, name):
    page = film(name, reduced_motion=True).page
    page.wait_for_timeout(200)
    assert page.evaluate(PLAYING) == "false"
    assert page.evaluate(POSITION) == 1000
    end = page.evaluate(PICTURE)
    page.locator(".player input").focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(PICTURE) != end


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_it_fits_a_phone(film, name):
    seen = film(name, width=360, theme="dark", touch=True, reduced_motion=True)
    page = seen.page
    page.wait_for_timeout(150)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    small = page.evaluate(
        f"""() => [...{SHADOW}.querySelectorAll("text, p, label, legend, span, b")]
            .filter((node) => node.textContent && node.getBoundingClientRect().width)
            .filter((node) => {{
              const scale = node.ownerSVGElement
                ? node.ownerSVGElement.getScreenCTM().a : 1;
              return parseFloat(getComputedStyle(node).fontSize) * scale < 11.5;
            }}).map((node) => node.textContent)"""
    )
    assert small == []
    out = page.evaluate(
        f"""() => [...{SHADOW}.querySelectorAll("svg text")]
            .filter((node) => getComputedStyle(node).visibility !== "hidden" && node.textContent)
            .map((node) => [node.textContent, node.getBoundingClientRect()])
            .filter(([, box]) => box.width && (box.left < 0 || box.right > 360))
            .map(([text]) => text)"""
    )
    assert out == []
    assert seen.problems == []


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_no_two_words_overlap(film, name):
    page = film(name, width=700, reduced_motion=True).page
    for width, at in itertools.product((700, 360), (0, 0.1, 0.37, 0.5, 0.83, 1)):
        if at == 0:
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(150)
        page.evaluate(
            f"""(t) => {{ const input = {SHADOW}.querySelector(".player input");
                input.value = 1000 * t; input.dispatchEvent(new Event("input")); }}""",
            at,
        )
        clashes = page.evaluate(
            f"""() => {{
                const seen = [...{SHADOW}.querySelectorAll("svg text")].filter((node) => {{
                  for (let up = node; up instanceof Element; up = up.parentNode) {{
                    const look = getComputedStyle(up);
                    if (look.visibility === "hidden" || Number(look.opacity) < 0.05) return false;
                  }}
                  return node.textContent.trim();
                }}).map((node) => [node.textContent, node.getBoundingClientRect()]);
                const found = [];
                seen.forEach(([a, p], i) => seen.slice(i + 1).forEach(([b, q]) => {{
                  const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
                  const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
                  if (wide > 2 && high > 5) found.push(a + " / " + b);
                }}));
                return found; }}"""
        )
        # A token on its way home may fly over what stands there.
        assert clashes == [] or name == "loop", f"at {at}, {width} px"


@pytest.mark.browser
def test_the_request_shows_each_piece_when_it_came(film):
    page = film("request", reduced_motion=True).page
    page.wait_for_timeout(150)
    scrub = page.locator(".player input")
    scrub.focus()
    shown = f"""() => [...{SHADOW}.querySelectorAll(".model span:not(.who)")]
        .filter((span) => getComputedStyle(span).visibility === "visible")
        .map((span) => span.textContent).join("")"""
    page.keyboard.press("Home")
    assert page.evaluate(shown) == ""
    for count in range(1, len(WORDS) + 1):
        page.keyboard.press("ArrowRight")
        assert page.evaluate(shown) == "".join(WORDS[:count])
    page.keyboard.press("End")
    totals = page.evaluate(f"() => {SHADOW}.querySelector('.live svg').textContent")
    passes = DATA["request"]["passes"]
    moved = sum(one["bytes"] for one in passes) / 1e9
    done = sum(one["flops"] for one in passes) / 1e9
    assert f"{moved:.3g}\u00a0GB" in totals
    assert f"{done:.3g}\u00a0GFLOP" in totals


@pytest.mark.browser
def test_thirty_ms_shows_the_numbers_of_the_case_that_is_picked(film):
    page = film("thirty-ms", reduced_motion=True).page
    page.wait_for_timeout(150)
    for case in DATA["thirty-ms"]["cases"]:
        page.get_by_text(case["label"], exact=True).click()
        page.wait_for_timeout(50)
        text = page.evaluate(f"() => {SHADOW}.querySelector('.live').textContent")
        assert f"{1e3 * case['memory_s']:.3g}\u00a0ms" in text
        assert f"{1e3 * case['compute_s']:.3g}\u00a0ms" in text
        seats = page.locator(".seat").count() + 1
        assert seats == int(case["memory_s"] / case["compute_s"])
        assert ("which they do not" in text) == (case["fits"] is False)


@pytest.mark.browser
def test_the_slider_of_the_shared_trip_sets_every_number(film):
    page = film("shared-trip", reduced_motion=True).page
    page.wait_for_timeout(150)
    form = DATA["shared-trip"]["formats"][0]
    slider = page.locator(".slider input")
    slider.focus()
    page.keyboard.press("Home")
    for one in form["passes"]:
        page.wait_for_timeout(30)
        text = page.evaluate(f"() => {SHADOW}.querySelector('.live').textContent")
        n = one["tokens"]
        intensity = f"{n * 2 / form['bytes_per_weight']:,.0f}"
        assert f"= {intensity} FLOP per byte" in text
        compute, memory = (f"{1e3 * one[key]:.3g}\u00a0ms" for key in ("compute_s", "memory_s"))
        assert compute in text
        assert memory in text
        slower = "arithmetic" if n * 2 / form["bytes_per_weight"] > form["ridge"] else "bytes"
        takes = {"arithmetic": "the arithmetic takes longer", "bytes": "the bytes take longer"}
        assert takes[slower] in text
        page.keyboard.press("ArrowRight")
    page.get_by_text("int4", exact=True).click()
    assert "0.5 bytes per weight" in page.evaluate(
        f"() => {SHADOW}.querySelector('.live').textContent"
    )


@pytest.mark.browser
def test_the_memory_wall_names_the_gap_of_the_way_one_counts(film):
    page = film("memory-wall", reduced_motion=True).page
    for counting in trends.COUNTINGS:
        page.get_by_text(counting, exact=True).click()
        last = trends.history(counting)[-1]
        said = page.locator(".caption").inner_text()
        assert last.chip.name.split()[0] in said
        gained = last.gap if last.gap > 1 else 1 / last.gap
        assert f"{gained:.3g}×" in said
        assert ("on arithmetic" in said) == (last.gap < 1)


def test_an_answer_costs_the_sum_of_its_passes():
    for case, (shape, chip) in zip(
        DATA["append"]["cases"], [(LLAMA, H100), (SMOL, CPU)], strict=True
    ):
        for name, cache in (("without", False), ("with", True)):
            passes = list(costs.generation(shape, 1, 40, cache=cache))
            assert case[name][-1]["flops"] == pytest.approx(sum(p.flops for p in passes))
            times = (roofline.place(p, chip).seconds for p in passes)
            assert case[name][-1]["seconds"] == pytest.approx(sum(times))
            assert len(case[name]) == 40


def test_forgetting_computes_a_triangle_of_positions(film):
    page = film("append", reduced_motion=True).page
    first = page.locator("tbody tr").first.inner_text().split()
    assert first[-3:] == ["820", "40", "20.5×"]
    scrub = page.get_by_label("Token of the answer")
    scrub.focus()
    for _ in range(30):
        page.keyboard.press("ArrowLeft")
    first = page.locator("tbody tr").first.inner_text().split()
    assert first[-3:] == ["55", "10", "5.5×"]


def test_a_token_fetches_what_a_decode_step_streams():
    for case, shape in zip(DATA["sink"]["cases"], (LLAMA, SMOL), strict=True):
        stops, step = case["stops"], costs.decode_step(shape, 0)
        assert len(stops) == shape.layers + 2
        assert sum(stop["bytes"] for stop in stops[1:]) == pytest.approx(step.bytes)
        assert sum(stop["flops"] for stop in stops) == pytest.approx(step.flops)
        assert stops[0]["bytes"] == 2 * shape.hidden


def test_walls_are_theorys_ceilings():
    for wall in DATA["ceiling"]["walls"]:
        rate = limits.decode_ceiling(
            LLAMA, H100, 0, wall["users"], dtype=wall["dtype"], chips=wall["chips"]
        )
        assert wall["total"] == pytest.approx(rate)
        assert wall["user"] == pytest.approx(rate / wall["users"])
    shares = [stage["share"] for stage in DATA["ceiling"]["stages"]]
    assert shares == pytest.approx([0.15, 0.70, 0.92, 1.0], abs=0.005)


def test_an_attack_moves_the_wall_and_the_sum_says_where(film):
    page = film("ceiling", reduced_motion=True).page
    said = page.locator(".sum")
    assert "24.4 tokens/s" in said.inner_text()
    page.get_by_role("group", name="Chips").get_by_text("2", exact=True).click()
    assert "48.8 tokens/s" in said.inner_text()
    page.get_by_role("group", name="Users").get_by_text("8", exact=True).click()
    assert "together" in said.inner_text()
    assert page.locator(".old").count() == 2


@pytest.mark.parametrize("name", NAMES)
def test_twice_on_a_page_it_still_works(visit, name):
    one = html(name, DATA[name], alt="one")
    seen = visit(one + one, reduced_motion=True)
    seen.page.wait_for_timeout(150)
    assert seen.page.evaluate("document.querySelectorAll('[data-explorer]').length") == 2
    hosts = "[...document.querySelectorAll('[data-explorer]')]"
    drawn = f"{hosts}.map((host) => host.shadowRoot?.querySelector('svg') !== null)"
    assert seen.page.evaluate(drawn) == [True, True]
    assert seen.problems == []


def test_data_are_plain_json():
    for data in DATA.values():
        assert json.loads(json.dumps(data, allow_nan=False)) == data
