"""Matrix times up to 16 vectors, with all that may follow in the same pass, against float64."""

from __future__ import annotations

import math

import pytest
import torch
from tensors import draw, strided, wide

from inferlab.errors import InferlabError
from inferlab.kernels import ops, reference
from inferlab.kernels.gpu import matvec as gpu
from inferlab.kernels.reference import rms_ratio

# Sums are float32: what is left is the rounding of results; the interpreter cuts bfloat16 off.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 5e-4, torch.bfloat16: 8e-3}


@pytest.fixture
def few_programs(monkeypatch):
    """Tiles as large matrices have them, for matrices that an interpreter can handle."""
    monkeypatch.setattr(gpu, "PROGRAMS", 1)


def check(batch, rows, columns, dtype, device):
    weight, x, bias, residual = (
        draw(*shape, dtype=dtype, device=device)
        for shape in ((rows, columns), (batch, columns), (rows,), (batch, rows))
    )
    got = ops.matvec(weight, x, bias, residual, backend="triton")
    assert (
        rms_ratio(*wide(got), reference.matvec(*wide(weight, x, bias, residual)))
        < (TOLERANCE[dtype])
    )
    got = ops.matvec(strided(weight), strided(x), None, strided(residual), backend="triton")
    assert (
        rms_ratio(*wide(got), reference.matvec(*wide(weight, x), None, *wide(residual)))
        < (TOLERANCE[dtype])
    )
    up = strided(draw(rows, columns, dtype=dtype, device=device))
    scale = columns**-0.5  # keeps silu where it bends
    got = ops.swiglu(weight * scale, up * scale, x, backend="triton")
    right = reference.swiglu(*wide(weight * scale, up * scale, x))
    assert rms_ratio(*wide(got), right) < 3 * TOLERANCE[dtype]


@pytest.mark.parametrize("columns", [1, 3, 127, 129, 576, 1536, 4097])
def test_awkward_columns(columns, device):
    check(1, 3, columns, torch.float32, device)
    check(2, 2, columns, torch.float16, device)


@pytest.mark.parametrize("rows", [1, 3, 129])
def test_awkward_rows(rows, device, few_programs):
    check(1, rows, 40, torch.float32, device)
    check(3, rows, 40, torch.float16, device)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_batches(batch, dtype, device, few_programs):
    if dtype == torch.bfloat16 and batch > gpu.ROWS_BY_HAND and device == "cpu":
        with pytest.raises(InferlabError, match="bf16 products need a GPU"):
            check(batch, 33, 72, dtype, device)
    else:
        check(batch, 33, 72, dtype, device)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("rows", [1, 129, 1536])
@pytest.mark.parametrize("columns", [1, 3, 127, 129, 576, 1536, 4097])
def test_every_size(batch, rows, columns, device, few_programs):
    check(batch, rows, columns, torch.float16, device)


@pytest.mark.parametrize(("batch", "columns"), [(1, 24), (2, 1030), (7, 16)])
def test_matrices_as_tall_as_a_vocabulary(batch, columns, device, few_programs):
    made = gpu.config(batch, 67, columns, 2, (9, 0))
    assert made.block_n * made.groups >= 32
    check(batch, 67, columns, torch.float16, device)


