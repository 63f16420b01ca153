"""Inside a chip: lanes and cores, the waves in which they work, and the ladder of its memories.

A *core* is what has its own instruction stream: a core of a CPU, an SM of a GPU. A *lane* is one
multiply-add unit for 4-byte numbers; all lanes of an instruction do the same thing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from inferlab.errors import InferlabError, unknown
from inferlab.theory.hardware import Hardware

WARP = 32
"""Lanes of a GPU that share one instruction (CUDA C++ Programming Guide, SIMT Architecture)."""

# fp32 multiply-adds a clock and core. GPUs: CUDA C++ Programming Guide, "Arithmetic Instructions",
# by compute capability. CPUs: the derivations that the catalog's notes state.
_LANES = MappingProxyType(
    {
        "7.0": 64,
        "7.5": 64,
        "8.0": 64,
        "8.6": 128,
        "8.9": 128,
        "9.0": 128,
        "10.0": 128,
        "12.0": 128,
        "x86 AVX-512": 16,
        "x86 AMX": 32,
    }
)

# Warps that one SM keeps at hand, same guide, "Technical Specifications per Compute Capability".
_WARPS = MappingProxyType(
    {"7.0": 64, "7.5": 32, "8.0": 64, "8.6": 48, "8.9": 48, "9.0": 64, "10.0": 64, "12.0": 48}
)

# Clocks that a load waits, (first level, L2, memory), measured by a chase of pointers:
# markdewing/AI_kernels latency/README.md@0d701add.
_LATENCY = MappingProxyType(
    {
        "v100-sxm2-32gb": (36, 221, 460),
        "a100-sxm-80gb": (39, 210, 550),
        "rtx-4090": (40, 296, 636),
        "h100-sxm": (40, 291, 700),
        "b200-sxm": (40, 295, 860),
    }
)

LAUNCH_SECONDS = 5e-6
"""What one kernel launch through the driver takes, 4 to 6 microseconds: susun-blog.com,
"From Launch Overhead to CUDA Graph", on an RTX 5070 Ti."""

# Bytes of shared memory that the kernels of one SM may use together, by compute capability:
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_SHARED = MappingProxyType({"8.0": 164 * 1024, "9.0": 228 * 1024})
REGISTER_BYTES = 65_536 * 4
"""Of one SM, for every capability above; same table of the same guide."""
_OPERANDS = 3 * 4  # a multiply-add reads three numbers of 4 bytes
_SHARED_BYTES_PER_CLOCK = 32 * 4  # 32 banks of 4 bytes, same guide, "Shared Memory"
# A100: 5,120 bytes a clock, NVIDIA's Ampere whitepaper; the same for H100 in table 3 of
# doi:10.1016/j.ultsonch.2023.106546 (8,986 GB/s at 1,755 MHz). Measurements find less.
_L2_BYTES_PER_CLOCK = 5120

# NVIDIA's CUDA toolkit 1.0; Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep
# Convolutional Neural Networks", trained on two GTX 580; NVIDIA's V100 whitepaper.
GPU_YEARS: Mapping[int, str] = MappingProxyType(
    {
        2007: "CUDA: any program may run on a GPU",
        2012: "AlexNet wins ImageNet, trained on two gaming cards",
        2017: "V100: the first tensor cores",
    }
)


def lanes_per_core(hardware: Hardware) -> int:
    """Return the fp32 multiply-adds that one core, or SM, finishes in a clock."""
    if hardware.compute_capability not in _LANES or not hardware.sm_count:
        raise InferlabError(
            f"{hardware.name}: the lanes of its cores are not known; "
            f"they are for compute capabilities {', '.join(_LANES)}"
        )
    return _LANES[hardware.compute_capability]


def core_word(hardware: Hardware) -> str:
    """Return what the makers of such chips call a core: "SM" on a GPU, else "core"."""
    return "core" if hardware.compute_capability.startswith("x86") else "SM"


def lanes(hardware: Hardware) -> int:
    """Return the fp32 lanes of the whole chip."""
    return lanes_per_core(hardware) * (hardware.sm_count or 0)


def threads(hardware: Hardware) -> int:
    """Return how many threads a GPU keeps at hand, so that some can go on while others wait."""
    if hardware.compute_capability not in _WARPS:
        raise InferlabError(f"{hardware.name}: how many warps an SM keeps is not known")
    return _WARPS[hardware.compute_capability] * WARP * (hardware.sm_count or 0)


def clock(hardware: Hardware) -> float:
    """Return the clock, in Hz, that the catalog's fp32 rate implies: rate / (2 x lanes)."""
    return hardware.flops["fp32"] / (2 * lanes(hardware))


