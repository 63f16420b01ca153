"""The load generator against a server with known delays, and its figures against numpy's.

Delays are a few times what a busy machine may be late by; what must be exact is compared with the
times at which the server really wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from inferlab.errors import InferlabError
from inferlab.measure import load, load_report
from inferlab.measure.load import Ask, Target
from inferlab.theory import queueing

SLO = {"ttft": 1.0, "tpot": 0.1}
NEAR = 0.02  # seconds that two processes' threads may differ by on two busy cores


# A fake server


@dataclass(frozen=True)
class Reply:
    """A role chunk at once, the first of `tokens` after `first` seconds, the others `gap` apart.

    `per_piece` tokens ride in each chunk. `status` other than 200 answers with an error object;
    `cut` closes the connection after so many pieces; `raw` is sent in place of everything.
    """

    first: float = 0.05
    gap: float = 0.01
    tokens: int = 10
    per_piece: int = 1
    text: str = " word"
    status: int = 200
    cut: int | None = None
    usage: bool = True
    raw: bytes | None = None


@dataclass
class Seen:
    """What the server saw and did: the body, when it came, when each piece was written."""

    body: dict[str, Any]
    headers: dict[str, str]
    came: float
    wrote: list[float] = field(default_factory=list)


class FakeServer:
    """`with FakeServer(plan) as server`: `plan(number, body)` gives the reply of each request."""

    def __init__(self, plan: Callable[[int, dict[str, Any]], Reply], *, models: bool = True):
        self.plan, self.models = plan, models
        self.seen: list[Seen] = []
        self.under_way = self.most_under_way = 0
        self._ready = threading.Event()

    def __enter__(self) -> FakeServer:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")
            method, path, _ = lines[0].split(" ")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if method == "GET":
                known = self.models and path == "/v1/models"
                answer = {"data": [{"id": "fake"}]} if known else {"error": {"message": "no"}}
                self._write_json(writer, 200 if known else 404, answer)
            else:
                await self._answer(writer, path, json.loads(body), headers)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _write_json(self, writer: asyncio.StreamWriter, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + data)

    async def _answer(
        self, writer: asyncio.StreamWriter, path: str, body: dict, headers: dict
    ) -> None:
        seen = Seen(body, headers, time.perf_counter())
        number = len(self.seen)
        self.seen.append(seen)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self._stream(writer, path, self.plan(number, body), seen)
        finally:
            self.under_way -= 1

    async def _stream(
        self, writer: asyncio.StreamWriter, path: str, reply: Reply, seen: Seen
    ) -> None:
        if reply.status != 200:
            self._write_json(writer, reply.status, {"error": {"message": "too\nmuch", "type": "x"}})
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        )
        if reply.raw is not None:
            writer.write(reply.raw)
            return
        chat = path.endswith("/chat/completions")

        def event(chunk: dict) -> bytes:
            return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\r\n\r\n"

        def choice(text: str, finish: str | None = None) -> dict:
            said = {"delta": {"content": text} if text else {}} if chat else {"text": text}
            return {"choices": [{"index": 0, "finish_reason": finish} | said]}

        if chat:
            writer.write(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        writer.write(b": keep-alive\n\n")
        pieces = -(-reply.tokens // reply.per_piece)
        for number in range(pieces):
            due = seen.came + reply.first + number * reply.gap
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if reply.cut == number:
                return
            seen.wrote.append(time.perf_counter())
            writer.write(event(choice(reply.text)))
            await writer.drain()
        if not pieces:
            await asyncio.sleep(reply.first)
        writer.write(event(choice("", "length")))
        if reply.usage:
            usage = {"prompt_tokens": 7, "completion_tokens": reply.tokens}
            usage["prompt_tokens_details"] = {"cached_tokens": 3}
            writer.write(event({"choices": [], "usage": usage}))
        writer.write(b"data: [DONE]\n\n")


# What the tests share


def noisy(test):
    """Try a test of delays up to four times: other work on a machine only ever adds to them."""

    @functools.wraps(test)
    def again(*args, **more):
        for _ in range(3):
            with contextlib.suppress(AssertionError):
                return test(*args, **more)
        return test(*args, **more)

    return again


def asks(count: int, tokens: int = 10) -> list[Ask]:
    return load.synthetic(count, prompt=8, output=tokens)


def steady(**how):
    return lambda number, body: Reply(**how)


@pytest.fixture
def fake():
    """Return `fake(plan)`: a running server; all are stopped at the end."""
    running = []

    def start(plan, **more) -> FakeServer:
        running.append(FakeServer(plan, **more).__enter__())
        return running[-1]

    yield start
    for server in running:
        server.__exit__()


def one(server: FakeServer, **how) -> load.Outcome:
    target = load.find(server.url, **how)
    return load.open_loop(target, asks(1), 10.0).outcomes[0]


# A single stream


@pytest.mark.parametrize("chat", [False, True])
@noisy
def test_delays_are_measured_as_the_server_made_them(fake, chat):
    server = fake(steady(first=0.2, gap=0.04, tokens=10))
    outcome = one(server, chat=chat)
    times, wrote = outcome.times, server.seen[0].wrote
    assert outcome.error is None
    assert len(times.pieces) == times.tokens == 10
    assert times.ttft == pytest.approx(0.2, abs=3 * NEAR)
    assert times.tpot == pytest.approx(0.04, abs=NEAR)
    assert times.e2e == pytest.approx(0.2 + 9 * 0.04, abs=3 * NEAR)
    gaps = np.diff(wrote) - times.itl
    assert statistics.median(abs(gaps)) < 0.003  # right to a few ms
    assert times.tpot == pytest.approx((wrote[-1] - wrote[0]) / 9, abs=0.005)
    assert (outcome.prompt_tokens, outcome.cached_tokens) == (7, 3)


def test_role_and_usage_chunks_are_no_tokens(fake):
    """Case 56: the role comes at once, the first token late."""
    outcome = one(fake(steady(first=0.25, tokens=3)), chat=True)
    assert len(outcome.times.pieces) == 3
    assert outcome.times.ttft > 0.2
    assert len(outcome.times.itl) == 2


@pytest.mark.parametrize("chat", [False, True])
def test_one_token_has_no_tpot_and_none_has_no_ttft(fake, chat):
    """Case 56."""
    single = one(fake(steady(tokens=1)), chat=chat).times
    assert single.ttft is not None
    assert (single.tpot, single.itl) == (None, ())
    empty = one(fake(steady(tokens=0)), chat=chat).times
    assert not empty.failed
    assert (empty.ttft, empty.tpot, empty.itl) == (None, None, ())
    assert empty.e2e > 0.04


@noisy
def test_tokens_are_the_servers_count_and_pieces_without_it(fake):
    several = one(fake(steady(tokens=9, per_piece=3, gap=0.08))).times
    assert (len(several.pieces), several.tokens) == (3, 9)
    assert several.tpot == pytest.approx(2 * 0.08 / 8, abs=NEAR)
    assert several.itl == pytest.approx([0.08, 0.08], abs=2 * NEAR)
    silent = one(fake(steady(tokens=4, usage=False)))
    assert (silent.times.tokens, silent.prompt_tokens) == (4, None)


def test_text_of_every_kind_is_one_line_of_data(fake):
    """U+2028 ends a line for Python's splitlines, and for some clients."""
    outcome = one(fake(steady(tokens=3, text="a\u2028b\u0085 \x0b\n")))
    assert outcome.error is None
    assert len(outcome.times.pieces) == 3


