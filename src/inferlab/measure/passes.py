"""The clock on one pass through a model, by the number of tokens in it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from inferlab.engine import LLM

#: Tokens in a pass, each twice the one before.
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ENOUGH_SECONDS = 0.4  # of repeating one pass
_MOST_RUNS = 30


def prefill(llm: LLM, tokens: int) -> float:
    """Return the seconds of one pass over `tokens` random tokens, the best of several runs."""
    ids = _ids(llm, tokens)
    return _best(lambda: llm.prefill(ids))


def decode_step(llm: LLM, context: int) -> float:
    """Return the seconds of one more token after `context` others, the best of several runs.

    The context grows by a token a run, which adds less than a thousandth to a step.
    """
    ids = _ids(llm, context)
    llm.prefill(ids)
    return _best(lambda: llm.decode_step(ids[:1]))


def price(llm: LLM, tokens: Sequence[int] = TOKENS, *, label: str = "measured") -> dict[str, Any]:
    """Return `label`, `tokens` and the `seconds` of one pass for each of them, nothing cached.

    Passes run as the engine runs them: one token is a decode step, more are a prefill.
    """
    seconds = [decode_step(llm, 1) if n == 1 else prefill(llm, n) for n in tokens]
    return {"label": label, "tokens": list(tokens), "seconds": seconds}


def _ids(llm: LLM, count: int) -> list[int]:
    vocab = llm.model.config.vocab
    return random.Random(0).choices(range(vocab // 8, vocab), k=count)  # past the special ones


def _best(run: Callable[[], Tensor]) -> float:
    best, spent = float("inf"), 0.0
    for _ in range(_MOST_RUNS):
        start = time.perf_counter()
        run()[0, 0].item()  # waits for a GPU
        seconds = time.perf_counter() - start
        best, spent = min(best, seconds), spent + seconds
        if spent > _ENOUGH_SECONDS:
            break
    return best
