"""How fast arithmetic and bandwidth have grown, and how much of the gap is a choice of format."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from inferlab.errors import unknown
from inferlab.theory import hardware
from inferlab.theory.hardware import Hardware

# Wulf and McKee, "Hitting the Memory Wall: Implications of the Obvious", 1995; Vaswani et al.,
# "Attention Is All You Need", 2017.
MEMORY_WALL_YEAR = 1995
TRANSFORMER_YEAR = 2017

#: One maker's largest server GPUs, oldest first.
LINE = (
    "k20x",
    "k40",
    "p100-sxm2",
    "v100-sxm2-32gb",
    "a100-sxm-80gb",
    "h100-sxm",
    "h200-sxm",
    "b200-sxm",
)
#: Ways to count arithmetic: the formats that each accepts, of which a chip gives the first it has.
COUNTINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "64 bit": ("fp64",),
        "32 bit": ("fp32",),
        "16 bit": ("bf16", "fp16", "fp32"),
        "narrowest": ("fp4", "fp8", "bf16", "fp16", "fp32"),
    }
)


class Generation(NamedTuple):
    """One chip of `LINE`: its rates, and how many times those of the first chip they are."""

    chip: Hardware
    dtype: str
    flops: float
    compute: float
    bandwidth: float

    @property
    def gap(self) -> float:
        """Growth of compute over growth of bandwidth."""
        return self.compute / self.bandwidth


def history(counting: str) -> list[Generation]:
    """Return how far compute, counted one way, and bandwidth had grown with each chip of `LINE`.

    `counting` is one of `COUNTINGS`. Rates are dense; the year is `chip.year`.
    """
    if counting not in COUNTINGS:
        raise unknown("counting", counting, COUNTINGS)
    first = hardware.get(LINE[0])
    found = []
    for key in LINE:
        chip = hardware.get(key)
        dtype, before = (
            next(d for d in COUNTINGS[counting] if d in each.flops) for each in (chip, first)
        )
        rate = chip.flops[dtype]
        growth = rate / first.flops[before]
        found.append(Generation(chip, dtype, rate, growth, bandwidth_growth(first, chip)))
    return found


def compute_growth(older: Hardware, newer: Hardware, before: str, after: str = "") -> float:
    """Return how many times faster `newer` computes, counting in format `before`, then `after`."""
    return newer.flops[after or before] / older.flops[before]


def bandwidth_growth(older: Hardware, newer: Hardware) -> float:
    """Return how many times more bytes per second `newer` moves."""
    return newer.bandwidth / older.bandwidth


def gap(older: Hardware, newer: Hardware, before: str, after: str = "") -> float:
    """Return growth of compute over growth of bandwidth: how far the two have parted."""
    return compute_growth(older, newer, before, after) / bandwidth_growth(older, newer)


def compound(factor: float, period: float, years: float) -> float:
    """Return growth over `years` of what grows by `factor` every `period` years."""
    return factor ** (years / period)
