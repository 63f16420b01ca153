"""Chains of multiply-adds: every backend against the float64 oracle, whatever the length."""

from __future__ import annotations

import math

import pytest
import torch

from inferlab.errors import InferlabError
from inferlab.kernels import backends, ops, reference

SIMD = pytest.param(
    "simd", marks=pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
)
TRITON = pytest.param(
    "triton", marks=pytest.mark.skipif(not backends.has_triton(), reason="Triton is not here")
)
each = pytest.mark.parametrize("backend", ["torch", SIMD, TRITON])


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    monkeypatch.setattr(ops, "_new", lambda *shape: torch.full(shape, math.nan))


@pytest.fixture
def numbers():
    generator = torch.Generator().manual_seed(5)
    return lambda size: torch.rand(size, generator=generator)


@each
@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 129, 4097, 2**15 + 1, 100_003])
def test_chain(backend, size, steps, numbers):
    device = "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"
    x = numbers(size).to(device)
    right = reference.chain(x.cpu(), steps)
    assert float(ops.chain(x, steps, backend=backend)) == pytest.approx(right, rel=3e-6)


@pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
@pytest.mark.parametrize("size", [1, 40, 2**15, 70_001])
def test_lone_chains_and_repeated_ones_compute_the_same(size, numbers):
    x = numbers(size)
    for steps in (0, 3, 50):
        right = reference.chain(x, steps)
        for way in ({"lone": True}, {"rounds": 3}):
            got = float(ops.chain(x, steps, backend="simd", **way))
            assert got == pytest.approx(right, rel=3e-6)


@each
def test_one_damaged_number_is_not_lost(backend, numbers):
    if backend == "triton" and torch.cuda.is_available():
        pytest.skip("tensors of this test are on the CPU")
    x = numbers(1000)
    x[777] = math.nan
    assert math.isnan(ops.chain(x, 2, backend=backend))


def test_a_chain_of_less_than_nothing_is_refused(numbers):
    with pytest.raises(InferlabError, match="steps is -1"):
        ops.chain(numbers(4), -1)
    with pytest.raises(InferlabError, match="x has shape"):
        ops.chain(torch.rand(2, 2), 1)