DONE = b"data: [DONE]\n\n"
TEXT = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(status=429), "HTTP 429: too much"),
        (Reply(cut=4), "broke off"),
        (Reply(raw=TEXT), "broke off"),
        (Reply(raw=b"data: nonsense\n\n"), "not a chunk"),
        (Reply(raw=b"data: [1]\n\n"), "not a chunk"),
        (Reply(raw=b'data: {"choices": [7]}\n\n'), "not a chunk"),
        (Reply(raw=TEXT + b'data: {"error": {"message": "no room"}}\n\n' + DONE), "no room"),
        (Reply(first=5.0), "no end after 0.3 s"),
    ],
)
def test_what_fails_says_why_and_has_no_latencies(fake, reply, says):
    outcome = one(fake(lambda number, body: reply), timeout=0.3 if reply.first > 1 else 60.0)
    assert says in outcome.error
    assert outcome.times.failed
    assert (outcome.times.ttft, outcome.times.tpot, outcome.times.e2e) == (None, None, None)
    assert outcome.times.finished > 0


def test_a_stream_without_blanks_or_carriage_returns_is_read(fake):
    compact = b'data:{"choices":[{"text":"a"}]}\n\ndata:{"choices":[{"text":"b"}]}\n\ndata:[DONE]'
    outcome = one(fake(lambda number, body: Reply(raw=compact)))
    assert outcome.error is None
    assert len(outcome.times.pieces) == 2


