"""Every page of the built book: whole, quiet with no network, readable on a phone and at night."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import inferlab
from inferlab.figures import style

_spec = importlib.util.spec_from_file_location("pages", Path(__file__).with_name("pages.py"))
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

ROOT = pages.ROOT
EVERY_PAGE = pytest.mark.parametrize("name", pages.names())
THEMES = {"light": style.LIGHT, "dark": style.DARK}


@cache
def parsed(path: Path) -> pages.Page:
    return pages.Page(path.read_text(encoding="utf-8"))


def rgb(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"


# ---- without a browser ---------------------------------------------------------------------------


@EVERY_PAGE
def test_links_anchors_and_files_resolve(site, name):
    page = site / f"{name}.html"
    for target in parsed(page).links + parsed(page).loads:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert file.exists(), f"{name} points to {target}, which is not there"
        if parts.fragment and file.suffix == ".html":
            anchor = unquote(parts.fragment).partition("?")[0]  # an explorer's setting may follow
            assert anchor in parsed(file).ids, f"{name}: no anchor {target}"


@EVERY_PAGE
def test_nothing_is_loaded_from_elsewhere(site, name):
    page = site / f"{name}.html"
    outside = [t for t in parsed(page).loads if urlsplit(t).scheme in ("http", "https")]
    assert outside == []
    assert "preload" not in page.read_text(encoding="utf-8")


@EVERY_PAGE
def test_a_page_weighs_less_than_a_photograph(site, name):
    page = site / f"{name}.html"
    own = {(page.parent / urlsplit(t).path).resolve() for t in parsed(page).loads}
    images = sum(f.stat().st_size for f in own if f.parent.name == "_images")
    assert page.stat().st_size + images < 1_500_000


@EVERY_PAGE
def test_the_version_stands_in_the_footer(site, name):
    text = (site / f"{name}.html").read_text(encoding="utf-8")
    assert f'<span class="version">{inferlab.__version__}</span>' in text


def test_notebook_pages_offer_colab(site):
    notebooks = [name for name in pages.names() if name.startswith("notebooks/")]
    assert notebooks
    for name in notebooks:
        links = parsed(site / f"{name}.html").links
        assert any(
            link.startswith("https://colab.research.google.com/github/")
            and link.endswith(f"/blob/main/{name}.ipynb")
            for link in links
        )


def test_the_sidebar_numbers_the_chapters(site):
    text = (site / "notebooks" / "00-your-machine.html").read_text(encoding="utf-8")
    sidebar = text[text.index("bd-docs-nav") : text.index('id="main-content"')]
    shown = re.findall(r'<span class="number">(\d\d)</span>', sidebar)
    chapters = (n[10:12] for n in pages.names() if n.startswith("notebooks/"))
    assert shown == [number for number in chapters if number.isdigit()]


def test_the_first_page_is_found_from_the_folder(site):
    assert "book/intro.html" in (site / "index.html").read_text(encoding="utf-8")


# ---- in a browser --------------------------------------------------------------------------------


@EVERY_PAGE
@pytest.mark.parametrize("width", [1280, 360])
def test_a_page_is_quiet_and_whole(visit, site, name, width):
    seen = visit(site / f"{name}.html", width=width)
    page = seen.page
    page.evaluate(MATHS_DONE)
    for theme, tones in THEMES.items():
        show(page, theme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == rgb(
            tones["paper"]
        )
        assert page.evaluate(TOO_WIDE) == [0, []]
        assert page.evaluate(FAINT_TEXT) == []
    assert page.evaluate(UNDRAWN_MATHS) == []
    assert page.evaluate(SILENT_PICTURES) == []
    if width == 1280:
        assert page.evaluate(CUT_CODE) == [], "code is cut off on a laptop"
        assert serious(page, without=COLOUR_RULES) == []
    assert seen.problems == []


@pytest.mark.slow
@EVERY_PAGE
def test_axe_too_finds_contrast_enough(visit, site, name):
    page = visit(site / f"{name}.html").page
    page.evaluate(MATHS_DONE)
    for theme in THEMES:
        show(page, theme)
        assert serious(page) == []


@pytest.mark.parametrize(
    ("style", "found"),
    [
        ("color: #767676", []),  # 4.54 to 1, the lightest grey that is legible on white
        ("color: #777777", ["4.48 words"]),
        ("color: #888888; font-size: 24px", []),  # large text needs 3 to 1
        ("color: #888888; font-size: 20px; font-weight: 700", []),
        ("color: #999999; font-size: 24px", ["2.85 words"]),
        ("color: #000; opacity: 0.4", ["2.85 words"]),
        ("color: rgb(0 0 0 / 40%)", ["2.85 words"]),
        ("color: #fff; background: #000", []),
        ("color: #fff; background: rgb(0 0 0 / 40%)", ["2.85 words"]),
        ("color: #999999; display: none", []),
    ],
)
def test_faint_text_is_found(visit, style, found):
    page = visit(f'<main><p style="{style}">words</p></main>').page
    assert page.evaluate(FAINT_TEXT) == found


def test_faint_text_is_found_in_a_shadow_tree(visit):
    page = visit("<main style='opacity: 0.4'><p></p></main>").page
    page.evaluate("document.querySelector('p').attachShadow({mode: 'open'}).innerHTML = '<b>x</b>'")
    assert page.evaluate(FAINT_TEXT) == ["2.85 x"]


def show(page, theme: str) -> None:
    """Turn a page light or dark, as its reader's system would, and wait until nothing fades."""
    page.emulate_media(color_scheme=theme)
    page.wait_for_function(f"document.documentElement.dataset.theme === '{theme}'")
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    page.wait_for_function(STILL)


