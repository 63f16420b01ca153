"""How fast arithmetic and bandwidth have grown, and how much of the gap is a choice of format."""

from __future__ import annotations

from inferlab.theory.hardware import Hardware

# Wulf and McKee, "Hitting the Memory Wall: Implications of the Obvious", 1995; Vaswani et al.,
# "Attention Is All You Need", 2017.
MEMORY_WALL_YEAR = 1995
TRANSFORMER_YEAR = 2017


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
