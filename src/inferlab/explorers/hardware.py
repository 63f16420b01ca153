"""The moving pictures of hardware: a product in waves of tiles, and the loads behind one tile.

As in `scenes`: each function returns an animation with its description and a still, over the dict
that the function of that name with `_data` computes from `inferlab.theory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferlab.errors import InferlabError
from inferlab.explorers import Explorer, show
from inferlab.figures import inside as stills
from inferlab.figures import style
from inferlab.theory import inside, tiles, units
from inferlab.theory.hardware import Hardware

TILE = 128
"""Side of a tile, in numbers, as common for products of large matrices."""
SIDES = (512, 1024, 1536, 2048, 4096)
TILES = (32, 64, 128, 256)


def waves(
    cpu: Hardware, gpu: Hardware, *, sides: Sequence[int] = SIDES, start: int = 4096
) -> Explorer:
    """Return animation "waves": one product on a CPU and a GPU, tile by tile. See `waves_data`."""
    data = waves_data(cpu, gpu, sides=sides, start=start)
    few, many = data["ways"][0]["chips"]
    job = next(each for each in many["jobs"] if each["side"] == start)
    alt = (
        f"Two matrices of {start:,} by {start:,} numbers are multiplied in {job['tiles']:,} tiles: "
        f"on {few['name']} by {few['cores']} cores of {few['lanes']} lanes, on {many['name']} by "
        f"{many['cores']} SMs of {many['lanes']} lanes, in {job['waves']} waves. Each finished "
        "tile fills its place in the result."
    )
    return _show("waves", data, alt)


def tile_loads(
    side: int = 512, sides: Sequence[int] = TILES, *, start: int = 128, depth: int = 64
) -> Explorer:
    """Return animation "tiles": what a tiled product loads. See `tile_loads_data`."""
    data = tile_loads_data(side, sides, start=start, depth=depth)
    one = next(each for each in data["tiles"] if each["side"] == start)
    alt = (
        f"The product of two matrices of {side} by {side} numbers, made in tiles of {start} by "
        f"{start}: each program slides along a row of one matrix and a column of the other. All "
        f"{one['programs']} together load {units.bytes_text(one['bytes'])}; without tiles it would "
        f"be {units.bytes_text(data['untiled_bytes'])}."
    )
    return _show("tiles", data, alt)


def _show(name: str, data: Mapping[str, Any], alt: str) -> Explorer:
    figure = getattr(stills, name)(data)
    return show(name, data, alt=alt, still=style.themed(figure, alt=alt).html)


def waves_data(
    cpu: Hardware, gpu: Hardware, *, sides: Sequence[int] = SIDES, start: int = 4096
) -> dict[str, Any]:
    """Return what animation "waves" plays: square products by lanes in fp32, and in 16 bit.

    A core takes a tile at a time and works at its share of the chip's dense rate; nothing waits
    for memory. The 16-bit way needs matrix units in both chips.
    """
    if start not in sides:
        raise InferlabError(f"sides must hold the start, {start}")
    ways = []
    for key, label, step in (
        ("lanes", "lanes, fp32", "all cores"),
        ("units", "matrix units, bf16", "matrix units"),
    ):
        chips = []
        for chip in (cpu, gpu):
            rates, count, core = inside.steps(chip), chip.sm_count or 0, inside.core_word(chip)
            if step not in rates:
                raise InferlabError(f"{chip.name} has no matrix units to show")
            jobs = []
            for side in sides:
                work = tiles.programs(side, side, TILE, TILE)
                rounds = inside.waves(work, count)
                once = 2 * TILE**2 * side / (rates[step] / count)
                jobs.append(
                    {
                        "side": side,
                        "tiles": work,
                        "waves": rounds,
                        "busy": inside.busy(work, count),
                        "wave_s": once,
                        "seconds": rounds * once,
                    }
                )
            chips.append(
                {
                    "name": chip.name.removesuffix(" (1 socket)"),
                    "core": core,
                    "cores": count,
                    "lanes": inside.lanes_per_core(chip),
                    "abreast": inside.WARP if core == "SM" else 16,
                    "units": 4 if core == "SM" else 1,
                    "rate": rates[step],
                    "jobs": jobs,
                }
            )
        ways.append({"key": key, "label": label, "chips": chips})
    return {"tile": TILE, "sides": list(sides), "start": start, "ways": ways}


def tile_loads_data(
    side: int = 512,
    sides: Sequence[int] = TILES,
    *,
    start: int = 128,
    depth: int = 64,
    element: int = 2,
) -> dict[str, Any]:
    """Return what animation "tiles" plays: a square product in tiles of each of `sides`.

    Bytes are loads alone: the result is stored once, whatever the tile.
    """
    if start not in sides:
        raise InferlabError(f"sides must hold the start, {start}")

    def loaded(rows: int) -> int:
        return element * tiles.loads(side, side, side, rows, rows)

    return {
        "side": side,
        "depth": depth,
        "element": element,
        "start": start,
        "untiled_bytes": loaded(1),
        "fewest_bytes": loaded(side),
        "register_bytes": inside.REGISTER_BYTES,
        "tiles": [
            {
                "side": each,
                "programs": tiles.programs(side, side, each, each),
                "steps": -(-side // depth),
                "bytes": loaded(each),
                "intensity": 2 * side**3 / loaded(each),
                "sums_bytes": tiles.accumulator_bytes(each, each),
                "piece_bytes": tiles.shared_bytes(each, each, depth, element=element),
            }
            for each in sides
        ],
    }