def steps(hardware: Hardware) -> Mapping[str, float]:
    """Return operations per second of one lane, one core, all cores, and the matrix units.

    The first three are fp32. The last is dense 16 bit, where a chip has units that beat its lanes
    by more than the halved width explains.
    """
    lane = 2 * clock(hardware)
    core = lane * lanes_per_core(hardware)
    found = {"one lane": lane, "one core": core, "all cores": core * (hardware.sm_count or 0)}
    sixteen = max(hardware.flops.get("bf16", 0.0), hardware.flops.get("fp16", 0.0))
    if sixteen > 2.5 * hardware.flops["fp32"]:
        found["matrix units"] = sixteen
    return MappingProxyType(found)


def waves(tiles: int, cores: int) -> int:
    """Return how many rounds `cores` cores need for `tiles` equal pieces of work, one a core."""
    if tiles < 1 or cores < 1:
        raise InferlabError(f"tiles and cores must be at least 1, not {tiles} and {cores}")
    return -(-tiles // cores)


def busy(tiles: int, cores: int) -> float:
    """Return the share of all cores' time that has work: the last wave may be nearly empty."""
    return tiles / (waves(tiles, cores) * cores)


@dataclass(frozen=True)
class Level:
    """One memory of a chip: `size` bytes and `rate` bytes/s of all its copies together.

    `copies` is 1 for what the whole chip shares. `latency` is the seconds that a load waits;
    None for registers, which an instruction reads in passing.
    """

    name: str
    size: float
    copies: int
    rate: float
    latency: float | None


def levels(hardware: Hardware) -> tuple[Level, ...]:
    """Return registers, shared memory, L2 and the chip's main memory, nearest first.

    Rates of the first three are widths in bytes a clock times `clock`: none is ever passed.
    Raises InferlabError for a chip whose widths are not known here.
    """
    shared = _SHARED.get(hardware.compute_capability)
    if shared is None or hardware.key not in _LATENCY:
        raise unknown("device", hardware.key, ("a100-sxm-80gb", "h100-sxm"))
    count, hertz = hardware.sm_count or 0, clock(hardware)
    first, second, memory = (cycles / hertz for cycles in _LATENCY[hardware.key])
    return (
        Level(
            "registers", count * REGISTER_BYTES, count, _OPERANDS * lanes(hardware) * hertz, None
        ),
        Level(
            "shared memory", count * shared, count, count * _SHARED_BYTES_PER_CLOCK * hertz, first
        ),
        Level("L2 cache", hardware.l2_bytes or math.nan, 1, _L2_BYTES_PER_CLOCK * hertz, second),
        Level("HBM", hardware.memory_bytes or math.nan, 1, hardware.bandwidth, memory),
    )


def memory_latency(hardware: Hardware) -> float:
    """Return the seconds that a load from the chip's main memory waits."""
    if hardware.key not in _LATENCY:
        raise unknown("device", hardware.key, _LATENCY)
    return _LATENCY[hardware.key][2] / clock(hardware)


def in_flight(bandwidth: float, latency: float) -> float:
    """Return the bytes that must be under way at any moment: bandwidth x latency.

    Little's law, L = lambda W: John Little, Operations Research 9(3), 1961.
    """
    return bandwidth * latency
