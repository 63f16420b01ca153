"""Lanes, waves and memories add up to what datasheets and measurements say."""

from __future__ import annotations

import math

import pytest

from inferlab.errors import InferlabError
from inferlab.theory import hardware, inside
from inferlab.theory.trends import TRANSFORMER_YEAR

H100, A100, T4 = (hardware.get(name) for name in ("h100-sxm", "a100-sxm-80gb", "t4"))
EPYC, XEON = hardware.get("epyc-9654"), hardware.get("xeon-8480")
GPUS = [
    "v100-sxm2-32gb",
    "t4",
    "a10",
    "l4",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "a100-sxm-80gb",
    "h100-sxm",
    "h200-sxm",
    "b200-sxm",
]


@pytest.mark.parametrize("name", [*GPUS, "epyc-9654", "xeon-8480"])
def test_rates_are_lanes_times_a_clock_that_exists(name):
    chip = hardware.get(name)
    assert 1.0e9 < inside.clock(chip) < 3.0e9
    assert inside.lanes(chip) == inside.lanes_per_core(chip) * chip.sm_count


def test_clocks_are_those_of_the_makers():
    for chip, gigahertz in ((H100, 1.98), (A100, 1.41), (T4, 1.59), (EPYC, 2.4), (XEON, 2.0)):
        assert inside.clock(chip) == pytest.approx(gigahertz * 1e9, rel=0.01)


def test_claim_8_a_cpu_is_no_handful_of_cores():
    assert (EPYC.sm_count, XEON.sm_count) == (96, 56)
    assert inside.lanes(EPYC) == 1536


def test_claim_9_a_cpu_may_have_a_matmul_unit():
    """AMX: 8,192 multiply-adds an instruction, one in 16 clocks, 56 cores at 2 GHz."""
    assert XEON.flops["bf16"] == pytest.approx(
        hardware.peak_of_units(2.0e9, 8192 / 16, 56), rel=0.001
    )
    assert inside.steps(XEON)["matrix units"] / inside.steps(XEON)["all cores"] == pytest.approx(
        16, rel=0.01
    )
    assert "matrix units" not in inside.steps(EPYC)
    assert XEON.flops["bf16"] / XEON.bandwidth > H100.flops["bf16"] / H100.bandwidth
    assert H100.bandwidth / XEON.bandwidth == pytest.approx(10.9, rel=0.01)
    assert H100.bandwidth / EPYC.bandwidth == pytest.approx(7.27, rel=0.01)


def test_claim_10_lanes_come_in_warps_and_tensor_cores_do_the_rest():
    assert inside.lanes(H100) == 16_896 == 528 * inside.WARP
    steps = inside.steps(H100)
    assert steps["matrix units"] / (steps["matrix units"] + steps["all cores"]) == pytest.approx(
        0.93, abs=0.01
    )


def test_claim_11_gpus_came_before_the_networks_and_tensor_cores_after():
    years = list(inside.GPU_YEARS)
    assert years == sorted(years)
    assert years[0] < 2012 < TRANSFORMER_YEAR <= years[-1]
    first = min(chip.year for chip in hardware.all() if "fp16" in chip.flops and chip.year > 2016)
    assert first >= years[-1]  # the first chip of the catalog with tensor cores


def test_one_lane_is_as_fast_on_a_gpu_as_on_a_cpu():
    for chip in (XEON, EPYC, H100):
        assert 3.9e9 < inside.steps(chip)["one lane"] < 4.9e9


@pytest.mark.parametrize(
    ("tiles", "cores", "waves", "busy"),
    [
        (1, 132, 1, 1 / 132),
        (132, 132, 1, 1.0),
        (133, 132, 2, 133 / 264),
        (1024, 132, 8, 1024 / 1056),
    ],
)
def test_the_last_wave_may_be_nearly_empty(tiles, cores, waves, busy):
    assert inside.waves(tiles, cores) == waves
    assert inside.busy(tiles, cores) == pytest.approx(busy)


def test_no_work_and_no_cores_are_refused():
    for tiles, cores in ((0, 4), (4, 0)):
        with pytest.raises(InferlabError, match="tiles and cores"):
            inside.waves(tiles, cores)


def test_memories_grow_and_slow_down_with_distance():
    for chip in (A100, H100):
        ladder = inside.levels(chip)
        assert [level.name for level in ladder] == ["registers", "shared memory", "L2 cache", "HBM"]
        rates = [level.rate for level in ladder]
        assert rates == sorted(rates, reverse=True)
        assert [level.copies for level in ladder] == [chip.sm_count, chip.sm_count, 1, 1]
        waits = [level.latency for level in ladder[1:]]
        assert waits == sorted(waits)
        assert ladder[-1].rate == chip.bandwidth


def test_memories_have_published_sizes_and_rates():
    """Table 3 of doi:10.1016/j.ultsonch.2023.106546, brought to one clock and to 132 SMs."""
    registers, shared, l2, hbm = inside.levels(H100)
    per_clock = inside.clock(H100) / 1.755e9
    assert shared.rate == pytest.approx(32_348e9 * 132 / 144 * per_clock, rel=0.01)
    assert l2.rate == pytest.approx(8986e9 * per_clock, rel=0.01)
    assert registers.size / 132 == 256 * 1024
    assert shared.size / 132 == 228 * 1024
    assert hbm.size == H100.memory_bytes
    assert inside.levels(A100)[2].rate == pytest.approx(7219e9, rel=0.01)


def test_a_gpu_keeps_many_more_threads_than_it_has_lanes():
    assert inside.threads(H100) == 132 * 2048 == 16 * inside.lanes(H100)
    assert inside.threads(T4) == 40 * 1024
    with pytest.raises(InferlabError, match="EPYC"):
        inside.threads(EPYC)


def test_littles_law_says_what_must_be_under_way():
    assert inside.in_flight(3.35e12, 700 / 1.98e9) == pytest.approx(1.18e6, rel=0.01)
    assert inside.memory_latency(H100) == inside.levels(H100)[-1].latency


@pytest.mark.parametrize("ask", [inside.levels, inside.memory_latency])
def test_a_chip_whose_insides_are_not_known_is_named(ask):
    with pytest.raises(InferlabError, match="t4"):
        ask(T4)
    with pytest.raises(InferlabError, match="MI300X"):
        inside.lanes(hardware.get("mi300x"))


def test_every_latency_belongs_to_a_chip_of_the_catalog():
    for name in ("v100-sxm2-32gb", "a100-sxm-80gb", "rtx-4090", "h100-sxm", "b200-sxm"):
        assert math.isfinite(inside.memory_latency(hardware.get(name)))
