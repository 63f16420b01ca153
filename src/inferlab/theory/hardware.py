"""Chips by name: arithmetic per second, bytes per second, and the bytes they hold.

Arithmetic is dense: vendors' headline figures with 2:4 sparsity are twice these. Capacities are
what the driver reports where that is known (`memory_basis` says so), since the printed "80 GB"
is nearer to GiB.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from inferlab.errors import InferlabError, unknown
from inferlab.theory import formats

_CATALOG = Path(__file__).parent / "data" / "hardware.csv"

# Which column of the catalog holds which format's arithmetic, in 1e12 operations a second.
_PEAKS = {
    "bf16": "bf16_tflops",
    "fp16": "fp16_tflops",
    "fp8": "fp8_tflops",
    "fp4": "fp4_tflops",
    "int8": "int8_tops",
    "fp32": "fp32_tflops",
    "fp64": "fp64_tflops",
    "fp64-vector": "fp64_vector_tflops",
}


@dataclass(frozen=True)
class Hardware:
    """One chip, or any machine that has two numbers.

    `flops` maps a format to dense operations per second; `bandwidth` is bytes per second from
    the memory that holds the weights; `memory_bytes` is None where it depends on the build.
    """

    key: str
    name: str
    flops: Mapping[str, float]
    bandwidth: float
    memory_bytes: int | None = None
    vendor: str = ""
    year: int | None = None
    arch: str = ""
    compute_capability: str = ""
    sm_count: int | None = None
    memory_type: str = ""
    memory_basis: str = ""
    bus_bits: int | None = None
    stacks: int | None = None
    pin_rate: float | None = None
    pin_rate_basis: str = ""
    l2_bytes: float | None = None
    tdp_watts: float | None = None
    measured_matmul: float | None = None
    source: str = ""
    confidence: str = ""
    notes: str = ""

    def arithmetic(self, dtype: str) -> str:
        """Return the format in which this chip multiplies weights stored as `dtype`.

        Raises InferlabError if it has units for none that would do.
        """
        for candidate in formats.get(dtype).arithmetic if dtype not in self.flops else (dtype,):
            if candidate in self.flops:
                return candidate
        raise InferlabError(
            f"dtype {dtype}: {self.name} has no {dtype} arithmetic; use {self.default_dtype}"
        )

    def peak(self, dtype: str) -> float:
        """Return dense operations per second on weights stored as `dtype`."""
        return self.flops[self.arithmetic(dtype)]

    def ridge(self, dtype: str) -> float:
        """Return the operations per byte at which arithmetic and memory take equally long."""
        return self.peak(dtype) / self.bandwidth

    @property
    def default_dtype(self) -> str:
        """The widest 16-bit format the chip multiplies in, or fp32 before there were any."""
        return next(dtype for dtype in ("bf16", "fp16", "fp32", *self.flops) if dtype in self.flops)

    @property
    def pin_bandwidth(self) -> float | None:
        """Bytes per second from pins x rate per pin / 8, where both are known."""
        if self.bus_bits is None or self.pin_rate is None:
            return None
        return self.bus_bits * self.pin_rate / 8

    @property
    def sweep_seconds(self) -> float | None:
        """Time to read the whole memory once: capacity / bandwidth."""
        return self.memory_bytes / self.bandwidth if self.memory_bytes else None


def peak_of_units(clock: float, macs_per_cycle: float, units: int) -> float:
    """Return operations per second of `units` equal units: clock x MACs per cycle x 2 x units."""
    return clock * macs_per_cycle * 2 * units


def get(name: str) -> Hardware:
    """Return the chip called `name`, such as "h100-sxm", in any case.

    Raises InferlabError, with the nearest known names, if there is none.
    """
    catalog = _catalog()
    if name.lower() not in catalog:
        raise unknown("device", name, catalog)
    return catalog[name.lower()]


def names() -> tuple[str, ...]:
    """Return the names of the catalog's chips, in the order of its table."""
    return tuple(_catalog())


def all() -> tuple[Hardware, ...]:
    """Return every chip of the catalog, in the order of `names`."""
    return tuple(_catalog().values())


@cache
def _catalog() -> Mapping[str, Hardware]:
    with _CATALOG.open(encoding="utf-8", newline="") as file:
        chips = [_chip(row) for row in csv.DictReader(file)]
    return MappingProxyType({chip.key: chip for chip in chips})


def _chip(row: Mapping[str, str]) -> Hardware:
    def number(column: str, unit: float = 1.0) -> float | None:
        return float(row[column]) * unit if row[column] else None

    def count(column: str) -> int | None:
        return int(row[column]) if row[column] else None

    flops = {dtype: float(row[column]) * 1e12 for dtype, column in _PEAKS.items() if row[column]}
    return Hardware(
        key=row["key"],
        name=row["device"],
        flops=MappingProxyType(flops),
        bandwidth=float(row["bandwidth_gbs"]) * 1e9,
        memory_bytes=count("memory_bytes"),
        vendor=row["vendor"],
        year=count("year"),
        arch=row["arch"],
        compute_capability=row["compute_capability"],
        sm_count=count("sm_count"),
        memory_type=row["memory_type"],
        memory_basis=row["memory_basis"],
        bus_bits=count("memory_bus_bits"),
        stacks=count("memory_stacks"),
        pin_rate=number("pin_rate_gbps", 1e9),
        pin_rate_basis=row["pin_rate_basis"],
        l2_bytes=number("l2_mb", 1e6),
        tdp_watts=number("tdp_w"),
        measured_matmul=number("measured_matmul_bf16_tflops", 1e12),
        source=row["source"],
        confidence=row["confidence"],
        notes=row["notes"],
    )
