"""The Calculator shows what `inferlab explain` computes, to every reader and on every setting."""

from __future__ import annotations

import json
import random
import re
import shlex
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from inferlab.errors import InferlabError
from inferlab.explorers import script
from inferlab.explorers.calculator import START, calculator
from inferlab.explorers.catalog import catalog
from inferlab.figures import style
from inferlab.theory import explain, formats, hardware, limits, models

pytestmark = pytest.mark.browser

KV_FORMATS = (None, "fp8", "int8", "q8_0", "q4_0")


@pytest.fixture
def open_calculator(visit):
    """Return `open_calculator(**how)`: the Calculator on a page of the book's colours."""

    def open_(**how):
        paper = "<style>body { margin: 16px; background: var(--paper); color: var(--ink); }</style>"
        html = style.variables("body") + paper + calculator(link=True).html
        seen = visit(f"<main><h1>Calculator</h1>{html}</main>", **how)
        seen.page.locator(".roofline svg").wait_for()
        return seen

    return open_


def value(page, name: str):
    return page.locator(".tiles > div", has_text=name).locator(".value")


def tile(page, name: str) -> str:
    return value(page, name).inner_text().replace("\n", " ")


def equation(page, name: str) -> str:
    row = page.locator(".equations > div", has=page.get_by_text(name, exact=True))
    return row.locator("dd").inner_text().replace("\u00a0", " ")


def test_it_starts_with_a_model_that_does_not_fit(open_calculator):
    seen = open_calculator()
    page = seen.page
    assert "It does not fit" in page.inner_text(".verdict")
    assert tile(page, "Tokens per second") == "24.26"  # claim 74, at 2,000 tokens of context
    assert equation(page, "KV cache, a token").endswith("= 327,680 B")  # claim 86
    assert equation(page, "Ridge").endswith("= 295.3 FLOP/B")  # claim 63
    assert equation(page, "Prefill, operations").endswith("= 279.05 TFLOP")  # claim 64
    assert equation(page, "Weights") == "68,976,648,192 × 2 B = 138 GB"
    assert equation(page, "Users that fit").endswith("= 0")
    assert seen.problems == []


def test_an_empty_cache_raises_the_ceiling(open_calculator):
    page = open_calculator().page
    page.get_by_label("Context, cached").press("Home")
    assert tile(page, "Tokens per second") == "24.38"  # claim 74
    assert tile(page, "First token").startswith("284")


def test_one_press_makes_it_fit_and_keeps_the_focus(open_calculator):
    page = open_calculator().page
    page.get_by_role("button", name="2 chips").press("Enter")
    assert "It fits" in page.inner_text(".verdict")
    assert tile(page, "Tokens per second") == "48.52"
    room = limits.sequences_that_fit(
        models.get("llama-2-70b"), hardware.get("h100-sxm"), 2000, dtype="bf16", chips=2
    )
    assert f"{room} users" in page.inner_text(".verdict")
    assert (
        page.evaluate(
            "document.querySelector('[data-explorer]').shadowRoot.activeElement.className"
        )
        == "verdict"
    )


def test_every_remedy_it_offers_does_make_it_fit(open_calculator):
    for start in ("", "?batch=512&chips=3", "?model=deepseek-v3&chip=t4", "?model=llama-3.1-405b"):
        fragment = f"#calculator{start}"
        names = open_calculator(fragment=fragment).page.locator(".fixes button").all_inner_texts()
        assert names or "t4" in start  # not even 72 of them hold DeepSeek-V3 in 16 bits
        for name in names:
            page = open_calculator(fragment=fragment).page
            page.get_by_role("button", name=name, exact=True).click()
            assert "It fits" in page.inner_text(".verdict")


def test_the_prompt_carries_the_context_until_told_otherwise(open_calculator):
    page = open_calculator().page
    prompt, context = page.get_by_label("Prompt", exact=True), page.get_by_label("Context, cached")
    prompt.press("ArrowRight")
    assert context.get_attribute("aria-valuetext") == "4,000 tokens"
    context.press("ArrowLeft")
    prompt.press("ArrowRight")
    assert prompt.get_attribute("aria-valuetext") == "8,000 tokens"
    assert context.get_attribute("aria-valuetext") == "2,000 tokens"


def settings(count: int) -> list[dict]:
    """Draw settings that the page can be in."""
    draw = random.Random(8)
    made = []
    while len(made) < count:
        chip = hardware.all()[len(made) % len(hardware.all())]
        dtype = draw.choice(formats.names())
        try:
            chip.peak(dtype)
        except InferlabError:
            continue
        made.append(
            START
            | {
                "model": models.names()[len(made) % len(models.names())],
                "chip": chip.key,
                "chips": draw.choice((1, 2, 8, 72)),
                "dtype": dtype,
                "kvDtype": draw.choice(KV_FORMATS),
                "prompt": draw.choice((1, 128, 2000, 100_000, 1_000_000)),
                "context": draw.choice((0, 1, 512, 8000, 1_000_000)),
                "batch": draw.choice((1, 4, 64, 1024)),
                "price": draw.choice((0.35, 2.0, 12.0)),
            }
        )
    return made


