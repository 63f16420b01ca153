"""The page where you press Enter, in a real browser, against a small server that speaks like ours.

What the stand-in does is decided by the message that it gets, so that every turn of a conversation
with a server can be played: an answer, a wait, a refusal, an end in the middle.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from inferlab.errors import InferlabError
from inferlab.figures import style
from inferlab.server import page as pressed

WORDS = ["The", " capital", " of", " France", " is", " Paris", "."]
HOSTILE = "<img src=x onerror=alert(1)><b>bold</b>"
STEP = 0.03


@dataclass
class Fake:
    """A server with nothing behind it; `asked` are the bodies it got, `freed` counts hang-ups."""

    key: str | None = None
    asked: list[dict] = field(default_factory=list)
    freed: int = 0
    address: str = ""

    def app(self) -> FastAPI:
        app = FastAPI()
        pressed.mount(app)

        def error(status: int, message: str, **headers: str) -> JSONResponse:
            return JSONResponse({"error": {"message": message}}, status, headers=headers)

        def locked(request: Request) -> bool:
            return bool(self.key) and request.headers.get("authorization") != f"Bearer {self.key}"

        @app.get("/v1/models")
        async def models(request: Request):
            return error(401, "no key") if locked(request) else {"data": [{"id": "tiny-model"}]}

        @app.get("/v1/trace")
        async def trace():
            return {"traceEvents": []}

        @app.post("/v1/chat/completions")
        async def chat(request: Request):
            if locked(request):
                return error(401, "no key")
            body = await request.json()
            self.asked.append(body)
            say = body["messages"][-1]["content"]
            if say == "full":
                return error(429, "too many", **{"Retry-After": "7"})
            if say == "long":
                return error(400, "prompt has 9,000 tokens: the model's context holds 2,048")
            if say == "broken":
                return error(500, "out of paper")
            return StreamingResponse(
                self.answer(request, body, say), media_type="text/event-stream"
            )

        return app

    async def answer(self, request: Request, body: dict, say: str):
        start = time.perf_counter()
        prompt = 10 * len(body["messages"])
        cached = prompt - 14 if prompt > 20 else 0
        count = body["max_tokens"] if say == "for ever" else len(WORDS)

        def now() -> float:
            return time.perf_counter() - start

        def chunk(text: str, *events: tuple[str, int], **more) -> str:
            found = [{"time_s": now(), "kind": kind, "tokens": n} for kind, n in events]
            choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": None}
            data = {"choices": [choice], "inferlab": {"events": found} | more}
            return f"data: {json.dumps(data)}\n\n"

        try:
            yield chunk("", ("arrived", 0))
            await asyncio.sleep(STEP)
            yield chunk("", ("scheduled", cached))
            for part in (8, prompt - cached - 8):
                await asyncio.sleep(2 * STEP)
                yield chunk("", ("chunk", part))
            times = []
            for i in range(count):
                if say == "cut" and i == 3:
                    return
                if say == "error" and i == 3:
                    yield f"data: {json.dumps({'error': {'message': 'a cable was pulled'}})}\n\n"
                    return
                times.append(now())
                word = HOSTILE if say == "hostile" and i == 1 else WORDS[i % len(WORDS)]
                yield chunk(word, ("token", 1))
                await asyncio.sleep(STEP)
            tpot = (times[-1] - times[0]) / (count - 1)
            account = {
                "prompt_tokens": prompt,
                "cached_tokens": cached,
                "output_tokens": count,
                "ttft_s": times[0],
                "queue_s": STEP,
                "prefill_s": times[0] - STEP,
                "tpot_s": tpot,
                "tokens_per_second": 1 / tpot,
                "bytes_per_token": 1.05e8,
                "weight_bytes_per_token": 1.0e8,
                "kv_read_bytes_per_token": 5e6,
                "achieved_bytes_per_second": 1.05e8 / tpot,
                "bandwidth": 2.1e8 / tpot,
                "fraction_of_bandwidth": 0.5,
                "finish_reason": "length" if say == "for ever" else "stop",
                "rows": 2.5 if say == "shared" else 1.0,
            }
            yield chunk("", ("finished", 0), account=account)
            yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.freed += 1
            raise


@pytest.fixture
def fake() -> Iterator[Fake]:
    """The stand-in, listening on a free port."""
    fake = Fake()
    server = uvicorn.Server(
        uvicorn.Config(fake.app(), port=0, log_level="critical", lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    fake.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    fake.server = server
    yield fake
    server.should_exit = server.force_exit = True
    thread.join(10)


@pytest.fixture
def enter(browser, fake):
    """Return `enter(width=1280, theme="light", ...)`: the page, open, and a list of complaints."""
    contexts = []

    def open_(width=1280, height=800, theme="light", calm=False, touch=False, address=None):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            reduced_motion="reduce" if calm else "no-preference",
            has_touch=touch,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(8000)
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on(
            "console",
            lambda said: page.complaints.append(said.text) if said.type == "error" else None,
        )
        page.goto(address or fake.address)
        until(page, "document.title !== 'Press Enter' || !document.querySelector('#error').hidden")
        return page

    yield open_
    for context in contexts:
        context.close()


def until(page, condition: str) -> None:
    """Wait until `condition` holds. Playwright's own way needs `eval`, which the page forbids."""
    deadline = time.monotonic() + 8
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"never: {condition}"
        page.wait_for_timeout(20)


