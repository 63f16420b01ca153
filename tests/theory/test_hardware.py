"""The catalog of chips: dense figures, honest capacities, formats that exist."""

from __future__ import annotations

import pytest

from inferlab.errors import InferlabError
from inferlab.theory import formats, hardware


def test_dense_peaks_not_the_sparse_headline():
    """Case 63: vendors print twice the dense rate; a T4 has fp16 and no bf16."""
    tera = {key: hardware.get(key).flops.get("bf16", 0) / 1e12 for key in hardware.names()}
    assert tera["h100-sxm"] == pytest.approx(989, rel=1e-3)
    assert tera["h100-pcie"] == 756
    assert tera["a100-sxm-80gb"] == 312
    t4 = hardware.get("t4")
    assert t4.peak("fp16") == 65e12
    assert t4.default_dtype == "fp16"
    with pytest.raises(InferlabError, match="use fp16"):
        t4.peak("bf16")


@pytest.mark.parametrize("chip", hardware.all(), ids=lambda chip: chip.key)
def test_every_chip_is_whole(chip):
    assert chip.key == chip.key.lower()
    assert " " not in chip.key
    assert chip.source
    assert chip.memory_basis
    assert chip.year
    assert chip.flops
    assert all(rate > 0 for rate in chip.flops.values())
    assert 1 < chip.ridge(chip.default_dtype) < 1000
    assert chip.memory_bytes is None or chip.sweep_seconds == chip.memory_bytes / chip.bandwidth


@pytest.mark.parametrize("chip", hardware.all(), ids=lambda chip: chip.key)
def test_bandwidth_is_pins_times_rate(chip):
    """Claim 27: every row within 2 % once the bits are divided by 8."""
    assert chip.pin_bandwidth == pytest.approx(chip.bandwidth, rel=0.025)


def test_capacities_are_what_drivers_report():
    assert hardware.get("h100-sxm").memory_bytes == 81_559 * 2**20
    assert hardware.get("h200-sxm").memory_bytes == 143_771 * 2**20
    assert hardware.get("epyc-9654").memory_bytes is None


def test_block_formats_are_widened_where_there_are_no_units_for_them():
    h100, t4, k20x = (hardware.get(key) for key in ("h100-sxm", "t4", "k20x"))
    assert h100.arithmetic("q4_0") == "bf16"
    assert t4.arithmetic("q4_0") == "fp16"
    assert k20x.arithmetic("q4_0") == "fp32"
    with pytest.raises(InferlabError, match="no fp8 arithmetic"):
        hardware.get("a100-sxm-80gb").peak("fp8")
    with pytest.raises(InferlabError, match="unknown dtype"):
        h100.peak("bf61")


def test_unknown_chips_suggest_the_nearest():
    with pytest.raises(InferlabError, match="h100-sxm"):
        hardware.get("h100-smx")
    assert hardware.get("H100-SXM") is hardware.get("h100-sxm")


def test_bytes_per_element():
    assert formats.bytes_per_element("fp32") == 4
    assert formats.bytes_per_element("bf16") == formats.bytes_per_element("float16") == 2
    assert formats.bytes_per_element("fp8") == formats.bytes_per_element("int8") == 1
    assert formats.bytes_per_element("Q8_0") == 34 / 32
    assert formats.bytes_per_element("Q4_1") == 20 / 32
    assert formats.bytes_per_element("Q4_0") == 18 / 32


@pytest.mark.parametrize("name", ["q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "q6_k", "q5_k", "q4_k"])
def test_block_sizes_equal_those_of_gguf(name):
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[name.upper()]
    assert gguf.GGML_QUANT_SIZES[kind] == (formats.get(name).block, formats.get(name).block_bytes)
