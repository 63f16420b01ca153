"""The server before the real engine: the tiny model, then SmolLM2 through the command line."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading

import httpx
import openai
import pytest

from inferlab.engine import SamplingParams
from inferlab.engine.serving import Engine
from inferlab.errors import InferlabError
from inferlab.server import run
from inferlab.server.app import Settings

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


def answers(client: openai.OpenAI, prompts, tokens: int, **body) -> dict:
    """Ask all at a time, streamed; return each prompt's text."""
    found = {}

    def ask(prompt):
        stream = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=tokens, temperature=0, stream=True, **body
        )
        found[tuple(prompt)] = "".join(chunk.choices[0].text for chunk in stream)

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_requests_together_get_what_each_gets_alone(real, llm):
    dice = random.Random(3)
    prompts = [[dice.randrange(256) for _ in range(dice.randint(1, 90))] for _ in range(24)]
    params = SamplingParams(max_new_tokens=20)
    alone = {
        tuple(p): done.text for p, done in zip(prompts, llm.generate(prompts, params), strict=True)
    }
    free = real.engine.blocks.free
    assert answers(real.client, prompts, 20) == alone
    assert real.engine.blocks.free == free
    real.engine.check()


def test_a_prompt_that_came_before_is_cached(real):
    body = {"prompt": "a" * 100, "max_tokens": 2}
    first, second = (real.ask(**body).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == 96
    assert real.metric("inferlab_cached_prompt_tokens_total") == 96


def test_a_seed_gives_the_same_sample(real):
    body = {"prompt": "hello", "max_tokens": 20, "temperature": 1, "seed": 5}
    texts = {real.ask(**body).json()["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 1
    assert real.ask(**(body | {"seed": 6})).json()["choices"][0]["text"] not in texts


def test_a_client_that_hangs_up_frees_real_blocks(real):
    body = {"prompt": "a" * 100, "max_tokens": 400, "ignore_eos": True, "stream": True}
    free = real.engine.blocks.free
    for _ in range(3):
        with real.http.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_lines())
        real.until(lambda: real.engine.blocks.free == free)
    assert not real.engine.running
    real.engine.check()


def test_a_prompt_longer_than_the_cache_is_refused(llm, serving):
    small = serving(Engine(llm, kv_tokens=64, step_tokens=32, max_batch=4), max_batch=4)
    refused = small.ask(prompt="a" * 100)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
    mixed = small.ask(prompt=["a", "a" * 100])
    assert mixed.status_code == 400
    small.until(lambda: not small.engine.running)
    assert small.ask(prompt="a").status_code == 200
    small.engine.check()


def test_a_traced_request_says_where_its_time_went(llm, serving):
    engine = Engine(llm, kv_tokens=2048, step_tokens=32, max_batch=4)
    real = serving(engine, Settings(bandwidth=1e10), max_batch=4)
    whole = real.ask(prompt="a" * 100, max_tokens=5, ignore_eos=True, trace=True).json()["inferlab"]
    chunks = [event["tokens"] for event in whole["events"] if event["kind"] == "chunk"]
    assert sum(chunks) == 100
    assert len(chunks) > 1
    account = whole["account"]
    assert account["rows"] == pytest.approx(1)
    assert account["weight_bytes_per_token"] == llm.model.streamed_bytes
    assert account["ttft_s"] == pytest.approx(account["queue_s"] + account["prefill_s"])
    assert 0 < account["fraction_of_bandwidth"] < 1


def test_smollm2_answers_the_official_client(smollm2, serving):
    running = serving(Engine(smollm2, kv_tokens=2048, max_batch=4), max_batch=4)
    ask = {"model": smollm2.name, "messages": FRANCE, "temperature": 0}
    whole = running.client.chat.completions.create(**ask)
    (direct,) = smollm2.generate(smollm2.tokenizer.chat(FRANCE))
    assert whole.choices[0].message.content == direct.text == "The capital of France is Paris."
    assert whole.usage.prompt_tokens == direct.prompt_tokens
    stream = running.client.chat.completions.create(**ask, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == direct.text


# The command


@pytest.fixture
def command(smollm2, tmp_path):
    """Return a function that runs `inferlab serve --json` with options; all end with the test."""
    running = []

    def start(*options: str, **variables: str) -> tuple[subprocess.Popen, dict]:
        args = [sys.executable, "-m", "inferlab.cli", "serve", "--json", "--port", "0", *options]
        with open(tmp_path / f"stderr{len(running)}", "w+") as log:
            process = subprocess.Popen(
                args, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | variables
            )
        running.append(process)
        line = process.stdout.readline()
        assert line, (tmp_path / f"stderr{len(running) - 1}").read_text()
        return process, json.loads(line)

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_command_serves_until_ctrl_c(command, tmp_path):
    process, said = command(INFERLAB_API_KEY="abc")
    assert set(said) == {"url", "model"}
    client = openai.OpenAI(base_url=f"{said['url']}/v1", api_key="abc", max_retries=0)
    ask = {"model": said["model"], "messages": FRANCE, "temperature": 0}
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].message.content == "The capital of France is Paris."
    assert httpx.get(f"{said['url']}/v1/models").status_code == 401
    long = {"model": said["model"], "prompt": "Once upon a time", "max_tokens": 4000}
    stream = client.completions.create(**long, stream=True, extra_body={"ignore_eos": True})
    next(stream)
    process.send_signal(signal.SIGINT)
    with pytest.raises(openai.APIError, match="shutting down"):
        list(stream)
    assert process.wait(30) == 130
    assert "Traceback" not in (tmp_path / "stderr0").read_text()


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("127.0.0.1", 70000, "port must be from 0"),
        ("no.such.host.invalid", 0, "host 'no.such.host.invalid' is not known"),
        ("192.0.2.1", 0, "host 192.0.2.1, port 0: "),
    ],
)
def test_a_wrong_address_is_named(host, port, said):
    with pytest.raises(InferlabError, match=said):
        run.bind(host, port)


def test_addresses_as_a_browser_takes_them():
    with run.bind("127.0.0.1", 0) as held:
        assert run.url(held) == f"http://127.0.0.1:{held.getsockname()[1]}"
        assert run.is_loopback(held)
    with run.bind("0.0.0.0", 0) as held:
        assert not run.is_loopback(held)


def test_a_taken_port_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "inferlab.cli", "serve", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert done.returncode == 2
    assert done.stderr == (
        f"inferlab: port {port} of 127.0.0.1 is taken: give another --port, or 0 for any free one\n"
    )