def ask(page, text: str, *, wait: bool = True) -> None:
    page.locator("#input").fill(text)
    page.keyboard.press("Enter")
    if wait:
        until(page, "document.querySelector('#stop').hidden")


def tile(page, name: str) -> str:
    found = page.locator(".tile").filter(has=page.get_by_text(name, exact=True))
    return found.locator("b").inner_text().replace("\u00a0", " ")


def last_answer(page) -> str:
    return page.locator(".model .text").last.inner_text()


# ---- without a browser ---------------------------------------------------------------------------


def test_the_palette_is_that_of_the_book():
    css = (Path(pressed.__file__).parent / "page.css").read_text(encoding="utf-8")
    blocks = re.findall(r"\{ (--compute[^}]*)color-scheme: (\w+)", css)
    assert [scheme for _, scheme in blocks] == ["light", "dark", "dark"]
    for tones, scheme in blocks:
        found = dict(re.findall(r"--(\w+): (#\w+);", tones))
        assert found == dict(style.LIGHT if scheme == "light" else style.DARK)


def test_nothing_comes_from_elsewhere_and_nothing_inline_runs():
    for name in pressed.FILES:
        answer = pressed.response(name)
        text = answer.body.decode()
        assert not re.search(r"""(src|href|url|from|import)\W{1,3}https?:""", text)
        assert "innerHTML" not in text
        assert "unsafe" not in answer.headers["content-security-policy"]
    page = pressed.response("index.html").body.decode()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page)


def test_other_files_are_not_served():
    with pytest.raises(InferlabError, match=r"page\.js"):
        pressed.response("../worker.py")


# ---- in a browser --------------------------------------------------------------------------------


def test_an_answer_comes_token_by_token_and_its_life_beside_it(enter, fake):
    page = enter()
    assert page.locator("#model").inner_text() == "tiny-model"
    assert page.evaluate("document.activeElement.id") == "input"
    page.evaluate(
        """() => { globalThis.seen = [];
        new MutationObserver(() => seen.push(document.querySelector(".model .text").textContent))
          .observe(document.querySelector("#talk"), { childList: true, subtree: true }); }"""
    )
    ask(page, "hello")
    pieces = sorted(set(page.evaluate("seen")), key=len)
    assert pieces == ["".join(WORDS[:n]) for n in range(len(WORDS) + 1)], "it streams"
    assert last_answer(page) == "".join(WORDS)
    assert fake.asked[-1] == {
        "model": "tiny-model",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.2,
        "max_tokens": 256,
        "stream": True,
        "trace": True,
    }
    assert page.locator("#track rect.wait").count() == 1
    assert page.locator("#track rect.compute").count() == 2  # a block for each chunk
    ticks = page.locator("#track path.ticks").get_attribute("d")
    assert ticks.count("M") == len(WORDS) + 2
    assert tile(page, "waited") == "30 ms"
    assert "ms" in tile(page, "first token")
    assert tile(page, "bytes a token") == "105 MB"
    assert tile(page, "of the bandwidth") == "50 %"
    assert tile(page, "prompt from cache") == "0 of 10"
    assert tile(page, "in the same steps") == "you alone"
    assert "6 ×" in page.locator("#sum").inner_text()
    assert page.locator("#track svg").get_attribute("aria-label").endswith("7 tokens written")
    assert page.complaints == []


