"""Records hold what their schema says, and a new one is measured and not made up."""

import copy
import dataclasses
import json

import jsonschema
import pytest

from inferlab import machine, records
from inferlab.errors import InferlabError
from inferlab.measure import (
    attention,
    batch,
    clock,
    kernels,
    passes,
    peer,
    prefill,
    record,
    roofline,
)
from inferlab.theory import models

VALIDATOR = jsonschema.Draft202012Validator(records.schema())


def few_runs(patch):
    """Let everything be measured once, and nothing but our own engine."""
    patch.setattr(machine, "READ_BYTES", 32 << 20)
    patch.setattr(machine, "_BUDGET_SECONDS", 0.01)
    patch.setattr(clock, "MOST", 1)
    patch.setattr(clock, "_FEWEST", 1)
    for module in (passes, batch, roofline):
        patch.setattr(module, "_MOST_RUNS", 1)
    patch.setattr(record, "_STEP_RUNS", 1)
    patch.setattr(kernels, "_ROUNDS", 1)
    patch.setattr(record, "ANSWER_TOKENS", 8)
    patch.setattr(record, "CONTEXTS", {"cpu": (1, 8)})
    patch.setattr(record, "TOKENS", {"cpu": (1, 2, 4)})
    patch.setattr(record, "ATTENTION", {"cpu": (64, 128)})
    patch.setattr(record, "PROMPTS", {"cpu": (32,)})
    for sizes in (attention._PAST_CACHES, kernels._PAST_CACHES, roofline._BYTES):
        patch.setitem(sizes, "cpu", 1 << 20)
    patch.setattr(prefill, "TOKENS", (4, 8))
    patch.setattr(peer, "why_not", lambda model: "left out")


@pytest.fixture(scope="module")
def made():
    """A record of this machine with as few runs as there can be."""
    patch = pytest.MonkeyPatch()
    few_runs(patch)
    yield record.record(None, "inferlab record --quick", quick=True)
    patch.undo()


@pytest.fixture(scope="module")
def random_made():
    """A record as a GPU makes it, with random weights of a catalog's shape; but here."""
    patch = pytest.MonkeyPatch()
    few_runs(patch)
    patch.setattr(record, "GPU_MODEL", "smollm2-135m")
    patch.setattr(record, "GPU_MODELS", ("smollm2-135m", "smollm2-135m"))
    right = machine.measure
    here = dataclasses.replace(right(), device="cuda")
    patch.setattr(machine, "measure", lambda: here)
    for settings in (record.CONTEXTS, record.TOKENS, record.ATTENTION, record.PROMPTS):
        settings["cuda"] = settings["cpu"]
    for name in ("_ceilings", "_roofline", "_attention"):
        own = getattr(record, name)
        patch.setattr(record, name, lambda device, *rest, own=own: own("cpu", *rest))
    yield record.record(None, "inferlab record --quick", quick=True)
    patch.undo()


def test_a_hurried_run_makes_no_record(monkeypatch):
    monkeypatch.setenv("INFERLAB_HURRY", "1")
    with pytest.raises(InferlabError, match="INFERLAB_HURRY is set"):
        record.record(None, "inferlab record")


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(records.schema())
    assert records.schema()["properties"]["schema"]["const"] == records.SCHEMA


@pytest.mark.parametrize("name", records.names())
def test_committed_records_hold_what_the_schema_says(name):
    kept = records.get(name)
    VALIDATOR.validate(kept)
    assert kept["name"] == name
    assert kept["made"]["changed"] is False  # the commit it names is what was measured
    shape = models.get(kept["model"]["key"])
    assert kept["model"]["streamed_bytes"] >= shape.params  # a byte a weight at the least
    for part in ("passes", "context"):
        assert len(kept[part]["tokens"]) == len(kept[part]["samples"])
        assert kept[part]["tokens"] == sorted(set(kept[part]["tokens"]))
    times = [piece["t"] for piece in kept.get("request", {}).get("pieces", [])]
    assert times == sorted(times)


