"""Many clients for some minutes, then a thousand that mean no good. Run by hand:

    python tests/server/soak.py --clients 64 --seconds 120

Starts `inferlab serve`, asks each prompt alone, then all clients at once: every greedy answer must
be its single-request answer, memory must stay flat, and no block may be lost, though one client in
twenty hangs up in the middle. Then broken, oversized, cut-off and slow requests: each must get its
error or be hung up on, and the server must answer as before. Prints JSON; exits 1 if anything is
wrong. Options that are not known here go to `inferlab serve`. Unless they say otherwise weights are
widened, since only in float32 do an answer's tokens not depend on who else asks, and the cache is
small: every block of it is soon in use, so memory that still grows is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import subprocess
import sys
import time

import httpx
import psutil

PROMPTS = [
    f"{begin} {thing}"
    for begin in ("Tell me about", "Write a short story of", "Explain to a child", "List facts on")
    for thing in ("the sea", "a clock 🕰", "memory", "中文", "bread, and why it rises " * 6)
]
MAX_TOKENS = 32
HANG_UPS = 0.05
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
FLAT = 1.05  # the end's memory over that of the first third


def body(prompt: str, **more: object) -> dict:
    """A greedy chat request for a prompt."""
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS} | more


async def text_of(http: httpx.AsyncClient, prompt: str, until: int | None = None) -> str | None:
    """Stream an answer; None after hanging up at piece `until`."""
    asked = body(prompt, stream=True, stream_options={"include_usage": True})
    text, pieces, usage, done = "", 0, None, False
    async with http.stream("POST", "/v1/chat/completions", json=asked) as stream:
        if stream.status_code != 200:
            raise RuntimeError(f"{stream.status_code}: {(await stream.aread())[:200]!r}")
        async for line in stream.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line:
                chunk = json.loads(line.removeprefix("data: "))
                usage = chunk.get("usage") or usage
                for choice in chunk["choices"]:
                    text += choice["delta"].get("content", "")
                    pieces += 1
                if pieces == until:
                    return None
    if not done or not usage or not 0 < usage["completion_tokens"] <= MAX_TOKENS:
        raise RuntimeError(f"a stream without its end: {text[-40:]!r}, {usage}")
    return text


async def soak(http: httpx.AsyncClient, pid: int, clients: int, seconds: float) -> dict:
    """Run the clients; return what they saw."""
    alone = {prompt: await text_of(http, prompt) for prompt in PROMPTS}
    server, dice = psutil.Process(pid), random.Random(1)
    seen: collections.Counter[str] = collections.Counter()
    memory: list[float] = []
    began = time.monotonic()
    errors: list[str] = []

    async def client() -> None:
        while time.monotonic() < began + seconds:
            prompt = dice.choice(PROMPTS)
            until = dice.randint(1, 8) if dice.random() < HANG_UPS else None
            try:
                text = await text_of(http, prompt, until)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
                continue
            if text is None:
                seen["hung up"] += 1
            elif text == alone[prompt]:
                seen["right"] += 1
            else:
                seen["wrong"] += 1
                errors.append(f"{prompt!r}: {text!r} is not {alone[prompt]!r}")

    async def watch() -> None:
        while time.monotonic() < began + seconds:
            memory.append(server.memory_info().rss / 2**20)
            await asyncio.sleep(0.5)

    await asyncio.gather(watch(), *(client() for _ in range(clients)))
    third = len(memory) // 3
    growth = max(memory[-third:]) / max(memory[: third + 1])
    return dict(seen) | {
        "errors": len(errors),
        "first_errors": errors[:3],
        "memory_mib": [round(memory[0]), round(max(memory[: third + 1])), round(memory[-1])],
        "memory_growth": round(growth, 3),
        "flat": growth < FLAT,
    }


def hostile(dice: random.Random) -> tuple[str, list[bytes], set[int | None]]:
    """Return a request that is wrong: its kind, the pieces to send, the answers that are right."""
    good = json.dumps({"prompt": "hello", "max_tokens": 4, "seed": 1}).encode()

    def post(data: bytes, length: int | None = None) -> bytes:
        size = len(data) if length is None else length
        return HEAD + b"Content-Length: %d\r\n\r\n" % size + data

    def field(name: str, value: object) -> bytes:
        return post(json.dumps({"prompt": "hello"} | {name: value}).encode())

    cut = dice.randrange(1, len(good))
    junk = dice.randbytes(dice.randint(1, 300))
    kinds: dict[str, tuple[list[bytes], set[int | None]]] = {
        "cut JSON": ([post(good[:cut])], {400}),
        "bytes": ([post(junk)], {400}),
        "no HTTP": ([junk + b"\r\n\r\n"], {400, None}),
        "wrong type": ([field(dice.choice(["max_tokens", "seed", "top_k"]), "8")], {400}),
        "out of range": ([field(dice.choice(["top_p", "temperature"]), -dice.random())], {400}),
        "not a number": ([post(b'{"prompt": "a", "temperature": NaN}')], {400}),
        "unknown field": ([field("".join(dice.choices("abcxyz", k=9)), 1)], {400}),
        "not implemented": ([field(dice.choice(["n", "best_of"]), dice.randint(2, 99))], {400}),
        "token ids": ([field("prompt", [dice.choice([-1, 10**9, 49152])])], {400}),
        "empty prompt": ([field("prompt", dice.choice(["", [], [""], [[]]]))], {400}),
        "long prompt": ([field("prompt", "word " * 20_000)], {400}),
        "oversized": ([post(b" " * 70_000, 1 << 30)], {413}),
        "chunked and oversized": (
            [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"40000\r\n" + b" " * 0x40000 + b"\r\n"]
            + [b"40000\r\n" + b" " * 0x40000 + b"\r\n"] * 4,
            {413},
        ),
        "deep": ([post(b"[" * dice.randint(300, 9000))], {400}),
        "wrong host": ([post(good).replace(b"localhost", b"evil.example")], {421}),
        "wrong origin": ([post(good).replace(b"\r\n", b"\r\nOrigin: http://x\r\n", 1)], {403}),
        "wrong path": ([post(good).replace(b"/v1/completions", b"/v2/../etc")], {404}),
        "wrong method": ([post(good).replace(b"POST", b"PUT", 1)], {405}),
        "two lengths": ([HEAD + b"Content-Length: 5\r\nContent-Length: 9\r\n\r\nhello"], {400}),
        "short length": ([post(good, dice.randint(1, 9))], {400}),
        "negative length": ([HEAD + b"Content-Length: -1\r\n\r\n"], {400}),
        "broken chunks": ([HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"], {400}),
        "huge header": ([b"GET / HTTP/1.1\r\nX: " + b"a" * 2_000_000], {400}),
        "half a body": ([post(good[:cut], 1000)], {408}),
        "half a header": ([HEAD[: dice.randrange(1, len(HEAD))]], {None}),
        "slow header": ([HEAD[i : i + 4] for i in range(0, 44, 4)] * 9, {None, 400}),
    }
    kind = dice.choice(list(kinds))
    return kind, *kinds[kind]


async def attack(port: int, count: int) -> dict:
    """Send `count` hostile requests, a hundred at a time; return what became of them."""
    dice, gate = random.Random(2), asyncio.Semaphore(100)
    seen: collections.Counter[str] = collections.Counter()
    errors: list[str] = []

    async def one(kind: str, pieces: list[bytes], right: set[int | None]) -> None:
        answer = b""
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            # Read from the start: who is hung up on while still sending would lose the answer.
            reading = asyncio.create_task(reader.read(1000))
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    if kind == "slow header":
                        await asyncio.sleep(0.5)
            try:
                with contextlib.suppress(ConnectionError):
                    answer = await asyncio.wait_for(reading, 60)
            except TimeoutError:
                errors.append(f"{kind}: nothing came, and nobody hung up")
            writer.close()
        status = int(answer.split()[1]) if answer else None
        seen[str(status)] += 1
        if status not in right:
            errors.append(f"{kind}: {status} and not {right} ({answer[-200:]!r})")

    await asyncio.gather(*(one(*hostile(dice)) for _ in range(count)))
    return {"answers": dict(seen), "errors": len(errors), "first_errors": errors[:5]}


async def free_blocks(http: httpx.AsyncClient) -> float:
    """Blocks free as soon as nobody runs."""
    for _ in range(300):
        lines = (await http.get("/metrics")).text.splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        if float(values["inferlab_requests_running"]) == 0:
            break
        await asyncio.sleep(0.1)
    return float(values["inferlab_kv_blocks_free"])


async def check(url: str, pid: int, options: argparse.Namespace) -> dict:
    """Run both parts against a server; return the report."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=options.clients)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:
        free = await free_blocks(http)
        first = await text_of(http, PROMPTS[0])
        report: dict = {"soak": await soak(http, pid, options.clients, options.seconds)}
        report["blocks"] = {"start": free, "after_soak": await free_blocks(http)}
        report["hostile"] = await attack(int(url.rpartition(":")[2]), options.hostile)
        report["blocks"]["end"] = await free_blocks(http)
        report["answers_as_before"] = await text_of(http, PROMPTS[0]) == first
        report["health"] = (await http.get("/health")).json()
    report["good"] = (
        not report["soak"]["errors"]
        and not report["hostile"]["errors"]
        and report["soak"]["flat"]
        and len(set(report["blocks"].values())) == 1
        and report["answers_as_before"]
        and report["health"] == {"status": "ok"}
    )
    return report


def main() -> None:
    """Start a server, check it, end it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--hostile", type=int, default=1000)
    options, others = parser.parse_known_args()
    for name, value in (("--quantize", "none"), ("--kv-tokens", "4096")):
        if name not in others:
            others += [name, value]
    command = [sys.executable, "-m", "inferlab.cli", "serve", "--json", "--port", "0", *others]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={"OMP_WAIT_POLICY": "PASSIVE"} | os.environ
    )
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        report = asyncio.run(check(url, server.pid, options))
    finally:
        server.terminate()
        server.wait(30)
    print(json.dumps(report, indent=2, ensure_ascii=False))
    sys.exit(not report["good"])


if __name__ == "__main__":
    main()