#: Where a request of ten seconds, preempted once, is drawn on a hundred points a second.
DRAWN = """() => {
  const events = [["arrived", 0, 0], ["scheduled", 1, 5], ["chunk", 2, 8], ["chunk", 4, 2],
    ["token", 4, 1], ["token", 6, 1], ["preempted", 7, 0], ["scheduled", 8, 0], ["chunk", 9, 17],
    ["token", 9, 1], ["finished", 10, 0]]
    .map(([kind, time_s, tokens]) => ({ kind, time_s, tokens }));
  events[3].began_s = 3;  // a pass of its own, after one that wrote for others
  const track = document.createElement("div"), memory = document.createElement("div");
  const folded = life.fold(events);
  life.draw(folded, { track, memory, now: 10, room: 8, width: 1004 });
  const number = (node, name) => Math.round(Number(node.getAttribute(name)));
  const boxes = (kind) => [...track.querySelectorAll(kind)]
    .map((node) => [number(node, "x"), number(node, "width")]);
  const ticks = track.querySelector(".ticks").getAttribute("d").match(/M\\d+/g);
  const m = life.measure(folded, null);
  return { waits: boxes(".wait"), reads: boxes(".compute"),
    ticks: ticks.map((tick) => Number(tick.slice(1)) + 1),
    memory: [...memory.querySelectorAll("rect")].map((node) => node.getAttribute("class")),
    cached: m.cached, queue: m.queue }; }"""


def test_blocks_and_ticks_stand_at_their_true_times(enter):
    page = enter(calm=True)
    ask(page, "hello")
    page.evaluate(
        """Promise.all([import("/page/life.js"), import("/page/fold.js")])
        .then(([life, { fold }]) => { globalThis.life = { ...life, fold }; })"""
    )
    found = page.evaluate(DRAWN)
    assert found["waits"] == [[2, 99], [702, 99]]
    assert found["reads"] == [[102, 99], [302, 99], [802, 99]]
    assert found["ticks"] == [202, 402, 902, 402, 602, 902]
    assert found["memory"] == ["empty", "compute", "bytes"]
    assert (found["cached"], found["queue"]) == (5, 1)


def test_a_second_turn_finds_its_past_in_the_cache(enter, fake):
    page = enter()
    ask(page, "hello")
    ask(page, "and then?")
    assert [m["role"] for m in fake.asked[-1]["messages"]] == ["user", "assistant", "user"]
    assert fake.asked[-1]["messages"][1]["content"] == "".join(WORDS)
    assert tile(page, "prompt from cache") == "16 of 30"
    assert page.locator("#memory .kv").count() == 1
    assert "16 from the cache" in page.locator("#said-memory").inner_text()
    page.locator(".life").first.click()  # an earlier answer's life can be looked at again
    assert tile(page, "prompt from cache") == "0 of 10"
    assert page.locator(".life").first.get_attribute("aria-pressed") == "true"
    assert page.locator(".life").last.get_attribute("aria-pressed") == "false"


@pytest.mark.parametrize("how", ["hover", "keyboard", "tap"])
def test_every_number_explains_itself(enter, how):
    page = enter(touch=how == "tap")
    ask(page, "shared")
    said = set()
    for one in page.locator(".tile").all():
        if how == "hover":
            one.hover()
        elif how == "tap":
            one.tap()
        else:
            one.focus()
        said.add(page.locator("#why").inner_text())
        hint = one.get_attribute("aria-describedby")
        assert page.locator(f"#{hint}").text_content() == page.locator("#why").inner_text()
    assert len(said) == 8
    text = " ".join(said).replace("\u00a0", " ")
    assert (
        "100 MB of weights, your part of trips that 2.5 requests shared, and 5 MB of keys" in text
    )
    assert "was measured at" in text
    assert tile(page, "in the same steps") == "2.5 requests"


def test_escape_stops_and_the_server_lets_go(enter, fake):
    page = enter()
    ask(page, "for ever", wait=False)
    until(page, "document.querySelector('.model .text').textContent.length > 20")
    page.keyboard.press("Escape")
    until(page, "document.querySelector('#stop').hidden")
    for _ in range(100):
        if fake.freed:
            break
        time.sleep(0.02)
    assert fake.freed == 1
    half = last_answer(page)
    assert half.startswith("The capital")
    assert "Stopped." in page.locator(".end").inner_text()
    assert "You stopped it" in page.locator("#stage").inner_text()
    assert page.evaluate("document.activeElement.id") == "input"
    ask(page, "hello")  # and the conversation goes on from what there was
    assert fake.asked[-1]["messages"][1]["content"] == half
    assert page.complaints == []


