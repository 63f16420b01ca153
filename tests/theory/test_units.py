"""Numbers as they are shown."""

from __future__ import annotations

import pytest

from inferlab.theory import units


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.bytes_text(140e9), "140 GB"),
        (units.bytes_text(137_953_296_384), "138 GB"),
        (units.bytes_text(137_953_296_384, 5), "137.95 GB"),
        (units.bytes_text(999_999), "1 MB"),
        (units.bytes_text(0), "0 B"),
        (units.bytes_text(0.5), "0.5 B"),
        (units.bytes_text(None), "–"),
        (units.binary_bytes_text(327_680), "320 KiB"),
        (units.binary_bytes_text(131_072), "128 KiB"),
        (units.binary_bytes_text(1000 * 2**10), "1,000 KiB"),
        (units.seconds_text(0.03), "30 ms"),
        (units.seconds_text(0.04122), "41.2 ms"),
        (units.seconds_text(0.9999), "1 s"),
        (units.seconds_text(1e-4), "100 µs"),
        (units.seconds_text(3e-12), "0.003 ns"),
        (units.seconds_text(90), "90 s"),
        (units.seconds_text(1350), "22.5 min"),
        (units.seconds_text(7200), "2 h"),
        (units.count_text(279.05e12), "279 TFLOP"),
        (units.count_text(68_976_648_192, "parameters"), "69 Gparameters"),
        (units.count_text(-1500, ""), "-1.5 k"),
        (units.rate_text(3.35e12), "3.35 TB/s"),
        (units.rate_text(989.4e12, "FLOP"), "989 TFLOP/s"),
        (units.text(float("inf"), "FLOP/B"), "∞ FLOP/B"),
        (units.text(5e21, "FLOP"), "5,000 EFLOP"),
    ],
)
def test_three_digits_and_a_prefix(shown, text):
    assert shown == text