# What is asked


def test_requests_ask_as_openais_clients_do(fake):
    server = fake(steady(tokens=1))
    one(server, chat=False, api_key="secret", ignore_eos=True)
    one(server, chat=True, model="other")
    text, chat = server.seen
    assert text.body["prompt"].count(" ") == 7
    assert text.body["model"] == "fake"
    assert text.body["ignore_eos"] is True
    assert text.headers["authorization"] == "bearer secret"
    assert text.body["stream_options"] == {"include_usage": True}
    assert chat.body["messages"] == [{"role": "user", "content": text.body["prompt"]}]
    assert chat.body["model"] == "other"
    assert "ignore_eos" not in chat.body
    assert "authorization" not in chat.headers


def test_synthetic_prompts_have_their_lengths_and_never_repeat():
    first = load.synthetic(40, prompt=(5, 50), output=(1, 9), seed=2)
    assert first == load.synthetic(40, prompt=(5, 50), output=(1, 9), seed=2)
    other = load.synthetic(40, prompt=(5, 50), output=(1, 9), seed=2, part="second")
    lengths = [len(a.prompt.split()) for a in first]
    assert lengths == [len(a.prompt.split()) for a in other]
    assert min(lengths) >= 5
    assert max(lengths) <= 50
    assert len(set(lengths)) > 10
    assert not {a.prompt for a in first} & {a.prompt for a in other}
    assert {a.max_tokens for a in first} <= set(range(1, 10))


def test_words_are_a_token_each():
    """So that a synthetic length means something; checked on the book's own model."""
    from inferlab.model import checkpoint, source

    file = source.installed()
    if file is None:
        pytest.skip("SmolLM2 is not installed")
    known = checkpoint.open(file).tokenizer()
    assert all(len(known.encode(f" {word}")) == 1 for word in load.WORDS)


def test_prompts_come_from_a_file(tmp_path):
    lines = tmp_path / "prompts.txt"
    lines.write_text("one\n\ntwo words\n", encoding="utf-8")
    assert load.from_file(lines, 3, output=5) == [Ask("one", 5), Ask("two words", 5), Ask("one", 5)]
    objects = tmp_path / "prompts.jsonl"
    talk = [{"role": "user", "content": "hi"}]
    objects.write_text(
        json.dumps({"prompt": "a", "max_tokens": 3}) + "\n" + json.dumps({"messages": talk}),
        encoding="utf-8",
    )
    assert load.from_file(objects, 2) == [Ask("a", 3), Ask(talk, 128)]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "\n\n", "no line"),
        ("a.jsonl", "{", "line 1 is not JSON"),
        ("a.jsonl", "[]", "an object"),
        ("a.jsonl", '{"prompt": ""}', "prompt"),
        ("a.jsonl", '\n{"prompt": "a", "max_tokens": 0}', "line 2: max_tokens"),
        ("a.jsonl", '{"prompt": "a", "max_tokens": true}', "max_tokens"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, name, text, says):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InferlabError, match=says):
        load.from_file(file, 2)
    with pytest.raises(InferlabError, match="cannot be read"):
        load.from_file(tmp_path / "none.txt", 2)


# Where it is asked


def test_addresses_are_taken_as_people_write_them(fake):
    server = fake(steady())
    for tail in ("", "/", "/v1", "/v1/", "/v1/completions", "/v1/chat/completions"):
        found = load.find(server.url + tail)
        assert (found.url, found.model) == (f"{server.url}/v1", "fake")
    assert Target("http://x/v1", "m").endpoint == "http://x/v1/completions"
    assert Target("http://x/v1", "m", chat=True).endpoint == "http://x/v1/chat/completions"


