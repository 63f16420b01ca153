"""The moving pictures of the book, ready for a cell: `scenes.thirty_ms([(shape, chip, "bf16")])`.

Each function returns an animation with its description and a still for paper. What it shows comes
from the function of that name with `_data`: a plain dict, computed by `inferlab.theory` or out of a
recorded request, so that no picture holds a number of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from inferlab.errors import InferlabError
from inferlab.explorers import Explorer, show
from inferlab.figures import saving, stills, style
from inferlab.theory import costs, formats, limits, measurements, roofline, trends, units
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
) -> Explorer:
    """Return animation "request": a recorded answer at the speed it had. See `request_data`."""
    data = request_data(record, shape, hardware, dtype, stored=stored)
    passes = data["passes"]
    alt = (
        f"A recorded request to {data['model']}: prefill of {passes[0]['tokens']} tokens takes "
        f"{units.seconds_text(passes[0]['to'])}, then {len(passes) - 1} decode steps write the "
        f"rest of the answer until {units.seconds_text(passes[-1]['to'])}; operations and bytes "
        "add up below."
    )
    return _show("request", data, alt)


def thirty_ms(cases: Sequence[tuple[ModelShape, Hardware, str]]) -> Explorer:
    """Return animation "thirty-ms": arithmetic and bytes of one token. See `thirty_ms_data`."""
    data = thirty_ms_data(cases)
    first = data["cases"][0]
    alt = (
        f"One decode step of {first['model']} on {first['chip']} in slow motion: the arithmetic is "
        f"done after {1e3 * first['compute_s']:.3g} ms, the bytes arrive until "
        f"{1e3 * first['memory_s']:.3g} ms."
    )
    return _show("thirty-ms", data, alt)


def loop(
    prompt: Sequence[str],
    steps: Sequence[Mapping[str, Any]],
    *,
    model: str,
    bytes_per_pass: float,
) -> Explorer:
    """Return animation "loop": what comes out goes in again. See `loop_data`."""
    data = loop_data(prompt, steps, model=model, bytes_per_pass=bytes_per_pass)
    alt = (
        f"{data['model']} takes in {len(data['prompt'])} tokens of a prompt and puts out one; that "
        f"token goes in for the next pass, {len(data['steps'])} times."
    )
    return _show("loop", data, alt)


def shared_trip(
    shape: ModelShape,
    hardware: Hardware,
    dtypes: Sequence[str] = ("bf16", "int4"),
    *,
    tokens: Sequence[int] = STOPS,
    start: int = 256,
) -> Explorer:
    """Return animation "shared-trip": many tokens share a pass. See `shared_trip_data`."""
    data = shared_trip_data(shape, hardware, dtypes, tokens=tokens, start=start)
    alt = (
        f"The weights of {data['model']} stream past {start} tokens in one pass and past a single "
        f"token in another, on {data['chip']}; a slider sets how many tokens share the trip, and "
        "two bars show the time of its arithmetic and of its bytes."
    )
    return _show("shared-trip", data, alt)


def memory_wall(start: str = "16 bit") -> Explorer:
    """Return animation "memory-wall": compute and bandwidth over the years. See its `_data`."""
    data = memory_wall_data(start)
    ends = ", ".join(
        f"{one['label']} {one['points'][-1]['compute'] / one['points'][-1]['moved']:.3g} times"
        for one in data["countings"]
    )
    points = data["countings"][0]["points"]
    alt = (
        f"Growth of arithmetic and of bandwidth from {points[0]['name']} to {points[-1]['name']}, "
        f"chip by chip. How far arithmetic is ahead depends on how it is counted: {ends}."
    )
    return _show("memory-wall", data, alt)


def ceiling(shape: ModelShape, hardware: Hardware, context: int = 0) -> Explorer:
    """Return animation "ceiling": a counter that hits its limit. See `ceiling_data`."""
    data = ceiling_data(shape, hardware, context)
    walls = data["walls"]
    alt = (
        f"Tokens a second of {shape.name} on {hardware.name}: engines come nearer and nearer to a "
        f"limit of {walls[0]['user']:.3g} a user, and none passes it. More chips, smaller weights "
        f"and more users move it, up to {max(wall['total'] for wall in walls):,.0f} together."
    )
    return _show("ceiling", data, alt)


def append(cases: Sequence[tuple[ModelShape, Hardware, str]], tokens: int = 40) -> Explorer:
    """Return animation "append": an answer with and without a cache. See `append_data`."""
    data = append_data(cases, tokens)
    first = data["cases"][0]
    saved = first["without"][-1]["flops"] / first["with"][-1]["flops"]
    alt = (
        f"An answer of {tokens} tokens, twice. Without a cache each token computes all positions "
        f"again, {tokens * (tokens + 1) // 2} in all; with one, each computes a single position: "
        f"{saved:.3g} times fewer operations."
    )
    return _show("append", data, alt)


def _show(name: str, data: Mapping[str, Any], alt: str) -> Explorer:
    figure = getattr(stills, name.replace("-", "_"))(data)
    return show(name, data, alt=alt, still=style.themed(figure, alt=alt).html)


def request_data(
    record: Mapping[str, Any],
    shape: ModelShape,
    hardware: Hardware,
    dtype: str,
    *,
    stored: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return what animation "request" plays: one pass for the prompt, one for each further token.

    `record` holds `prompt`, `prompt_tokens` and `pieces`: `{text, t}` for each piece of
    the answer, with its time after Enter in seconds, and `tokens` where it took more than one or
    none (then it belongs to the piece before). Bytes and operations of each pass are those of
    `shape` in `dtype`, or as `stored` (see `costs.forward`); `hardware` says which of its two
    numbers a pass waits for.
    """
    pieces = record["pieces"]
    if not pieces:
        raise InferlabError("pieces is empty: a recorded request needs at least one piece of text")
    passes: list[dict[str, Any]] = []
    context, before = record["prompt_tokens"], 0.0
    for number, piece in enumerate(pieces):
        time, count = piece["t"], piece.get("tokens", 1)
        if passes and (time == before or count == 0):  # text that an earlier pass had held back
            passes[-1]["text"] += piece["text"]
            continue
        if time <= before:
            raise InferlabError(
                f"pieces[{number}].t is {time}: it must come after the {before} before it"
            )
        cost = Cost({}) if passes else costs.prefill(shape, context, dtype=dtype, stored=stored)
        for _ in range(count if passes else count - 1):
            cost = cost + costs.decode_step(shape, context, dtype=dtype, stored=stored)
            context += 1
        passes.append(
            {
                "from": before,
                "to": time,
                "tokens": count if passes else record["prompt_tokens"],
                "text": piece["text"],
                "flops": cost.flops,
                "bytes": cost.bytes,
                "bound": roofline.place(cost, hardware, dtype).bound,
            }
        )
        before = time
    return {"prompt": record["prompt"], "model": shape.name, "passes": passes}


