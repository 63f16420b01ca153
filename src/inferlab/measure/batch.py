"""The clock on a decode step that several answers share, by how many they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inferlab.engine import LLM, SamplingParams
from inferlab.engine.cpu_decode import MAX_BATCH
from inferlab.errors import InferlabError
from inferlab.measure import clock

#: Answers in a step, as many as our kernels serve with one reading of the weights.
ANSWERS = (1, 2, 3, 4, 6, 8, 12, 16)
CONTEXT = 4  # tokens behind each answer: their keys and values are next to nothing
WARM_UPS = 1  # steps of each size before the clock starts
_ENOUGH_SECONDS, _MOST_RUNS = 0.3, 20


def step_samples(llm: LLM, answers: int, *, runs: int | None = None) -> list[float]:
    """Return the seconds of each of several decode steps of `answers` sequences at once."""
    if not 1 <= answers <= MAX_BATCH:
        raise InferlabError(f"answers is {answers}: it must be from 1 to {MAX_BATCH}")
    prompt, device = [llm.model.config.vocab // 2] * CONTEXT, llm.model.device
    params = SamplingParams(max_new_tokens=_MOST_RUNS + WARM_UPS + 1)
    requests = [llm.request(prompt, params) for _ in range(answers)]
    cache = llm.new_cache(requests)
    ids = torch.tensor([prompt] * answers, device=device)
    llm.model.forward(ids, cache.positions(CONTEXT), cache)
    token = [prompt[0]] * answers
    return clock.samples(
        lambda: llm.decode(token, cache),
        device.type,
        seconds=_ENOUGH_SECONDS,
        runs=runs,
        most=_MOST_RUNS,
        warm_ups=WARM_UPS,
    )


def price(llm: LLM, answers: Sequence[int] = ANSWERS, *, label: str = "measured") -> dict[str, Any]:
    """Return `label`, `tokens` (one for each answer) and the best `seconds` of a step for each."""
    seconds = [min(step_samples(llm, n)) for n in answers]
    return {"label": label, "tokens": list(answers), "seconds": seconds}


def stored(llm: LLM) -> dict[str, float]:
    """Return the bytes of the weights that a step reads, part by part, for `costs.decode_step`."""
    weights = llm.model.weights
    parts = {"projections": 0.0, "ffn": 0.0, "logits": float(weights.norm.nbytes)}
    parts["logits"] += weights.head.nbytes
    for layer in weights.layers:
        for name, tensor in vars(layer).items():
            if tensor is not None:
                part = "ffn" if name in ("mlp_norm", "gate", "up", "down") else "projections"
                parts[part] += tensor.nbytes
    return parts