def test_a_server_that_is_not_there_is_an_error_at_once():
    with pytest.raises(InferlabError, match=r"nothing answers at http://127\.0\.0\.1:9"):
        load.find("http://127.0.0.1:9")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "", "http://[::1"])
def test_what_is_no_address_is_an_error(url):
    with pytest.raises(InferlabError, match="url"):
        load.find(url)


def test_a_server_that_names_no_model_needs_one(fake):
    server = fake(steady(), models=False)
    with pytest.raises(InferlabError, match=r"HTTP 404.*--model"):
        load.find(server.url)
    assert load.find(server.url, "mine").model == "mine"


# Open and closed loops


@noisy
def test_an_open_loop_keeps_its_schedule_whatever_the_server_does(fake):
    """Each answer takes five times the gap between requests, and nobody waits for it."""
    server = fake(steady(first=0.25, gap=0.01, tokens=6))
    run = load.open_loop(load.find(server.url), asks(20), 20.0, burstiness=4.0, seed=3)
    due = queueing.arrivals(20.0, 20, burstiness=4.0, seed=3)
    assert [o.times.scheduled for o in run.outcomes] == due
    start = server.seen[0].came
    came = sorted(seen.came - start for seen in server.seen)
    assert statistics.median(abs(np.subtract(came, due))) < NEAR
    assert server.most_under_way >= 3
    assert statistics.median(o.lag for o in run.outcomes) < NEAR
    assert run.rate == 20.0


def test_a_late_generator_tells_and_hides_no_queue(fake):
    """A busy client: its thread is held up for a while, and TTFT counts from the schedule."""
    server = fake(steady(first=0.01, gap=0.001, tokens=3))
    held = threading.Event()

    def hold() -> None:
        if not held.is_set():
            held.set()
            time.sleep(0.4)  # at the end of the first request, in the generator's own loop

    run = load.open_loop(load.find(server.url), asks(10), 50.0, burstiness=math.inf, done=hold)
    made = load_report.summary(run, SLO)
    assert made["send_lag_s"]["max"] > 0.2
    assert not made["kept_up"]
    assert "fell behind" in " ".join(load_report.remarks([made]))
    late = max(run.outcomes, key=lambda o: o.lag)
    assert late.times.ttft >= late.lag


@noisy
def test_a_closed_loop_keeps_so_many_under_way(fake):
    server = fake(steady(first=0.03, gap=0.005, tokens=4))
    run = load.closed_loop(load.find(server.url), asks(12), 3)
    assert server.most_under_way == 3
    assert len(run.outcomes) == len(server.seen) == 12
    assert run.concurrency == 3
    assert all(o.lag < NEAR for o in run.outcomes)
    spans = [(o.times.scheduled, o.times.finished) for o in run.outcomes]
    for at in (0.2, 0.5):
        at *= max(end for _, end in spans)
        assert sum(start <= at < end for start, end in spans) <= 3
    with pytest.raises(InferlabError, match="concurrency"):
        load.closed_loop(load.find(server.url), asks(2), 0)


@noisy
def test_warm_ups_are_run_counted_and_left_out(fake):
    """Case 60: the first reply takes long; no percentile holds it, and the count is told."""
    server = fake(lambda number, body: Reply(first=1.0 if number == 0 else 0.02, tokens=3))
    target = load.find(server.url)
    run = load.open_loop(target, asks(10), 50.0, warm_ups=load.synthetic(4, part="warm"))
    made = load_report.summary(run, SLO)
    assert len(server.seen) == 14
    assert (made["requests"], made["warm_ups"], made["warm_ups_failed"]) == (10, 4, 0)
    assert made["ttft_s"]["p99"] < 0.5 < 1.0 <= max(made["warm_up_ttft_s"])
    with_them = load_report.spread(
        [o.times.ttft for o in (*run.warm_ups, *run.outcomes)]
    )  # they would be seen
    assert with_them["p99"] > 2 * made["ttft_s"]["p99"]
    assert "4 warm-ups left out" in load_report.remarks([made])[0]
    # The first alone, the others at once: a batch larger than 1 has run too.
    first, *others = (seen.came for seen in server.seen[:4])
    assert min(others) - first > 0.9
    assert max(others) - min(others) < 0.2


