"""The kept table of traffic is what the kernels of today move."""

from __future__ import annotations

import pytest

from inferlab.measure import counted, kernels, traffic

needs_counting = pytest.mark.skipif(
    traffic.why_not() is not None, reason=traffic.why_not() or "counting works"
)
#: Some that take a second; the slow test below counts all.
QUICK = ("vector_add", "softmax")


def test_nothing_kept_moves_too_much_or_reads_where_nothing_is():
    rows = counted.kept()
    assert len({(row["op"], row["label"]) for row in rows}) == len(rows)
    for row in rows:
        assert row["outside_bytes"] == 0, row
        moved = row["loaded_bytes"] + row["stored_bytes"]
        assert row["ratio"] == pytest.approx(moved / row["fewest_bytes"])
        assert row["ratio"] >= 1, row
        if row["memory_bound"]:
            assert row["ratio"] <= kernels.LIMIT, row
    assert any(not row["memory_bound"] for row in rows)


@needs_counting
def test_every_kernel_is_in_the_kept_table():
    found = [(case.op, case.label) for case in kernels.counted()]
    kept = [(row["op"], row["label"]) for row in counted.kept()]
    assert kept == found, "python -m inferlab.measure.counted"


@needs_counting
def test_kept_counts_are_those_of_today():
    kept = [row for row in counted.kept() if row["op"] in QUICK]
    assert counted.count(QUICK) == kept, "python -m inferlab.measure.counted"


@needs_counting
@pytest.mark.slow
def test_all_kept_counts_are_those_of_today():
    assert counted.count() == counted.kept(), "python -m inferlab.measure.counted"


def test_the_table_fits_a_page_and_names_an_op_once():
    lines = counted.table(counted.kept()).splitlines()
    assert max(map(len, lines)) <= 76
    assert sum(line.startswith("softmax") for line in lines) == 1
    assert lines[0].split() == ["must", "moved", "ratio"]
