"""Softmax against its float64 oracle, rows of any width, at once and block by block."""

from __future__ import annotations

import math

import pytest
import torch

from inferlab.kernels import ops, reference
from inferlab.kernels.gpu import softmax
from inferlab.kernels.reference import rms_ratio

TOLERANCE = {torch.float32: 5e-7, torch.float16: 5e-4, torch.bfloat16: 4e-3}


def check(x):
    got = ops.softmax(x, backend="triton")
    assert got.dtype == x.dtype
    right = reference.softmax(x.double().cpu())
    assert rms_ratio(got.double().cpu(), right) < TOLERANCE[x.dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("columns", [1, 2, 3, 127, 129, 1000, 4097])
def test_case_43_rows_of_any_width(device, columns, dtype):
    check(3 * torch.randn(5, columns, device=device).to(dtype))


@pytest.mark.parametrize("columns", [16384, 16385, 49152])
def test_rows_longer_than_a_block(device, columns):
    check(3 * torch.randn(2, columns, device=device))


@pytest.mark.parametrize("longest", [64, softmax.LONGEST_BLOCK])
class TestBothKernels:
    """The kernel that takes a row at once, and the one that takes blocks of it."""

    @pytest.fixture(autouse=True)
    def _limit(self, monkeypatch, longest):
        monkeypatch.setattr(softmax, "LONGEST_BLOCK", longest)

    @pytest.mark.parametrize("columns", [65, 128, 129, 1000])
    def test_strided_rows(self, device, columns):
        check(torch.randn(3, columns + 7, device=device)[:, :columns])
        check(torch.randn(columns, 3, device=device).T)

    def test_scores_far_from_zero(self, device):
        for shift in (-3e4, 3e4):
            check(torch.randn(2, 300, device=device) + shift)

    def test_masked_scores(self, device):
        x = torch.randn(3, 300, device=device)
        x[0, :200] = -math.inf  # whole blocks of nothing, before and after something
        x[1, 100:] = -math.inf
        check(x)

    def test_rows_without_a_softmax_are_nan_as_in_torch(self, device):
        x = torch.zeros(3, 300, device=device)
        x[0] = -math.inf
        x[1, 150] = math.inf
        x[2, 299] = math.nan
        assert ops.softmax(x, backend="triton").isnan().all(dim=1).all()

    def test_no_rows(self, device):
        assert ops.softmax(torch.empty(0, 300, device=device), backend="triton").shape == (0, 300)
