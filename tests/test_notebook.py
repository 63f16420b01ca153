"""The setup cell says on which machine it runs, and with what."""

from __future__ import annotations

import subprocess
import sys

import matplotlib as mpl
import pytest

import inferlab
from inferlab import machine, notebook, records
from inferlab.measure import ladder


def test_setup_names_the_machine_and_what_is_recorded(capsys, monkeypatch):
    monkeypatch.setattr(records, "all", lambda: [{"machine": {"name": "NVIDIA H200"}}])
    notebook.setup()
    said = capsys.readouterr().out
    assert inferlab.__version__ in said
    assert machine.name() in said
    assert "NVIDIA H200" in said
    assert mpl.rcParams["svg.hashsalt"] == "inferlab"


def test_setup_says_when_there_is_torch_alone(capsys, monkeypatch):
    monkeypatch.setenv("INFERLAB_HIDE", "numba,triton")
    monkeypatch.setattr(records, "all", list)
    notebook.setup()
    said = capsys.readouterr().out
    assert "torch alone" in said
    assert "nothing yet" in said


def test_a_listing_is_the_source_of_what_runs():
    listing = notebook.source(ladder.dot, ladder.matmul)
    assert repr(listing).startswith("def dot(a, b, total):\n")
    assert "        total += a[i] * b[i]\n" in repr(listing)
    assert "\n\n\ndef matmul(" in repr(listing)
    assert listing._repr_markdown_() == f"```python\n{listing!r}\n```"


SHOW = (
    "from inferlab import notebook; from inferlab.kernels.gpu import matmul;"
    "print(notebook.source(matmul.matmul_kernel))"
)


@pytest.mark.parametrize("hidden", ["", "triton"])
def test_a_kernel_is_shown_with_and_without_its_compiler(hidden, monkeypatch):
    monkeypatch.setenv("INFERLAB_HIDE", hidden)
    command = [sys.executable, "-c", SHOW]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("@jit\ndef matmul_kernel(")
    assert "tl.dot(x, y, total" in shown
    assert "type: ignore" not in shown
    assert "fmt: skip" not in shown
