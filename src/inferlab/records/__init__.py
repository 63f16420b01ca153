"""Measurements that came with the package, one file a device: `records.get("cpu-xeon-2-cores")`.

`inferlab record` writes them; nothing in them is typed by hand. `schema.json` says what a record
holds. Times are raw samples in seconds, so that a reader can see their spread; `median` is what
the book plots.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from inferlab.errors import InferlabError, unknown

#: The version of `schema.json`; a record of another one is refused.
SCHEMA = 2
_SCHEMA_FILE = "schema.json"

Record = dict[str, Any]


def names() -> list[str]:
    """Return the names of the records that came with the package."""
    files = (Path(file.name) for file in resources.files(__name__).iterdir())
    return sorted(f.stem for f in files if f.suffix == ".json" and f.name != _SCHEMA_FILE)


def get(name: str) -> Record:
    """Return the record called `name`; raises InferlabError, with the nearest names, if none is."""
    if name not in names():
        raise unknown("record", name, names())
    return _read(name)


def all() -> list[Record]:
    """Return every record, in the order of `names`."""
    return [_read(name) for name in names()]


def load(path: Path) -> Record:
    """Return the record in a file of the reader's own."""
    try:
        return check(json.loads(path.read_text(encoding="utf-8")), str(path))
    except (OSError, ValueError) as error:
        raise InferlabError(f"{path} cannot be read as a record ({error})") from None


def check(record: Any, where: str = "record") -> Record:
    """Return `record` if it has this version's parts; `schema.json` holds the rest of the rules."""
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise InferlabError(f"{where}: schema must be {SCHEMA}; make it anew with inferlab record")
    missing = [part for part in schema()["required"] if part not in record]
    if missing:
        raise InferlabError(f"{where}: {', '.join(missing)} missing")
    return record


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a record."""
    text = resources.files(__name__).joinpath(_SCHEMA_FILE).read_text(encoding="utf-8")
    return dict(json.loads(text))


def medians(sweep: Record, setting: str = "tokens") -> dict[str, Any]:
    """Return `label`-less points of a sweep: its settings, and the median seconds of each."""
    return {setting: sweep[setting], "seconds": [median(s) for s in sweep["samples"]]}


def median(samples: Sequence[float]) -> float:
    """Return the median of raw samples, in seconds."""
    return statistics.median(samples)


@cache
def _read(name: str) -> Record:
    text = resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    return check(json.loads(text), name)
