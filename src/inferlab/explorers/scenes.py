"""The data of the moving pictures: what `explorers.show` is handed, computed by `inferlab.theory`.

Each function returns a plain dict for the animation of its name, so that no picture holds a number
of its own: `explorers.show("thirty-ms", scenes.thirty_ms(), alt="…")`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from inferlab.errors import InferlabError
from inferlab.theory import costs, formats, limits, roofline
from inferlab.theory.costs import Cost
from inferlab.theory.hardware import Hardware
from inferlab.theory.shapes import ModelShape

#: Tokens in a pass, evenly spaced for a reader who thinks in factors.
STOPS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def request(
    record: Mapping[str, Any],
    shape: ModelShape,
    hardware: Hardware,
    dtype: str,
    *,
    stored: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return what animation "request" plays: one pass for the prompt, one for each further token.

    `record` holds `prompt`, `prompt_tokens`, `model`, and `pieces`: `{text, t}` for each piece of
    the answer, with its time after Enter in seconds (and `tokens`, where a piece took more than
    one). Bytes and operations of each pass are those of `shape` in `dtype` (or as `stored`, see
    `costs.forward`); `hardware` says which of its two numbers a pass waits for.
    """
    pieces = record["pieces"]
    if not pieces:
        raise InferlabError("pieces is empty: a recorded request needs at least one piece of text")
    passes: list[dict[str, Any]] = []
    context, before = record["prompt_tokens"], 0.0
    for number, piece in enumerate(pieces):
        if piece["t"] <= before:
            raise InferlabError(
                f"pieces[{number}].t is {piece['t']}: times must rise, and this follows {before}"
            )
        steps = piece.get("tokens", 1)
        cost = (
            costs.prefill(shape, context, dtype=dtype, stored=stored) if number == 0 else Cost({})
        )
        for _ in range(steps if number else steps - 1):
            cost = cost + costs.decode_step(shape, context, dtype=dtype, stored=stored)
            context += 1
        passes.append(
            {
                "from": before,
                "to": piece["t"],
                "tokens": record["prompt_tokens"] if number == 0 else steps,
                "text": piece["text"],
                "flops": cost.flops,
                "bytes": cost.bytes,
                "bound": roofline.place(cost, hardware, dtype).bound,
            }
        )
        before = piece["t"]
    return {"prompt": record["prompt"], "model": record["model"], "passes": passes}


def thirty_ms(
    cases: Sequence[tuple[ModelShape, Hardware, str]], *, paces: Sequence[int] = (200, 2000)
) -> dict[str, Any]:
    """Return what animation "thirty-ms" shows: one decode step for each (model, chip, dtype).

    The first case is shown first. `paces` are how many times slower than the chip it can run.
    """
    shown = []
    for number, (shape, chip, dtype) in enumerate(cases):
        step = roofline.place(costs.decode_step(shape, 0, dtype=dtype), chip, dtype)
        shown.append(
            {
                "key": str(number),
                "label": f"{shape.name} on {chip.name}",
                "model": shape.name,
                "chip": chip.name,
                "dtype": dtype,
                "peak": chip.peak(dtype),
                "bandwidth": chip.bandwidth,
                "flops": step.flops,
                "bytes": step.bytes,
                "compute_s": step.compute_seconds,
                "memory_s": step.memory_seconds,
                "fits": limits.fits(shape, chip, 0, dtype=dtype),
            }
        )
    return {"cases": shown, "start": "0", "paces": list(paces)}


def loop(
    prompt: Sequence[str],
    steps: Sequence[Mapping[str, Any]],
    *,
    model: str,
    bytes_per_pass: float,
) -> dict[str, Any]:
    """Return what animation "loop" shows: tokens that come out and go in again.

    `prompt` is the text of each prompt token. A step has the `text` of the token it chose and,
    where known, `candidates`: (text, probability) of the likeliest, best first.
    """
    if not steps:
        raise InferlabError("steps is empty: the loop needs at least one token to go round")
    return {
        "model": model,
        "bytes_per_pass": bytes_per_pass,
        "prompt": list(prompt),
        "steps": [
            {"text": step["text"], "candidates": [list(c) for c in step.get("candidates", ())]}
            for step in steps
        ],
    }


def shared_trip(
    shape: ModelShape,
    hardware: Hardware,
    dtypes: Sequence[str] = ("bf16", "int4"),
    *,
    tokens: Sequence[int] = STOPS,
    start: int = 256,
) -> dict[str, Any]:
    """Return what animation "shared-trip" shows: passes of 1 to 1024 tokens, nothing cached.

    The clock runs slower by a round number, so that a pass of one token lasts about four seconds.
    """
    if 1 not in tokens or start not in tokens:
        raise InferlabError(f"tokens must hold 1 and the start, {start}")
    shown = []
    for dtype in dtypes:
        passes = [
            (n, roofline.place(costs.prefill(shape, n, dtype=dtype), hardware, dtype))
            for n in tokens
        ]
        shown.append(
            {
                "key": dtype,
                "label": dtype,
                "bytes_per_weight": formats.bytes_per_element(dtype),
                "ridge": hardware.ridge(dtype),
                "passes": [
                    {
                        "tokens": n,
                        "flops": placed.flops,
                        "bytes": placed.bytes,
                        "compute_s": placed.compute_seconds,
                        "memory_s": placed.memory_seconds,
                        "seconds": placed.seconds,
                    }
                    for n, placed in passes
                ],
            }
        )
    alone = shown[0]["passes"][0]["seconds"]
    return {
        "model": shape.name,
        "chip": hardware.name,
        "layers": shape.layers,
        "start": start,
        "slow": _round(4 / alone),
        "formats": shown,
    }


def _round(value: float) -> float:
    """Return the nearest of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return min((1, 2, 5, 10), key=lambda m: abs(math.log(m * power / value))) * power