def thirty_ms_data(cases: Sequence[tuple[ModelShape, Hardware, str]]) -> dict[str, Any]:
    """Return what animation "thirty-ms" shows: one decode step for each (model, chip, dtype).

    The first case is shown first. Its `paces` are how many times slower than the chip it runs:
    about six seconds of the reader's time, or a minute.
    """
    if not cases:
        raise InferlabError("cases is empty: at least one (model, chip, dtype) is needed")
    shown = []
    for number, (shape, chip, dtype) in enumerate(cases):
        step = roofline.place(costs.decode_step(shape, 0, dtype=dtype), chip, dtype)
        slower = _round(6 / step.seconds)
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
                "paces": [slower, 10 * slower],
            }
        )
    return {"cases": shown, "start": "0"}


def loop_data(
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


def shared_trip_data(
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
    alone = roofline.place(costs.prefill(shape, 1, dtype=dtypes[0]), hardware, dtypes[0]).seconds
    return {
        "model": shape.name,
        "chip": hardware.name,
        "layers": shape.layers,
        "start": start,
        "slow": _round(4 / alone),
        "formats": shown,
    }


def memory_wall_data(start: str = "16 bit") -> dict[str, Any]:
    """Return what animation "memory-wall" shows: `trends.history`, counted in every way."""
    return {
        "start": start,
        "countings": [
            {
                "key": key,
                "label": key,
                "points": [
                    {
                        "name": _short(each.chip.name),
                        "year": each.chip.year,
                        "dtype": each.dtype,
                        "flops": each.flops,
                        "bandwidth": each.chip.bandwidth,
                        "compute": each.compute,
                        "moved": each.bandwidth,
                    }
                    for each in trends.history(key)
                ],
            }
            for key in trends.COUNTINGS
        ],
    }


def ceiling_data(
    shape: ModelShape,
    hardware: Hardware,
    context: int = 0,
    *,
    chips: Sequence[int] = (1, 2, 4, 8),
    dtypes: Sequence[str] = ("bf16", "fp8", "int4"),
    users: Sequence[int] = (1, 8, 64),
) -> dict[str, Any]:
    """Return what animation "ceiling" shows: the limits of every combination, the first first.

    `stages` are shares of their own limit that published engines have reached at batch 1.
    """
    walls = []
    for count in chips:
        for dtype in dtypes:
            for batch in users:
                step = costs.decode_step(shape, context, batch, dtype=dtype)
                seconds = roofline.place(step, hardware, dtype, count).seconds
                walls.append(
                    {
                        "chips": count,
                        "dtype": dtype,
                        "users": batch,
                        "bandwidth": count * hardware.bandwidth,
                        "bytes": step.bytes,
                        "user": 1 / seconds,
                        "total": batch / seconds,
                    }
                )
    return {
        "walls": walls,
        "start": {"chips": chips[0], "dtype": dtypes[0], "users": users[0]},
        "stages": _stages(),
    }


def _stages() -> list[dict[str, Any]]:
    """Return published shares of the limit, from the plainest engine to the best, and the limit."""
    rows = {m.id: m for m in measurements.published()}
    alone = [
        (fraction, m)
        for m in rows.values()
        if m.is_decode and m.batch == 1 and (fraction := m.fraction_of_bound())
    ]
    best, engine = max(alone, key=lambda pair: pair[0])
    eager, compiled = rows[26], rows[25]
    shown = [
        (eager.fraction_of_bound(), f"PyTorch, operation by operation ({eager.model})"),
        (compiled.fraction_of_bound(), "the same model on the same chip, compiled"),
        (best, f"the best that we have seen published: {engine.engine}, {engine.device}"),
        (1.0, "the limit"),
    ]
    return [{"share": share, "name": name} for share, name in shown]


def append_data(
    cases: Sequence[tuple[ModelShape, Hardware, str]], tokens: int = 40
) -> dict[str, Any]:
    """Return what animation "append" shows: for each (model, chip, dtype) what an answer costs.

    Operations and roofline seconds of the first 1, 2, ... `tokens` tokens, with and without a
    cache, after a prompt of one token.
    """
    if not cases:
        raise InferlabError("cases is empty: at least one (model, chip, dtype) is needed")
    shown = []
    for number, (shape, chip, dtype) in enumerate(cases):
        sums = {
            name: [
                {"flops": flops, "seconds": seconds}
                for flops, seconds in saving.totals(shape, chip, dtype, tokens, cache=cache)
            ]
            for name, cache in (("without", False), ("with", True))
        }
        label = f"{shape.name} on {chip.name}"
        shown.append({"key": str(number), "label": label, **sums})
    return {"cases": shown}


def _short(name: str) -> str:
    """Return a chip's name without its family and board: "V100"."""
    return next(word for word in name.split() if word != "Tesla")


def _round(value: float) -> float:
    """Return the nearest of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return min((1, 2, 5, 10), key=lambda m: abs(math.log(m * power / value))) * power