@pytest.mark.parametrize("capability", [(7, 5), "gfx942"])
@pytest.mark.parametrize("batch", [1, 6])
def test_the_launches_of_other_gpus(batch, capability, device, monkeypatch, few_programs):
    if device == "cuda" and isinstance(capability, str):
        pytest.skip("its warps are wider")
    monkeypatch.setattr(gpu, "capability", lambda device: capability)
    check(batch, 20, 1100, torch.float16, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_row_is_what_it_is_alone(dtype, device):
    weight, x = (draw(*s, dtype=dtype, device=device) for s in ((10, 200), (16, 200)))
    for batch in (4, 16):  # by hand, and by tensor cores
        together = ops.matvec(weight, x[:batch], backend="triton")
        fewer = ops.matvec(weight, x[1 : batch - 1], backend="triton")
        if batch - 2 > gpu.ROWS_BY_HAND or dtype == torch.float32 or device == "cpu":
            assert torch.equal(together[1:-1], fewer)


def test_case_46_in_place_twice_from_the_same_input_gives_the_same(device):
    weight, x, residual = (draw(*s, device=device) for s in ((50, 64), (2, 64), (2, 50)))
    results = []
    for _ in range(2):
        stream = residual.clone()
        results.append(gpu.launch(weight, x, None, stream, stream))
    assert torch.equal(*results)
    assert rms_ratio(
        results[0].cpu(), reference.matvec(*wide(weight, x), None, *wide(residual))
    ) < (2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("batch", "columns"), [(1, 100), (2, 2060), (1, 24), (7, 100)])
def test_with_a_norm_before_it(batch, columns, dtype, device, few_programs):
    rows = 67 if columns == 24 else 5  # many rows a program, or few
    weight, up, x, gains = (
        draw(*shape, dtype=dtype, device=device)
        for shape in ((rows, columns), (rows, columns), (batch, columns), (columns,))
    )
    x *= 10  # far from a root mean square of one
    out, scratch = (x.new_full((batch, n), math.nan) for n in (rows, columns))
    norm = gpu.Norm(gains, 1e-5, scratch)
    normed = reference.rms_norm(*wide(x, gains), 1e-5)
    got = gpu.launch(weight, x, None, None, out, norm)
    assert rms_ratio(*wide(got), reference.matvec(*wide(weight), normed)) < 2 * TOLERANCE[dtype]
    scale = columns**-0.5
    got = gpu.launch_swiglu(weight * scale, up * scale, x, out, norm)
    right = reference.swiglu(*wide(weight * scale, up * scale), normed)
    assert rms_ratio(*wide(got), right) < 5 * TOLERANCE[dtype]


def test_neighbours_of_the_output_are_left_alone(device):
    around = torch.full((4, 12), 123.0, device=device)
    weight, x = draw(5, 8, device=device), draw(2, 8, device=device)
    gpu.launch(weight, x, None, None, around[1:3, 4:9])
    assert rms_ratio(around[1:3, 4:9].cpu(), reference.matvec(*wide(weight, x))) < 2e-6
    around[1:3, 4:9] = 123.0
    assert (around == 123.0).all()


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_swiglu_saturates_without_overflow(device):
    gate = torch.tensor([[1000.0], [-1000.0], [80.0], [-80.0]], device=device)
    got = ops.swiglu(gate, torch.ones_like(gate), gate.new_ones(1, 1), backend="triton")
    right = torch.tensor([[1000.0, 0.0, 80.0, 0.0]])
    torch.testing.assert_close(got.cpu(), right, rtol=1e-6, atol=1e-30)


def test_nan_stays_in_its_row(device):
    x = draw(2, 8, device=device)
    x[0, 3] = math.nan
    got = ops.matvec(draw(6, 8, device=device), x, backend="triton")
    assert got[0].isnan().all()
    assert got[1].isfinite().all()


def test_nothing_to_do(device):
    weight, none = draw(5, 3, device=device), draw(0, 3, device=device)
    assert ops.matvec(weight, none, backend="triton").shape == (0, 5)
    assert ops.swiglu(weight, weight, none, backend="triton").shape == (0, 5)
    assert ops.matvec(none, draw(2, 3, device=device), backend="triton").shape == (2, 0)
    bias = draw(5, device=device)
    got = ops.matvec(draw(5, 0, device=device), draw(2, 0, device=device), bias, backend="triton")
    assert torch.equal(got, bias.expand(2, 5))


def test_more_rows_than_one_pass_serves_are_refused(device):
    weight, x = draw(5, 8, device=device), draw(17, 8, device=device)
    with pytest.raises(InferlabError, match="matvec: 17 rows; one pass serves at most 16"):
        ops.matvec(weight, x, backend="triton")
    assert rms_ratio(ops.matvec(weight, x).cpu(), reference.matvec(*wide(weight, x))) < 2e-6


def test_traffic():
    assert gpu.traffic(1, 4, 8, 2) == (32 + 8 + 4) * 2
    assert gpu.traffic(3, 4, 8, 2, matrices=2) == (2 * 32 + 24 + 12) * 2
    assert gpu.traffic(3, 4, 8, 4, bias=True, residual=True) == (32 + 24 + 12 + 12 + 4) * 4
