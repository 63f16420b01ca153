"""Decoding one sequence: our engine, the memory's own speed, and other engines, taken in turn.

Whatever is compared is measured within one run, in short alternating blocks, since a shared
machine is twice as fast in one minute as in the next.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from inferlab import machine
from inferlab.engine import LLM
from inferlab.errors import InferlabError
from inferlab.measure import clock, peer
from inferlab.model.transformer import Transformer

PROMPT = "Tell me about the history of the bicycle, from its beginnings to the present day."
WARM_UPS = 2
"""Tokens that each side decodes before the clock starts."""
_BLOCK = 8  # tokens that one side decodes before the next has its turn


def bench(
    llm: LLM,
    tokens: int = 64,
    *,
    peers: bool = True,
    source: str | None = None,
    prompt: Sequence[int] | None = None,
    compiled: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Decode `tokens` tokens after a prompt, and set them against this machine's bandwidth.

    Returns the keys of `inferlab bench decode --json`: rates from medians, raw samples in
    seconds, and with `peers` the same for transformers, if it is here, on the same weights: those
    of `source`, as `LLM.load` took it, as floats. `prompt` are token ids, by default those of
    `PROMPT`. `compiled` measures compiled torch too, on a GPU.
    """
    if tokens < 1:
        raise InferlabError(f"tokens is {tokens}; it must be 1 or more")
    prompt = list(prompt or _prompt(llm))
    room = llm.model.config.max_context - len(prompt) - WARM_UPS
    if tokens > room:
        raise InferlabError(f"tokens is {tokens}; this model's context has room for {room}")
    device = llm.model.device.type
    llm.warm_up()
    sides: dict[str, peer.Side] = {}
    notes = {"transformers": "not asked for"}
    if peers:
        say("transformers on the same weights")
        sides, notes = peer.beside(llm.model, source, compiled=compiled)
    readers = machine.readers_of(device)
    reads: dict[str, list[float]] = {name: [] for name in readers}
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in sides}

    say("decoding, reading memory in between")
    llm.prefill(prompt[:-1])
    token = prompt[-1]
    try:
        for side in sides.values():
            side.begin(prompt)
            side.decode(WARM_UPS)
        for _ in range(WARM_UPS):
            token = int(llm.decode_step([token]).argmax())
        for block in _blocks(tokens):
            for name, run in readers.items():
                run()  # what the last reader left in a cache is no speed of memory
                reads[name].append(clock.once(run, device))
            for _ in range(block):
                start = time.perf_counter()
                token = int(llm.decode_step([token]).argmax())
                ours.append(time.perf_counter() - start)
            for name, side in sides.items():
                theirs[name] += side.decode(block)
    finally:
        for side in sides.values():
            side.close()

    rates = {name: machine.READ_BYTES / statistics.median(times) for name, times in reads.items()}
    context = len(prompt) + WARM_UPS + tokens // 2
    element = llm.model.dtype.itemsize
    kv = llm.model.config.shape().kv_elements(context) * element
    found = _speed(ours, llm.model.streamed_bytes + kv, max(rates.values()))
    found |= {
        "model": llm.name,
        "device": device,
        "dtype": llm.dtype,
        "threads": torch.get_num_threads(),
        "prompt_tokens": len(prompt),
        "output_tokens": tokens,
        "warm_ups": WARM_UPS,
        "context": context,
        "bandwidth": max(rates.values()),
        "readers": rates,
        "peers": {},
        "peers_note": next(iter(notes.values()), None),
    }
    for name, samples in theirs.items():
        beside = _speed(samples, _float_bytes(llm.model) + kv, max(rates.values()))
        beside["version"] = sides[name].version
        beside["times_as_fast"] = beside["seconds_per_token"] / found["seconds_per_token"]
        found["peers"][name] = beside
    return found


def _speed(samples: Sequence[float], moved: float, bandwidth: float) -> dict[str, Any]:
    seconds = statistics.median(samples)
    return {
        "seconds_per_token": seconds,
        "tokens_per_second": 1 / seconds,
        "bytes_per_token": moved,
        "achieved_bytes_per_second": moved / seconds,
        "fraction_of_bandwidth": moved / seconds / bandwidth,
        "samples": list(samples),
    }


def _float_bytes(model: Transformer) -> int:
    """Return the bytes of weights that a step reads where all of them are floats."""
    sizes = (torch.Size(matrix.shape).numel() for matrix in model.weights.streamed())
    return sum(sizes) * model.dtype.itemsize


def _blocks(tokens: int) -> Iterator[int]:
    while tokens > 0:
        yield min(_BLOCK, tokens)
        tokens -= _BLOCK


def _prompt(llm: LLM) -> list[int]:
    if llm.tokenizer is None:
        raise InferlabError("model: this benchmark needs a tokenizer")
    if llm.tokenizer.has_chat_template:
        return llm.tokenizer.chat([{"role": "user", "content": PROMPT}])
    return llm.tokenizer.encode(PROMPT)
