"""Bring the notebooks up to date with their text twins: `make sync`.

The twin in `book/chapters` is what you edit, so the twin wins. For each one: the setup cell is
written afresh with the repository's address out of `_config.yml`, the notebook takes over the
twin's cells, and it is executed again only if its code, or a part of the package that it uses, has
changed since its outputs were made.

    python tools/sync.py            # what is needed
    python tools/sync.py --all      # execute every notebook
    python tools/sync.py 04         # only those whose name starts so
    python tools/sync.py --check    # change nothing; say what would change, exit 1 if anything
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import sys
import time
import tomllib
from pathlib import Path

import jupytext
import nbformat
import yaml
from jupytext.combine import combine_inputs_with_outputs
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
TWINS, NOTEBOOKS, PACKAGE = ROOT / "book" / "chapters", ROOT / "notebooks", ROOT / "src"
#: Other files that name the repository; the last one says under which address they do.
STAMPED = ("README.md", "CITATION.cff", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml")

SETUP = """\
import importlib.util
import os

if not importlib.util.find_spec("inferlab"):  # Colab: torch stays as is
    home = "git+{address}"
    source = os.environ.get("INFERLAB_SOURCE", home)
    %pip install -q "inferlab[engine] @ {{source}}"
from inferlab import notebook

notebook.setup()"""


def address() -> str:
    """Return the repository's address, such as https://github.com/owner/name."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]


def stamped() -> str:
    """Return the address that the last stamping left."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["urls"]["Repository"]


def stamp(text: str, old: str, new: str) -> str:
    """Return `text` with the owner and name of `old` replaced by those of `new`, Colab's too."""
    return text.replace(old.removeprefix("https://github.com/"), new.split("github.com/")[1])


def setup_cell() -> str:
    """Return the first code cell of every notebook."""
    return SETUP.format(address=address())


def read_twin(twin: Path) -> NotebookNode:
    """Return the notebook that the text in `twin` stands for, with the setup cell of today."""
    book = jupytext.read(twin)
    first = next((cell for cell in book.cells if cell.cell_type == "code"), None)
    if first is None:
        raise SystemExit(f"{twin.name}: has no code cell")
    first.source = setup_cell()
    return book


def write_twin(book: NotebookNode) -> str:
    """Return the text twin of `book`, the same from every version of jupytext."""
    plain = nbformat.from_dict(book)
    plain.metadata = {"kernelspec": book.metadata["kernelspec"]}
    return re.sub(r"(?m)^ +jupytext_version:.*\n", "", jupytext.writes(plain, fmt="md:myst"))


def used_files(book: NotebookNode) -> list[Path]:
    """Return the files of the package that this notebook's code can reach, data files included."""
    import grimp

    graph = grimp.build_graph("inferlab", cache_dir=None)
    found = {name for cell in book.cells for name in _imports(cell) if name in graph.modules}
    for name in list(found):
        found |= graph.find_upstream_modules(name)
    for name in list(found):  # importing a.b runs a
        parts = name.split(".")
        found |= {".".join(parts[:i]) for i in range(1, len(parts))}
    files = set()
    for name in found - {"inferlab"}:  # of the package itself only the version shows
        path = PACKAGE.joinpath(*name.split("."))
        if path.is_dir():
            files.add(path / "__init__.py")
            data = (f for f in path.rglob("*") if f.is_file() and f.suffix != ".py")
            files |= {f for f in data if "__pycache__" not in f.parts}
        else:
            files.add(path.with_suffix(".py"))
    return sorted(file for file in files if file.exists())


def _imports(cell: NotebookNode) -> set[str]:
    if cell.cell_type != "code":
        return set()
    plain = re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", cell.source)
    names: set[str] = set()
    for node in ast.walk(ast.parse(plain)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def fingerprint(book: NotebookNode) -> str:
    """Return a hash of the notebook's code and of the parts of the package that it uses."""
    digest = hashlib.sha256()
    for cell in book.cells:
        if cell.cell_type == "code":
            digest.update(cell.source.encode())
            digest.update(repr(sorted(cell.metadata.get("tags", []))).encode())
    for file in used_files(book):
        digest.update(file.relative_to(ROOT).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def execute(book: NotebookNode) -> None:
    """Run every cell in place, in a fresh kernel in the notebooks' folder."""
    from nbclient import NotebookClient

    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    NotebookClient(book, timeout=300, resources=resources, record_timing=False).execute()
    book.metadata.pop("widgets", None)
    for cell in book.cells:
        for output in cell.get("outputs", []):  # a panel leaves its line of HTML, no state
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)


def tidy(book: NotebookNode) -> None:
    """Make the stored notebook depend on nothing but its cells and what they printed."""
    for number, cell in enumerate(book.cells):
        cell["id"] = f"cell-{number:02d}"
        cell.metadata.pop("execution", None)
    book.metadata.pop("language_info", None)
    book.metadata.pop("jupytext", None)  # jupytext.toml pairs them
    book.nbformat, book.nbformat_minor = 4, 5


def sync(twin: Path, *, run: bool, check: bool) -> bool:
    """Bring one notebook up to date with its twin; return whether anything had to change."""
    file = NOTEBOOKS / f"{twin.stem}.ipynb"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    book = read_twin(twin)
    mark = fingerprint(book)
    stale = run or not text
    if text:
        stored = nbformat.reads(text, as_version=4)
        stale |= stored.metadata.get("inferlab", {}).get("fingerprint") != mark
        book = combine_inputs_with_outputs(book, stored)
    if check and stale:
        return True
    if stale:
        start = time.perf_counter()
        execute(book)
        print(f"{twin.stem}: executed in {time.perf_counter() - start:.0f} s")
    book.metadata["inferlab"] = {"fingerprint": mark}
    tidy(book)
    made = nbformat.writes(book) + "\n"
    paired = write_twin(book)
    changed = made != text or paired != twin.read_text(encoding="utf-8")
    if changed and not check:
        file.write_text(made, encoding="utf-8")
        twin.write_text(paired, encoding="utf-8")
    return changed


def main() -> None:
    """Sync what the command line names."""
    parser = argparse.ArgumentParser(description="Bring notebooks up to date with their twins.")
    parser.add_argument("names", nargs="*", help="starts of notebook names; all if left out")
    parser.add_argument("--all", action="store_true", help="execute again even if nothing changed")
    parser.add_argument("--check", action="store_true", help="only say what would change")
    options = parser.parse_args()
    changed, old, new = [], stamped(), address()
    for name in STAMPED:
        text = (ROOT / name).read_text(encoding="utf-8")
        if stamp(text, old, new) != text:
            changed.append(name)
            if not options.check:
                (ROOT / name).write_text(stamp(text, old, new), encoding="utf-8")
    for twin in sorted(TWINS.glob("*.md")):
        wanted = not options.names or any(twin.name.startswith(start) for start in options.names)
        if wanted and sync(twin, run=options.all, check=options.check):
            changed.append(twin.stem)
    print("\n".join(changed) if changed else "everything is up to date")
    sys.exit(1 if options.check and changed else 0)


if __name__ == "__main__":
    main()
