"""What others have measured and published, and the roof that `costs` puts over each."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from inferlab.theory import costs, formats, hardware, models, roofline
from inferlab.theory.hardware import Hardware

_CATALOG = Path(__file__).parent / "data" / "published_measurements.csv"


@dataclass(frozen=True)
class Measurement:
    """One published number, with the settings under which it was taken.

    `model_key` and `device_key` name entries of the catalogs and are empty for others; `format`
    is the storage format nearest to `weights` as the source calls it. `batch`, `prompt` and
    `output` are None where the source does not say. `value` is in `unit`.
    """

    id: int
    model: str
    model_key: str
    device: str
    device_key: str
    bandwidth: float | None
    chips: int
    parallelism: str
    weights: str
    format: str
    kv_format: str
    batch: int | None
    prompt: int | None
    output: int | None
    engine: str
    metric: str
    value: float
    unit: str
    streamed_bytes: float | None
    source: str
    notes: str

    @property
    def is_decode(self) -> bool:
        """Whether the value is the pace of decoding: tokens per second, or the time of one."""
        return self.metric in ("decode_tok_s", "tpot_ms")

    @property
    def seconds(self) -> float | None:
        """The measured time of a pass, where the metric is one: per token, or to the first."""
        if self.metric == "decode_tok_s":
            return (self.batch or 1) / self.value
        return self.value / 1e3 if self.metric in ("tpot_ms", "ttft_ms") else None

    @property
    def chip(self) -> Hardware | None:
        """The chip; one that is not in the catalog has its bandwidth only, and no roof on top."""
        if self.device_key:
            return hardware.get(self.device_key)
        if self.bandwidth is None:
            return None
        flops = MappingProxyType(dict.fromkeys(formats.names(), float("inf")))
        return Hardware(self.device, self.device, flops, self.bandwidth)

    def bound_seconds(self) -> float | None:
        """Return the time below which no engine can be, or None where too much is unknown.

        Decode is bounded at batch 1 only (a client's concurrency is not the server's batch), in
        the middle of the answer. A first token waits for its own prompt at least, with bytes and
        arithmetic overlapping perfectly.
        """
        chip = self.chip
        if chip is None or self.prompt is None or not (self.model_key and self.format):
            return None
        shape = models.get(self.model_key)
        if self.is_decode and self.batch == 1:
            middle = self.prompt + (self.output or 0) // 2
            kv = self.kv_format or None
            cost = costs.decode_step(
                shape, middle, dtype=self.format, kv_dtype=kv, activations="none"
            )
        elif self.metric == "ttft_ms":
            cost = costs.prefill(shape, self.prompt, dtype=self.format)
        else:
            return None
        placed = roofline.place(cost, chip, self.format, self.chips)
        return max(placed.compute_seconds, placed.memory_seconds)

    def fraction_of_bound(self) -> float | None:
        """Return the floor's time over the measured one: 1 would be a perfect engine."""
        bound = self.bound_seconds()
        return None if bound is None or self.seconds is None else bound / self.seconds


@cache
def published() -> tuple[Measurement, ...]:
    """Return every published measurement of the catalog, with its source."""
    with _CATALOG.open(encoding="utf-8", newline="") as file:
        return tuple(_measurement(row) for row in csv.DictReader(file))


def _measurement(row: Mapping[str, str]) -> Measurement:
    def count(column: str) -> int | None:
        return int(row[column]) if row[column].isdigit() else None

    def scaled(column: str, unit: float) -> float | None:
        return float(row[column]) * unit if row[column] else None

    return Measurement(
        id=int(row["id"]),
        model=row["model"],
        model_key=row["model_key"],
        device=row["device"],
        device_key=row["device_key"],
        bandwidth=scaled("bandwidth_gbs", 1e9),
        chips=int(row["chips"]),
        parallelism=row["parallelism"],
        weights=row["weights"],
        format=row["format"],
        kv_format=row["kv_format"],
        batch=count("batch"),
        prompt=count("prompt_len"),
        output=count("output_len"),
        engine=row["engine"],
        metric=row["metric"],
        value=float(row["value"]),
        unit=row["unit"],
        streamed_bytes=scaled("streamed_weight_gb", 1e9),
        source=row["source"],
        notes=row["notes"],
    )