def test_its_answers_are_those_of_explain(visit):
    cases = settings(400)
    page = visit(
        f"<script>const calculator = {script('calculator')};\n"
        f"const catalog = {json.dumps(catalog())};</script>"
    ).page
    answers = page.evaluate(
        "cases => cases.map((state) => calculator.calculate(catalog, state))", cases
    )
    for case, answer in zip(cases, answers, strict=True):
        shape, chip = models.get(case["model"]), hardware.get(case["chip"])
        options = {"dtype": case["dtype"], "kv_dtype": case["kvDtype"], "chips": case["chips"]}
        right = explain.report(
            shape, chip, case["prompt"], case["batch"], case["context"], **options
        )
        where = str(case)
        assert answer["fits"] == right["fits"], where
        for key in ("ridge", "weight_bytes", "kv_bytes_per_token"):
            assert answer[key] == pytest.approx(right[key], rel=1e-9), where
        for phase in ("prefill", "decode"):
            assert answer[phase]["bound"] == right[phase]["bound"], where
            for key in right[phase].keys() - {"bound"}:
                assert answer[phase][key] == pytest.approx(right[phase][key], rel=1e-9), where
            for name, part in right["parts"][phase].items():
                ours = answer[phase]["parts"][name]
                assert ours["bound"] == part["bound"], where
                for key in ("flops", "bytes", "seconds"):
                    assert ours[key] == pytest.approx(part[key], rel=1e-9), where
        longest = max(case["prompt"], case["context"])
        assert answer["users"] == limits.sequences_that_fit(shape, chip, longest, **options), where
        hour = case["price"] * case["chips"]
        per_token = hour / 3600 / right["decode"]["tokens_per_second"]
        assert answer["dollars_out"] == pytest.approx(1e6 * per_token, rel=1e-9), where


def test_the_command_it_prints_gives_the_number_it_shows(open_calculator):
    from typer.testing import CliRunner

    from inferlab.cli import app

    fragment = (
        "#calculator?model=qwen3-8b&chip=l4&chips=2&dtype=q4_0&batch=16&context=8000&kvDtype=fp8"
    )
    page = open_calculator(fragment=fragment).page
    words = shlex.split(page.inner_text("pre code"))
    assert words[:2] == ["inferlab", "explain"]
    result = CliRunner().invoke(app, [*words[1:], "--json"])
    assert result.exit_code == 0, result.output
    rate = json.loads(result.output)["decode"]["tokens_per_second"]
    shown = float(tile(page, "Tokens per second").replace(",", ""))
    assert shown == pytest.approx(rate, rel=1e-3)


def test_its_address_keeps_the_setting(open_calculator):
    page = open_calculator().page
    page.get_by_label("Users at once").press("ArrowRight")
    page.get_by_label("Chip", exact=True).select_option("h200-sxm")
    address = page.evaluate("location.hash")
    assert address == "#calculator?chip=h200-sxm&batch=2"
    again = open_calculator(fragment=address).page
    assert tile(again, "Tokens per second") == tile(page, "Tokens per second")
    assert again.locator(".sentence").inner_text() == page.locator(".sentence").inner_text()


@pytest.mark.parametrize(
    "fragment",
    [
        "#roofline",
        "#calculator",
        "#calculator?model=nothing&chip=&chips=-3&dtype=bf17&prompt=x&batch=NaN&price=&context=1e99",
        "#calculator?toString=1&constructor=2&model=toString",
    ],
)
def test_a_damaged_address_changes_nothing(open_calculator, fragment):
    seen = open_calculator(fragment=fragment)
    assert tile(seen.page, "Tokens per second") == "24.26"
    assert seen.problems == []


def test_a_chip_without_the_format_falls_back_to_its_own(open_calculator):
    page = open_calculator().page
    page.get_by_label("Chip", exact=True).select_option("t4")
    weights = page.get_by_label("Format of the weights")
    assert weights.input_value() == "fp16"
    offered = weights.locator("option").evaluate_all("all => all.map((one) => one.value)")
    assert "bf16" not in offered
    assert "q4_0" in offered


def test_a_reader_can_type_their_own_machine(open_calculator):
    page = open_calculator(fragment="#calculator?model=smollm2-135m&dtype=fp32&context=0").page
    assert not page.get_by_label("Your bytes").is_visible()
    page.get_by_label("Chip", exact=True).select_option("own")
    page.get_by_label("Your bytes").fill("17")
    streamed = 134_515_008 * 4
    activations = 2 * 576 * 30 * 4
    written = 2 * 3 * 64 * 30 * 4
    ceiling = 17e9 / (streamed + activations + written)
    assert float(tile(page, "Tokens per second")) == pytest.approx(ceiling, rel=1e-3)
    assert page.inner_text("pre code") == "inferlab device"


