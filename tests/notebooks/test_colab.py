"""A notebook alone in an empty folder installs the package itself, and leaves torch as it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
#: What a Colab kernel has, of what the package asks for.
THERE = ("torch", "numpy", "matplotlib", "ipywidgets", "ipykernel", "nbclient")
RUN = """\
import nbformat, sys
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=600).execute()
nbformat.write(book, sys.argv[1])
"""


def run(*command: object, **options) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def versions(python: Path) -> dict[str, str]:
    listed = json.loads(run(python, "-m", "pip", "list", "--format=json"))
    return {package["name"]: package["version"] for package in listed}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_notebook_runs_in_a_fresh_kernel(tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "requirements.txt", *THERE)
    before = versions(python)
    assert "inferlab" not in before

    clone = tmp_path / "clone"
    run("git", "clone", "-q", ROOT, clone)
    env = {
        **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "INFERLAB_SOURCE": clone.as_uri(),
        "INFERLAB_CACHE": str(tmp_path / "cache"),
        "JUPYTER_PATH": str(tmp_path / "venv" / "share" / "jupyter"),
    }
    for file in NOTEBOOKS:
        alone = tmp_path / file.stem
        alone.mkdir()
        shutil.copy(file, alone)
        run(python, "-c", RUN, file.name, cwd=alone, env=env)
        cells = nbformat.read(alone / file.name, as_version=4).cells
        assert all(cell.execution_count for cell in cells if cell.cell_type == "code")

    after = versions(python)
    assert "inferlab" in after
    assert {name: after[name] for name in before} == before, "a package of the kernel was replaced"
