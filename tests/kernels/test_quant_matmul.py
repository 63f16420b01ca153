"""Products of many rounded vectors with quantised matrices, against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from inferlab.kernels import backends, quantised, reference
from inferlab.kernels.quantised import FORMATS, Quantised, quantise
from inferlab.kernels.reference import rms_ratio

pytestmark = pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
every_format = pytest.mark.parametrize("format", FORMATS)
GENERATOR = torch.Generator().manual_seed(4)


@pytest.fixture(scope="module")
def launch():
    from inferlab.kernels.cpu import quant_matmul

    return quant_matmul.launch


def draw(*shape):
    return torch.randn(shape, generator=GENERATOR)


def met(x):
    """x with every block rounded to 8 bits, as the kernel packs it."""
    blocks = x.unflatten(1, (-1, 32))
    largest = blocks.abs().amax(-1, keepdim=True)
    steps = torch.round(blocks * torch.where(largest > 0, 127 / largest, 0))
    return (steps.double() * (largest / 127).double()).flatten(1)


def right(weights, x):
    return np.concatenate([reference.quant_matvec(weight, met(x)) for weight in weights], axis=1)


@every_format
@pytest.mark.parametrize("threads", [1, 2, None])
@pytest.mark.parametrize(
    ("rows", "columns", "batch"), [(8, 32, 1), (9, 96, 2), (123, 576, 5), (40, 1536, 17)]
)
def test_a_product_is_that_of_the_widened_matrix(launch, format, rows, columns, batch, threads):
    weight, x = quantise(draw(rows, columns), format), draw(batch, columns)
    got = launch([weight], x, threads)
    assert got.shape == (batch, rows)
    assert rms_ratio(got, right([weight], x)) < 1e-5


@every_format
def test_the_error_of_rounding_is_small(launch, format):
    weight, x = quantise(draw(300, 576), format), draw(64, 576)
    assert rms_ratio(launch([weight], x), reference.quant_matvec(weight, x)) < 1e-2


def test_matrices_stand_side_by_side(launch, monkeypatch):
    """Pieces of work that hold the end of one matrix and the beginning of the next."""
    from inferlab.kernels.cpu import quant_matmul

    weights = [quantise(draw(rows, 96), f) for rows, f in zip((9, 64, 8, 35), FORMATS, strict=True)]
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
    assert torch.equal(launch([quantise(draw(8, 160), "q4_0"), weight], x)[:, 8:], whole)
    for rows in (slice(0, 1), slice(3, 5), slice(30, 37)):
        assert torch.equal(launch([weight], x[rows]), whole[rows])


@every_format
def test_nothing_beside_the_planes_is_read(launch, format):
    """Planes in memory that ends with them, among NaN and codes of all ones; rows with holes."""
    weight, planes = quantise(draw(22, 96), format), []
    for plane in (weight.weights, weight.scales, weight.mins):
        if plane is not None:
            fill = math.nan if plane.is_floating_point() else 85
            around = torch.full((plane.shape[0] + 2, *plane.shape[1:]), fill, dtype=plane.dtype)
            around[1:-1] = plane
            planes.append(around[1:-1])
    x = torch.full((5, 130), math.nan)
    x[:, :96] = draw(5, 96)
    x = x[:, :96]
    assert torch.equal(launch([Quantised(format, *planes)], x), launch([weight], x.contiguous()))
    some = [plane[::2].contiguous() if plane.dim() == 1 else plane[::2] for plane in planes]
    assert torch.equal(launch([Quantised(format, *some)], x), launch([weight], x)[:, ::2])


@pytest.mark.parametrize("format", ["q4_0", "q4_1"])
def test_the_largest_nibbles_with_the_largest_elements_fit_16_bits(launch, format):
    codes, scales = torch.full((8, 32), 255, dtype=torch.uint8), torch.ones(8, 2).half()
    weight = Quantised(format, codes, scales, scales if format == "q4_1" else None)
    for x in (torch.full((4, 64), 127.0), torch.full((4, 64), -127.0)):
        assert np.array_equal(launch([weight], x), reference.quant_matvec(weight, x))


@pytest.mark.parametrize("format", ["q8_0", "int8"])
def test_every_byte(launch, format):
    codes = torch.arange(256, dtype=torch.uint8).view(torch.int8).view(8, 32)
    scales = torch.ones(8) if format == "int8" else torch.ones(8, 1).half()
    weight, x = Quantised(format, codes, scales), torch.eye(32) * 127
    assert torch.equal(launch([weight], x), codes.T.float() * 127)


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
    other = quantise(draw(8, 64), "q8_0")
    one, two = quantised.linears(x, (weight, bias), (other, None), rounded=True)
    assert torch.equal(one, got)
    assert torch.equal(two.flatten(0, 1), launch([other], x.view(6, 64)))


@every_format
@pytest.mark.parametrize("rounded", [False, True])
def test_one_vector_is_never_widened_for(compiled, format, rounded, monkeypatch):
    weight, x = quantise(draw(24, 64), format), draw(64)
    monkeypatch.setattr(Quantised, "dequantise", None)
    got = quantised.linear(x, weight, rounded=rounded)
    monkeypatch.undo()
    wanted = reference.quant_matvec(weight, met(x[None]) if rounded else x[None])[0]
    assert rms_ratio(got, wanted) < 1e-5


@pytest.mark.parametrize(
    ("rows", "dtype", "columns", "format"),
    [
        (7, torch.float32, 64, "q4_1"),  # fewer rows than a panel
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
