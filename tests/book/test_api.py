"""The package's pages name every public module, and each of them exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = {
    name
    for page in (ROOT / "book" / "api").glob("*.md")
    for name in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))
}
#: Parts of the package that a reader of the book calls by name.
PACKAGES = ("theory", "classical", "model", "engine", "measure", "records", "server")
#: Modules that only others of the package call.
INNER = {
    "inferlab.engine.cpu_step",
    "inferlab.model.gguf_tokenizer",
}


def test_every_module_that_is_shown_exists():
    assert all(importlib.util.find_spec(name) for name in SHOWN)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_module_is_shown(package):
    folder = ROOT / "src" / "inferlab" / package
    modules = {
        f"inferlab.{package}.{file.stem}"
        for file in folder.glob("*.py")
        if not file.stem.startswith("_")
    }
    missing = modules - SHOWN - INNER
    assert not missing, f"add to book/api: {sorted(missing)}"
