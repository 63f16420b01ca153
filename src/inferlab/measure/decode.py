"""Decoding one sequence: our engine, the memory's own speed, and transformers, taken in turn.

Whatever is compared is measured within one run, in short alternating blocks, since a shared
machine is twice as fast in one minute as in the next.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

import torch

from inferlab import machine
from inferlab.engine import LLM
from inferlab.errors import InferlabError
from inferlab.measure import peer

PROMPT = "Tell me about the history of the bicycle, from its beginnings to the present day."
_BLOCK = 8  # tokens that one side decodes before the next has its turn


def bench(
    llm: LLM,
    tokens: int = 64,
    *,
    peers: bool = True,
    source: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Decode `tokens` tokens after a prompt, and set them against this machine's bandwidth.

    Returns the keys of `inferlab bench decode --json`: rates from medians, raw samples in
    seconds, and with `peers` the same for transformers, if it is here, on the same weights:
    those of `source`, as `LLM.load` took it.
    """
    if tokens < 1:
        raise InferlabError(f"tokens is {tokens}; it must be 1 or more")
    prompt = _prompt(llm)
    room = llm.model.config.max_context - len(prompt)
    if tokens > room:
        raise InferlabError(f"tokens is {tokens}; this model's context has room for {room}")
    device = llm.model.device.type
    llm.warm_up()
    note = peer.why_not(llm.model) if peers else "not asked for"
    other = None
    if note is None:
        say("transformers: loading the same weights in a process of its own")
        dtype = str(llm.model.dtype).removeprefix("torch.")
        other = peer.Peer(source, prompt, device, dtype)
    readers = machine.readers_of(device)
    reads: dict[str, list[float]] = {name: [] for name in readers}
    ours: list[float] = []
    theirs: list[float] = []

    say("decoding, reading memory in between")
    llm.prefill(prompt[:-1])
    token = prompt[-1]
    try:
        for block in _blocks(tokens):
            for name, run in readers.items():
                run()  # what the last reader left in a cache is no speed of memory
                reads[name].append(_clock(run, device))
            for _ in range(block):
                start = time.perf_counter()
                token = int(llm.decode_step([token]).argmax())
                ours.append(time.perf_counter() - start)
            if other:
                theirs += other.decode(block)
    finally:
        if other:
            other.close()

    rates = {name: machine.READ_BYTES / statistics.median(times) for name, times in reads.items()}
    middle = len(prompt) + tokens // 2
    kv = llm.model.config.shape().kv_elements(middle) * llm.model.weights.norm.element_size()
    moved = llm.model.streamed_bytes + kv
    found = _speed(ours, moved)
    found |= {
        "model": llm.name,
        "device": device,
        "dtype": llm.dtype,
        "threads": torch.get_num_threads(),
        "prompt_tokens": len(prompt),
        "output_tokens": tokens,
        "bytes_per_token": moved,
        "bandwidth": max(rates.values()),
        "readers": rates,
        "fraction_of_bandwidth": found["achieved_bytes_per_second"] / max(rates.values()),
        "peers": {},
        "peers_note": note,
    }
    if other:
        beside = _speed(theirs, moved)
        beside["version"] = metadata.version("transformers")
        beside["times_as_fast"] = beside["seconds_per_token"] / found["seconds_per_token"]
        found["peers"] = {"transformers": beside}
    return found


def _speed(samples: Sequence[float], moved: float) -> dict[str, Any]:
    seconds = statistics.median(samples)
    return {
        "seconds_per_token": seconds,
        "tokens_per_second": 1 / seconds,
        "achieved_bytes_per_second": moved / seconds,
        "samples": list(samples),
    }


def _blocks(tokens: int) -> Iterator[int]:
    while tokens > 0:
        yield min(_BLOCK, tokens)
        tokens -= _BLOCK


def _clock(run: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _prompt(llm: LLM) -> list[int]:
    if llm.tokenizer is None:
        raise InferlabError("model: this benchmark needs a tokenizer")
    if llm.tokenizer.has_chat_template:
        return llm.tokenizer.chat([{"role": "user", "content": PROMPT}])
    return llm.tokenizer.encode(PROMPT)
