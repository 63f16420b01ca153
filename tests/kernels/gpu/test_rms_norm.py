"""RMS norm, with and without the residual sum before it, against its float64 oracle."""

from __future__ import annotations

import math

import pytest
import torch
from tensors import draw, strided, wide

from inferlab.errors import InferlabError
from inferlab.kernels import ops, reference
from inferlab.kernels.gpu import rms_norm as gpu
from inferlab.kernels.reference import rms_ratio

TOLERANCE = {
    torch.float32: 1e-6,
    torch.float16: 5e-4,
    torch.bfloat16: 8e-3,
}  # the interpreter cuts off
dtypes = pytest.mark.parametrize("dtype", TOLERANCE)


@dtypes
@pytest.mark.parametrize("size", [1, 2, 3, 127, 129, 576, 1000, 4097])
@pytest.mark.parametrize("rows", [1, 3])
def test_rms_norm(dtype, size, rows, device):
    values, weight = (draw(*s, dtype=dtype, device=device) for s in ((rows, size), (size,)))
    for x, eps in ((values, 1e-5), (strided(values), 1e-6), (values * 1e-3, 1e-5)):
        got = ops.rms_norm(x, weight, eps, backend="triton")
        right = reference.rms_norm(*wide(x, weight), eps)
        assert rms_ratio(got.double().cpu(), right) < TOLERANCE[dtype]


@dtypes
@pytest.mark.parametrize(("rows", "size"), [(1, 576), (2, 127), (5, 1536)])
def test_the_norm_sees_the_sum_that_it_writes(dtype, rows, size, device):
    x, residual = (strided(draw(rows, size, dtype=dtype, device=device)) for _ in range(2))
    weight = draw(size, device=device)  # gains may be wider than the values
    got, total = ops.add_rms_norm(x, residual, weight, 1e-5, backend="triton")
    assert rms_ratio(*wide(total, x + residual)) <= (8e-3 if dtype == torch.bfloat16 else 0)
    right = reference.rms_norm(*wide(total, weight), 1e-5)
    assert rms_ratio(got.double().cpu(), right) < TOLERANCE[dtype]
    plain = ops.add_rms_norm(x, residual, weight, 1e-5, backend="torch")
    assert torch.equal(plain[1], x + residual)
    assert rms_ratio(*wide(plain[0], got)) < TOLERANCE[dtype]


def test_case_46_in_place_twice_from_the_same_input_gives_the_same(device):
    x, residual, weight = (draw(*s, device=device) for s in ((4, 300), (4, 300), (300,)))
    results = []
    for _ in range(2):
        stream, own = residual.clone(), x.clone()
        gpu.launch(own, weight, 1e-5, own, stream, stream)
        results.append((own, stream))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], x + residual)
    right = reference.rms_norm(*wide(x + residual, weight), 1e-5)
    assert rms_ratio(results[0][0].cpu(), right) < 1e-6


def test_more_rows_than_programs(device, monkeypatch):
    monkeypatch.setattr(gpu, "PROGRAMS", 3)
    x, weight = draw(11, 40, device=device), draw(40, device=device)
    got = ops.rms_norm(x, weight, 1e-5, backend="triton")
    assert rms_ratio(got.cpu(), reference.rms_norm(*wide(x, weight), 1e-5)) < 1e-6


def test_case_27_float16_does_not_overflow(device):
    for scale in (300.0, 6e4, 1e-4):
        signs = torch.tensor([1.0, -1.0], device=device).repeat(448)
        x, weight = (signs * scale).half().repeat(2, 1), torch.ones(896, device=device).half()
        got = ops.rms_norm(x, weight, 1e-6, backend="triton")
        assert rms_ratio(got.cpu(), reference.rms_norm(*wide(x, weight), 1e-6)) < 1e-3


def test_nan_stays_in_its_row_and_no_rows_are_no_work(device):
    x, weight = draw(2, 8, device=device), draw(8, device=device)
    x[0, 3] = math.nan
    got = ops.rms_norm(x, weight, 1e-5, backend="triton")
    assert got[0].isnan().all()
    assert got[1].isfinite().all()
    assert ops.rms_norm(x[:0], weight, 1e-5, backend="triton").shape == (0, 8)
    got, total = ops.add_rms_norm(x[:0], x[:0], weight, 1e-5, backend="triton")
    assert got.shape == total.shape == (0, 8)


def test_what_does_not_fit_is_refused(device):
    x = draw(1, gpu.LONGEST + 1, device=device)
    with pytest.raises(InferlabError, match="rms_norm: rows of 32769 values; at most 32768"):
        ops.rms_norm(x, x[0], 1e-5, backend="triton")
    with pytest.raises(InferlabError, match="residual and total belong together"):
        gpu.launch(x[:, :8], x[0, :8], 1e-5, x[:, :8], residual=x[:, :8])


def test_traffic():
    # x in, normed out, gains once; then a residual in and a sum out as well.
    assert gpu.traffic(2, 10, 2) == (20 + 20 + 10) * 2
    assert gpu.traffic(2, 10, 2, residual=True) == (4 * 20 + 10) * 2