#: Whether no colour fades any more, in shadow trees neither.
STILL = """() => {
  const trees = root => [root, ...[...root.querySelectorAll("*")]
    .flatMap(e => e.shadowRoot ? trees(e.shadowRoot) : [])];
  return trees(document).every(tree =>
    tree.getAnimations().every(each => !(each instanceof CSSTransition))) }"""

#: What axe needs ten seconds a page for; `FAINT_TEXT` sees most of it.
COLOUR_RULES = ("color-contrast", "link-in-text-block")


def serious(page, *, without: Sequence[str] = ()) -> list[str]:
    """Return what axe finds that would keep somebody from reading: contrast, names, keys."""
    from axe_playwright_python.sync_playwright import Axe

    options = {
        "rules": {rule: {"enabled": False} for rule in without},
        "preload": False,  # of style sheets, from a network that is not there
        "reporter": "no-passes",
        "resultTypes": ["violations"],
    }
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{rule['id']}: {rule['nodes'][0]['target']} and {len(rule['nodes']) - 1} more"
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]


MATHS_DONE = "window.MathJax === undefined || MathJax.startup.promise.then(() => true)"

#: How far the page scrolls sideways, and what sticks out of it without a scroll bar of its own.
TOO_WIDE = """() => {
  const w = document.documentElement.clientWidth;
  const scrolls = "pre, .pst-scrollable-table-container, .text_html, mjx-container, .cell_output";
  return [document.documentElement.scrollWidth - w,
    [...document.querySelectorAll("article *")]
      .filter(e => e.getBoundingClientRect().right > w + 1 && !e.closest(scrolls))
      .map(e => e.outerHTML.slice(0, 100))] }"""

#: Formulas without a drawing, or drawn as an error.
UNDRAWN_MATHS = """() => [...document.querySelectorAll("article .math")]
  .filter(m => !m.querySelector("mjx-container svg") || m.querySelector("[data-mjx-error]"))
  .map(m => m.outerHTML.slice(0, 100))"""

#: Images, drawings and explorers that say nothing to a reader who can't see them.
SILENT_PICTURES = """() => {
  const label = e => (e.getAttribute("aria-label") || e.getAttribute("alt")
    || e.querySelector(":scope > title")?.textContent || "").trim();
  const named = "[aria-hidden=true], mjx-container, [role=img][aria-label]";
  return [...document.querySelectorAll("article :is(img, svg, .inferlab-explorer)")]
    .filter(e => label(e).length < 8 && !(e.tagName === "svg" && e.closest(named)))
    .map(e => e.outerHTML.slice(0, 120)) }"""

