"""Reading a prompt: the seconds to its first token, by its length, beside the best product here.

As in `decode`, whatever is compared takes turns within one run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from inferlab import machine
from inferlab.engine import LLM
from inferlab.errors import InferlabError
from inferlab.measure import clock, passes, peer
from inferlab.model.transformer import FLOATS
from inferlab.theory import costs

TOKENS = (16, 64, 256, 1024)
WARM_UPS = 1
"""Prompts of each length that each side reads before the clock starts."""
_RUNS = 5


def bench(
    llm: LLM,
    tokens: Sequence[int] = TOKENS,
    *,
    runs: int = _RUNS,
    peers: bool = True,
    source: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Read random prompts of so many `tokens`, each `runs` times, and time their first token.

    Returns the keys of `inferlab bench prefill --json`: for each length the operations of the cost
    model, the raw samples in seconds, the rate from their median and its fraction of the best
    matrix product of this machine, taken in the same run. With `peers` the same for transformers,
    if it is here, on the same weights: those of `source`, as `LLM.load` took it, as floats.
    """
    most = llm.model.config.max_context
    if not tokens or not all(1 <= n <= most for n in tokens):
        raise InferlabError(f"tokens is {list(tokens)}; each must be from 1 to {most}")
    if runs < 1:
        raise InferlabError(f"runs is {runs}; it must be 1 or more")
    device = llm.model.device.type
    llm.warm_up()
    note = peer.why_not(llm.model) if peers else "not asked for"
    other = None
    if note is None:
        say("transformers on the same weights")
        other = peer.start(llm.model, source)
    products: list[float] = []
    known = machine.products_of(device)
    operations, product = known.get(FLOATS[llm.model.dtype], known["fp32"])
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    try:
        for count in tokens:
            say(f"a prompt of {count:,} tokens")
            prompt = passes.random_ids(llm, count)
            ours.append([])
            theirs.append([])
            for run in range(WARM_UPS + runs):
                here = clock.once(partial(_first, llm, prompt), device)
                there = other.prefill(prompt) if other else None
                multiplied = clock.once(product, device)
                if run < WARM_UPS:
                    continue
                ours[-1].append(here)
                products.append(multiplied)
                if there is not None:
                    theirs[-1].append(there)
    finally:
        if other:
            other.close()
    rate = operations / statistics.median(products)
    shape = llm.model.config.shape()
    flops = [costs.prefill(shape, count).flops for count in tokens]
    found = {
        "model": llm.name,
        "device": device,
        "dtype": llm.dtype,
        "threads": torch.get_num_threads(),
        "tokens": list(tokens),
        "flops": flops,
        "warm_ups": WARM_UPS,
        "product_rate": rate,
        **_speed(ours, flops, rate),
        "peers": {},
        "peers_note": note,
    }
    if other:
        beside = _speed(theirs, flops, rate) | {"version": other.version}
        pairs = zip(beside["seconds"], found["seconds"], strict=True)
        beside["times_as_fast"] = [a / b for a, b in pairs]
        found["peers"] = {"transformers": beside}
    return found


def _first(llm: LLM, prompt: list[int]) -> int:
    """Return the likeliest first token of an answer to `prompt`."""
    return int(llm.prefill(prompt).argmax())


def _speed(
    samples: Sequence[Sequence[float]], flops: Sequence[float], rate: float
) -> dict[str, Any]:
    seconds = [statistics.median(times) for times in samples]
    rates = [work / time for work, time in zip(flops, seconds, strict=True)]
    return {
        "seconds": seconds,
        "flops_per_second": rates,
        "fraction_of_product": [r / rate for r in rates],
        "samples": [list(times) for times in samples],
    }
