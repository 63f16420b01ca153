"""Every op at the sizes of real models against its float64 oracle, in each number format."""

from __future__ import annotations

import math

import pytest
import torch
from tensors import wide

from inferlab.kernels import ops, reference
from inferlab.kernels.quantised import quantise
from inferlab.kernels.reference import rms_ratio

# What the rounding of inputs to products, and of results, leaves. Sums are float32.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def draw(*shape, device, dtype=torch.float32, seed=0):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, device=device, generator=generator).to(dtype)


def near(got, right, dtype, slack=1.0):
    assert rms_ratio(*wide(got), right) < slack * TOLERANCE[dtype]


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Outputs begin as NaN, so that what a kernel leaves out cannot pass for a zero."""
    monkeypatch.setattr(ops, "_empty", lambda like, *shape: like.new_full(shape, math.nan))


def test_vector_add(device, dtype, big):
    a, b = (draw(big(10_000_019, 1003), device=device, dtype=dtype, seed=s) for s in (0, 1))
    near(ops.vector_add(a, b, backend="triton"), reference.vector_add(*wide(a, b)), dtype)


@pytest.mark.parametrize("columns", [1, 127, 1000, 4097])
def test_softmax(columns, device, dtype, big):
    x = 4 * draw(big(1000, 3), columns, device=device, dtype=dtype)
    near(ops.softmax(x, backend="triton"), reference.softmax(*wide(x)), dtype)


@pytest.mark.parametrize("sizes", [(1000, 1001, 1003), (4096, 4096, 4096), (17, 4096, 129)])
def test_matmul(sizes, device, dtype, big):
    m, n, k = (big(size, min(size, 33)) for size in sizes)
    a, b = draw(m, k, device=device, dtype=dtype), draw(k, n, device=device, dtype=dtype, seed=1)
    near(ops.matmul(a, b, backend="triton"), reference.matmul(*wide(a, b)), dtype)


@pytest.mark.parametrize("size", [576, 2048, 4096, 14336])
def test_rms_norm(size, device, dtype, big):
    x, other = (draw(big(700, 3), size, device=device, dtype=dtype, seed=s) for s in (0, 1))
    gain = draw(size, device=device, dtype=dtype, seed=2)
    right = reference.rms_norm(*wide(x, gain), 1e-5)
    near(ops.rms_norm(x, gain, 1e-5, backend="triton"), right, dtype)
    normed, total = ops.add_rms_norm(x, other, gain, 1e-5, backend="triton")
    near(total, sum(wide(x, other)), dtype)
    near(normed, reference.rms_norm(*wide(total, gain), 1e-5), dtype)


@pytest.mark.parametrize("value", [300.0, 6e4, 1e-4])
def test_case_27_rms_norm_of_what_overflows_when_squared(value, device):
    x = torch.full((2, 896), value, device=device, dtype=torch.float16)
    x[:, ::2] *= -1
    gain = torch.ones(896, device=device, dtype=torch.float16)
    got = ops.rms_norm(x, gain, 1e-6, backend="triton")
    assert got.isfinite().all()
    near(got, reference.rms_norm(*wide(x, gain), 1e-6), torch.float16)


MATRICES = [(1536, 576), (4096, 4096), (14336, 4096), (4096, 14336), (1001, 1003)]


@pytest.mark.parametrize("shape", MATRICES)
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 8, 16])
def test_matvec(batch, shape, device, dtype, big):
    rows, columns = (big(size, 40) for size in shape)
    weight = draw(rows, columns, device=device, dtype=dtype)
    x, residual = (
        draw(batch, size, device=device, dtype=dtype, seed=1) for size in (columns, rows)
    )
    bias = draw(rows, device=device, dtype=dtype, seed=2)
    got = ops.matvec(weight, x, bias, residual, backend="triton")
    near(got, reference.matvec(*wide(weight, x, bias, residual)), dtype)
    up = draw(rows, columns, device=device, dtype=dtype, seed=3)
    near(ops.swiglu(weight, up, x, backend="triton"), reference.swiglu(*wide(weight, up, x)), dtype)


@pytest.mark.parametrize("format", ["q8_0", "q4_0", "q4_1", "int8"])
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_quant_matvec(batch, format, device, dtype, big):
    rows, columns = big(4096, 32), big(4096, 64)
    weight, up = (quantise(draw(rows, columns, device=device, seed=s), format) for s in (0, 1))
    x, residual = (
        draw(batch, size, device=device, dtype=dtype, seed=2) for size in (columns, rows)
    )
    got = ops.quant_matvec(weight, x, None, residual, backend="triton")
    right = reference.matvec(*wide(weight.dequantise(), x), None, *wide(residual))
    near(got, right, dtype)
    got = ops.quant_swiglu(weight, up, x, backend="triton")
    near(got, reference.swiglu(*wide(weight.dequantise(), up.dequantise(), x)), dtype)


def test_rope_and_cache(device, dtype, big):
    batch, heads, kv, size, block, columns = 3, 32, 8, 128, 16, big(64, 2)
    q, k, v = (
        draw(batch, n, size, device=device, dtype=dtype, seed=n + i)
        for i, n in enumerate((heads, kv, kv))
    )
    angle = draw(batch, size // 2, device=device)
    pages = [
        draw(batch * columns, kv, block, size, device=device, dtype=dtype, seed=s) for s in (5, 6)
    ]
    table = torch.randperm(batch * columns).view(batch, columns).int().to(device)
    lengths = torch.tensor([0, block * columns - 1, -1], device=device, dtype=torch.int32)
    arguments = (q, k, v, angle.cos(), angle.sin(), *pages, lengths, table)
    on_host = [t.double().cpu() if t.is_floating_point() else t.cpu() for t in arguments]
    right = reference.rope_and_cache(*on_host)
    got = ops.rope_and_cache(*arguments, backend="triton")
    for ours, theirs in zip((got, *pages), right, strict=True):
        near(ours, theirs, dtype)


@pytest.mark.parametrize("heads", [(9, 3, 64), (32, 8, 128), (40, 8, 80), (16, 1, 96)])
@pytest.mark.parametrize("window", [None, 100])
def test_decode_attention(heads, window, device, dtype, big):
    h, kv, size = heads
    lengths = torch.tensor(big([1, 4097, 32768], [1, 70, 129]), device=device)
    most = int(lengths.max())
    q = draw(3, h, size, device=device, dtype=dtype)
    k, v = (draw(3, kv, most, size, device=device, dtype=dtype, seed=s) for s in (1, 2))
    got = ops.decode_attention(q, k, v, lengths, window, backend="triton")
    right = reference.decode_attention(*wide(q, k, v), lengths.cpu(), window)
    near(got, right, dtype)


@pytest.mark.parametrize("heads", [(9, 3, 64), (32, 8, 128), (16, 2, 80)])
@pytest.mark.parametrize("window", [None, 100])
def test_flash_attention(heads, window, device, dtype, big):
    h, kv, size = heads
    tokens, keys = big(513, 20), big(1500, 70)
    q = draw(2, tokens, h, size, device=device, dtype=dtype)
    k, v = (draw(2, keys, kv, size, device=device, dtype=dtype, seed=s) for s in (1, 2))
    offset = torch.tensor([0, keys - tokens], device=device)
    got = ops.flash_attention(q, k, v, window=window, offset=offset, backend="triton")
    right = reference.flash_attention(*wide(q, k, v), window=window, offset=offset.cpu())
    near(got, right, dtype)


def test_addresses_past_two_to_the_31st(device, big):
    """The last page of a cache of more than 2^31 elements, and the last row of such a matrix."""
    if big(False, True):
        pytest.skip("the interpreter has no memory for it")
    k = torch.zeros(1100, 8, 2048, 128, device=device, dtype=torch.float16)
    assert k.numel() > 2**31
    k[-1] = draw(8, 2048, 128, device=device, dtype=torch.float16)
    q = draw(1, 32, 128, device=device, dtype=torch.float16)
    table = torch.tensor([[1099]], device=device, dtype=torch.int32)
    seen = torch.tensor([2048], device=device)
    got = ops.decode_attention(q, k, k, seen, table=table, backend="triton")
    near(got, reference.decode_attention(*wide(q, k[-1:], k[-1:]), seen.cpu()), torch.float16)
    del k
    weight = torch.zeros(2**19 + 8, 4096, device=device, dtype=torch.float16)
    weight[-1] = 1
    x = draw(1, 4096, device=device, dtype=torch.float16)
    got = ops.matvec(weight, x, backend="triton")
    near(got[:, -1], x.double().cpu().sum(1), torch.float16)
    assert not got[:, :-1].any()