def test_no_recorded_step_beats_the_bytes_it_moves():
    for kept in records.all():
        least = kept["model"]["streamed_bytes"] / kept["machine"]["bandwidth"]
        assert min(kept["step"]["auto"]) > 0.9 * least, kept["name"]
        for entry in kept.get("decode", []):
            assert entry["fraction"] < 1.1, (kept["name"], entry["by"], entry["weights"])


def test_a_new_record(made, tmp_path):
    VALIDATOR.validate(made)
    assert made["notes"] == {}
    everything = set(records.schema()["properties"])
    assert set(made) == everything
    assert made["model"]["key"] == "smollm2-135m"
    assert made["machine"]["bandwidth"] == max(made["machine"]["readers"].values())
    assert "".join(piece["text"] for piece in made["request"]["pieces"])
    said = [(entry["by"], entry["weights"]) for entry in made["decode"]]
    assert said == [("inferlab", kind) for kind in ("q4_1", "fp32", "q8_0", "q4_0")]
    for entry in made["decode"]:
        rate = entry["bytes"] / records.median(entry["samples"])
        assert entry["fraction"] == pytest.approx(rate / entry["bandwidth"])
    assert {series["kind"] for series in made["attention"]} == {"decode", "prefill"}
    path = record.write(made, tmp_path / "mine.json")
    assert records.load(path) == json.loads(path.read_text(encoding="utf-8")) == made


def test_case_60_every_sample_says_how_many_runs_came_before_it(made):
    def samples(part, within):
        if isinstance(part, dict):
            within = within or "warm_ups" in part
            for name, value in part.items():
                if name == "samples" or name in ("torch", "auto", "reads"):
                    yield within
                yield from samples(value, within)
        elif isinstance(part, list):
            for value in part:
                yield from samples(value, within)

    counted = {k: v for k, v in made.items() if k not in ("roofline", "machine", "versions")}
    found = list(samples(counted, False))
    assert len(found) > 20
    assert all(found)


@pytest.mark.slow
def test_a_record_of_random_weights_where_there_is_no_checkpoint(random_made):
    VALIDATOR.validate(random_made)
    assert random_made["notes"] == {}
    assert random_made["model"]["random"]
    assert "request" not in random_made
    said = [(entry["model"], entry["weights"]) for entry in random_made["decode"]]
    assert said == [("smollm2-135m", kind) for kind in ("fp32", "q8_0", "q4_0", "fp32")]


def test_a_part_that_fails_is_named_and_the_others_stay():
    parts = record._Parts(lambda _: None)
    parts.add("decode", "the first", lambda: [1])
    parts.add("decode", "the second", lambda: 1 // 0)
    parts.add("decode", "the third", lambda: [3])
    assert parts.found == {"decode": [1, 3]}
    assert list(parts.notes) == ["the second"]
    assert parts.notes["the second"].startswith("ZeroDivisionError: ")


def test_damage_is_named(made, tmp_path):
    (tmp_path / "no.json").write_text("{", encoding="utf-8")
    with pytest.raises(InferlabError, match=r"no\.json cannot be read"):
        records.load(tmp_path / "no.json")
    with pytest.raises(InferlabError, match="schema must be 2"):
        records.check(made | {"schema": 1})
    with pytest.raises(InferlabError, match="passes missing"):
        records.check({key: value for key, value in made.items() if key != "passes"})
    broken = copy.deepcopy(made)
    broken["passes"]["samples"][0] = [-1.0]
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(broken)
    with pytest.raises(InferlabError, match="unknown record"):
        records.get("cpu-none")
    with pytest.raises(InferlabError, match="cannot be written"):
        record.write(made, tmp_path / "absent" / "x.json")


def test_a_shape_of_no_catalog_is_refused():
    class Odd:
        name = "odd"

        class model:
            class config:
                @staticmethod
                def shape():
                    return models.get("gpt-2").__class__(
                        "odd", layers=1, hidden=8, intermediate=8, heads=1, kv_heads=1,
                        head_dim=8, vocab=9, tied=True, max_context=8,
                    )  # fmt: skip

    with pytest.raises(InferlabError, match="none of the catalog's"):
        record._catalog_key(Odd())