def test_the_stop_button_gives_the_focus_back(enter):
    page = enter()
    ask(page, "for ever", wait=False)
    page.locator("#stop").click()
    until(page, "document.querySelector('#stop').hidden")
    assert page.evaluate("document.activeElement.id") == "input"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("full", "as many requests as it can hold. Try again in 7 seconds."),
        ("long", "did not accept this: prompt has 9,000 tokens"),
        ("broken", "The server failed: out of paper"),
    ],
)
def test_a_refusal_is_said_in_plain_words_and_keeps_what_was_typed(enter, fake, message, said):
    page = enter()
    ask(page, message)
    assert said in page.locator("#error").inner_text()
    assert page.locator("#input").input_value() == message
    assert page.locator(".you").count() == 0
    ask(page, "hello")
    assert page.locator("#error").is_hidden()
    assert len(fake.asked[-1]["messages"]) == 1, "a refused turn is no part of the conversation"


@pytest.mark.parametrize(
    ("message", "said"), [("cut", "broke in the middle"), ("error", "gave up: a cable was pulled")]
)
def test_an_answer_that_breaks_off_stays(enter, message, said):
    page = enter()
    ask(page, message)
    assert last_answer(page) == "".join(WORDS[:3])
    assert "Cut off." in page.locator(".end").inner_text()
    assert said in page.locator("#error").inner_text()
    assert page.locator("#input").input_value() == message


def test_a_server_that_is_gone_is_named(enter, fake):
    page = enter()
    fake.server.should_exit = fake.server.force_exit = True
    time.sleep(0.5)
    ask(page, "are you there?")
    assert "does not answer" in page.locator("#error").inner_text()
    assert page.locator("#input").input_value() == "are you there?"


def test_it_asks_for_a_key_only_where_one_is_needed(enter, fake):
    assert enter().locator("#key").is_hidden()
    fake.key = "s3cret"
    page = enter()
    assert page.evaluate("document.activeElement.id") == "key"
    assert "asks for an API key" in page.locator("#error").inner_text()
    page.locator("#input").fill("hello")
    page.locator("#key").fill("wrong")
    page.locator("#key").press("Enter")
    until(page, "document.querySelector('#error').textContent.includes('does not know')")
    assert page.locator("#input").input_value() == "hello"
    page.locator("#key").fill("s3cret")
    page.locator("#key").press("Enter")
    until(page, "document.querySelectorAll('.life:not([hidden])').length === 1")
    assert last_answer(page) == "".join(WORDS)
    assert page.locator("#key").is_hidden()


def test_text_is_text(enter):
    page = enter()
    ask(page, "hostile")
    assert HOSTILE in last_answer(page)
    ask(page, "<script>alert(1)</script>")
    assert page.locator("#talk :is(img, b, script)").count() == 0
    assert "<script>" in page.locator(".you").last.inner_text()
    assert page.complaints == []


def test_keys_send_and_break_lines(enter, fake):
    page = enter()
    page.locator("#input").fill("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.life:not([hidden])').length === 1")
    assert fake.asked[-1]["messages"][0]["content"] == "one\ntwo"
    page.keyboard.press("Enter")  # nothing to send
    page.wait_for_timeout(100)
    assert len(fake.asked) == 1


def test_settings_are_folded_away_and_sent(enter, fake):
    page = enter()
    assert page.locator("#system").is_hidden()
    page.locator("summary").click()
    page.locator("#temperature").fill("0")
    page.locator("#max-tokens").fill("12")
    page.locator("#system").fill("Be brief.")
    ask(page, "for ever")
    sent = fake.asked[-1]
    assert (sent["temperature"], sent["max_tokens"]) == (0, 12)
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "most tokens that it may have" in page.locator(".end").inner_text()
    page.locator("#max-tokens").fill("0")
    ask(page, "hello", wait=False)
    assert page.evaluate("document.activeElement.id") == "max-tokens"
    assert page.locator("#input").input_value() == "hello"
    assert len(fake.asked) == 1


def test_a_new_chat_forgets_and_stops(enter, fake):
    page = enter()
    ask(page, "hello")
    ask(page, "for ever", wait=False)
    until(page, "document.querySelectorAll('.model .text')[1].textContent.length > 5")
    page.locator("#new").click()
    page.wait_for_timeout(200)
    assert page.locator(".you").count() == 0
    assert tile(page, "first token") == "–"
    assert fake.freed == 1
    ask(page, "hello")
    assert len(fake.asked[-1]["messages"]) == 1
    assert last_answer(page) == "".join(WORDS)


