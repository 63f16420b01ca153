"""Quantised matrix times up to 16 vectors, against the widened matrix in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tensors import draw, strided, wide

from inferlab.errors import InferlabError
from inferlab.kernels import ops, reference
from inferlab.kernels.gpu import quant_matvec as gpu
from inferlab.kernels.gpu.matvec import Norm
from inferlab.kernels.quantised import FORMATS, Quantised, quantise
from inferlab.kernels.reference import rms_ratio

# Sums are float32: what is left is the rounding of results; the interpreter cuts bfloat16 off.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 5e-4, torch.bfloat16: 8e-3}
formats = pytest.mark.parametrize("format", FORMATS)


@pytest.fixture
def few_programs(monkeypatch):
    """Tiles as large matrices have them, for matrices that an interpreter can handle."""
    monkeypatch.setattr(gpu, "PROGRAMS", 1)


def matrix(rows, columns, format, device):
    """Random codes of every value, with scales of both signs: more than quantise would make."""
    made = quantise(draw(rows, columns), format)
    codes = torch.randint(-128, 128, made.weights.shape)
    codes = codes.to(torch.int8).view(made.weights.dtype)
    flip = torch.where(draw(*made.scales.shape) > 0, 1, -1)
    return Quantised(format, codes, made.scales * flip, made.mins).to(device)


def check(batch, rows, columns, format, dtype, device):
    weight, up = (matrix(rows, columns, format, device) for _ in range(2))
    x, bias, residual = (
        draw(*shape, dtype=dtype, device=device)
        for shape in ((batch, columns), (rows,), (batch, rows))
    )
    full = weight.dequantise(torch.float64)
    usual = float(full.std() * x.double().std() * columns**0.5)

    def error(got, right):
        # Of a lone row all results may lie near zero, its terms far from it.
        near = np.sqrt(np.mean(right**2)) / usual if rows == 1 else 1
        return rms_ratio(got, right) * min(1, near)

    got = ops.quant_matvec(weight, x, bias, residual, backend="triton")
    right = reference.matvec(*wide(full, x, bias, residual))
    assert error(*wide(got), right) < TOLERANCE[dtype]
    got = ops.quant_matvec(weight, strided(x), None, strided(residual), backend="triton")
    right = reference.matvec(*wide(full, x), None, *wide(residual))
    assert error(*wide(got), right) < TOLERANCE[dtype]
    x = x / columns**0.5 / 10  # keeps silu where it bends
    got = ops.quant_swiglu(weight, up, x, backend="triton")
    right = reference.swiglu(*wide(full, up.dequantise(torch.float64), x))
    assert rms_ratio(*wide(got), right) < 3 * TOLERANCE[dtype]


@formats
@pytest.mark.parametrize("columns", [32, 576, 4128])
def test_columns(columns, format, device):
    check(1, 2, columns, format, torch.float32, device)


@pytest.mark.parametrize(("format", "rows"), [("q4_0", 1), ("q4_1", 67), ("q8_0", 35)])
def test_rows(format, rows, device, few_programs):
    check(1, rows, 64, format, torch.float32, device)


@pytest.mark.parametrize(("format", "batch"), [("q8_0", 2), ("q4_1", 3), ("int8", 5), ("q4_0", 16)])
def test_batches(format, batch, device, few_programs):
    check(batch, 5, 160, format, torch.float32, device)


@pytest.mark.parametrize(
    ("format", "dtype"),
    [("q4_1", torch.float16), ("int8", torch.float16), ("q8_0", torch.bfloat16)],
)
def test_activations_of_16_bits(dtype, format, device):
    check(2, 3, 96, format, dtype, device)


@pytest.mark.slow
@formats
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("rows", [1, 129, 577])
@pytest.mark.parametrize("columns", [32, 576, 1536, 4128])
def test_every_size(batch, rows, columns, format, device, few_programs):
    check(batch, rows, columns, format, torch.float32, device)


def test_the_launches_of_amd(device, monkeypatch, few_programs):
    if device == "cuda":
        pytest.skip("its warps are wider")
    monkeypatch.setattr(gpu, "capability", lambda device: "gfx942")
    check(2, 5, 320, "q4_1", torch.float32, device)


def test_matrices_as_tall_as_a_vocabulary_read_x_seldom():
    for format, least in (("q4_1", 128), ("q4_0", 128), ("q8_0", 64), ("int8", 64)):
        made = gpu.config(1, 1 << 16, 4096, format, (9, 0))
        assert made.block_n * made.groups >= least


def test_small_and_large_values_of_x(device):
    weight = matrix(4, 64, "q8_0", device)
    full = weight.dequantise(torch.float64)
    for size in (1e-12, 1e9):
        x = draw(1, 64, device=device) * size
        got = ops.quant_matvec(weight, x, backend="triton")
        assert rms_ratio(*wide(got), reference.matvec(*wide(full, x))) < 2e-6


def test_a_row_is_what_it_is_alone(device):
    weight, x = matrix(3, 96, "q4_1", device), draw(16, 96, device=device)
    together = ops.quant_matvec(weight, x, backend="triton")
    assert torch.equal(together[3:10], ops.quant_matvec(weight, x[3:10], backend="triton"))


def test_case_46_in_place_twice_from_the_same_input_gives_the_same(device):
    weight, x, residual = matrix(5, 64, "q4_1", device), *(draw(2, n) for n in (64, 5))
    x, residual, results = x.to(device), residual.to(device), []
    for _ in range(2):
        stream = residual.clone()
        results.append(gpu.launch(weight, x, None, stream, stream))
    assert torch.equal(*results)
    right = reference.matvec(*wide(weight.dequantise(), x), None, *wide(residual))
    assert rms_ratio(*wide(results[0]), right) < 2e-6


@pytest.mark.parametrize(
    ("format", "batch", "columns", "rows"),
    [("q4_1", 1, 96, 3), ("q8_0", 2, 4128, 2), ("q4_0", 1, 32, 67), ("int8", 5, 96, 3)],
)
def test_with_a_norm_before_it(format, batch, columns, rows, device, few_programs):
    weight, up = (matrix(rows, columns, format, device) for _ in range(2))
    x, gains = 10 * draw(batch, columns, device=device), draw(columns, device=device)
    out = x.new_full((batch, rows), math.nan)
    norm = Norm(gains, 1e-5, None)
    normed = reference.rms_norm(*wide(x, gains), 1e-5)
    got = gpu.launch(weight, x, None, None, out, norm)
    right = reference.matvec(*wide(weight.dequantise(torch.float64)), normed)
    assert rms_ratio(*wide(got), right) < 4e-6
    norm = Norm(gains / columns**0.5 / 10, 1e-5, None)
    normed = reference.rms_norm(*wide(x, norm.gains), 1e-5)
    got = gpu.launch_swiglu(weight, up, x, out, norm)
    full = wide(weight.dequantise(torch.float64), up.dequantise(torch.float64))
    assert rms_ratio(*wide(got), reference.swiglu(*full, normed)) < 1e-5


def test_neighbours_of_the_output_are_left_alone(device):
    around = torch.full((4, 12), 123.0, device=device)
    weight, x = matrix(5, 32, "q8_0", device), draw(2, 32, device=device)
    gpu.launch(weight, x, None, None, around[1:3, 4:9])
    right = reference.matvec(*wide(weight.dequantise(), x))
    assert rms_ratio(*wide(around[1:3, 4:9]), right) < 2e-6
    around[1:3, 4:9] = 123.0
    assert (around == 123.0).all()


def test_nan_stays_in_its_row_and_nothing_is_no_work(device):
    weight, x = matrix(6, 32, "q4_0", device), draw(2, 32, device=device)
    x[0, 3] = math.nan
    got = ops.quant_matvec(weight, x, backend="triton")
    assert got[0].isnan().all()
    assert got[1].isfinite().all()
    assert ops.quant_matvec(weight, x[:0], backend="triton").shape == (0, 6)
    assert ops.quant_swiglu(weight, weight, x[:0], backend="triton").shape == (0, 6)


def test_case_40_columns_that_are_no_whole_blocks_are_refused_or_left_to_torch(device):
    weight, x = quantise(draw(4, 200), "int8").to(device), draw(2, 200, device=device)
    with pytest.raises(InferlabError, match="quant_matvec: 200 columns; a multiple of 32"):
        ops.quant_matvec(weight, x, backend="triton")
    got = ops.quant_matvec(weight, x, backend="torch")
    assert rms_ratio(*wide(got), reference.matvec(*wide(weight.dequantise(), x))) < 2e-6
    for format in ("q8_0", "q4_0", "q4_1"):
        with pytest.raises(InferlabError, match="200 columns"):
            quantise(draw(4, 200), format)


def test_what_does_not_fit_is_refused(device):
    weight, x = matrix(6, 32, "q4_0", device), draw(17, 32, device=device)
    with pytest.raises(InferlabError, match="quant_matvec: 17 rows; one pass serves at most 16"):
        ops.quant_matvec(weight, x, backend="triton")
    with pytest.raises(InferlabError, match="gate is q4_0 and up q8_0"):
        gpu.launch_swiglu(weight, matrix(6, 32, "q8_0", device), x[:1], draw(1, 6, device=device))


def test_formats_that_differ_are_multiplied_one_after_the_other(device):
    gate, up = matrix(6, 32, "q4_0", device), matrix(6, 32, "q8_0", device)
    x = draw(2, 32, device=device) / 50
    got = ops.quant_swiglu(gate, up, x, backend="triton")
    right = reference.swiglu(*wide(gate.dequantise(), up.dequantise(), x))
    assert rms_ratio(*wide(got), right) < 6e-6


@formats
def test_traffic(format):
    weight = quantise(draw(6, 64), format)
    vectors = (3 * 64 + 2 * 3 * 6 + 6) * 2
    assert gpu.traffic(3, 6, 64, format, 2, bias=True, residual=True) == weight.nbytes + vectors
    vectors = (3 * 64 + 3 * 6) * 2
    assert gpu.traffic(3, 6, 64, format, 2, matrices=2) == 2 * weight.nbytes + vectors
