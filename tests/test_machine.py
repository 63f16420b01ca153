"""This machine's two numbers: measured, kept, and read again only where they still hold."""

import dataclasses
import json

import pytest

from inferlab import machine
from inferlab.theory import costs, models, roofline


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Count measurements, and keep them in a folder of the test's own."""
    monkeypatch.setenv("INFERLAB_CACHE", str(tmp_path))
    made = machine.Machine(
        machine.name(), "cpu", 2, 1 << 34, 2e10, {"sum": 2e10}, {"fp32": 1e11},
        machine.chosen("cpu"), 1.0,
    )  # fmt: skip
    calls = []
    monkeypatch.setattr(machine, "measure", lambda: calls.append(1) or made)
    return tmp_path / "machine.json", calls


def test_numbers_are_kept_until_asked_for_again(measured):
    path, calls = measured
    first = machine.numbers()
    assert machine.numbers() == first
    assert len(calls) == 1
    machine.numbers(refresh=True)
    assert len(calls) == 2
    assert machine.Machine(**json.loads(path.read_text(encoding="utf-8"))) == first


@pytest.mark.parametrize("change", [{"name": "another"}, {"backends": {"prefill": "?"}}])
def test_numbers_of_another_machine_or_other_backends_do_not_count(measured, change):
    path, calls = measured
    machine.numbers()
    other = json.loads(path.read_text(encoding="utf-8")) | change
    path.write_text(json.dumps(other), encoding="utf-8")
    machine.numbers()
    assert len(calls) == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"name": 1}'])
def test_a_damaged_file_is_measured_anew(measured, damage):
    path, calls = measured
    path.write_text(damage, encoding="utf-8")
    assert machine.numbers().bandwidth == 2e10
    assert len(calls) == 1


def test_a_cache_that_cannot_be_written_only_means_measuring_again(measured, monkeypatch):
    path, calls = measured
    path.parent.joinpath("file").write_text("")
    monkeypatch.setenv("INFERLAB_CACHE", str(path.parent / "file" / "below"))
    machine.numbers()
    machine.numbers()
    assert len(calls) == 2


def test_a_measurement_is_of_this_machine(monkeypatch):
    monkeypatch.setattr(machine, "_BUDGET_SECONDS", 0.01)
    found = machine.measure()
    assert found.bandwidth == max(found.readers.values())
    assert {"sum", "copy", "matrix-vector"} <= set(found.readers)
    assert all(rate > 1e8 for rate in found.readers.values())
    assert found.flops["fp32"] > 1e9
    assert found.ridge["fp32"] == found.flops["fp32"] / found.bandwidth
    json.dumps(dataclasses.asdict(found), allow_nan=False)
    step = costs.decode_step(models.get("smollm2-135m"), 0, dtype="fp32")
    placed = roofline.place(step, found.hardware(), "fp32")
    assert placed.memory_seconds == step.bytes / found.bandwidth


def test_numbers_of_a_hurried_run_are_not_kept(measured, monkeypatch):
    path, calls = measured
    monkeypatch.setenv("INFERLAB_HURRY", "1")
    machine.numbers()
    assert not path.exists()
    assert len(calls) == 1
