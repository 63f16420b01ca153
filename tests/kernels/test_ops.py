"""Every op on every backend against its float64 oracle, on awkward shapes and poisoned memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tensors import strided

from inferlab.errors import InferlabError
from inferlab.kernels import backends, ops, reference
from inferlab.kernels.reference import rms_ratio

GENERATOR = torch.Generator().manual_seed(1)
TOLERANCE = 2e-6  # float32 sums, reassociated
SIMD = pytest.param(
    "simd", marks=pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
)
backend = pytest.mark.parametrize("backend", ["torch", SIMD])


def draw(*shape):
    return torch.randn(shape, generator=GENERATOR)


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Outputs begin as NaN, so that what a kernel leaves out cannot pass for a zero."""
    monkeypatch.setattr(ops, "_new", lambda *shape: torch.full(shape, math.nan))


@backend
@pytest.mark.parametrize("rows", [1, 2, 5, 123, 4097])
@pytest.mark.parametrize("columns", [1, 5, 127, 576])
def test_matvec(backend, rows, columns):
    weight, x, bias, residual = draw(rows, columns), draw(3, columns), draw(rows), draw(3, rows)
    got = ops.matvec(weight, x, bias, residual, backend=backend)
    assert rms_ratio(got, reference.matvec(weight, x, bias, residual)) < TOLERANCE
    got = ops.matvec(strided(weight), strided(x), residual=strided(residual), backend=backend)
    assert rms_ratio(got, reference.matvec(weight, x, None, residual)) < TOLERANCE


@backend
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 123), (1536, 576), (4097, 33)])
def test_swiglu(backend, rows, columns):
    gate, up, x = draw(rows, columns), strided(draw(rows, columns)), draw(4, columns)
    got = ops.swiglu(gate, up, x, backend=backend)
    assert rms_ratio(got, reference.swiglu(gate, up, x)) < TOLERANCE


@backend
def test_swiglu_saturates_without_overflow(backend):
    gate, up = torch.tensor([[1000.0], [-1000.0], [80.0], [-80.0]]), torch.ones(4, 1)
    got = ops.swiglu(gate, up, torch.ones(1, 1), backend=backend)
    np.testing.assert_allclose(got, [[1000, 0, 80, 0]], rtol=1e-6, atol=1e-30)


@backend
@pytest.mark.parametrize("size", [1, 5, 127, 576, 4097])
def test_rms_norm(backend, size):
    x, weight = strided(draw(3, size)), draw(size)
    got = ops.rms_norm(x, weight, 1e-5, backend=backend)
    assert rms_ratio(got, reference.rms_norm(x, weight, 1e-5)) < TOLERANCE
    tiny = x * 1e-4  # where epsilon counts
    got = ops.rms_norm(tiny, weight, 1e-5, backend=backend)
    assert rms_ratio(got, reference.rms_norm(tiny, weight, 1e-5)) < TOLERANCE


@backend
@pytest.mark.parametrize(("size", "pairs"), [(2, 1), (64, 32), (80, 40), (24, 12), (64, 16)])
def test_rope(backend, size, pairs):
    x, angle = strided(draw(2, 3, size)), draw(2, pairs) * 100
    got = ops.rope(x, angle.cos(), angle.sin(), backend=backend)
    assert rms_ratio(got, reference.rope(x, angle.cos(), angle.sin())) < TOLERANCE


