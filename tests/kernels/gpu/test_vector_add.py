"""Vector addition against its float64 oracle."""

from __future__ import annotations

import math

import pytest
import torch

from inferlab.errors import InferlabError
from inferlab.kernels import ops, reference
from inferlab.kernels.reference import rms_ratio


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 127, 129, 2048, 4097])
def test_vector_add(device, size, dtype):
    a, b = (torch.randn(size, device=device).to(dtype) for _ in range(2))
    got = ops.vector_add(a, b, backend="triton")
    assert got.dtype == dtype
    assert rms_ratio(
        got.double().cpu(), reference.vector_add(a.double().cpu(), b.double().cpu())
    ) < (1e-6 if dtype == torch.float32 else 5e-3)


def test_vectors_with_gaps(device):
    a, b = torch.randn(300, device=device)[::3], torch.randn(100, device=device)
    assert torch.equal(ops.vector_add(a, b, backend="triton"), a + b)


def test_nan_and_infinity_are_passed_on(device):
    a = torch.tensor([math.nan, math.inf, math.inf, 1.0], device=device)
    b = torch.tensor([1.0, -math.inf, 1.0, 2.0], device=device)
    got = ops.vector_add(a, b, backend="triton").tolist()
    assert math.isnan(got[0])
    assert math.isnan(got[1])
    assert got[2:] == [math.inf, 3.0]


def test_what_does_not_fit_is_refused(device):
    x = torch.ones(4, device=device)
    with pytest.raises(InferlabError, match="backend triton needs Triton, and tensors on one"):
        ops.vector_add(x, x.double(), backend="triton")
    with pytest.raises(InferlabError, match=r"b has shape \[3\]; it must be \[4\]"):
        ops.vector_add(x, x[:3])
    with pytest.raises(InferlabError, match="backend simd has no kernel for this op"):
        ops.vector_add(x, x, backend="simd")


def test_without_triton_torch_does_it(monkeypatch):
    monkeypatch.setenv("INFERLAB_HIDE", "triton")
    x = torch.ones(4)
    assert torch.equal(ops.vector_add(x, x), x + x)
    with pytest.raises(InferlabError, match="needs Triton"):
        ops.vector_add(x, x, backend="triton")
