"""The clock on one pass through a model, by the number of tokens in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from inferlab.engine import LLM
from inferlab.measure import clock

#: Tokens in a pass, each twice the one before.
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ENOUGH_SECONDS, _MOST_RUNS = 0.4, 30  # of repeating one pass
WARM_UPS = 1
"""Passes of each size that run before the clock starts."""


def prefill(llm: LLM, tokens: int) -> float:
    """Return the seconds of one pass over `tokens` random tokens, the best of several runs."""
    return min(prefill_samples(llm, tokens))


def prefill_samples(llm: LLM, tokens: int) -> list[float]:
    """Return the seconds of each of several passes over `tokens` random tokens."""
    ids = random_ids(llm, tokens)
    return _samples(llm, lambda: llm.prefill(ids))


def decode_step(llm: LLM, context: int) -> float:
    """Return the seconds of one more token after `context` others, the best of several runs."""
    return min(decode_samples(llm, context))


def decode_samples(llm: LLM, context: int, runs: int | None = None) -> list[float]:
    """Return the seconds of each of several decode steps, or of `runs`, after `context` tokens.

    The context grows by a token a run, which adds less than a thousandth to a step.
    """
    ids = random_ids(llm, context)
    llm.prefill(ids)
    return _samples(llm, lambda: llm.decode_step(ids[:1]), runs)


def price(llm: LLM, tokens: Sequence[int] = TOKENS, *, label: str = "measured") -> dict[str, Any]:
    """Return `label`, `tokens` and the best `seconds` of one pass for each, nothing cached.

    Passes run as the engine runs them: one token is a decode step, more are a prefill.
    """
    found = price_samples(llm, tokens)
    seconds = [min(samples) for samples in found["samples"]]
    return {"label": label, "tokens": found["tokens"], "seconds": seconds}


def price_samples(llm: LLM, tokens: Sequence[int] = TOKENS) -> dict[str, Any]:
    """Return `tokens` and the raw `samples` behind `price`."""
    samples = [decode_samples(llm, 1) if n == 1 else prefill_samples(llm, n) for n in tokens]
    return {"tokens": list(tokens), "samples": samples}


def random_ids(llm: LLM, count: int) -> list[int]:
    """Return `count` token ids, always the same ones."""
    vocab = llm.model.config.vocab
    return random.Random(0).choices(range(vocab // 8, vocab), k=count)  # past the special ones


def _samples(llm: LLM, run: Callable[[], Tensor], runs: int | None = None) -> list[float]:
    device = llm.model.device.type
    return clock.samples(
        run, device, seconds=_ENOUGH_SECONDS, runs=runs, most=_MOST_RUNS, warm_ups=WARM_UPS
    )
