"""Products of many rounded vectors with quantised matrices, against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tensors import draw, guarded, rounded

from inferlab.kernels import backends, quantised, reference
from inferlab.kernels.quantised import FORMATS, Quantised, quantise
from inferlab.kernels.reference import rms_ratio

pytestmark = pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
every_format = pytest.mark.parametrize("format", FORMATS)


@pytest.fixture(scope="module")
def launch():
    from inferlab.kernels.cpu import quant_matmul

    return quant_matmul.launch


@pytest.fixture(autouse=True)
def _same_numbers_each_time():
    torch.manual_seed(4)


def right(weights, x):
    x = rounded(x, 32767)
    return np.concatenate([reference.quant_matvec(weight, x) for weight in weights], axis=1)


@every_format
@pytest.mark.parametrize("threads", [1, 2, None])
@pytest.mark.parametrize(
    ("rows", "columns", "batch"), [(16, 32, 1), (17, 96, 2), (123, 576, 5), (40, 1536, 17)]
)
def test_a_product_is_that_of_the_widened_matrix(launch, format, rows, columns, batch, threads):
    weight, x = quantise(draw(rows, columns), format), draw(batch, columns)
    got = launch([weight], x, threads)
    assert got.shape == (batch, rows)
    assert rms_ratio(got, right([weight], x)) < 1e-5


@every_format
def test_the_error_of_rounding_is_small(launch, format):
    weight, x = quantise(draw(300, 576), format), draw(64, 576)
    assert rms_ratio(launch([weight], x), reference.quant_matvec(weight, x)) < 4e-5


def test_matrices_stand_side_by_side(launch, monkeypatch):
    """Pieces of work that hold the end of one matrix and the beginning of the next."""
    from inferlab.kernels.cpu import quant_matmul

    weights = [
        quantise(draw(rows, 96), f) for rows, f in zip((17, 64, 16, 35), FORMATS, strict=True)
    ]
    x = draw(30, 96)
    wanted = right(weights, x)
    for piece in (1, 30 * 96 * 8 * 3, 1 << 30):
        monkeypatch.setattr(quant_matmul, "_PIECE", piece)
        monkeypatch.setattr(quant_matmul, "_PACK_PIECE", max(1, piece // 100))
        assert rms_ratio(launch(weights, x, 2), wanted) < 1e-5


@every_format
def test_every_bit_is_the_same_in_any_company(launch, format):
    weight, x = quantise(draw(50, 160), format), draw(37, 160)
    whole = launch([weight], x, 1)
    assert torch.equal(launch([weight], x, 2), whole)
    assert torch.equal(launch([quantise(draw(16, 160), "q4_0"), weight], x)[:, 16:], whole)
    for rows in (slice(0, 1), slice(3, 5), slice(30, 37)):
        assert torch.equal(launch([weight], x[rows]), whole[rows])


@every_format
def test_nothing_beside_the_planes_is_read(launch, format):
    """Planes in memory that ends with them, among NaN and codes of all ones; rows with holes."""
    weight = quantise(draw(38, 96), format)
    x = torch.full((5, 130), math.nan)
    x[:, :96] = draw(5, 96)
    x = x[:, :96]
    assert torch.equal(launch([guarded(weight.in_groups())], x), launch([weight], x.contiguous()))
    scales = weight.scales[::2].contiguous() if format == "int8" else weight.scales[::2]
    mins = None if weight.mins is None else weight.mins[::2]
    some = Quantised(format, weight.weights[::2], scales, mins)
    assert torch.equal(launch([some], x), launch([weight], x)[:, ::2])


@every_format
def test_the_largest_codes_with_the_largest_elements_fit_32_bits(launch, format):
    codes = torch.full((16, 64 if format in ("q8_0", "int8") else 32), -128, dtype=torch.int8)
    scales = torch.ones(16) if format == "int8" else torch.ones(16, 2).half()
    codes = codes if format in ("q8_0", "int8") else codes.view(torch.uint8) | 255
    weight = Quantised(format, codes, scales, scales if format == "q4_1" else None)
    for x in (torch.full((4, 64), 32767.0), torch.full((4, 64), -32767.0)):
        assert rms_ratio(launch([weight], x), reference.quant_matvec(weight, x)) < 1e-6


@pytest.mark.parametrize("format", ["q8_0", "int8"])
def test_every_byte(launch, format):
    codes = torch.arange(512).to(torch.uint8).view(torch.int8).view(16, 32)
    scales = torch.ones(16) if format == "int8" else torch.ones(16, 1).half()
    weight, x = Quantised(format, codes, scales), torch.eye(32) * 3.0
    assert torch.equal(launch([weight], x), codes.T.float() * 3)


@every_format
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_a_number_shows(launch, format, value):
    weight, x = quantise(draw(16, 64), format), draw(6, 64)
    x[2, 40] = value
    got = launch([weight], x)
    assert not got[2].isfinite().any()
    assert got[[0, 1, 3, 4, 5]].isfinite().all()


def test_no_vectors_give_no_rows(launch):
    assert launch([quantise(draw(16, 64), "q4_1")], draw(0, 64)).shape == (0, 16)


@pytest.fixture
def compiled(monkeypatch):
    """Have the kernels ready, whatever the CPU is."""
    from llvmlite import binding

    from inferlab.kernels.cpu import quant_matmul

    monkeypatch.delitem(quantised.PRODUCTS, "cpu", raising=False)
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: {"avx2": True})
    quant_matmul.prepare()


@every_format
def test_linear_uses_it_where_it_may(compiled, launch, format):
    weight, x, bias = quantise(draw(24, 64), format), draw(2, 3, 64), draw(24)
    got = quantised.linear(x, weight, bias, rounded=True)
    assert torch.equal(got, (launch([weight], x.view(6, 64)) + bias).view(2, 3, 24))
    for fresh in (quantised.linear(x, weight, bias), got.to(torch.bfloat16).float()):
        assert not torch.equal(fresh, got)
    other = quantise(draw(16, 64), "q8_0")
    one, two = quantised.linears(x, (weight, bias), (other, None), rounded=True)
    assert torch.equal(one, got)
    assert torch.equal(two.flatten(0, 1), launch([other], x.view(6, 64)))


@every_format
@pytest.mark.parametrize("may_round", [False, True])
def test_one_vector_is_taken_as_it_is_and_nothing_widened(compiled, format, may_round, monkeypatch):
    weight, x = quantise(draw(24, 64), format), draw(64)
    monkeypatch.setattr(Quantised, "dequantise", None)
    got = quantised.linear(x, weight, rounded=may_round)
    monkeypatch.undo()
    assert rms_ratio(got, reference.quant_matvec(weight, x[None])[0]) < 1e-6


@pytest.mark.parametrize(
    ("rows", "dtype", "columns", "format"),
    [
        (15, torch.float32, 64, "q4_1"),  # fewer rows than a panel
        (16, torch.bfloat16, 64, "q4_1"),
        (16, torch.float32, 40, "int8"),  # no whole blocks
    ],
)
def test_what_does_not_fit_is_widened(compiled, rows, dtype, columns, format):
    weight, x = quantise(draw(rows, columns), format), draw(4, columns).to(dtype)
    got = quantised.linear(x, weight, rounded=True)
    assert torch.equal(got, quantised.linear(x, weight))


def test_a_cpu_without_the_instruction_widens(monkeypatch):
    from llvmlite import binding

    from inferlab.kernels.cpu import quant_matmul

    monkeypatch.delitem(quantised.PRODUCTS, "cpu", raising=False)
    monkeypatch.setattr(binding, "get_host_cpu_features", dict)
    quant_matmul.prepare()
    assert "cpu" not in quantised.PRODUCTS