def test_it_runs_where_a_loop_runs_already(fake):
    """As in a notebook."""
    server = fake(steady(tokens=2))

    async def cell():
        return load.open_loop(load.find(server.url), asks(2), 50.0)

    assert len(asyncio.run(cell()).outcomes) == 2


def test_a_run_in_which_all_failed_is_an_error(fake):
    server = fake(steady(status=503))
    run = load.open_loop(load.find(server.url), asks(3), 50.0)
    with pytest.raises(InferlabError, match=r"all 3 requests failed.*HTTP 503"):
        load.checked(run)


# Figures, twice


def by_numpy(rows, slo):
    """The metrics from their definitions: `rows` of (scheduled, pieces, tokens, end, failed)."""
    good = [row for row in rows if not row[4]]
    ttft = np.array([pieces[0] - due for due, pieces, *_ in good if len(pieces)])
    tpot = np.array(
        [np.ptp(pieces) / (n - 1) for _, pieces, n, *_ in good if len(pieces) and n > 1]
    )
    gaps = np.concatenate([np.diff(pieces) for _, pieces, *_ in good])
    e2e = np.array([(pieces[-1] if len(pieces) else end) - due for due, pieces, _, end, _ in good])
    span = max(row[3] for row in rows) - min(row[0] for row in rows)
    kept = 0
    for due, pieces, n, _, failed in rows:
        if failed or not len(pieces):
            continue
        slow = n > 1 and np.ptp(pieces) / (n - 1) > slo["tpot"]
        kept += pieces[0] - due <= slo["ttft"] and not slow
    found = {
        name: {
            "count": len(values),
            "mean": values.mean(),
            "max": values.max(),
            **{f"p{q}": np.percentile(values, q) for q in (50, 90, 99)},
        }
        for name, values in {"ttft_s": ttft, "tpot_s": tpot, "itl_s": gaps, "e2e_s": e2e}.items()
    }
    return found | {
        "seconds": span,
        "failed": len(rows) - len(good),
        "tokens_per_second": sum(row[2] for row in good) / span,
        "requests_per_second": len(good) / span,
        "goodput": kept / span,
        "attainment": kept / len(rows),
    }


def mixture(number, body):
    """Answers of ten tokens, of several a piece, of one, of none, slow ones, and failures."""
    kinds = (
        Reply(first=0.02, gap=0.004),
        Reply(first=1.5, gap=0.002, tokens=5),
        Reply(first=0.02, gap=0.02, tokens=12, per_piece=3),
        Reply(tokens=1),
        Reply(tokens=0),
        Reply(first=0.03, gap=0.25, tokens=3),
        Reply(status=429),
        Reply(cut=2),
    )
    return kinds[number % len(kinds)]


@noisy
def test_figures_equal_those_of_a_second_implementation(fake):
    server = fake(mixture)
    run = load.open_loop(load.find(server.url), asks(40), 40.0, seed=1)
    rows = [
        (t.scheduled, np.array(t.pieces), t.tokens, t.finished, o.error is not None)
        for o in run.outcomes
        for t in [o.times]
    ]
    expected, made = by_numpy(rows, SLO), load_report.summary(run, SLO)
    for name, value in expected.items():
        assert made[name] == pytest.approx(value, rel=1e-9), name
    assert made["failed"] == 10
    assert made["ttft_s"]["count"] == 25
    assert made["tpot_s"]["count"] == 20
    assert 0.2 < made["attainment"] < 0.6
    assert sum(made["errors"].values()) == 10
    assert len(made["outcomes"]) == 40
    json.dumps(made, allow_nan=False)


def test_the_span_of_a_run_ends_with_the_last_stream():
    """The end of a stream comes after its last token, and belongs to the run."""
    outcome = load.Outcome(load.RequestTimes(0.0, (1.0, 2.0), finished=2.5), 0.0)
    made = load_report.summary(load.Run([outcome], [], rate=1.0), {})
    assert made["seconds"] == 2.5
    assert (made["goodput"], made["attainment"]) == (None, None)
    assert made["tokens_per_second"] == 2 / 2.5


