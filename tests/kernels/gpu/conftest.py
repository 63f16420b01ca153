"""Triton kernels run on the GPU if there is one, and in Triton's interpreter otherwise."""

from __future__ import annotations

import math

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
def _same_numbers_each_time() -> None:
    torch.manual_seed(1)


@pytest.fixture
def poison(monkeypatch) -> None:
    """Outputs begin as NaN, so that what a kernel leaves out cannot pass for a zero."""
    monkeypatch.setattr(ops, "_empty", lambda like, *shape: like.new_full(shape, math.nan))
