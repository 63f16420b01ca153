"""Imports run downward, theory is light, and the package stands without Triton and numba."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import inferlab

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(inferlab.__path__, "inferlab.")
    if not module.name.endswith("__main__")
)
LIGHT = ("errors", "theory", "records", "figures", "explorers")

#: A fresh interpreter in which some packages are not installed.
WITHOUT = """\
import importlib, sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {hidden!r} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


def python(code: str, *hidden: str) -> str:
    """Run `code` in an interpreter without the packages `hidden`; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(hidden=hidden) + code],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_run_downward():
    from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS


def test_theory_is_pure_python():
    loaded = python(
        "import inferlab.theory, pkgutil, importlib\n"
        "for m in pkgutil.walk_packages(inferlab.theory.__path__, 'inferlab.theory.'):\n"
        "    importlib.import_module(m.name)\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    ).split()
    ours = set(loaded) - set(sys.stdlib_module_names) - {"__main__", "inferlab"}
    assert {name for name in ours if not name.startswith(("_", "sphinxcontrib"))} == set()


def test_theory_loads_in_a_fifth_of_a_second():
    """The best of several, since other work on the machine only ever adds to it."""
    code = (
        "import time; t = time.perf_counter(); import inferlab.theory; print(time.perf_counter()-t)"
    )
    assert min(float(python(code)) for _ in range(5)) < 0.2


def test_the_interpreter_really_lacks_them():
    code = (
        "from importlib.util import find_spec; print(find_spec('numba'), find_spec('rich') is None)"
    )
    assert python(code, "numba").split() == ["None", "False"]


def test_every_module_imports_without_compilers():
    loop = f"for name in {MODULES}: importlib.import_module(name)\n"
    loaded = python(loop + "print(*sys.modules)", "triton", "numba", "llvmlite").split()
    assert set(MODULES) <= set(loaded)


def test_what_draws_and_computes_needs_no_torch():
    light = [name for name in MODULES if name.split(".")[1] in LIGHT]
    python(f"for name in {light}: importlib.import_module(name)", "torch", "triton", "numba")


def test_the_command_line_starts_without_torch():
    assert inferlab.__version__ in python(
        "sys.argv = ['inferlab', '--version']\nfrom inferlab.cli import main\nmain()",
        "torch",
        "triton",
        "numba",
        "transformers",
    )


def test_what_make_gpu_runs_needs_torch_triton_and_pytest_alone():
    """Machines that lend a GPU have no Jupyter and none of our other tools."""
    tools = ("typer", "rich", "click", "platformdirs", "psutil", "ipywidgets", "IPython")
    tools += ("ipykernel", "jupytext", "nbval", "numba", "hypothesis", "jsonschema", "playwright")
    tools += ("xdist", "pytest_timeout", "gguf", "sentencepiece", "triton_viz")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    tests = makefile.split("GPU_TESTS := ")[1].split("\n\n")[0].replace("\\", " ").split()
    code = (
        "import os; os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'\n"
        "import inferlab.measure.record, inferlab.engine.gpu_decode, pytest\n"
        f"code = pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', *{tests}])\n"
        f"print('loaded', sorted(set({tools}) & set(sys.modules)))\n"
        "sys.exit(code)"
    )
    said = python(code, *tools)
    assert "loaded []" in said
    assert "tests/gpu/test_parity.py" in said
