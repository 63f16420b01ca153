"""The ridge over the years, and measured kernels under a roof: titles say what the data say."""

from __future__ import annotations

import pytest
from drawings import title, words

from inferlab.errors import InferlabError
from inferlab.figures import ridge, roofline, style
from inferlab.figures.sweep import FLAGSHIPS
from inferlab.theory import hardware

SWEEPS = {
    "chain": [(0.25, 2e9), (1.25, 9e9), (8.25, 60e9), (64.25, 90e9)],
    "matrix": [(0.5, 5e9), (2.0, 19e9), (62.0, 80e9)],
}


def test_the_16_bit_ridge_of_flagships_is_level_since_2022():
    """Claim 33, with its second check: 206 to 295 at dense 16 bit, cards above, fp8 twice that."""
    low, high = ridge.level()
    assert (round(low), round(high)) == (206, 295)
    assert {each.key for each in ridge.flagships()} == set(FLAGSHIPS)
    values = {each.key: round(each.value) for each in ridge.cards()}
    assert (values["l4"], values["l40s"], values["h100-pcie"]) == (403, 419, 378)
    narrow = {(each.key, each.dtype): round(each.value) for each in ridge.flagships("fp8")}
    assert narrow["h100-sxm", "fp8"] == 591
    assert [round(each.value) for each in ridge.flagships("fp4")] == [1125]


def test_the_fp32_ridge_fell():
    """Claim 33: from 16 to 10 between a K20X and a B200."""
    found = {each.key: each.value for each in ridge.flagships("fp32")}
    assert found["k20x"] == pytest.approx(15.8, abs=0.05)
    assert found["b200-sxm"] == pytest.approx(10.0)


def test_its_title_and_names_come_from_the_catalog():
    figure = ridge.plot()
    assert title(figure).startswith("At 16 bits a flagship's ridge has stood between 206 and 295")
    said = words(figure)
    for key in FLAGSHIPS:
        name = hardware.get(key).name.replace("Tesla ", "").split()[0]
        assert name in said
    for name in ("T4", "A10", "L4, L40S", "H100 PCIe", "fp8", "fp4"):
        assert name in said
    assert style.svg(ridge.plot()) == style.svg(ridge.plot())


def test_the_climb_says_how_near_each_roof_was_reached():
    figure = roofline.climb(100e9, 10e9, SWEEPS)
    assert title(figure) == "Measured: up to 100 % of the slanted roof and 90 % of the flat roof"
    said = words(figure)
    assert "○ chain" in said
    assert "◇ matrix" in said
    assert "100 GFLOP/s" in said
    assert title(roofline.climb(100e9, 10e9, SWEEPS, title="Mine")) == "Mine"


def test_a_climb_on_one_side_of_the_ridge_speaks_of_that_side():
    below = {"chain": SWEEPS["chain"][:2]}
    assert title(roofline.climb(100e9, 10e9, below)).endswith("80 % of the slanted roof")


def test_a_climb_needs_points():
    with pytest.raises(InferlabError, match="sweeps is empty"):
        roofline.climb(1e9, 1e9, {"chain": []})