@backend
@pytest.mark.parametrize("length", [1, 2, 5, 31, 33, 127, 128, 512, 513, 4097])
@pytest.mark.parametrize("window", [None, 1, 7, 128, 300])
def test_decode_attention(backend, length, window):
    heads, kv_heads, size = 6, 2, 24
    q = 3 * draw(2, heads, size)
    k, v = (draw(2, kv_heads, length + 9, size) for _ in range(2))
    lengths = torch.tensor([length, max(1, length // 3)])
    for cache in (k, v):
        for row, n in enumerate(lengths):
            cache[row, :, n:] = math.nan
    got = ops.decode_attention(q, k, v, lengths, window, backend=backend)
    assert rms_ratio(got, reference.decode_attention(q, k, v, lengths, window)) < TOLERANCE


@backend
@pytest.mark.parametrize("group", [1, 2, 3, 7, 9, 16])
@pytest.mark.parametrize("size", [64, 80, 96, 128])
def test_decode_attention_of_grouped_heads(backend, group, size):
    q, k, v = draw(1, 2 * group, size), draw(1, 2, 150, size), draw(1, 2, 150, size)
    lengths = torch.tensor([150])
    got = ops.decode_attention(q, k, v, lengths, backend=backend)
    assert rms_ratio(got, reference.decode_attention(q, k, v, lengths)) < TOLERANCE
    # Positions before heads, as the caches of other engines have it.
    k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v))
    other = ops.decode_attention(q, k, v, lengths, backend=backend)
    assert rms_ratio(other, got) < TOLERANCE


@backend
def test_decode_attention_with_scores_far_from_zero(backend):
    q, k, v = 40 * draw(1, 1, 64), 40 * draw(1, 1, 200, 64), draw(1, 1, 200, 64)
    lengths = torch.tensor([200])
    got = ops.decode_attention(q, k, v, lengths, backend=backend)
    # Scores near a thousand: their rounding alone is 1e-4.
    assert rms_ratio(got, reference.decode_attention(q, k, v, lengths)) < 1e-3


@backend
def test_empty_batches(backend):
    weight, none = draw(5, 3), torch.empty(0, 3)
    assert ops.matvec(weight, none, backend=backend).shape == (0, 5)
    assert ops.swiglu(weight, weight, none, backend=backend).shape == (0, 5)
    assert ops.rms_norm(none, draw(3), 1e-5, backend=backend).shape == (0, 3)
    heads, angles = torch.empty(0, 2, 4), torch.empty(0, 2)
    assert ops.rope(heads, angles, angles, backend=backend).shape == (0, 2, 4)
    k, lengths = torch.empty(0, 1, 8, 4), torch.empty(0, dtype=torch.int64)
    assert ops.decode_attention(heads, k, k, lengths, backend=backend).shape == (0, 2, 4)
    assert ops.matvec(torch.empty(0, 3), draw(2, 3), backend=backend).shape == (2, 0)


@backend
def test_nan_and_infinity_are_passed_on(backend):
    x = draw(2, 8)
    x[0, 3] = math.nan
    for y in (
        ops.matvec(draw(6, 8), x, backend=backend),
        ops.rms_norm(x, draw(8), 1e-5, backend=backend),
        ops.swiglu(draw(6, 8), draw(6, 8), x, backend=backend),
    ):
        assert y[0].isnan().all()
        assert y[1].isfinite().all()
    k = draw(1, 1, 9, 8)
    k[0, 0, 4, 4] = math.nan
    got = ops.decode_attention(draw(1, 1, 8), k, draw(1, 1, 9, 8), torch.tensor([9]))
    assert got.isnan().all()


def test_case_27_rms_norm_of_float16_does_not_overflow():
    for scale in (300.0, 6e4, 1e-4):
        x = (torch.ones(2, 896) * scale * torch.tensor([1.0, -1.0]).repeat(448)).half()
        got = ops.rms_norm(x, torch.ones(896).half(), 1e-6)
        right = reference.rms_norm(x, np.ones(896), 1e-6)
        np.testing.assert_allclose(got, right, rtol=1e-3)


@pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
class TestSimd:
    """What only the kernels that we compile promise."""

    @pytest.mark.parametrize("batch", range(1, 17))
    def test_a_row_is_bit_for_bit_what_it_is_alone(self, batch):
        weight, up = draw(123, 127), draw(123, 127)
        x, residual = draw(batch, 127), draw(batch, 123)
        q, k, v = draw(batch, 6, 24), draw(batch, 2, 300, 24), draw(batch, 2, 300, 24)
        lengths = torch.arange(batch) * 17 + 5
        together = (
            ops.matvec(weight, x, None, residual, backend="simd", threads=2),
            ops.swiglu(weight, up, x, backend="simd", threads=3),
            ops.rms_norm(x, weight[0], 1e-5, backend="simd"),
            ops.decode_attention(q, k, v, lengths, 99, backend="simd", threads=2),
        )
        for b in range(batch):
            one = slice(b, b + 1)
            alone = (
                ops.matvec(weight, x[one], None, residual[one], backend="simd", threads=1),
                ops.swiglu(weight, up, x[one], backend="simd", threads=1),
                ops.rms_norm(x[one], weight[0], 1e-5, backend="simd"),
                ops.decode_attention(
                    q[one], k[one], v[one], lengths[one], 99, backend="simd", threads=1
                ),
            )
            for all_rows, row in zip(together, alone, strict=True):
                assert torch.equal(all_rows[b], row[0])

    def test_exp(self):
        from inferlab.kernels.cpu.exp import exp

        x = np.concatenate([np.linspace(-87, 88, 5001), [0.0, -0.0, 1e-30]]).astype(np.float32)
        got = np.array([exp(value) for value in x])
        assert np.max(np.abs(got / np.exp(x.astype(np.float64)) - 1)) < 2.5e-7
        assert exp(np.float32(-np.inf)) < 1e-37
        assert exp(np.float32(-1000)) < 1e-37
        assert exp(np.float32(1000)) > 1e38
        assert math.isnan(exp(np.float32(np.nan)))

    def test_what_the_kernels_cannot_do_is_refused(self):
        for weight, x in (
            (draw(4, 8).double(), draw(1, 8).double()),
            (draw(8, 4).T, draw(1, 8)),
            (draw(4, 8), draw(17, 8)),
        ):
            with pytest.raises(InferlabError, match="backend simd needs numba and float32"):
                ops.matvec(weight, x, backend="simd")
            assert rms_ratio(ops.matvec(weight, x), reference.matvec(weight, x)) < TOLERANCE


def test_without_numba_torch_does_it(monkeypatch):
    monkeypatch.setenv("INFERLAB_HIDE", "triton,numba")
    assert not backends.has_numba()
    assert set(ops.choices().values()) == {"torch"}
    weight, x = draw(5, 8), draw(2, 8)
    assert torch.equal(ops.matvec(weight, x), x @ weight.T)
    with pytest.raises(InferlabError, match="numba"):
        ops.matvec(weight, x, backend="simd")


def test_wrong_shapes_and_names_get_one_line():
    weight, x = draw(5, 8), draw(2, 8)
    with pytest.raises(InferlabError, match=r"weight has shape \[5, 8\]; it must be \[any, 7\]"):
        ops.matvec(weight, x[:, :7])
    with pytest.raises(InferlabError, match="bias has shape"):
        ops.matvec(weight, x, draw(4))
    with pytest.raises(InferlabError, match="unknown backend 'smid': did you mean simd"):
        ops.matvec(weight, x, backend="smid")
    q, k = draw(1, 3, 8), draw(1, 2, 4, 8)
    with pytest.raises(InferlabError, match="q has 3 heads"):
        ops.decode_attention(q, k, k, torch.tensor([4]))
    with pytest.raises(InferlabError, match="lengths must be from 1 to 4"):
        ops.decode_attention(q[:, :2], k, k, torch.tensor([5]))