def test_a_screen_reader_hears_the_answer_once(enter):
    page = enter()
    page.evaluate(
        """() => { globalThis.said = [];
        const node = document.querySelector("#announce");
        new MutationObserver(() => said.push(node.textContent))
          .observe(node, { childList: true }); }"""
    )
    ask(page, "hello")
    page.wait_for_timeout(100)
    assert [text.strip() for text in page.evaluate("said")] == [
        "Waiting for the answer.",
        "".join(WORDS),
    ]
    live = page.locator("[aria-live]:not([aria-live=off]), [role=status], [role=alert]")
    assert {one.get_attribute("id") for one in live.all()} == {"announce", "error"}


def test_the_theme_can_be_chosen_and_is_kept(enter, fake):
    page = enter(theme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    button = page.locator("#theme")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert page.evaluate(colour) != light
    assert button.get_attribute("aria-pressed") == "true"
    page.reload()
    assert page.evaluate(colour) != light
    page.locator("#theme").click()
    assert page.evaluate(colour) == light


def test_with_less_motion_only_events_move_the_picture(enter):
    page = enter(calm=True)
    page.evaluate(
        """() => { globalThis.frames = 0;
        const real = requestAnimationFrame;
        globalThis.requestAnimationFrame = (f) => { frames += 1; return real(f); }; }"""
    )
    ask(page, "hello")
    assert page.evaluate("frames") == 0
    assert page.locator("#track path.ticks").get_attribute("d").count("M") == len(WORDS) + 2


def test_the_trace_can_be_saved(enter):
    page = enter()
    with page.expect_download() as download:
        page.locator("#trace").click()
    assert json.loads(Path(download.value.path()).read_text()) == {"traceEvents": []}


def test_tab_goes_through_the_page_in_order(enter):
    page = enter()
    ask(page, "hello")
    order = []
    page.locator("h1").click()  # begin at the top
    for _ in range(20):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    first = ["new", "theme", "talk", "life quiet", "input", "send"]
    assert order[: len(first)] == first
    assert [each.split()[0] for each in order if each.startswith("tile")] == ["tile"] * 8
    assert order.index("trace") > order.index("tile chosen")


def test_the_real_server_and_the_page_understand_each_other(enter, real):
    page = enter(address=real.address)
    assert page.locator("#model").inner_text() == "tiny"
    page.locator("summary").click()
    page.locator("#max-tokens").fill("24")
    ask(page, "a question that fills a block or two of the cache, and a little more")
    count = page.locator("#track path.ticks").get_attribute("d").count("M")
    assert tile(page, "prompt from cache").startswith("0 of ")
    assert tile(page, "bytes a token").endswith("kB")
    assert tile(page, "of the bandwidth") == "–"  # nobody has measured it here
    assert tile(page, "in the same steps") == "you alone"
    assert 3 <= count <= 2 + 24 + 2  # its chunks, and a tick for each token
    ask(page, "and again")
    assert int(tile(page, "prompt from cache").split()[0]) >= 64
    page.locator("#max-tokens").fill("400")
    ask(page, "for long", wait=False)
    until(page, "document.querySelectorAll('#memory .bytes').length === 1")
    page.keyboard.press("Escape")
    until(page, "document.querySelector('#stop').hidden")
    real.until(lambda: real.engine.blocks.used == 0)
    with page.expect_download() as download:
        page.locator("#trace").click()
    assert json.loads(Path(download.value.path()).read_text())["traceEvents"]
    page.locator("#max-tokens").fill("4")
    ask(page, "x" * 600)
    assert "did not accept this" in page.locator("#error").inner_text()
    assert [said for said in page.complaints if "400" not in said] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_can_be_read_by_everyone(enter, width, theme):
    from axe_playwright_python.sync_playwright import Axe

    page = enter(width=width, height=740 if width == 360 else 800, theme=theme, touch=width == 360)
    axe = Axe()

    def problems() -> list[str]:
        found = axe.run(page).response["violations"]
        return [f"{rule['id']}: {rule['nodes'][0]['target']}" for rule in found]

    assert problems() == []
    ask(page, "hello")
    ask(page, "and then?")
    ask(page, "full")
    page.locator(".tile").nth(3).click()
    page.locator("summary").click()
    assert problems() == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    small = page.evaluate(
        """() => [...document.querySelectorAll("button, input, summary, textarea")]
        .filter((n) => n.offsetParent && n.getBoundingClientRect().height < 24)
        .map((n) => n.outerHTML)"""
    )
    assert small == []
    assert [said for said in page.complaints if "429" not in said] == []