def test_the_sustainable_rate_is_that_of_the_sweep():
    runs = [
        {"rate": rate, "attainment": kept} for rate, kept in ((1.0, 1.0), (2.0, 0.93), (4.0, 0.3))
    ]
    assert load_report.sustainable(runs) == 2.0
    assert load_report.sustainable(runs[2:]) is None
    assert load_report.sustainable([{"rate": None, "attainment": 1.0}]) is None


def test_the_table_and_the_remarks_say_it_all(fake):
    from rich.console import Console

    server = fake(mixture)
    run = load.open_loop(load.find(server.url), asks(16), 60.0)
    made = load_report.summary(run, SLO)
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(load_report.table([made, made]))
    text = console.export_text()
    assert "60" in text
    assert f"{made['attainment']:.0%}" in text
    said = " ".join(load_report.remarks([made]))
    assert "At 60 requests/s 2 failed: HTTP 429: too much" in said
    assert "43% of the prompts' tokens came from the server's prefix cache" in said
    nothing = load_report.summary(run, {})
    assert "–" in str(load_report.table([nothing]).columns[6]._cells)


# Promises and lengths


def test_promises_are_read_in_seconds_or_milliseconds():
    assert load.promises("ttft=0.5,tpot=50ms") == {"ttft": 0.5, "tpot": 0.05}
    assert load.promises(" e2e = 3s ") == {"e2e": 3.0}


@pytest.mark.parametrize(
    "text",
    ["", "ttft", "ttft=", "ttft=x", "ttft=-1", "ttft=nan", "ttft=inf", "itl=1", "e2e=1,e2e=2"],
)
def test_promises_that_make_no_sense_are_refused(text):
    with pytest.raises(InferlabError, match="slo"):
        load.promises(text)


def test_lengths_are_a_number_or_a_range():
    assert load.lengths("prompt-tokens", "64") == 64
    assert load.lengths("prompt-tokens", "10-20") == (10, 20)
    for text in ("", "0", "20-10", "a", "-5", "5-", "1.5"):
        with pytest.raises(InferlabError, match="prompt-tokens"):
            load.lengths("prompt-tokens", text)


# The command


