"""Every correction of the articles is on the list, and its numbers are the published ones."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from inferlab.theory import errata

REFERENCES = Path(__file__).parents[2] / "book" / "references.bib"
ERRATA = {entry.number: entry for entry in errata.all()}
#: The statements that a check of the articles found wrong, and those that need a condition.
WRONG = {11, 33, 43, 58, 78, 108}
CAVEATS = {
    *(1, 2, 6, 8, 9, 10, 13, 16, 17, 24, 28, 29, 30, 34, 40, 45, 47, 48, 50, 52, 53, 55, 65, 71),
    *(74, 75, 76, 82, 83, 85, 92, 93, 95, 96, 97, 106, 107, 109, 113, 116),
}
#: What the numbers must be, from datasheets, publications and arithmetic on paper.
EXPECTED = {
    1: {"logistic": 0.5, "decode": 1.0},
    2: {"shallow": 1000, "deep": 2000},
    6: {"parameters": 61_706, "year": 2012, "times": 60_965_224 / 61_706},
    8: {"epyc": 96, "xeon": 56},
    9: {"peak": 115, "ridge": 373, "gpu": 295, "slow": 307, "fast": 3350},
    10: {"lanes": 16_896, "share": 93.7},
    11: {"cuda": 2007, "alexnet": 2012},
    13: {"pairs": 2_098_176},
    16: {"windowed": 2.07, "full": 4.0},
    17: {"large": 1.9, "small": 25, "half": 104_450, "small_half": 6_144},
    24: {"eager": 15, "compiled": 70},
    28: {"vector": 17.0, "bf16": 251, "fp8": 503},
    29: {"vector": 25.6, "tensor": 51.1, "k20": 57},
    30: {"k20x": 13.4, "k20": 16.1},
    33: {"h100": 295, "h200": 206, "b200": 281, "l4": 403, "fp4": 1125},
    34: {"before": 2017 - 1995},
    40: {"dense": 80, "moe": 36},
    43: {"share": 81.7, "two": 50.2},
    45: {"others": 12},
    47: {"streamed": 15.01, "total": 16.06},
    48: {"b1": 8, "b8": 57, "b64": 222},
    50: {"share": 25},
    52: {"macs": 1000, "flops": 2000},
    53: {"bf16": 295, "int4": 74},
    55: {"many": 2000, "one": 1},
    65: {"ideal": 145.9, "fused": 186, "unfused": 249, "intensity": 1991, "least": 1165},
    71: {"int8": 2, "int4": 4},
    74: {"weights": 137.95, "room": 85.5, "one": 24.38, "h200": 34.9, "two": 48.8},
    75: {"l2": 126, "file": 96.4},
    76: {"one": 105, "two": 169, "four": 254, "eight": 328},
    78: {"share": 5},
    82: {"matrices": 500.5, "attention": 333, "time": 1.84},
    83: {"total": 4},
    85: {"width": 576, "latent": 70_272, "gqa": 327_680},
    92: {"seven": 7, "seventy": 26},
    93: {"alone": 0.407, "crowded": 88.6},
    95: {"tpot": 40, "longest": 100},
    96: {"ms": 3.35, "percent": 17},
    97: {"throughput": 2000, "goodput": 10, "requests": 20},
    106: {"matrices": 1000},
    107: {"share": 4.1},
    108: {"less": 3.8},
    109: {"scale": 8, "others": 8},
    113: {"own": 8, "context": 1447},
    116: {"rows": 9, "most": 0.6},
}


def test_every_correction_is_on_the_list_once_and_in_order():
    numbers = [entry.number for entry in errata.all()]
    assert numbers == sorted(set(numbers))
    assert {n for n in ERRATA if ERRATA[n].verdict == "wrong"} == WRONG
    assert {n for n in ERRATA if ERRATA[n].verdict == "caveat"} == CAVEATS


@pytest.mark.parametrize("number", ERRATA)
def test_a_correction_has_the_published_numbers_and_uses_each_of_them(number):
    entry = ERRATA[number]
    values = entry.values()
    fields = {name for _, name, _, _ in string.Formatter().parse(entry.right) if name}
    assert fields == set(values) == set(EXPECTED.get(number, {}))
    for name, value in values.items():
        loose = 0.15 if (number, name) == (116, "most") else 0.02
        assert value == pytest.approx(EXPECTED[number][name], rel=loose), name
    assert "{" not in entry.text


@pytest.mark.parametrize("number", ERRATA)
def test_a_correction_is_short_enough_to_be_read(number):
    entry = ERRATA[number]
    assert 20 <= len(entry.said) <= 110
    assert 40 <= len(entry.text) <= 330
    assert entry.said.endswith(".")
    assert entry.text.endswith(".")


def test_the_authors_and_the_year_are_those_of_the_article_itself():
    entry = re.search(r"williams2009roofline,(.*?)\n}", REFERENCES.read_text("utf-8"), re.DOTALL)
    field = dict(re.findall(r"(\w+)\s*=\s*{(.*?)}", entry[1]))
    names = (" ".join(reversed(name.split(", "))) for name in field["author"].split(" and "))
    assert all(name in ERRATA[58].text for name in names)
    assert field["year"] in ERRATA[58].text


def test_each_correction_computes_its_numbers():
    """What has no number stands here: a name, which the test above looks up."""
    assert {n for n, entry in ERRATA.items() if not entry.values()} == {58}
