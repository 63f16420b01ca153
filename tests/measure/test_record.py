"""Records hold what their schema says, and a new one is measured and not made up."""

import copy
import json

import jsonschema
import pytest

from inferlab import records
from inferlab.engine import LLM
from inferlab.errors import InferlabError
from inferlab.measure import passes, record
from inferlab.theory import models

VALIDATOR = jsonschema.Draft202012Validator(records.schema())


@pytest.fixture(scope="module")
def made():
    """A record of this machine with as few runs as there can be."""
    patch = pytest.MonkeyPatch()
    patch.setattr(passes, "_MOST_RUNS", 1)
    patch.setattr(record, "_STEP_RUNS", 1)
    patch.setattr(record, "ANSWER_TOKENS", 8)
    yield record.record(LLM.load(), "inferlab record --quick", quick=True)
    patch.undo()


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
    times = [piece["t"] for piece in kept["request"]["pieces"]]
    assert times == sorted(times)


def test_no_recorded_step_beats_the_bytes_it_moves():
    for kept in records.all():
        least = kept["model"]["streamed_bytes"] / kept["machine"]["bandwidth"]
        assert min(kept["step"]["auto"]) > 0.9 * least, kept["name"]


def test_a_new_record(made, tmp_path):
    VALIDATOR.validate(made)
    assert made["model"]["key"] == "smollm2-135m"
    assert made["machine"]["bandwidth"] == max(made["machine"]["readers"].values())
    assert "".join(piece["text"] for piece in made["request"]["pieces"])
    path = record.write(made, tmp_path / "mine.json")
    assert records.load(path) == json.loads(path.read_text(encoding="utf-8")) == made


def test_damage_is_named(made, tmp_path):
    (tmp_path / "no.json").write_text("{", encoding="utf-8")
    with pytest.raises(InferlabError, match=r"no\.json cannot be read"):
        records.load(tmp_path / "no.json")
    with pytest.raises(InferlabError, match="schema must be 1"):
        records.check(made | {"schema": 2})
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
