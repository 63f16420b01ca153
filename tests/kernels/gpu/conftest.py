"""Triton kernels run on the GPU if there is one, and in Triton's interpreter otherwise.

With INFERLAB_SANITIZE=1 every load and store of every test here is held against the tensors that
the kernel was given, which takes a few times as long.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest
import torch

from inferlab.kernels import backends, ops


@pytest.fixture
def device() -> str:
    """Where the tensors of a kernel's test live."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _triton_is_here() -> None:
    if not backends.has_triton():
        pytest.skip("Triton is not here")


@pytest.fixture(autouse=True)
def _within_bounds() -> Iterator[None]:
    if os.environ.get("INFERLAB_SANITIZE") != "1":
        yield
        return
    from inferlab.kernels.gpu import compiled
    from inferlab.measure import traffic

    with traffic.counting(*compiled.ops().values()) as found:
        yield
    assert found.outside == 0


@pytest.fixture(autouse=True)
def _same_numbers_each_time() -> None:
    torch.manual_seed(1)


@pytest.fixture(autouse=True)
def _poison(monkeypatch) -> None:
    """Outputs begin as NaN, so that what a kernel leaves out cannot pass for a zero."""
    monkeypatch.setattr(ops, "_empty", lambda like, *shape: like.new_full(shape, math.nan))
