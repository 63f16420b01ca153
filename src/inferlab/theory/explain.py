"""`inferlab explain`: the arithmetic of one request on one chip, as numbers, table and picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferlab.errors import InferlabError
from inferlab.theory import costs, formats, limits, models, roofline, units
from inferlab.theory.hardware import Hardware
from inferlab.theory.roofline import Placement
from inferlab.theory.shapes import ModelShape

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


#: Beyond any prompt, batch or cluster; larger counts overflow instead of meaning something.
MOST = 10**12


def find_model(name: str) -> ModelShape:
    """Return a model of the catalog, or the one whose config.json (or its folder) `name` is."""
    path = Path(name)
    try:
        if name and path.is_dir():
            return models.from_config(path / "config.json")
        if path.suffix == ".json" or (name and path.exists()):
            return models.from_config(path)
    except OSError as error:  # a name too long for the file system, say
        raise InferlabError(f"model {name[:40]!r}...: {error.strerror}") from None
    return models.get(name)


def report(
    shape: ModelShape,
    hardware: Hardware,
    prompt: int,
    batch: int = 1,
    context: int | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    chips: int = 1,
) -> dict[str, Any]:
    """Return what `inferlab explain --json` prints.

    Prefill is of one prompt; decode is one step of `batch` sequences, each with `context`
    tokens in its cache (the prompt's length if left out). Without `dtype` the chip's own 16-bit
    format is taken. Seconds are floors: nothing but arithmetic and memory is waited for.
    `fits` is None if the memory of the machine is not known.
    """
    context = prompt if context is None else context
    for field, count in {
        "prompt": prompt,
        "batch": batch,
        "context": context,
        "chips": chips,
    }.items():
        if count > MOST:
            raise InferlabError(f"{field} is above {MOST:.0e}: no machine gets there")
    dtype = dtype or hardware.default_dtype
    prefill, decode = place(shape, hardware, prompt, batch, context, dtype, kv_dtype, chips)
    kv = kv_dtype or formats.activation_format(dtype)
    return {
        "ridge": prefill.ridge,
        "weight_bytes": costs.weight_bytes(shape, dtype),
        "kv_bytes_per_token": costs.kv_bytes_per_token(shape, kv),
        "fits": limits.fits(
            shape,
            hardware,
            max(prompt, context),
            batch,
            dtype=dtype,
            kv_dtype=kv_dtype,
            chips=chips,
        ),
        "prefill": _phase(prefill),
        "decode": {**_phase(decode), "tokens_per_second": batch / decode.seconds},
        "parts": {"prefill": _parts(prefill), "decode": _parts(decode)},
    }


def place(
    shape: ModelShape,
    hardware: Hardware,
    prompt: int,
    batch: int,
    context: int,
    dtype: str,
    kv_dtype: str | None,
    chips: int,
) -> tuple[Placement, Placement]:
    """Return where a prefill of `prompt` tokens and a decode step stand under the roof."""
    if prompt < 1:
        raise InferlabError(f"prompt is {prompt}: it must be at least 1")
    prefill = costs.prefill(shape, prompt, dtype=dtype, kv_dtype=kv_dtype)
    decode = costs.decode_step(shape, context, batch, dtype=dtype, kv_dtype=kv_dtype)
    return (
        roofline.place(prefill, hardware, dtype, chips),
        roofline.place(decode, hardware, dtype, chips),
    )


def _phase(placed: Placement) -> dict[str, Any]:
    return {
        "flops": placed.flops,
        "bytes": placed.bytes,
        "intensity": placed.intensity,
        "bound": placed.bound,
        "seconds": placed.seconds,
    }


def _parts(placed: Placement) -> dict[str, Any]:
    return {
        name: {"flops": p.flops, "bytes": p.bytes, "bound": p.bound, "seconds": p.seconds}
        for name, p in placed.parts.items()
    }


def notes(
    shape: ModelShape, hardware: Hardware, prompt: int, context: int | None, dtype: str | None
) -> list[str]:
    """Return what the reader should know about how the numbers were made, a line each."""
    lines = []
    if dtype is None and hardware.default_dtype != "bf16":
        lines.append(f"{hardware.name} has no bf16: counted in {hardware.default_dtype}")
    longest = max(prompt, context or 0)
    if longest > shape.max_context:
        lines.append(f"{shape.name} was made for {shape.max_context:,} tokens of context")
    return lines


def render(
    console: Console, hardware: Hardware, chips: int, answer: Mapping[str, Any], title: str
) -> None:
    """Print a report for people: what fits, the two phases part by part, and the roofline."""
    colours = {"compute": "dark_orange", "memory": "dodger_blue1"}
    memory = units.bytes_text(hardware.memory_bytes and hardware.memory_bytes * chips)
    fits = {True: "fits in", False: "does not fit in", None: "memory unknown:"}[answer["fits"]]
    console.print(f"[bold]{title}[/bold]")
    console.print(
        f"weights {units.bytes_text(answer['weight_bytes'])},"
        f" KV cache {units.binary_bytes_text(answer['kv_bytes_per_token'])} a token:"
        f" {fits} {memory}"
    )
    for phase in ("prefill", "decode"):
        console.print(_table(phase, answer, colours))
    rate = answer["decode"]["tokens_per_second"]
    console.print(
        f"first token after {units.seconds_text(answer['prefill']['seconds'])} at the earliest,"
        f" then at most [bold]{rate:,.4g} tokens/s[/bold]"
    )
    points = {name[0].upper(): answer[name]["intensity"] for name in ("prefill", "decode")}
    plain = not (console.encoding or "").lower().startswith("utf")
    console.print(sketch(answer["ridge"], points, ascii_only=plain), highlight=False)


def _table(phase: str, answer: Mapping[str, Any], colours: Mapping[str, str]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(phase, min_width=24)
    for heading in ("FLOP", "bytes", "FLOP/B", "time"):
        table.add_column(heading, justify="right")
    table.add_column("waits for")
    rows = {costs.PARTS[name]: part for name, part in answer["parts"][phase].items()}
    for label, part in {**rows, "all": answer[phase]}.items():
        if label == "all":
            table.add_section()
        elif not part["flops"] and not part["bytes"]:
            continue
        intensity = part["flops"] / part["bytes"] if part["bytes"] else math.inf
        table.add_row(
            label,
            units.count_text(part["flops"], "") if part["flops"] else "",
            units.bytes_text(part["bytes"]) if part["bytes"] else "",
            f"{intensity:,.4g}" if 0 < intensity < math.inf else "",
            units.seconds_text(part["seconds"]),
            f"[{colours[part['bound']]}]{part['bound']}[/]",
        )
    return table


def sketch(
    ridge: float,
    points: Mapping[str, float],
    *,
    width: int = 64,
    height: int = 9,
    ascii_only: bool = False,
) -> str:
    """Return a roofline drawn in characters, both axes logarithmic.

    `points` maps one letter each to an intensity; a letter stands on the roof, since the roof is
    what is attainable there. Rows are decades of the peak: a point's row says what share of the
    chip's arithmetic its work can use.
    """
    slope, flat, bar, corner, floor = "/-|+-" if ascii_only else "╱─│└─"
    low = min(-1.0, *(math.log10(x) for x in points.values()))
    high = max(math.log10(ridge) + 1, *(math.log10(x) for x in points.values())) + 0.2
    decades = math.log10(ridge) - low
    grid = [[" "] * width for _ in range(height)]

    def column(exponent: float) -> int:
        return min(width - 1, max(0, round((exponent - low) / (high - low) * (width - 1))))

    def row(exponent: float) -> int:
        below = max(0.0, math.log10(ridge) - exponent)
        return min(height - 1, round(below / decades * (height - 1)))

    for x in range(width):
        exponent = low + x / (width - 1) * (high - low)
        grid[row(exponent)][x] = slope if exponent < math.log10(ridge) else flat
    for letter, intensity in points.items():
        exponent = math.log10(intensity)
        grid[row(exponent)][column(exponent)] = letter
    lines = []
    for y, cells in enumerate(grid):
        share = 10.0 ** (-y / (height - 1) * decades)
        label = f"{100 * share:.3g}%" if y % 2 == 0 else ""
        lines.append(f"{label:>8} {bar}" + "".join(cells).rstrip())
    lines.append(f"{'':>8} {corner}{floor * width}")
    ticks = [" "] * (width + 8)
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        mark = f"{10.0**exponent:g}"
        start = column(exponent)
        ticks[start : start + len(mark)] = mark
    lines.append(f"{'of peak':>8}  " + "".join(ticks).rstrip() + "  FLOP/B")
    names = ", ".join(f"{letter} at {value:,.3g}" for letter, value in points.items())
    lines.append(f"{'':>10}{names}; ridge at {ridge:,.3g}")
    return "\n".join(lines)
