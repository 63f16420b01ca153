"""The setup cell says on which machine it runs, and with what."""

from __future__ import annotations

import matplotlib as mpl

import inferlab
from inferlab import machine, notebook, records


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
