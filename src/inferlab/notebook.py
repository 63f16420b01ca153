"""What a notebook says of itself: the machine in its first cell, and the source of what it runs."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

from inferlab import __version__, machine, records
from inferlab.figures import style
from inferlab.kernels import backends


def setup() -> None:
    """Give figures the book's look, and print which machine runs the cells that follow."""
    style.use()
    compilers = {"numba": backends.has_numba(), "Triton": backends.has_triton()}
    found = " and ".join(name for name, there in compilers.items() if there)
    print(f"inferlab {__version__} on {machine.name()}, with {found or 'torch alone'}")
    print("Live: what a cell measures, it measures here and now")
    recorded = [record["machine"]["name"] for record in records.all()]
    print(f"Recorded earlier: {'; '.join(recorded) or 'nothing yet'}")


class Listing:
    """Python source as a cell's output, highlighted by whatever shows the notebook."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.text}\n```"

    def __repr__(self) -> str:
        return self.text


def source(*functions: Any) -> Listing:
    """Return the source of functions or kernels as it stands in the package.

    Only remarks to tools are left out, such as `# type: ignore`.
    """
    texts = []
    for function in functions:
        # Triton and numba keep the function that they compile.
        plain = getattr(function, "fn", None) or getattr(function, "py_func", function)
        text = textwrap.dedent(inspect.getsource(plain)).rstrip()
        texts.append(re.sub(r" *# (type: ignore|fmt: skip|noqa)\S*", "", text))
    return Listing("\n\n\n".join(texts))
