"""Load for any OpenAI-compatible server: requests at times of their own, every piece on the clock.

An open loop sends each request when it is due, whatever the server does, as people do; a closed
loop keeps so many under way and sends the next one when an answer ends. Time to first token runs
from when a request was *due*, so that neither a slow server nor a slow generator can hide a queue.

Needs httpx and no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferlab.errors import InferlabError, unknown
from inferlab.theory import queueing
from inferlab.theory.latency import RequestTimes

if TYPE_CHECKING:
    import httpx

WARM_UPS = 3
"""Requests before the clock starts: one alone, the others at once."""
LOCAL = ("127.0.0.1", "localhost", "::1")
#: Common words, a token each in nearly every vocabulary.
_WORDS = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government
number night point home water room mother area money story fact month lot right study book
eye job word business issue side kind head house service friend father power hour game line
end member law car city community name president team minute idea body information back
parent face others level office door health person art war history party result change
morning reason research girl guy moment air teacher force education
"""
WORDS = tuple(_WORDS.split())


@dataclass(frozen=True)
class Ask:
    """One request: a `prompt` (text, or messages of a chat) and the most tokens to answer with."""

    prompt: str | list[dict[str, str]]
    max_tokens: int


@dataclass(frozen=True)
class Target:
    """A server: its address up to `/v1`, the model's name there, and how to ask it."""

    url: str
    model: str
    chat: bool = False
    api_key: str | None = None
    timeout: float = 600.0
    temperature: float = 0.0
    ignore_eos: bool = False

    @property
    def endpoint(self) -> str:
        """The address that requests go to."""
        return f"{self.url}/{'chat/completions' if self.chat else 'completions'}"

    def body(self, ask: Ask) -> dict[str, Any]:
        """Return the JSON of a request: streamed, with a count of tokens at the end."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": ask.max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if not self.chat:
            return body | {"prompt": ask.prompt}
        asked = ask.prompt
        if isinstance(asked, str):
            asked = [{"role": "user", "content": asked}]
        return body | {"messages": asked}


@dataclass(frozen=True)
class Outcome:
    """What came of one request. Times are seconds since the run began.

    `sent` is when the generator let go of it; later than `times.scheduled`, it fell behind. The
    counts are the server's, None where it gave none; `error` says why a request failed.
    """

    times: RequestTimes
    sent: float
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None

    @property
    def lag(self) -> float:
        """Seconds from when the request was due until it was sent."""
        return self.sent - self.times.scheduled


@dataclass(frozen=True)
class Run:
    """The outcomes of one run, in order of arrival: at a `rate`, or with a `concurrency`."""

    outcomes: list[Outcome]
    warm_ups: list[Outcome]
    rate: float | None = None
    concurrency: int | None = None

    @property
    def times(self) -> list[RequestTimes]:
        """When each request was due and each piece of its answer came; warm-ups left out."""
        return [one.times for one in self.outcomes]


# What to ask


def synthetic(
    count: int,
    *,
    prompt: int | tuple[int, int] = 64,
    output: int | tuple[int, int] = 32,
    seed: int = 0,
    part: str = "",
) -> list[Ask]:
    """Return `count` requests of random common words, about a token each.

    Lengths are a number or a range (low, high); equal seeds give equal lengths. `part` gives other
    words of the same lengths, so that no server can take one part's prompts from another's cache.
    """
    draw = random.Random(f"words {seed} {part}")
    lengths = queueing.draw_lengths(count, prompt=prompt, output=output, seed=seed)
    return [Ask(" ".join(draw.choices(WORDS, k=p)), o) for p, o in lengths]


def from_file(path: Path, count: int, *, output: int = 128) -> list[Ask]:
    """Return `count` requests of a file, from its top again when it ends.

    A line is a prompt, or in a `.jsonl` file an object with `prompt` or `messages`, and perhaps
    `max_tokens`, which is `output` where it is missing.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InferlabError(f"prompts: {path} cannot be read as text ({error})") from None
    asks = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if path.suffix == ".jsonl":
            asks.append(_object(line, f"prompts: {path}, line {number}", output))
        else:
            asks.append(Ask(line, output))
    if not asks:
        raise InferlabError(f"prompts: {path} holds no line")
    return list(itertools.islice(itertools.cycle(asks), count))


def _object(line: str, where: str, output: int) -> Ask:
    try:
        asked = json.loads(line)
    except ValueError as error:
        raise InferlabError(f"{where} is not JSON ({error})") from None
    if not isinstance(asked, dict):
        raise InferlabError(f"{where} must be an object with prompt or messages")
    prompt, most = asked.get("prompt", asked.get("messages")), asked.get("max_tokens", output)
    if not isinstance(prompt, str | list) or not prompt:
        raise InferlabError(f"{where} must have prompt, a text, or messages, a list")
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise InferlabError(f"{where}: max_tokens is {most!r}: it must be a number from 1 on")
    return Ask(prompt, most)


