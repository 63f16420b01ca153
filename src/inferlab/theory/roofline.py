"""The roofline: which of a chip's two numbers a piece of work waits for, and how long.

Attainable operations per second are min(peak, bandwidth x intensity): Samuel Williams, Andrew
Waterman and David Patterson, Communications of the ACM 52(4), 2009. A pass is not one kernel, so
its parts get a roof each: a part takes the longer of its arithmetic and its bytes, and the parts
follow one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from inferlab.errors import InferlabError
from inferlab.theory.costs import Cost, Part
from inferlab.theory.hardware import Hardware

Bound = Literal["compute", "memory"]


@dataclass(frozen=True)
class Placement:
    """Where some work stands under the roof of `chips` chips.

    `seconds` is the sum of the parts' times. `compute_seconds` and `memory_seconds` are what
    all its operations and all its bytes would take alone; `bound` is the longer of the two.
    """

    flops: float
    bytes: float
    intensity: float
    ridge: float
    bound: Bound
    attainable: float
    compute_seconds: float
    memory_seconds: float
    seconds: float
    parts: Mapping[str, Placement]


def place(cost: Cost | Part, hardware: Hardware, dtype: str = "bf16", chips: int = 1) -> Placement:
    """Place a cost under the roof of `chips` chips that share each pass evenly.

    `dtype` is the format the weights are stored in; it decides which arithmetic the chip uses.
    Splitting a pass is taken as free: no time for the chips to exchange what they computed.
    """
    if chips < 1:
        raise InferlabError(f"chips is {chips}: it must be at least 1")
    peak, bandwidth = hardware.peak(dtype) * chips, hardware.bandwidth * chips
    compute, memory = cost.flops / peak, cost.bytes / bandwidth
    parts = {}
    if isinstance(cost, Cost):
        parts = {name: place(part, hardware, dtype, chips) for name, part in cost.parts.items()}
    return Placement(
        flops=cost.flops,
        bytes=cost.bytes,
        intensity=cost.intensity,
        ridge=peak / bandwidth,
        bound="compute" if compute > memory else "memory",
        attainable=min(peak, bandwidth * cost.intensity),
        compute_seconds=compute,
        memory_seconds=memory,
        seconds=sum(part.seconds for part in parts.values()) if parts else max(compute, memory),
        parts=parts,
    )
