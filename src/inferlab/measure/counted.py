"""The traffic of every Triton kernel, counted once and kept: the interpreter takes its time.

`python -m inferlab.measure.counted` counts anew. The counts depend on the kernels alone and on no
machine, so that a page may show them where Triton is missing.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from inferlab.measure import kernels
from inferlab.theory import units

_FILE = "traffic.json"


def kept() -> list[dict[str, Any]]:
    """Return the kept counts of all kernels, each as `kernels.count` returns it."""
    text = resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)
    return found


def count(ops: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Count the kernels of some ops here, or of all; see `kernels.count`."""
    return [kernels.count(case) for case in kernels.counted(ops)]


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return counts as lines of at most 76 letters: what must move, what did, and their ratio."""
    lines = [f"{'':50s}{'must':>9s}{'moved':>9s}{'ratio':>7s}"]
    before = ""
    for row in rows:
        op = "" if row["op"] == before else row["op"]
        before = row["op"]
        label = textwrap.shorten(row["label"], 32, placeholder="")
        moved = units.bytes_text(row["loaded_bytes"] + row["stored_bytes"])
        must = units.bytes_text(row["fewest_bytes"])
        lines.append(f"{op:17s}{label:33s}{must:>9s}{moved:>9s}{row['ratio']:7.2f}")
    return "\n".join(lines)


def main() -> None:
    """Count every kernel and write the file that the package keeps."""
    rows = []
    for case in kernels.counted():
        rows.append(kernels.count(case))
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr)
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    path = Path(__file__).with_name(_FILE)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