#: Text below WCAG's contrast AA, with its ratio: 4.5 to 1, or 3 to 1 for large letters.
FAINT_TEXT = """() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], under) => [r, g, b].map((c, i) => a * c + (1 - a) * under[i]);
  const up = e => e.parentElement ?? e.getRootNode().host; // explorers are shadow trees
  const paper = numbers(getComputedStyle(document.body).backgroundColor);
  const ground = e => !e ? over(paper[3] === 0 ? [255, 255, 255] : paper, [255, 255, 255])
    : (c => c[3] === 0 ? ground(up(e)) : over(c, ground(up(e))))(
      numbers(getComputedStyle(e).backgroundColor));
  const solid = e => e ? getComputedStyle(e).opacity * solid(up(e)) : 1;
  const light = c => c.map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const found = new Set(), seen = new Set();
  const texts = root => [...root.querySelectorAll("*")].flatMap(e => [
    ...[...e.childNodes].filter(n => n.nodeType === Node.TEXT_NODE),
    ...(e.shadowRoot ? texts(e.shadowRoot) : [])]);
  for (const text of texts(document)) {
    const e = text.parentElement, words = text.data.trim();
    if (!words || !e || seen.has(e)
      || e.closest("svg, script, style, :disabled, [aria-disabled=true]")
      || !e.checkVisibility({ visibilityProperty: true }) || e.getBoundingClientRect().width < 2)
      continue;
    seen.add(e);
    const look = getComputedStyle(e), size = parseFloat(look.fontSize);
    const [r, g, b, a = 1] = numbers(look.color), under = ground(e);
    const pair = [light(over([r, g, b, a * solid(e)], under)), light(under)].sort((x, y) => y - x);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    const large = size >= 24 || (size >= 18.66 && look.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.add(`${ratio.toFixed(2)} ${words.slice(0, 60)}`);
  }
  return [...found] }"""

#: The longest line of each code cell that does not fit its box.
CUT_CODE = """() => {
  for (const d of document.querySelectorAll("details")) d.open = true;
  return [...document.querySelectorAll("article .cell_input pre")]
    .filter(e => e.scrollWidth > e.clientWidth)
    .map(e => e.textContent.split("\\n").reduce((a, b) => b.length > a.length ? b : a)) }"""


@pytest.mark.parametrize("width", [1280, 1920])
def test_a_line_of_text_holds_60_to_80_characters(visit, site, width):
    page = visit(site / "book/intro.html", width=width).page
    words = "the quick brown fox jumps over one lazy dog and reads each byte of its weights again "
    page.evaluate("document.fonts.ready")
    lines = page.evaluate(
        """words => { const p = document.createElement("p"); p.textContent = words.repeat(40);
        document.querySelector("article section").append(p);
        return p.getBoundingClientRect().height / parseFloat(getComputedStyle(p).lineHeight) }""",
        words,
    )
    assert 60 <= len(words) * 40 / lines <= 80


def test_the_fonts_are_those_in_the_folder(visit, site):
    page = visit(site / "book/intro.html").page
    loaded = page.evaluate(
        """() => document.fonts.ready.then(() => [...document.fonts]
        .filter(f => f.status === "loaded").map(f => f.family.replaceAll('"', "")))"""
    )
    assert {"Book Serif", "Inter"} <= set(loaded)


def test_the_theme_switch_reaches_every_theme(visit, site):
    seen = visit(site / "book/intro.html")
    themes = set()
    for _ in range(3):
        seen.page.click(".theme-switch-button")
        themes.add(seen.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert themes == {rgb(style.LIGHT["paper"]), rgb(style.DARK["paper"])}
    assert seen.problems == []


def test_search_finds_a_page_with_no_network(visit, site):
    seen = visit(site / "search.html", fragment="?q=token")
    seen.page.wait_for_selector("#search-results li a")
    assert seen.problems == []


def test_the_menu_opens_on_a_phone(visit, site):
    seen = visit(site / "book/intro.html", width=360, touch=True)
    seen.page.tap(".primary-toggle")
    link = seen.page.locator(".bd-sidebar-primary a", has_text="Glossary")
    link.tap()
    seen.page.wait_for_url(re.compile(r"glossary\.html"))
    assert seen.problems == []


def test_the_palette_of_the_pages_is_that_of_the_figures(visit, site):
    page = visit(site / "book/intro.html").page
    roles = json.dumps(list(style.LIGHT))
    tones = page.evaluate(
        f"""() => {{ const s = getComputedStyle(document.body);
        return Object.fromEntries({roles}.map(r => [r, s.getPropertyValue("--" + r).trim()])) }}"""
    )
    assert tones == dict(style.LIGHT)