@pytest.fixture
def inferlab(monkeypatch, capsys):
    """Return `inferlab(*arguments)`: exit code, standard output, standard error."""
    from inferlab import cli

    def run(*arguments: object):
        monkeypatch.setattr("sys.argv", ["inferlab", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_a_sweep_comes_as_json_and_as_a_picture(fake, inferlab, tmp_path):
    server = fake(steady(first=0.02, gap=0.002, tokens=5))
    drawn = tmp_path / "cliff.svg"
    how = ("--requests", 8, "--prompt-tokens", "5-20", "--output-tokens", 5, "--warm-ups", 2)
    code, out, err = inferlab(
        *("bench", "load", "--url", server.url, "--rate", 20, "--rate", 40, *how),
        *("--slo", "ttft=5s,tpot=500ms", "--picture", drawn, "--json"),
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["slo"] == {"ttft": 5.0, "tpot": 0.5}
    assert (found["model"], found["highest_rate"]) == ("fake", 40.0)
    assert [run["rate"] for run in found["runs"]] == [20.0, 40.0]
    assert [run["warm_ups"] for run in found["runs"]] == [2, 0]
    assert [run["requests"] for run in found["runs"]] == [8, 8]
    assert found["runs"][0]["attainment"] == 1.0
    assert len(server.seen) == 18
    prompts = [seen.body["prompt"] for seen in server.seen]
    assert len(set(prompts)) == 18  # none can come out of a prefix cache
    assert drawn.read_text(encoding="utf-8").lstrip().startswith(("<?xml", "<svg"))


def test_the_same_command_sends_the_same_requests(fake, inferlab):
    server = fake(steady(first=0.01, gap=0.001, tokens=2))
    command = ("bench", "load", "--url", server.url, "--rate", 50, "--requests", 6)
    command += ("--arrivals", "gamma", "--burstiness", 0.5, "--seed", 4, "--json")
    runs = [json.loads(inferlab(*command)[1])["runs"][0] for _ in range(2)]
    due = [[one["scheduled_s"] for one in run["outcomes"]] for run in runs]
    assert due[0] == due[1] == queueing.arrivals(50.0, 6, burstiness=0.5, seed=4)
    bodies = [seen.body["prompt"] for seen in server.seen]
    assert sorted(bodies[:9]) == sorted(bodies[9:])


def test_people_see_a_table_and_what_it_leaves_out(fake, inferlab):
    server = fake(lambda n, body: Reply(tokens=2, first=0.02, status=500 if n == 4 else 200))
    code, out, _ = inferlab(
        *("bench", "load", "--url", server.url, "--concurrency", 2, "--concurrency", 4),
        *("--requests", 6, "--slo", "ttft=5", "--warm-ups", 1, "--chat"),
    )
    assert code == 0
    assert "under way" in out
    assert "1 warm-up left out" in out
    assert "At 2 under way 1 failed: HTTP 500: too much" in " ".join(out.split())
    code, out, _ = inferlab(
        *("bench", "load", "--url", server.url, "--rate", 50, "--requests", 4),
        *("--slo", "ttft=0.001ms"),
    )
    assert "At no rate that was tried 90%" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "either rate or concurrency"),
        (("--rate", "1", "--concurrency", "2"), "either rate or concurrency"),
        (("--rate", "0"), "rate is 0"),
        (("--rate", "1", "--rate", "nan"), "rate is nan"),
        (("--rate", "x"), "rate"),
        (("--concurrency", "0"), "concurrency is 0"),
        (("--rate", "1", "--requests", "0"), "requests"),
        (("--rate", "1", "--warm-ups", "-1"), "warm-ups"),
        (("--rate", "1", "--timeout", "0"), "timeout"),
        (("--rate", "1", "--slo", "tfft=1"), "did you mean ttft"),
        (("--rate", "1", "--arrivals", "uniform"), "arrivals"),
        (("--rate", "1", "--burstiness", "2"), "burstiness goes with"),
        (("--rate", "1", "--arrivals", "gamma"), "burstiness goes with"),
        (("--rate", "1", "--arrivals", "gamma", "--burstiness", "-1"), "burstiness is -1"),
        (("--rate", "1", "--prompt-tokens", "many"), "prompt-tokens is 'many'"),
        (("--rate", "1", "--prompts", "/none.txt"), "prompts: /none.txt cannot be read"),
        (("--rate", "1", "--picture", "a.png"), "must end in .svg"),
    ],
)
def test_bad_input_is_one_clear_line_and_nothing_is_sent(fake, inferlab, arguments, says):
    server = fake(steady())
    code, out, err = inferlab("bench", "load", "--url", server.url, *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert server.seen == []


def test_messages_need_the_chat_endpoint(fake, inferlab, tmp_path):
    talk = tmp_path / "talk.jsonl"
    talk.write_text('{"messages": [{"role": "user", "content": "hi"}]}', encoding="utf-8")
    server = fake(steady(tokens=1))
    command = ("bench", "load", "--url", server.url, "--rate", 50, "--requests", 2)
    code, _, err = inferlab(*command, "--prompts", talk)
    assert (code, "--chat" in err) == (2, True)
    code, _, err = inferlab(*command, "--prompts", talk, "--output-tokens", "5-9")
    assert (code, "lengths" in err) == (2, True)
    assert inferlab(*command, "--prompts", talk, "--chat")[0] == 0
    assert server.seen[0].body["messages"][0]["content"] == "hi"


def test_a_server_that_is_not_there_is_one_clear_line(inferlab):
    code, _, err = inferlab("bench", "load", "--url", "http://127.0.0.1:9", "--rate", 1)
    assert (code, err.count("\n")) == (2, 1)
    assert "nothing answers at" in err


def test_a_server_of_ours_that_does_not_come_up_says_why():
    with (
        pytest.raises(InferlabError, match="did not come up: inferlab: no such model"),
        load.serving("--model", "/no/such/model.gguf"),
    ):
        pass
