"""The protocol as clients see it, before an engine that answers with the prompt in capitals."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inferlab.server import run
from inferlab.server.app import Settings

ROOT = Path(__file__).parents[2]
HELLO = [{"role": "user", "content": "hello"}]


def frames(response) -> list:
    """The data of each server-sent event; the last is the text [DONE]."""
    events = response.text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    data = [event.removeprefix("data: ") for event in events]
    return [json.loads(one) if one != "[DONE]" else one for one in data]


# OpenAI's own client


def test_the_openai_client_chats(fake):
    got = fake.client.chat.completions.create(model="tiny", messages=HELLO)
    (choice,) = got.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "U:HELLO")
    assert (got.object, got.model, choice.finish_reason) == ("chat.completion", "tiny", "stop")
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (8, 8)
    assert got.usage.total_tokens == 16
    assert got.usage.prompt_tokens_details.cached_tokens == 0


def test_the_openai_client_streams_a_chat(fake):
    stream = fake.client.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(pieces) == "U:HELLO"
    assert chunks[-1].usage.completion_tokens == 8


def test_the_openai_client_completes(fake):
    got = fake.client.completions.create(model="tiny", prompt="hello", max_tokens=3)
    assert (got.choices[0].text, got.choices[0].finish_reason) == ("HEL", "length")
    stream = fake.client.completions.create(model="tiny", prompt=[104, 105], stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "HI"


def test_the_asynchronous_client_too(fake):
    async def ask(client, text):
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": text}], stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{fake.address}/v1", api_key="-") as client:
            whole = await client.chat.completions.create(model="tiny", messages=HELLO)
            texts = [f"number {i}" for i in range(30)]
            return whole, texts, await asyncio.gather(*(ask(client, text) for text in texts))

    whole, texts, answers = asyncio.run(main())
    assert whole.choices[0].message.content == "U:HELLO"
    assert answers == [f"U:{text.upper()}" for text in texts]


def test_what_the_readme_says_works(fake):
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## Serve it")[1]
    text = text.split("\n## ")[0].replace("http://127.0.0.1:8000", fake.address)
    python = text.split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True)
    assert done.stdout == "U:WHAT IS THE CAPITAL OF FRANCE?"
    if shutil.which("curl") and shutil.which("bash"):
        curl = text.split("```sh\ncurl")[1].split("```")[0]
        done = subprocess.run(["bash", "-c", f"curl -s{curl}"], capture_output=True, text=True)
        assert done.stdout.startswith("data: {")
        assert done.stdout.endswith("data: [DONE]\n\n")


def test_models_are_listed_and_found(fake):
    assert [m.id for m in fake.client.models.list()] == ["tiny"]
    assert fake.client.models.retrieve("tiny").owned_by == "inferlab"
    with pytest.raises(openai.NotFoundError, match="tiny"):
        fake.client.models.retrieve("tinny")


# Streams


@pytest.mark.parametrize("usage", [False, True])
def test_the_order_of_a_stream(fake, usage):
    options = {"stream_options": {"include_usage": True}} if usage else {}
    response = fake.ask("chat/completions", model="tiny", messages=HELLO, stream=True, **options)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = frames(response)
    assert done == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    if usage:
        last = chunks.pop()
        assert last["choices"] == []
        whole = fake.ask("chat/completions", model="tiny", messages=HELLO).json()
        assert last["usage"] == whole["usage"]
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert not any("usage" in chunk for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len(choices) == len(chunks)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert not any("role" in choice["delta"] for choice in choices[1:])
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}
    assert "".join(c["delta"].get("content", "") for c in choices) == "U:HELLO"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("most", "tokens", "reason"),
    [(0, 0, "length"), (1, 1, "length"), (5, 5, "length"), (6, 6, "stop"), (20, 6, "stop")],
)
def test_the_count_of_tokens_and_the_reason(fake, stream, most, tokens, reason):
    body = {"model": "tiny", "prompt": "hello", "max_tokens": most, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
        *chunks, usage, _ = frames(fake.ask(**body))
        text = "".join(c["choices"][0]["text"] for c in chunks)
        ended = chunks[-1]["choices"][0]["finish_reason"]
    else:
        usage = fake.ask(**body).json()
        text, ended = usage["choices"][0]["text"], usage["choices"][0]["finish_reason"]
    assert (usage["usage"]["completion_tokens"], ended) == (tokens, reason)
    assert text == "HELLO"[:most]


def test_characters_come_whole(fake):
    for text in ("a😀b 😀 中文", "😀", "ü\u0301"):
        *chunks, _ = frames(fake.ask(prompt=text, max_tokens=99, stream=True))
        pieces = [chunk["choices"][0]["text"] for chunk in chunks]
        assert "".join(pieces) == text.upper()
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_a_cut_character_is_told_once(fake, tokens):
    *chunks, _ = frames(fake.ask(prompt="😀", max_tokens=tokens, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "\ufffd"
    assert fake.ask(prompt="😀", max_tokens=tokens).json()["choices"][0]["text"] == "\ufffd"


def test_a_stop_string_ends_and_is_not_shown(fake):
    for stop in ("LO", ["LO", "xyz"]):
        for stream in (False, True):
            response = fake.ask(prompt="hello you", stop=stop, stream=stream, max_tokens=30)
            chunks = frames(response)[:-1] if stream else [response.json()]
            assert "".join(c["choices"][0]["text"] for c in chunks) == "HEL"
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_several_prompts_are_as_many_choices(fake):
    prompts = ["one", "number two", "three"]
    whole = fake.ask(prompt=prompts).json()
    assert [c["text"] for c in whole["choices"]] == [p.upper() for p in prompts]
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == sum(len(p) + 1 for p in prompts)
    texts = ["", "", ""]
    for chunk in frames(fake.ask(prompt=prompts, stream=True))[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [p.upper() for p in prompts]
    assert fake.ask(prompt=[[104, 105], [106]]).json()["choices"][1]["text"] == "J"


def test_more_prompts_than_there_are_places_are_refused_for_good(make_fake):
    fake = make_fake(batch=2, max_waiting=1)
    assert fake.ask(prompt=["a"] * 3).status_code == 200
    refused = fake.ask(prompt=["a"] * 4)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")


def test_log_probabilities(fake):
    whole = fake.client.chat.completions.create(
        model="tiny", messages=HELLO, logprobs=True, top_logprobs=1
    )
    first = whole.choices[0].logprobs.content[0]
    assert (first.token, first.logprob, first.bytes) == ("U", -0.5, [85])
    assert [at.token for at in first.top_logprobs] == ["U"]
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    text = fake.ask(prompt="hi", logprobs=2).json()["choices"][0]["logprobs"]
    assert text == {
        "tokens": ["H", "I", ""],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [{"H": -0.5, "!": -1.5}, {"I": -0.5, "!": -1.5}, {"": -0.5, "!": -1.5}],
        "text_offset": [0, 1, 2],
    }
    chunks = frames(fake.ask(prompt="hi", logprobs=2, stream=True))[:-1]
    odds = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [i for one in odds for i in one["text_offset"]] == [0, 1, 2]


# Our own additions


def test_a_traced_stream_tells_each_event_and_the_account(fake):
    response = fake.ask("chat/completions", model="tiny", messages=HELLO, stream=True, trace=True)
    *chunks, _ = frames(response)
    events = [e for c in chunks for e in c.get("inferlab", {}).get("events", ())]
    kinds = [event["kind"] for event in events]
    assert kinds == ["arrived", "scheduled", "chunk", *["token"] * 8, "finished"]
    times = [event["time_s"] for event in events]
    assert times == sorted(times)
    assert times[0] >= 0
    assert all(isinstance(event["tokens"], int) for event in events)
    account = chunks[-1]["inferlab"]["account"]
    assert set(account) == {
        *("prompt_tokens", "cached_tokens", "output_tokens", "ttft_s", "queue_s", "prefill_s"),
        *("tpot_s", "tokens_per_second", "bytes_per_token", "weight_bytes_per_token"),
        *("kv_read_bytes_per_token", "achieved_bytes_per_second", "bandwidth"),
        *("fraction_of_bandwidth", "finish_reason", "rows"),
    }
    assert account["ttft_s"] == pytest.approx(account["queue_s"] + account["prefill_s"])
    assert account["output_tokens"] == 8


def test_the_account_comes_last_also_beside_the_usage(make_fake):
    fake = make_fake(Settings(bandwidth=1e9))
    body = {"prompt": "hello", "stream": True, "trace": True}
    *chunks, _ = frames(fake.ask(**body, stream_options={"include_usage": True}))
    assert ["account" in chunk.get("inferlab", {}) for chunk in chunks].index(True) == (
        len(chunks) - 1
    )
    account = chunks[-1]["inferlab"]["account"]
    assert account["fraction_of_bandwidth"] == account["achieved_bytes_per_second"] / 1e9
    whole = fake.ask(prompt="hello", trace=True).json()
    assert set(whole["inferlab"]) == {"events", "account"}


def test_without_trace_there_is_not_one_extra_key(fake):
    for chunk in frames(fake.ask(prompt="hello", stream=True))[:-1]:
        assert set(chunk) == {"id", "object", "created", "model", "choices"}
    whole = fake.ask("chat/completions", messages=HELLO).json()
    assert set(whole) == {"id", "object", "created", "model", "choices", "usage"}


def test_the_trace_of_the_last_requests(make_fake):
    fake = make_fake(history=2)
    for text in ("one", "two", "three"):
        fake.ask(prompt=text)
    data = fake.http.get("/v1/trace").json()["data"]
    assert [one["prompt_tokens"] for one in data] == [3, 5]
    assert data[0]["events"][0]["kind"] == "arrived"
    chrome = fake.http.get("/v1/trace?format=chrome").json()
    assert {event["ph"] for event in chrome["traceEvents"]} >= {"M", "X"}
    wrong = fake.http.get("/v1/trace?format=xml")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "format")


def test_metrics_can_be_read(fake):
    fake.ask(prompt="hello")
    fake.ask(prompt="hello", max_tokens=2)
    fake.ask(prompt="")
    fake.until(lambda: fake.metric("inferlab_ttft_seconds_count") == 2)
    families = {f.name: f for f in text_string_to_metric_families(fake.http.get("/metrics").text)}
    assert fake.metric("inferlab_output_tokens_total") == 8
    assert fake.metric("inferlab_prompt_tokens_total") == 10
    assert fake.metric('inferlab_requests_total{reason="stop"}') == 1
    assert fake.metric('inferlab_requests_total{reason="length"}') == 1
    assert fake.metric('inferlab_rejected_total{status="400"}') == 1
    assert fake.metric("inferlab_tpot_seconds_count") == 2
    assert fake.metric("inferlab_kv_blocks_free") == fake.metric("inferlab_kv_blocks") == 256
    for name in ("requests_waiting", "requests_running", "preemptions", "cached_prompt_tokens"):
        assert f"inferlab_{name}" in families


def test_the_page_is_at_the_root(fake):
    response = fake.http.get("/")
    assert response.status_code == 200
    assert "<title>" in response.text


# Limits


def test_a_client_that_hangs_up_frees_its_blocks(fake):
    fake.engine.delay = 0.01
    for stream in ("true", "false"):
        body = f'{{"prompt": "hello", "stream": {stream}, "max_tokens": 400, "ignore_eos": true}}'
        with socket.create_connection(("127.0.0.1", fake.port)) as client:
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                + f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            fake.until(lambda: fake.engine.blocks.used)
            steps = fake.engine.steps
        fake.until(lambda: not fake.engine.blocks.used)
        assert fake.engine.steps < steps + 100
    fake.until(lambda: fake.metric('inferlab_requests_total{reason="cancelled"}') == 2)


def test_a_client_that_hangs_up_in_the_queue_leaves_it(make_fake):
    fake = make_fake(batch=1)
    fake.engine.delay = 0.01
    with fake.http.stream("POST", "/v1/completions", json={"prompt": "a" * 200, "stream": True}):
        fake.until(lambda: fake.engine.running)
        with fake.http.stream("POST", "/v1/completions", json={"prompt": "b", "stream": True}):
            fake.until(lambda: len(fake.engine.waiting) == 1)
        fake.until(lambda: not fake.engine.waiting)
        assert fake.engine.running


def test_too_many_requests_get_429_and_the_others_their_answers(make_fake):
    fake = make_fake(batch=1, max_waiting=2)
    fake.engine.delay = 0.02
    answers = []
    body = {"prompt": "hello there", "max_tokens": 12}
    threads = [threading.Thread(target=lambda: answers.append(fake.ask(**body))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200] * codes.count(200) + [429] * codes.count(429)
    assert codes.count(200) >= 3
    assert codes.count(429) >= 1
    for answer in answers:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["type"] == "rate_limit_error"
        else:
            assert answer.json()["choices"][0]["text"] == "HELLO THERE"
    assert fake.ask(**body).status_code == 200
    assert fake.metric('inferlab_rejected_total{status="429"}') == codes.count(429)


def test_the_openai_client_tries_again(make_fake):
    fake = make_fake(batch=1, max_waiting=0)
    fake.engine.delay = 0.02
    patient = fake.client.with_options(max_retries=5)
    with fake.http.stream("POST", "/v1/completions", json={"prompt": "a" * 9, "stream": True}):
        fake.until(lambda: fake.engine.running)
        with pytest.raises(openai.RateLimitError):
            fake.client.completions.create(model="tiny", prompt="b")
        assert patient.completions.create(model="tiny", prompt="b").choices[0].text == "B"


def test_a_key_is_asked_for(make_fake):
    fake = make_fake(Settings(api_key="s3cret"))
    assert fake.client.completions.create(model="tiny", prompt="a").choices[0].text == "A"
    for header in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": b"Bearer \xff"}):
        fake.http.headers.pop("authorization", None)
        for path in ("/v1/models", "/v1/trace", "/metrics", "/v1/nothing"):
            refused = fake.http.get(path, headers=header)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
        assert fake.http.post("/v1/completions", headers=header, content=b"{").status_code == 401
    assert fake.http.get("/health").status_code == fake.http.get("/").status_code == 200
    assert fake.http.get("/page/page.js").status_code == 200


def test_pages_from_elsewhere_are_refused(fake):
    body = {"prompt": "a"}

    def code(**headers: str) -> int:
        return fake.http.post("/v1/completions", json=body, headers=headers).status_code

    port = fake.port
    for host in ("localhost", "127.0.0.1", f"localhost:{port}", "[::1]:8000", "LOCALHOST"):
        assert code(host=host) == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
        assert code(host=host) == 421
    assert code(host="localhost:1", origin="http://localhost:1") == 200
    assert code(host="localhost:1", origin="http://localhost:2") == 403
    assert code(origin="https://evil.example") == code(origin="null") == 403


def test_a_long_body_is_refused_before_it_is_read(make_fake, monkeypatch):
    monkeypatch.setattr(run, "HEADER_SECONDS", 0.5)
    fake = make_fake(Settings(max_body=1000))
    refused = fake.ask(prompt="a" * 1000)
    assert refused.status_code == 413
    assert "1000" in refused.json()["error"]["message"]

    def endless():
        while True:
            yield b" " * 500

    assert fake.http.post("/v1/completions", content=endless()).status_code == 413
    assert fake.ask(prompt="a").status_code == 200


def test_a_request_may_take_only_so_long(make_fake):
    fake = make_fake(Settings(seconds=0.3))
    fake.engine.delay = 0.05
    body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True}
    late = fake.ask(**body)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    fake.until(lambda: not fake.engine.blocks.used)
    events = fake.ask(**body, stream=True).text.split("\n\n")
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "timeout"
    fake.until(lambda: not fake.engine.blocks.used)
    with pytest.raises(openai.APIError, match="longer"):
        list(fake.client.completions.create(model="tiny", stream=True, prompt="a" * 400))


def test_a_client_that_reads_slowly_slows_nobody(fake):
    body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True, "trace": True}
    with fake.http.stream("POST", "/v1/completions", json=body) as slow:
        fake.until(lambda: fake.engine.steps)
        assert fake.ask(prompt="hello").json()["choices"][0]["text"] == "HELLO"
        fake.until(lambda: not fake.engine.blocks.used)
        time.sleep(0.2)
        text = "".join(slow.iter_text())
    assert text.endswith("data: [DONE]\n\n")
    assert text.count('"text":"A"') == 250


# Failures


def test_a_failure_of_the_engine_fails_its_requests_alone(fake):
    fake.engine.delay = 0.01
    with fake.http.stream(
        "POST", "/v1/completions", json={"prompt": "a" * 99, "stream": True}
    ) as stream:
        fake.until(lambda: fake.engine.running)
        fake.engine.failure = RuntimeError("out of luck")
        last = "".join(stream.iter_text()).split("\n\n")[-2]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_error")
    assert "out of luck" in error["message"]
    fake.engine.failure = ValueError("again")
    failed = fake.ask(prompt="hello")
    assert (failed.status_code, failed.json()["error"]["type"]) == (500, "server_error")
    assert fake.http.get("/health").json() == {"status": "ok"}
    assert fake.ask(prompt="hello").json()["choices"][0]["text"] == "HELLO"
    assert fake.engine.blocks.used == 0


def test_a_request_that_fails_alone_is_told_so(fake):
    failed = fake.ask(prompt="poison")
    assert failed.status_code == 500
    assert failed.json()["error"]["message"] == "the model failed: logits are not finite"
    with pytest.raises(openai.APIError, match="not finite"):
        list(fake.client.completions.create(model="tiny", prompt="poison", stream=True))
    fake.until(lambda: fake.metric('inferlab_requests_total{reason="error"}') == 2)


def test_who_gives_up_before_the_engine_listens_leaves_nothing(make_fake):
    fake = make_fake(Settings(seconds=0.3))
    fake.engine.delay = 1.0
    body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True}
    with fake.http.stream("POST", "/v1/completions", json=body | {"stream": True}):
        fake.until(lambda: fake.engine.waiting or fake.engine.running)
        assert fake.ask(**body).status_code == 504
    fake.engine.delay = 0.0
    fake.until(lambda: not fake.engine.busy)


def test_a_broken_engine_is_told_by_health(fake):
    fake.engine.broken = AssertionError("a block is lost")
    fake.engine.failure = RuntimeError("out of luck")
    assert fake.ask(prompt="hello").status_code == 500
    fake.until(lambda: fake.worker.dead)
    health = fake.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "dead")
    assert "a block is lost" in health.json()["reason"]
    assert fake.ask(prompt="hello").status_code == 503


def test_the_end_of_the_server_ends_its_streams(fake):
    fake.engine.delay = 0.01
    with fake.http.stream(
        "POST", "/v1/completions", json={"prompt": "a" * 400, "stream": True}
    ) as stream:
        fake.until(lambda: fake.engine.running)
        began = time.monotonic()
        threading.Thread(target=fake.stop).start()
        last = "".join(stream.iter_text()).split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stopped"
    assert time.monotonic() - began < 5
