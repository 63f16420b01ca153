"""An explorer is one self-contained, reproducible output that disturbs nothing around it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from inferlab import explorers
from inferlab.errors import InferlabError

PROBE = """
import { h } from "./lib/dom.js";
import { choice, field, pick, slider as range } from "./lib/controls.js";
import { player } from "./lib/player.js";

export function render({ model, el }) {
  const out = h("output", { class: "out" });
  const say = (value) => { out.textContent = JSON.stringify(value); };
  el.append(
    h("style", {}, ".out { color: rgb(1, 2, 3); }"),
    range({ label: "Users", values: [1, 4, 16], value: 4, format: (n) => `${n} users`,
      onchange: say }).node,
    pick({ label: "Chip", options: [["a", "Alpha", "Kind", "A"], ["b", "Beta", "Kind", "B"]],
      value: "b", onchange: say }).node,
    choice({ label: "Format", options: [[2, "bf16"], [1, "fp8"]], value: 2, onchange: say }).node,
    field({ label: "Price", value: 2, min: 1, unit: "$ an hour", onchange: say }).node,
    player({ seconds: 0.3, label: "Moment", draw: (t) => say(t) }).node,
    h("p", { class: "said" }, model.get("text")), out);
}
"""


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """Return `probe(text)`: the HTML of an explorer with one of each control."""
    shutil.copytree(explorers.HERE / "lib", tmp_path / "lib")
    (tmp_path / "a-probe.js").write_text(PROBE.lstrip())
    monkeypatch.setattr(explorers, "HERE", tmp_path)
    still = "<svg role='img' aria-label='still' width='9' height='9'></svg>"
    return lambda text="hello": explorers.show(
        "a-probe", {"text": text}, alt='A "probe"', still=still
    )


def test_equal_data_give_equal_bytes_and_other_data_another_key(probe):
    assert probe().html == probe().html
    key = re.compile(r'data-explorer="([^"]+)"')
    assert key.search(probe().html)[1] != key.search(probe("other").html)[1]


def test_an_output_asks_for_nothing_and_says_what_it_is(probe):
    shown = probe()
    assert shown._repr_html_() == shown.html
    assert repr(shown) == 'A "probe"'
    assert 'aria-label="A &quot;probe&quot;"' in shown.html
    addresses = set(re.findall(r"https?://[^\s\"'`<]+", shown.html))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a namespace, not an address
    assert "import " not in shown.html.split('<script type="module">')[1]


def test_an_unknown_explorer_names_the_nearest():
    with pytest.raises(InferlabError, match="calculator"):
        explorers.show("calculater", {}, alt="")


def test_numbers_that_json_cannot_say_are_refused(probe):
    with pytest.raises(ValueError, match="JSON"):
        explorers.show("a-probe", {"text": float("nan")}, alt="")


def test_every_explorer_is_a_module_with_a_render_function():
    for name in explorers.names():
        assert (
            "export function render({ model, el })" in (explorers.HERE / f"{name}.js").read_text()
        )
        explorers.script(name)


def test_explorers_load_without_torch_or_ipython():
    code = (
        "import sys, inferlab.explorers.calculator;"
        "sys.exit(bool({'torch', 'IPython', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# In a browser

#: An animation may be over before a slow test looks at it.
KEEP_STATES = """() => {
  const node = document.querySelector('[data-explorer]').shadowRoot.querySelector('.player');
  window.states = [];
  new MutationObserver(() => states.push(
    [node.dataset.playing, node.querySelector('button').getAttribute('aria-label')]
  )).observe(node, { attributeFilter: ['data-playing'] });
}"""

AT_THE_END = """() => document.querySelector('[data-explorer]').shadowRoot
  .querySelector('.player input').value === '1000'"""


def test_data_cannot_break_out_of_their_script(probe, visit):
    text = "</script><script>window.broken = 1</script><!-- \u2028 'x' `y` \\ é"
    seen = visit(probe(text).html)
    assert seen.page.text_content(".said") == text
    assert seen.page.evaluate("window.broken === undefined")
    assert seen.problems == []


def test_the_same_explorer_twice_and_others_beside_it_do_not_clash(probe, visit):
    page = visit(
        f"<p class='out'>mine</p>{probe('one').html}{probe('two').html}{probe('one').html}"
    ).page
    assert page.locator(".said").all_inner_texts() == ["one", "two", "one"]
    assert page.locator("p.out").evaluate("node => getComputedStyle(node).color") == "rgb(0, 0, 0)"
    users = page.get_by_label("Users")
    users.nth(1).press("ArrowRight")
    assert [users.nth(i).get_attribute("aria-valuetext") for i in range(3)] == [
        "4 users",
        "16 users",
        "4 users",
    ]


def test_controls_answer_to_the_keyboard(probe, visit):
    page = visit(probe().html, reduced_motion=True).page
    out = page.locator("output.out")
    page.get_by_label("Users").press("End")
    assert out.inner_text() == "16"
    page.get_by_label("Users").press("Home")
    assert out.inner_text() == "1"
    page.get_by_label("Chip").press("ArrowUp")
    assert (out.inner_text(), page.inner_text(".pick .word")) == ('"a"', "A")
    page.get_by_label("bf16").press("ArrowRight")
    assert (out.inner_text(), page.get_by_label("fp8").is_checked()) == ("1", True)
    page.get_by_label("Price").fill("3.5")
    assert out.inner_text() == "3.5"
    page.get_by_label("Price").fill("0.5")  # below the least: the last good value stays
    assert (out.inner_text(), page.get_by_label("Price").get_attribute("aria-invalid")) == (
        "3.5",
        "true",
    )
    assert page.locator(".wrong").inner_text() == "It must be 1 or more. 3.5 still counts."
    page.get_by_label("Price").fill("4")
    assert page.locator(".wrong").inner_text() == ""


def test_controls_answer_to_a_finger(probe, visit):
    page = visit(probe().html, width=360, touch=True, reduced_motion=True).page
    users = page.get_by_label("Users")
    box = users.bounding_box()
    assert box["height"] >= 24
    page.touchscreen.tap(box["x"] + box["width"] - 12, box["y"] + box["height"] / 2)
    assert users.get_attribute("aria-valuetext") == "16 users"
    page.get_by_text("fp8").tap()
    assert page.locator("output.out").inner_text() == "1"


def test_an_animation_plays_by_itself_pauses_and_can_be_scrubbed(probe, visit):
    page = visit(probe().html).page
    player, moment = page.locator(".player"), page.get_by_label("Moment")
    page.wait_for_function(AT_THE_END)
    assert player.get_attribute("data-playing") == "false"
    moment.press("Home")
    assert page.locator("output.out").inner_text() == "0"
    moment.press("ArrowRight")
    assert page.locator("output.out").inner_text() == "0.001"
    page.evaluate(KEEP_STATES)
    moment.press("Space")
    page.wait_for_function(AT_THE_END)
    assert page.evaluate("states") == [["true", "Pause"], ["false", "Play again"]]


def test_a_hand_that_comes_before_it_starts_keeps_it_from_starting(probe, visit):
    page = visit(f"<p style='height:3000px'></p>{probe().html}").page
    moment = page.get_by_label("Moment")
    moment.evaluate("node => node.focus({ preventScroll: true })")
    page.keyboard.press("Home")
    moment.scroll_into_view_if_needed()
    page.wait_for_timeout(400)
    assert page.locator(".player").get_attribute("data-playing") == "false"
    assert page.locator("output.out").inner_text() == "0"


def test_readers_who_ask_for_stillness_get_the_last_state(probe, visit):
    page = visit(probe().html, reduced_motion=True).page
    page.wait_for_timeout(400)
    assert page.locator(".player").get_attribute("data-playing") == "false"
    assert page.locator("output.out").inner_text() == "1"


def test_without_javascript_and_on_paper_there_is_the_still(probe, visit):
    page = visit(probe().html, javascript=False).page
    assert page.locator("svg[aria-label=still]").is_visible()
    page = visit(probe().html).page
    still = page.locator("svg[aria-label=still]")
    assert not still.is_visible()
    page.emulate_media(media="print")
    assert still.is_visible()
    assert not page.get_by_label("Users").is_visible()


def test_numbers_read_as_the_package_writes_them(visit):
    from inferlab.theory import units

    page = visit(f"<script>const format = {explorers.script('lib/format')};</script>").page
    values = [0.0, 1.0, 0.34, 999.94, 999.96, 1234.0, 327680.0, 1.38e11, 2.7905e14, 3.35e12, 9.9e17]
    texts = page.evaluate("values => values.map((v) => format.bytes(v))", values)
    assert [text.replace("\u00a0", " ") for text in texts] == [units.bytes_text(v) for v in values]
    times = [1.2e-6, 0.0299, 0.9994, 0.9996, 1.5, 41.0, 119.0, 180.0, 7300.0]
    texts = page.evaluate("values => values.map((v) => format.seconds(v))", times)
    assert [text.replace("\u00a0", " ") for text in texts] == [units.seconds_text(t) for t in times]
