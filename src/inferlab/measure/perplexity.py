"""How well a model foretells a text: what rounding its weights costs it, in one number.

The text is the first chapter of Lewis Carroll's *Alice's Adventures in Wonderland* (1865), which
is in the public domain, one line a paragraph.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

import torch
from torch import Tensor

from inferlab.engine import LLM
from inferlab.engine.kv_cache import ContiguousCache
from inferlab.errors import InferlabError

_CHUNK = 128  # tokens a pass: the logits of all of a text would fill half a gigabyte


def text() -> str:
    """Return the text."""
    return resources.files(__package__).joinpath("alice.txt").read_text(encoding="utf-8")


def logprobs(llm: LLM, ids: list[int], *, steps: bool = False) -> Tensor:
    """Return the natural log-probability of each token after the first, float64 [len(ids) - 1].

    Each is given all tokens before it. They are read as a prompt is, many at a time; with
    `steps` one decode step at a time, as an answer is written.
    """
    if len(ids) < 2:
        raise InferlabError(f"ids has {len(ids)} tokens: 2 or more are needed")
    if len(ids) > llm.model.config.max_context:
        raise InferlabError(
            f"ids has {len(ids)} tokens: the context holds {llm.model.config.max_context}"
        )
    targets = torch.tensor(ids[1:], device=llm.model.device)
    parts = _by_steps(llm, ids) if steps else _by_passes(llm, ids)
    return torch.cat(
        [
            part.double().log_softmax(-1).gather(1, target[:, None])[:, 0].cpu()
            for part, target in zip(parts, targets.split(1 if steps else _CHUNK), strict=True)
        ]
    )


def perplexity(logprobs: Tensor) -> float:
    """Return exp(-mean): among how many equally likely tokens the model as good as guesses."""
    return float((-logprobs.mean()).exp())


def _by_passes(llm: LLM, ids: list[int]) -> Iterator[Tensor]:
    cache = ContiguousCache(llm.model.config, 1, len(ids), llm.model.device, llm.model.dtype)
    for part in torch.tensor([ids[:-1]], device=llm.model.device).split(_CHUNK, dim=1):
        positions = cache.positions(part.shape[1])
        yield llm.model.forward(part, positions, cache, logits="all")[0]


def _by_steps(llm: LLM, ids: list[int]) -> Iterator[Tensor]:
    llm.warm_up()
    yield llm.prefill(ids[:1])
    for token in ids[1:-1]:
        yield llm.decode_step([token])