def test_every_model_and_every_chip_reads_well(open_calculator):
    seen = open_calculator()
    page = seen.page
    for label, keys in (
        ("Chip", [chip.key for chip in hardware.all()]),
        ("Model", models.names()),
    ):
        for key in keys:
            page.get_by_label(label, exact=True).select_option(key)
            text = page.inner_text(".calculator")
            assert not re.search(r"NaN|undefined|null|Infinity|\[object", text), key
    assert seen.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "fragment", ["", "#calculator?chip=own", "#calculator?batch=1024&chips=72"]
)
def test_it_is_readable_on_a_phone(open_calculator, theme, fragment):
    seen = open_calculator(width=360, theme=theme, fragment=fragment, touch=True)
    page = seen.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    outside = page.locator(".calculator *").evaluate_all(
        "all => all.filter((one) => one.getBoundingClientRect().right > 361)"
        ".map((one) => one.outerHTML.slice(0, 80))"
    )
    assert outside == []
    assert seen.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_to_object_to(open_calculator, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    seen = open_calculator(theme=theme, reduced_motion=True)
    found = axe.Axe().run(seen.page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:120]) for each in found] == []


def test_pictures_say_what_they_show(open_calculator):
    page = open_calculator().page
    for picture in page.locator("figure svg").all():
        assert re.search(r"\d", picture.get_attribute("aria-label"))


def test_it_weighs_less_than_a_photograph():
    assert len(calculator(link=True).html.encode()) < 300_000


# The page around it

PAGE = Path(__file__).parents[2] / "book" / "calculator.md"


def invitations() -> list[dict]:
    """The settings that the page's links carry, over the Calculator's first one."""
    made = []
    for query in re.findall(r'href="#calculator\?([^"]+)"', PAGE.read_text(encoding="utf-8")):
        given = dict(parse_qsl(unescape(query), strict_parsing=True))
        assert given.keys() <= START.keys(), query
        numbers = ("chips", "prompt", "context", "batch")
        given |= {name: int(given[name]) for name in numbers if name in given}
        made.append(START | given)
    return made


def test_what_the_page_promises_of_its_links_holds(open_calculator):
    page = open_calculator().page
    source = f"(state) => {script('calculator')}.calculate({json.dumps(catalog())}, state)"
    first, two, many, long, small, expert, experts = (
        page.evaluate(source, state) for state in [START, *invitations()[:-1]]
    )
    assert (first["fits"], two["fits"]) == (False, True)
    assert first["tpot"] / two["tpot"] == pytest.approx(2)
    assert many["fits"]
    assert many["dollars_out"] < two["dollars_out"] / 10
    ridge, matrices = many["ridge"], many["decode"]["parts"]["ffn"]
    assert matrices["intensity"] == pytest.approx(64, rel=0.01)
    crowd = page.evaluate(source, invitations()[1] | {"batch": 512})
    assert crowd["decode"]["parts"]["ffn"]["intensity"] > ridge > matrices["intensity"]
    assert crowd["decode"]["parts"]["attention"]["intensity"] == pytest.approx(8, rel=0.01)
    assert long["fits"]
    parts = long["decode"]["parts"]
    assert parts["attention"]["bytes"] > parts["projections"]["bytes"] + parts["ffn"]["bytes"]
    fuller = page.evaluate(source, invitations()[2] | {"batch": 2 * 16})
    assert fuller["dollars_out"] > 0.8 * long["dollars_out"]
    assert small["tpot"] < two["tpot"] / 3
    assert small["ttft"] == pytest.approx(two["ttft"], rel=0.01)
    assert expert["fits"]
    assert experts["fits"]
    assert (
        experts["decode"]["parts"]["ffn"]["bytes"] > 10 * expert["decode"]["parts"]["ffn"]["bytes"]
    )


def test_the_built_page_carries_it(visit, site):
    from playwright.sync_api import expect

    seen = visit(site / "book" / "calculator.html")
    assert tile(seen.page, "Tokens per second") == "24.26"
    seen.page.get_by_role("link", name="Give the 70B a second H100.").click()
    expect(value(seen.page, "Tokens per second")).to_have_text("48.52")
    assert seen.problems == []


def test_a_link_on_the_page_sets_it_and_brings_it_into_view(open_calculator):
    page = open_calculator().page
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend',"
        ' \'<a href="#calculator?chips=2&amp;batch=64" style="margin-top:3000px">two</a>\')'
    )
    page.get_by_label("Price").fill("9")
    page.get_by_role("link", name="two").click()
    page.wait_for_function("scrollY < 200")
    rate = limits.decode_ceiling(
        models.get("llama-2-70b"), hardware.get("h100-sxm"), 2000, 64, chips=2
    )
    # The link's setting, with the price that it starts from and not the one typed before.
    assert tile(page, "Tokens per second") == f"{rate:,.0f}"
    assert tile(page, "A million tokens") == f"${2 * 2 / 3600 / rate * 1e6:.2f}"
