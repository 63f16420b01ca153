"""The SIMD kernel that widens: bit for bit what torch writes, and nothing beside it."""

from __future__ import annotations

import math

import pytest
import torch

from inferlab.kernels import backends, quantised
from inferlab.kernels.quantised import Quantised, quantise

pytestmark = pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
every_format = pytest.mark.parametrize("name", quantised.FORMATS)


@pytest.fixture(scope="module")
def launch():
    from inferlab.kernels.cpu import widen

    return widen.launch


def draw(rows, columns):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


@every_format
@pytest.mark.parametrize("threads", [1, 2, 3, None])
@pytest.mark.parametrize("shape", [(1, 32), (3, 96), (129, 64), (700, 576), (0, 32)])
def test_every_bit_is_torchs(name, threads, shape, launch, monkeypatch):
    monkeypatch.delitem(quantised.WIDEN, "cpu", raising=False)
    matrix = quantise(draw(*shape), name)
    out = torch.full((shape[0] + 2, shape[1] + 8), math.nan)
    launch(matrix, slice(0, shape[0]), out[1:-1, :-8], threads)
    assert torch.equal(out[1:-1, :-8], matrix.dequantise())
    assert out[0].isnan().all()
    assert out[-1].isnan().all()
    assert out[:, -8:].isnan().all()


@every_format
def test_rows_of_planes_with_holes(name, launch):
    """Every second row of a matrix: each plane is read by its own stride, if it has two."""
    matrix = quantise(draw(10, 64), name)
    some = Quantised(
        name,
        matrix.weights[::2],
        matrix.scales[::2].contiguous() if name == "int8" else matrix.scales[::2],
        None if matrix.mins is None else matrix.mins[::2],
    )
    out = torch.empty(5, 64)
    launch(some, slice(0, 5), out)
    assert torch.equal(out, matrix.dequantise()[::2])
    launch(some, slice(3, 5), out[:2])
    assert torch.equal(out[:2], matrix.dequantise()[6::2])


@every_format
def test_dequantise_uses_it_once_it_is_compiled(name, monkeypatch):
    from inferlab.kernels.cpu import widen

    matrix, ids = quantise(draw(40, 64), name), torch.tensor([7, 39, 7])
    monkeypatch.delitem(quantised.WIDEN, "cpu", raising=False)
    right, seen = matrix.dequantise(), []
    real = widen.launch
    monkeypatch.setattr(widen, "launch", lambda *given: (seen.append(given), real(*given))[1])
    widen.prepare()
    assert torch.equal(matrix.dequantise(), right)
    assert torch.equal(matrix.dequantise(rows=slice(30, 50)), right[30:])
    assert torch.equal(matrix.dequantise(rows=ids), right[ids])
    assert len(seen) == 3
    assert torch.equal(matrix.dequantise(torch.bfloat16), right.bfloat16())
    transposed = torch.empty(64, 40).T
    assert torch.equal(matrix.dequantise(out=transposed), right)
    assert len(seen) == 3
