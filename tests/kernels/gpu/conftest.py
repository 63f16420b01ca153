"""Triton kernels run on the GPU if there is one, and in Triton's interpreter otherwise."""

from __future__ import annotations

import pytest
import torch

from inferlab.kernels import backends


@pytest.fixture
def device() -> str:
    """Where the tensors of a kernel's test live."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _triton_is_here() -> None:
    if not backends.has_triton():
        pytest.skip("Triton is not here")
