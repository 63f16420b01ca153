"""Each notebook is executed, equal to its text twin, light, and readable wherever it is opened.

That its outputs are those of today's code is what nbval checks: `make notebooks`.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
import sync
import yaml

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EACH = pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda f: f.stem)
#: Directives and roles are MyST; Colab and Jupyter would show them as they are typed.
NOT_COMMONMARK = re.compile(
    r"^ {0,3}(:{3,}|`{3,}\{|~{3,}\{|%|\(\S+\)=$)|\{[a-z:]+\}`", re.MULTILINE
)
IGNORED = {"nbval-ignore-output", "nbval-skip"}


def read(file: Path) -> nbformat.NotebookNode:
    return nbformat.read(file, as_version=4)


def code(file: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in read(file).cells if cell.cell_type == "code"]


def test_every_twin_has_its_notebook_and_stands_in_the_contents():
    twins = {f.stem for f in (ROOT / "book" / "chapters").glob("*.md")}
    assert twins == {f.stem for f in NOTEBOOKS}
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    assert twins == set(re.findall(r"file: notebooks/(\S+)", toc))


@EACH
def test_cells_equal_the_text_twin(file):
    twin = sync.read_twin(ROOT / "book" / "chapters" / f"{file.stem}.md")
    stored = read(file)
    nbformat.validate(stored)

    def cells(book):
        return [(c.cell_type, c.source, sorted(c.metadata.get("tags", []))) for c in book.cells]

    assert cells(stored) == cells(twin), "make sync"


@EACH
def test_every_code_cell_was_executed_in_order_and_without_complaint(file):
    cells = code(file)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        for output in cell.outputs:
            assert output.output_type != "error", output
            assert output.get("name") != "stderr", output.text


@EACH
def test_the_first_code_cell_is_the_setup_cell(file):
    first = code(file)[0]
    assert first.source == sync.setup_cell(), "make sync"
    assert sync.address() in first.source
    assert IGNORED & set(first.metadata.tags)


@EACH
def test_it_opens_with_a_title_and_a_question(file):
    opening = read(file).cells[0]
    assert opening.cell_type == "markdown"
    lines = [line for line in opening.source.splitlines() if line.strip()]
    assert lines[0].startswith("# ")
    assert lines[1].startswith("*")
    assert lines[1].endswith("?*")


@EACH
def test_it_is_light_and_holds_no_widget(file):
    assert file.stat().st_size < 400_000
    book = read(file)
    assert "widgets" not in book.metadata
    for cell in code(file):
        for output in cell.outputs:
            assert not any("widget" in kind for kind in output.get("data", {}))


@EACH
def test_its_text_reads_the_same_in_colab_and_in_the_book(file):
    for cell in read(file).cells:
        if cell.cell_type == "markdown":
            plain = re.sub(r"(?s)\$\$.*?\$\$|`[^`\n]+`", "", cell.source)
            assert not (found := NOT_COMMONMARK.search(plain)), found[0]


@EACH
def test_most_cells_are_compared(file):
    cells = code(file)[1:]  # the setup cell names the machine
    ignored = [cell for cell in cells if IGNORED & set(cell.metadata.get("tags", []))]
    assert 2 * len(ignored) <= len(cells), "most cells are ignored: the notebook is hollow"


@EACH
def test_compared_cells_hold_still(file):
    """No address of an object, no time of day, and no `;`, which nbval does not honour."""
    for cell in code(file):
        if IGNORED & set(cell.metadata.get("tags", [])):
            continue
        assert not cell.source.rstrip().endswith(";"), cell.source
        text = str(cell.outputs)
        assert not re.search(r"\bat 0x[0-9a-f]{6,}", text), cell.source
        assert not re.search(r"\d\d:\d\d:\d\d", text), cell.source
        assert "image/png" not in text, "draw with figures.style, so that nbval can compare"


@EACH
def test_nothing_installs_torch_or_assumes_a_gpu(file):
    for cell in code(file):
        assert not re.search(r"pip install\b[^\n]*\b(torch|triton|numpy)\b", cell.source)
        assert not re.search(
            r"""\.cuda\(|(device ?= ?|[.(]to\(|device\()["']cuda|["']cuda:""", cell.source
        ), "leave the choice of device to the package"


def test_the_address_stands_once_and_is_stamped_everywhere():
    home = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]
    assert home.startswith("https://github.com/")
    assert sync.stamped() == home, "make sync"
    for name in ("README.md", "CITATION.cff"):
        assert home in (ROOT / name).read_text(encoding="utf-8")


def test_a_fork_is_stamped_by_its_own_name():
    old, new = "https://github.com/inferlab/llm-book", "https://github.com/ada/inference"
    colab = "https://colab.research.google.com/github/{}/blob/main/notebooks/a.ipynb"
    text = f"{old}.git {colab.format('inferlab/llm-book')} inferlab generate"
    stamped = sync.stamp(text, old, new)
    assert stamped == f"{new}.git {colab.format('ada/inference')} inferlab generate"
    assert sync.stamp(stamped, new, old) == text


def test_a_notebook_is_stale_when_the_part_of_the_package_that_it_uses_changes():
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("from inferlab.theory import roofline")]
    )
    used = {file.relative_to(ROOT).as_posix() for file in sync.used_files(book)}
    assert "src/inferlab/theory/roofline.py" in used
    assert "src/inferlab/errors.py" in used
    assert any(name.endswith(".csv") for name in used), "the catalogs count too"
    assert not any(name.startswith("src/inferlab/engine") for name in used)