# Where to ask


def find(
    url: str,
    model: str | None = None,
    *,
    chat: bool = False,
    api_key: str | None = None,
    timeout: float = 600.0,
    ignore_eos: bool = False,
) -> Target:
    """Return the server at `url`, with its first model where none is named.

    Raises InferlabError if nothing answers there.
    """
    import httpx

    base = url.strip().rstrip("/")
    for tail in ("/chat/completions", "/completions", "/models"):
        base = base.removesuffix(tail)
    try:
        parsed = httpx.URL(base)
    except httpx.InvalidURL as error:
        raise InferlabError(f"url is {url!r}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InferlabError(f"url is {url!r}: it must begin with http:// or https:// and a host")
    if parsed.path in ("", "/"):
        base = f"{base}/v1"
    target = Target(base, model or "", chat, api_key, timeout, ignore_eos=ignore_eos)
    try:
        with httpx.Client(trust_env=_proxies(base), timeout=min(timeout, 30)) as client:
            answer = client.get(f"{base}/models", headers=_headers(target))
    except httpx.HTTPError as error:
        raise InferlabError(f"url: nothing answers at {base} ({_why(error)})") from None
    if model:
        return target
    try:
        return replace(target, model=str(answer.raise_for_status().json()["data"][0]["id"]))
    except (httpx.HTTPStatusError, ValueError, LookupError, TypeError):
        raise InferlabError(
            f"model: {base}/models names none (HTTP {answer.status_code}); name it with --model"
        ) from None


def _headers(target: Target) -> dict[str, str]:
    plain = {"Accept-Encoding": "identity"}  # what compresses a stream may hold it back
    return plain | ({"Authorization": f"Bearer {target.api_key}"} if target.api_key else {})


def _proxies(url: str) -> bool:
    """Whether an environment's proxy may stand between: never before this machine itself."""
    import httpx

    return httpx.URL(url).host not in LOCAL


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


# Asking


async def ask(
    client: httpx.AsyncClient, target: Target, what: Ask, scheduled: float, clock: Clock
) -> Outcome:
    """Send one request and return when each piece of its answer came.

    A chunk with content is a piece; one with only a role, a count or an end is none. An answer
    that the server breaks off has failed, and so has one that takes longer than the target's
    `timeout`.
    """
    import httpx

    sent = clock()
    reading = _Reading()
    error: str | None = None
    try:
        async with (
            asyncio.timeout(target.timeout),
            client.stream("POST", target.endpoint, json=target.body(what)) as response,
        ):
            if response.status_code != 200:
                error = f"HTTP {response.status_code}: {_message(_body(await response.aread()))}"
            else:
                async for line in _lines(response):
                    reading.take(line, clock)
                error = reading.error()
    except TimeoutError:
        error = f"no end after {target.timeout:g} s"
    except (httpx.HTTPError, ValueError) as problem:
        error = _why(problem)
    usage = reading.usage
    details = usage.get("prompt_tokens_details") or {}
    times = RequestTimes(
        scheduled,
        tuple(reading.pieces),
        output_tokens=_count(usage, "completion_tokens"),
        finished=clock(),
        failed=error is not None,
    )
    return Outcome(
        times, sent, _count(usage, "prompt_tokens"), _count(details, "cached_tokens"), error
    )


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield lines as they come. httpx's own would also break at U+2028, which JSON may hold."""
    rest = b""
    async for block in response.aiter_bytes():
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line
    yield rest


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def __call__(self) -> float:
        """Return the seconds that have passed."""
        return time.perf_counter() - self.start


class _Reading:
    """A stream of server-sent events as it comes in."""

    def __init__(self) -> None:
        self.pieces: list[float] = []
        self.usage: Mapping[str, Any] = {}
        self.ended = False
        self.fault: str | None = None

    def take(self, line: bytes, clock: Clock) -> None:
        """Take in one line. Raises ValueError for data that is not what OpenAI's servers send."""
        if not line.startswith(b"data:"):
            return  # a comment, a name, or the blank line between two events
        data = line[len(b"data:") :].strip()
        if data == b"[DONE]":
            self.ended = True
            return
        try:
            self._chunk(json.loads(data), clock)
        except (ValueError, AttributeError, TypeError):
            raise ValueError(f"not a chunk of an answer: {data[:80]!r}") from None

    def _chunk(self, chunk: Mapping[str, Any], clock: Clock) -> None:
        if chunk.get("error"):
            self.fault = _message(chunk)
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            said = (choice.get("text"), delta.get("content"), delta.get("reasoning_content"))
            if any(said):
                self.pieces.append(clock())
            self.ended |= choice.get("finish_reason") is not None

    def error(self) -> str | None:
        """Return what was wrong with the stream as a whole, if anything was."""
        if self.fault:
            return self.fault
        return None if self.ended else "the stream broke off"


def _body(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


def _message(body: Any) -> str:
    """Return what an error object says, or the whole of anything else."""
    error = body.get("error") if isinstance(body, Mapping) else None
    said = error.get("message") if isinstance(error, Mapping) else error
    return " ".join(str(said or body).split())[:200]


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) else None


# Runs


def open_loop(
    target: Target,
    asks: Sequence[Ask],
    rate: float,
    *,
    burstiness: float = 1.0,
    seed: int = 0,
    warm_ups: Sequence[Ask] = (),
    done: Callable[[], object] = lambda: None,
) -> Run:
    """Send each request when it is due, `rate` a second on average. See `queueing.arrivals`.

    `done` is called at the end of each request.
    """
    times = queueing.arrivals(rate, len(asks), burstiness=burstiness, seed=seed)

    async def go(send: Send, clock: Clock) -> list[Outcome]:
        async def one(what: Ask, due: float) -> Outcome:
            await asyncio.sleep(max(0.0, due - clock()))
            return await send(what, due)

        return await asyncio.gather(*map(one, asks, times))

    return replace(_run(target, go, warm_ups, done), rate=rate)


def closed_loop(
    target: Target,
    asks: Sequence[Ask],
    concurrency: int,
    *,
    warm_ups: Sequence[Ask] = (),
    done: Callable[[], object] = lambda: None,
) -> Run:
    """Keep `concurrency` requests under way; each is due when there is room for it."""
    if concurrency < 1:
        raise InferlabError(f"concurrency is {concurrency}: it must be at least 1")

    async def go(send: Send, clock: Clock) -> list[Outcome]:
        waiting = iter(enumerate(asks))
        outcomes: dict[int, Outcome] = {}

        async def worker() -> None:
            for number, what in waiting:
                outcomes[number] = await send(what, clock())

        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return [outcomes[number] for number in sorted(outcomes)]

    return replace(_run(target, go, warm_ups, done), concurrency=concurrency)


Send = Callable[[Ask, float], Coroutine[Any, Any, Outcome]]


def _run(
    target: Target,
    go: Callable[[Send, Clock], Coroutine[Any, Any, list[Outcome]]],
    warm_ups: Sequence[Ask],
    done: Callable[[], object],
) -> Run:
    async def whole() -> Run:
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(
            headers=_headers(target),
            limits=limits,
            timeout=target.timeout,
            trust_env=_proxies(target.url),
        ) as client:
            clock = Clock()

            async def send(what: Ask, due: float) -> Outcome:
                outcome = await ask(client, target, what, due, clock)
                done()
                return outcome

            warmed = []
            if warm_ups:
                warmed.append(await ask(client, target, warm_ups[0], clock(), clock))
                rest = [ask(client, target, one, clock(), clock) for one in warm_ups[1:]]
                warmed += await asyncio.gather(*rest)
            clock = Clock()
            return Run(await go(send, clock), warmed)

    return _here(whole())


def _here(work: Coroutine[Any, Any, Run]) -> Run:
    """Run a coroutine to its end, also where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@contextlib.contextmanager
def serving(*options: str) -> Iterator[str]:
    """Run `inferlab serve` with `options` in a process of its own; yield its address, then end it.

    It takes any free port. Raises InferlabError with what it said if it does not come up.
    """
    command = [sys.executable, "-m", "inferlab.cli", "serve"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [*command, "--port", "0", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            said = process.stdout.readline() if process.stdout else ""
            if not said:
                process.wait()
                errors.seek(0)
                raise InferlabError(f"inferlab serve did not come up: {errors.read().strip()}")
            yield str(json.loads(said)["url"])
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


# Promises


def promises(text: str) -> dict[str, float]:
    """Return the promises in text such as "ttft=500ms,tpot=0.05": seconds by name."""
    found: dict[str, float] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = (one.strip() for one in part.partition("="))
        if not equals:
            raise InferlabError(f"slo: {part!r} must be a name and seconds, such as ttft=0.5")
        if name not in ("ttft", "tpot", "e2e"):
            raise unknown("slo", name, ("ttft", "tpot", "e2e"))
        if name in found:
            raise InferlabError(f"slo: {name} is there twice")
        scale = 1.0
        if value.endswith("ms"):
            value, scale = value[:-2], 1e-3
        else:
            value = value.removesuffix("s")
        try:
            found[name] = float(value) * scale
        except ValueError:
            found[name] = math.nan
        if not 0 < found[name] < math.inf:
            raise InferlabError(
                f"slo: {part!r} must be positive seconds, such as ttft=0.5 or tpot=50ms"
            )
    if not found:
        raise InferlabError("slo is empty: promise something, such as ttft=0.5,tpot=50ms")
    return found


def lengths(name: str, text: str) -> int | tuple[int, int]:
    """Return a number of tokens, or a range of them such as "100-500"."""
    low, dash, high = text.partition("-")
    try:
        pair = int(low), int(high if dash else low)
    except ValueError:
        pair = 0, 0
    if not 1 <= pair[0] <= pair[1]:
        raise InferlabError(f"{name} is {text!r}: give tokens from 1 on, such as 64 or 100-500")
    return pair if dash else pair[0]


def burstiness(arrivals: str, shape: float | None) -> float:
    """Return the gamma distribution's shape for what a user calls arrivals: 1 for Poisson."""
    if arrivals not in ("poisson", "gamma"):
        raise unknown("arrivals", arrivals, ("poisson", "gamma"))
    if (arrivals == "gamma") != (shape is not None):
        raise InferlabError("burstiness goes with arrivals gamma, and gamma with burstiness")
    return 1.0 if shape is None else shape


Plan = Callable[[Callable[[], object]], Run]
"""A run that is ready to go: give it what to call at the end of each request."""


def plan(
    url: str,
    *,
    rates: Sequence[float] = (),
    concurrencies: Sequence[int] = (),
    requests: int = 100,
    burstiness: float = 1.0,
    seed: int = 0,
    prompts: Path | None = None,
    prompt_tokens: str | None = None,
    output_tokens: str | None = None,
    warm_ups: int = WARM_UPS,
    chat: bool = False,
    model: str | None = None,
    ignore_eos: bool = False,
    api_key: str | None = None,
    timeout: float = 600.0,
) -> tuple[Target, list[Plan]]:
    """Return the server, and a run for each rate or each concurrency; the first one warms up.

    Everything is checked before anything is sent. Each run has prompts of its own, so that none
    can live off the server's memory of another.
    """
    if bool(rates) == bool(concurrencies):
        raise InferlabError("give either rate or concurrency, once or more")
    if requests < 1 or warm_ups < 0:
        raise InferlabError("requests must be at least 1, and warm-ups 0 or more")
    if not timeout > 0:
        raise InferlabError(f"timeout is {timeout:g}: it must be positive seconds")
    for rate in rates:
        queueing.arrivals(rate, 1, burstiness=burstiness)
    if min(concurrencies, default=1) < 1:
        raise InferlabError(f"concurrency is {min(concurrencies)}: it must be at least 1")

    def some(count: int, part: str) -> list[Ask]:
        if prompts is not None:
            return from_file(prompts, count, output=most)
        return synthetic(count, prompt=long, output=answer, seed=seed, part=part)

    answer = lengths("output-tokens", output_tokens or ("128" if prompts else "32"))
    long = lengths("prompt-tokens", prompt_tokens or "64")
    if prompts is not None and (prompt_tokens is not None or isinstance(answer, tuple)):
        raise InferlabError("prompts from a file have their lengths: one number for output-tokens")
    most = answer if isinstance(answer, int) else answer[1]
    sets = [some(requests, f"run {number}") for number in range(len(rates or concurrencies))]
    warm = some(warm_ups, "warm-ups") if warm_ups else []
    target = find(url, model, chat=chat, api_key=api_key, timeout=timeout, ignore_eos=ignore_eos)
    if not chat and any(isinstance(one.prompt, list) for one in sets[0]):
        raise InferlabError("prompts: messages go with --chat")

    def ready(number: int) -> Plan:
        first = warm if number == 0 else []
        if concurrencies:
            return lambda done: closed_loop(
                target, sets[number], concurrencies[number], warm_ups=first, done=done
            )
        return lambda done: open_loop(
            target,
            sets[number],
            rates[number],
            burstiness=burstiness,
            seed=seed,
            warm_ups=first,
            done=done,
        )

    return target, [ready(number) for number in range(len(sets))]


def checked(run: Run) -> Run:
    """Return a run in which something succeeded; raises InferlabError for any other."""
    errors = [one.error for one in run.outcomes if one.error]
    if len(errors) == len(run.outcomes):
        raise InferlabError(f"all {len(errors)} requests failed; the first one: {errors[0]}")
    return run
