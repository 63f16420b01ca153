"""How numbers are shown: bytes, seconds and counts with three digits and a prefix.

Prefixes are decimal: a GB is 1e9 bytes. Only display code rounds; arithmetic stays in bytes,
seconds and operations.
"""

from __future__ import annotations

import math

_PREFIXES = {18: "E", 15: "P", 12: "T", 9: "G", 6: "M", 3: "k", 0: "", -3: "m", -6: "µ", -9: "n"}


def text(value: float | None, unit: str = "", digits: int = 3, *, least: int = -9) -> str:
    """Return `value` with a decimal prefix before `unit`: `text(2.79e14, "FLOP")` is "279 TFLOP".

    `least` is the smallest power of ten that may be used; nothing is said of None but a dash.
    """
    if value is None:
        return "–"
    if not math.isfinite(value):
        return ("∞" if value > 0 else "–∞" if value < 0 else "not a number") + f" {unit}".rstrip()
    if value:
        # Round first, so that 999.9 kB becomes 1 MB and not 1000 kB.
        value = float(f"{value:.{digits}g}")
        power = math.floor(math.log10(abs(value))) // 3 * 3
    else:
        power = 0
    power = max(least, min(18, power))
    return f"{_plain(value / 10.0**power, digits)} {_PREFIXES[power]}{unit}".rstrip()


def _plain(number: float, digits: int) -> str:
    """Return a number without exponent or prefix, to `digits` digits, whole ones in full."""
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(number)))) if number else 0
    shown = f"{number:,.{decimals}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def bytes_text(count: float | None, digits: int = 3) -> str:
    """Return a number of bytes, such as "140 GB"."""
    return text(count, "B", digits, least=0)


def binary_bytes_text(count: float, digits: int = 3) -> str:
    """Return a number of bytes in powers of 1024, such as "320 KiB"."""
    names = ("B", "KiB", "MiB", "GiB", "TiB")
    step = 0
    while abs(count) >= 1024 and step < len(names) - 1:
        count /= 1024
        step += 1
    return f"{_plain(count, digits)} {names[step]}"


def seconds_text(seconds: float | None, digits: int = 3) -> str:
    """Return a time, such as "30 ms"; minutes and hours from 120 seconds up."""
    if seconds is not None and math.isfinite(seconds) and seconds >= 120:
        minutes = seconds / 60
        return f"{minutes:.3g} min" if minutes < 120 else f"{minutes / 60:,.3g} h"
    return text(seconds, "s", digits)


def count_text(count: float | None, unit: str = "FLOP", digits: int = 3) -> str:
    """Return a count of operations or of anything else, such as "279 TFLOP"."""
    return text(count, unit, digits, least=0)


def rate_text(per_second: float | None, unit: str = "B", digits: int = 3) -> str:
    """Return a rate, such as "3.35 TB/s"."""
    return text(per_second, f"{unit}/s", digits, least=0)
