"""What an engine's blocks go through, step by step: taken, shared, let go, found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferlab.engine import Engine, SamplingParams
from inferlab.engine.request import Request
from inferlab.errors import InferlabError


@dataclass(frozen=True)
class Arrival:
    """Somebody who asks before the step of this number, from 0 on, for so many tokens."""

    name: str
    step: int
    prompt: str
    answer: int


def watch(engine: Engine, arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """Run an idle engine until all is answered; return what explorer "blocks" plays.

    For each step: who came, who left the queue and with how many cached tokens, who was preempted
    and who was done; and for each block its holders by name, whether it is kept, and the tokens
    that stand in it as text.
    """
    if engine.llm.tokenizer is None:
        raise InferlabError("watch needs a model with a tokenizer, to say what stands in a block")
    decode, size = engine.llm.tokenizer.decode, engine.blocks.size
    requests: dict[str, Request] = {}
    seen: dict[str, int] = {}
    texts: list[list[str]] = [[] for _ in range(engine.blocks.total)]
    steps: list[dict[str, Any]] = []
    while engine.busy or len(requests) < len(arrivals):
        came = [one for one in arrivals if one.step == len(steps)]
        for one in came:
            params = SamplingParams(max_new_tokens=one.answer, ignore_eos=True)
            requests[one.name] = engine.submit(one.prompt, params)
            seen[one.name] = 1  # events
        engine.step()
        events = []
        for name, request in requests.items():
            fresh, seen[name] = request.events[seen[name] :], len(request.events)
            events += [(event, name) for event in fresh]
            for place, index in enumerate(request.table):
                inside = request.ids[place * size : min((place + 1) * size, request.computed)]
                texts[index] = [decode([token]) for token in inside]
        kept = set(engine.blocks.kept)
        held = {name: request.table for name, request in requests.items()}
        steps.append(
            {
                "came": [one.name for one in came],
                "scheduled": [[n, e.tokens] for e, n in events if e.kind == "scheduled"],
                "preempted": [n for e, n in events if e.kind == "preempted"],
                "finished": [n for e, n in events if e.kind == "finished"],
                "waiting": [n for n, r in requests.items() if r in engine.waiting],
                "blocks": [
                    {
                        "holders": (by := [n for n, table in held.items() if index in table]),
                        "kept": index in kept,
                        "text": list(text) if by or index in kept else [],
                    }
                    for index, text in enumerate(texts)
                ],
                "tables": {name: list(table) for name, table in held.items() if table},
            }
        )
    told = {
        name: {"prompt": one.prompt, "answer": requests[name].completion().text}
        for one in arrivals
        for name in (one.name,)
    }
    return {"size": size, "requests": told, "steps": steps}
