"""Live panels: driven in process, without their widgets, and by hand in JupyterLab."""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import inferlab.notebook
from inferlab.errors import InferlabError
from inferlab.panels import Panel, panel


def bars(height: int = 1, colour: str = "red", grid: bool = True):
    """Draw one bar, as an experiment would draw its result."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    axes.bar(["here"], [height], color=colour)
    axes.set_title(f"The bar is {height} high", loc="left")
    axes.grid(grid)
    return figure


def test_run_draws_what_the_controls_say():
    live = panel(bars, height=[1, 2, 5], colour={"warm": "orange", "cold": "blue"}, grid=True)
    live.controls["height"].value = 2
    live.button.click()
    first = live.result.value
    assert "<svg" in first
    assert "The bar is 2 high" in first
    assert live.status.value.startswith("Done in")
    live.controls["height"].value = 5
    live.controls["colour"].label = "cold"
    assert live.result.value == first  # nothing runs before the button is pressed
    live.button.click()
    assert "The bar is 5 high" in live.result.value
    assert live.result.value != first
    assert not live.button.disabled


def test_controls_start_at_their_first_value():
    live = panel(dict, batch=[4, 8], context=(16, 64, 16), graph=False, step=(1, 3))
    values = {name: widget.value for name, widget in live.controls.items()}
    assert values == {"batch": 4, "context": 16, "graph": False, "step": 1}
    live.start()
    assert "{&#x27;batch&#x27;: 4" in live.result.value  # text is escaped and shown as it is


def test_a_failing_experiment_says_why_and_can_run_again():
    def fragile(batch: int) -> str:
        if batch == 2:
            raise InferlabError("batch: 1 fits here")
        return str(1 // (batch - 3))

    live = panel(fragile, batch=[2, 3, 4])
    live.start()
    assert live.status.value == "batch: 1 fits here"
    live.controls["batch"].value = 3
    live.start()
    assert live.status.value.startswith("ZeroDivisionError")
    live.controls["batch"].value = 4
    live.start()
    assert live.status.value.startswith("Done")
    assert "1" in live.result.value


def test_wrong_controls_are_named():
    with pytest.raises(InferlabError, match="at least one"):
        panel(bars)
    with pytest.raises(InferlabError, match=r"height: a range is"):
        panel(bars, height=(1, 2, 3, 4))
    with pytest.raises(InferlabError, match=r"height: give at least one choice"):
        panel(bars, height=[])


def test_a_page_without_a_kernel_shows_one_line(monkeypatch):
    bundle = panel(bars, height=[1, 2], bar_colour=["red"])._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "choose height and bar colour" in bundle["text/html"]
    monkeypatch.setitem(sys.modules, "ipywidgets", None)  # importing it fails
    plain = panel(bars, height=[1, 2], bar_colour=["red"])
    assert set(plain._repr_mimebundle_()) == {"text/plain", "text/html"}
    assert "`make lab`" in repr(plain)
    assert "\n" not in repr(plain)


CHAPTERS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def panel_of(notebook: Path):
    """Run a chapter's cells as far as its panel, and return that."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    scope: dict = {"__name__": "__main__", "notebook": inferlab.notebook}  # as the setup cell does
    for cell in cells:
        code = "".join(cell["source"])
        if cell["cell_type"] == "code" and not re.search("^ *%pip", code, re.MULTILINE):
            tree = ast.parse(code)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, notebook.stem, "exec"), scope)
            if last and isinstance(last.value, ast.Call):
                shown = eval(compile(ast.Expression(last.value), notebook.stem, "eval"), scope)
                if isinstance(shown, Panel):
                    return shown
    raise AssertionError(f"{notebook.name} has no live panel")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("notebook", CHAPTERS, ids=lambda file: file.stem)
def test_each_chapters_panel_runs_its_experiment(notebook):
    live = panel_of(notebook)
    assert live.controls
    seen = set()
    for name, widget in [("as it opens", None), *live.controls.items()]:
        if widget is not None:
            choices = getattr(widget, "options", None)
            widget.value = choices[1][1] if choices else widget.max
        live.start()
        assert live.status.value.startswith("Done"), (name, live.status.value)
        assert "<svg" in live.result.value
        seen.add(live.result.value)
    assert len(seen) == 1 + len(live.controls)


NOTEBOOK = """\
from matplotlib.figure import Figure
from inferlab.figures import style
from inferlab.panels import panel

style.use()

def bars(height):
    figure = Figure(figsize=(3, 2))
    figure.subplots().set_title(f"The bar is {height} high", loc="left")
    return figure

panel(bars, height=[1, 2, 5])
"""


@pytest.fixture
def lab(tmp_path):
    """Serve JupyterLab over a folder with one notebook; yield its address."""
    pytest.importorskip("jupyterlab")
    source = NOTEBOOK.splitlines(keepends=True)
    code = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "source": source}
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {
        "cells": [{**code, "execution_count": None}],
        "metadata": {"kernelspec": spec},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (tmp_path / "panel.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    flags += ["--IdentityProvider.token=", f"--ServerApp.root_dir={tmp_path}"]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *flags],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "JUPYTER_PREFER_ENV_PATH": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=5)
                break
            except OSError:
                assert server.poll() is None, "JupyterLab ended"
                time.sleep(0.25)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


@pytest.mark.browser
@pytest.mark.slow
def test_a_hand_on_the_panel_in_jupyterlab(browser, lab):
    page = browser.new_page()
    page.goto(f"{lab}/lab/tree/panel.ipynb?reset")
    page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click(timeout=60_000)
    page.get_by_text("| Idle").wait_for(timeout=60_000)  # a cell run before that is lost
    page.keyboard.press("Shift+Enter")
    output = page.locator(".jp-OutputArea").first
    for height in ("5", "2"):
        output.get_by_role("button", name=height, exact=True).click(timeout=60_000)
        output.locator("button", has_text="Run").click()
        output.get_by_text(f"The bar is {height} high").wait_for(timeout=30_000)
    assert output.get_by_text("The bar is 5 high").count() == 0
    assert "Done in" in output.inner_text()
    page.close()
