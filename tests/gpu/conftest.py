"""What only a GPU can show: `make gpu PYTHON=python3` runs it, with torch, Triton and pytest.

Elsewhere these tests are skipped. `INTERPRET=1` runs them on small sizes in Triton's interpreter,
to try the tests themselves.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from interpreter import run_few_programs

from inferlab.kernels import backends

INTERPRET = os.environ.get("INTERPRET") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items) -> None:
    """Mark every test of this folder, so that `make test` leaves it out."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def device() -> str:
    """The GPU."""
    if not backends.has_triton():
        pytest.skip("Triton is not here")
    if torch.cuda.is_available():
        return "cuda"
    if not INTERPRET:
        pytest.skip("needs a CUDA GPU")
    return "cpu"


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    if not torch.cuda.is_available() and backends.has_triton():
        run_few_programs(monkeypatch)


@pytest.fixture(params=["fp32", "fp16", "bf16"])
def dtype(request, device) -> torch.dtype:
    """Each number format that this GPU has."""
    found = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[request.param]
    if found == torch.bfloat16 and (device == "cpu" or torch.cuda.get_device_capability() < (8, 0)):
        pytest.skip("no bfloat16 here")
    return found


@pytest.fixture
def big(device):
    """Return a function of two sizes: the GPU's, or the interpreter's."""
    return lambda gpu, interpreter: gpu if device == "cuda" else interpreter


@pytest.fixture(autouse=True)
def _exact_float32():
    """Let torch's own products, which ours are held against, not round to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
