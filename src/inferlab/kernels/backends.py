"""Which kernel compilers exist here, and where what they compile is kept.

`INFERLAB_HIDE=numba,triton` hides backends, so that tests see a machine without them.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def _hidden(name: str) -> bool:
    return name in os.environ.get("INFERLAB_HIDE", "").replace(" ", "").split(",")


def has_numba() -> bool:
    """Whether SIMD kernels can be compiled for this CPU."""
    return not _hidden("numba") and importlib.util.find_spec("numba") is not None


def has_triton() -> bool:
    """Whether Triton kernels can be compiled here; says nothing of a GPU to run them on."""
    return not _hidden("triton") and importlib.util.find_spec("triton") is not None


def cache_dir() -> Path:
    """Return the folder for models, compiled kernels and this machine's numbers.

    `$INFERLAB_CACHE`, or the user's cache folder. It need not exist yet.
    """
    if chosen := os.environ.get("INFERLAB_CACHE"):
        return Path(chosen)
    try:
        import platformdirs
    except ImportError:  # where only torch and Triton are, as for `make gpu`
        return Path.home() / ".cache" / "inferlab"
    return platformdirs.user_cache_path("inferlab", appauthor=False)
