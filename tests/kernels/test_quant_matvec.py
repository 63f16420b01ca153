"""Matrix-vector products on quantised weights against widening and multiplying in float64."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from tensors import draw, guarded

from inferlab.errors import InferlabError
from inferlab.kernels import backends, ops, reference
from inferlab.kernels.quantised import FORMATS, FOUR_BITS, Quantised, quantise
from inferlab.kernels.reference import rms_ratio

needs_numba = pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
EXACT = 1e-5
LIMITS = {"float32": EXACT, "int8": 1e-2}
WAYS = pytest.mark.parametrize(
    ("backend", "activations"),
    [
        ("torch", "float32"),
        pytest.param("simd", "float32", marks=needs_numba),
        pytest.param("simd", "int8", marks=needs_numba),
    ],
)


def met(x, activations, format):
    """What weights meet: x, or rounded to int16, or for nibbles to int8.

    Then each half of a block is rounded in a multiple of the steps of the block.
    """
    if activations != "int8":
        return x
    if format not in FOUR_BITS:
        blocks = x.unflatten(1, (-1, 32))
        highest = blocks.abs().amax(2, keepdim=True)
        codes = torch.round(blocks * torch.where(highest > 0, 32767 / highest, 0))
        return (codes.double() * (highest.double() / 32767)).flatten(1)
    blocks = x.unflatten(1, (-1, 2, 2, 8))  # a half is elements 0-7 and 16-23, or the others
    most = blocks.abs().amax((2, 4), keepdim=True)
    highest = most.amax(3, keepdim=True)
    inverse = torch.where(highest > 0, 1 / highest, 0)
    steps = (most * inverse * 255).ceil().clamp(1, 255)
    codes = torch.round(blocks * (127 * 255 * inverse / steps))
    return (codes.double() * steps * (highest.double() / (127 * 255))).flatten(1)


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Outputs begin as NaN, so that what a kernel leaves out cannot pass for a zero.

    The numbers are the same in every run: one that is halfway between two steps may go either way.
    """
    torch.manual_seed(2)
    monkeypatch.setattr(ops, "_new", lambda *shape: torch.full(shape, math.nan))


@WAYS
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("columns", [32, 96, 576, 1536])
@pytest.mark.parametrize("rows", [1, 6, 123])
def test_a_product_is_that_of_the_widened_matrix(backend, activations, format, columns, rows):
    weight = guarded(quantise(draw(rows, columns), format).in_groups())
    x, bias, residual = draw(3, columns), draw(rows), draw(3, rows)
    got = ops.quant_matvec(
        weight, x, bias, residual, backend=backend, activations=activations, threads=2
    )
    right = reference.quant_matvec(weight, met(x, activations, format), bias, residual)
    assert rms_ratio(got, right) < EXACT
    got = ops.quant_matvec(weight, x, backend=backend, activations=activations)
    assert rms_ratio(got, reference.quant_matvec(weight, met(x, activations, format))) < EXACT
    if rows > 100:  # of a few numbers all may lie near zero
        assert rms_ratio(got, reference.quant_matvec(weight, x)) < LIMITS[activations]


@WAYS
@pytest.mark.parametrize("formats", [("q4_1", "q4_1"), ("q4_0", "q8_0"), ("int8", "q4_1")])
@pytest.mark.parametrize(("rows", "columns"), [(5, 96), (1536, 576)])
def test_swiglu(backend, activations, formats, rows, columns):
    gate, up = (guarded(quantise(draw(rows, columns), f).in_groups()) for f in formats)
    x = draw(2, columns) / columns**0.5
    got = ops.quant_swiglu(gate, up, x, backend=backend, activations=activations, threads=2)
    g, u = (reference.quant_matvec(w, met(x, activations, w.format)) for w in (gate, up))
    assert rms_ratio(got, g / (1 + np.exp(-g)) * u) < EXACT


@pytest.mark.slow
@needs_numba
@pytest.mark.parametrize("activations", LIMITS)
@pytest.mark.parametrize("batch", [1, 2, 16])
@pytest.mark.parametrize("format", FORMATS)
def test_a_vocabulary(format, batch, activations):
    weight, x = quantise(draw(49152, 576), format), draw(batch, 576)
    got = ops.quant_matvec(weight, x, backend="simd", activations=activations)
    assert rms_ratio(got, reference.quant_matvec(weight, x)) < LIMITS[activations]


@WAYS
@pytest.mark.parametrize("format", FORMATS)
def test_awkward_values(backend, activations, format):
    """Every code, scales that are subnormal or negative, blocks of x that are zero or far apart."""
    codes = torch.arange(256).repeat(3, 2).to(torch.uint8)
    if format in ("q4_0", "q4_1"):
        scales = torch.tensor([1.0, -0.5, 6e-8, 3e-5, 0.0, 2000.0, 1.0, 1e-4] * 2).half()
        planes = [codes, scales.repeat(3, 2)]
    elif format == "q8_0":
        scales = torch.tensor([1.0, -0.5, 6e-8, 3e-5, 0.0, 2000.0, 1.0, 1e-4] * 2).half()
        planes = [codes.view(torch.int8), scales.repeat(3, 1)]
    else:
        planes = [codes.view(torch.int8), torch.tensor([1.0, -1e-3, 1e3])]
    if format == "q4_1":
        planes.append(planes[1].flip(1).contiguous())
    weight = Quantised(format, *planes)
    x = draw(2, weight.shape[1])
    x[0, 32:64] = 0
    x[0, 64:96] *= 1e-30
    x[1, :32] *= 1e20
    got = ops.quant_matvec(weight, x, backend=backend, activations=activations)
    right = reference.quant_matvec(weight, met(x, activations, format))
    for row in range(2):
        assert rms_ratio(got[row], right[row]) < EXACT


@WAYS
@pytest.mark.parametrize("format", FORMATS)
def test_nan_and_infinity_are_passed_on(backend, activations, format):
    weight, x = quantise(draw(6, 96), format), draw(3, 96)
    x[0, 70], x[1, 3] = math.nan, math.inf
    got = ops.quant_matvec(weight, x, backend=backend, activations=activations)
    assert not got[:2].isfinite().any()
    assert got[2].isfinite().all()


@WAYS
def test_empty_batches_and_matrices(backend, activations):
    weight = quantise(draw(5, 32), "q4_1")
    way = {"backend": backend, "activations": activations}
    assert ops.quant_matvec(weight, torch.empty(0, 32), **way).shape == (0, 5)
    assert ops.quant_swiglu(weight, weight, torch.empty(0, 32), **way).shape == (0, 5)
    none = quantise(torch.empty(0, 32), "q8_0")
    assert ops.quant_matvec(none, draw(2, 32), **way).shape == (2, 0)


@needs_numba
@pytest.mark.parametrize("activations", LIMITS)
@pytest.mark.parametrize("batch", [1, 3, 4, 6, 16])
def test_a_row_is_bit_for_bit_what_it_is_alone(batch, activations):
    gate, up = (quantise(draw(77, 96), format) for format in ("q4_1", "q8_0"))
    x, residual = draw(batch, 96), draw(batch, 77)
    way = {"backend": "simd", "activations": activations}
    together = (
        ops.quant_matvec(gate, x, None, residual, threads=2, **way),
        ops.quant_swiglu(gate, up, x, threads=3, **way),
    )
    for b in range(batch):
        one = slice(b, b + 1)
        alone = (
            ops.quant_matvec(gate, x[one], None, residual[one], threads=1, **way),
            ops.quant_swiglu(gate, up, x[one], threads=1, **way),
        )
        for all_rows, row in zip(together, alone, strict=True):
            assert torch.equal(all_rows[b], row[0])


@needs_numba
def test_int8_is_the_default_of_the_simd_kernel():
    weight, x = quantise(draw(50, 64), "q4_1"), draw(1, 64)
    by_default = ops.quant_matvec(weight, x)
    assert torch.equal(by_default, ops.quant_matvec(weight, x, activations="int8"))
    assert not torch.equal(by_default, ops.quant_matvec(weight, x, activations="float32"))


def test_what_cannot_be_is_refused_by_name():
    with pytest.raises(InferlabError, match="200 columns cannot be q4_1"):
        quantise(draw(4, 200), "q4_1")
    odd, x = quantise(draw(4, 200), "int8"), draw(1, 200)
    with pytest.raises(InferlabError, match="columns in blocks of 32"):
        ops.quant_matvec(odd, x, backend="simd")
    assert rms_ratio(ops.quant_matvec(odd, x), reference.quant_matvec(odd, x)) < 1e-5
    weight, x = quantise(draw(4, 64), "q4_1"), draw(1, 64)
    with pytest.raises(InferlabError, match=r"x has shape \[1, 60\]; it must be \[any, 64\]"):
        ops.quant_matvec(weight, x[:, :60])
    with pytest.raises(InferlabError, match=r"up has shape \[3, 64\]; it must be \[4, 64\]"):
        ops.quant_swiglu(weight, quantise(draw(3, 64), "q4_1"), x)
    with pytest.raises(InferlabError, match="unknown activations 'int4'"):
        ops.quant_matvec(weight, x, activations="int4")
    with pytest.raises(InferlabError, match="activations int8 needs backend simd"):
        ops.quant_matvec(weight, x, activations="int8", backend="torch")
    with pytest.raises(InferlabError, match="at most 16 rows"):
        ops.quant_matvec(weight, draw(17, 64), backend="simd")


@needs_numba
def test_packing_keeps_values_to_half_a_step():
    from inferlab.kernels.cpu import quant_dot

    x = 100 * draw(5, 32)
    x[2] = 0
    x[3, 4], x[3, 30] = 1e4, 1e-3  # an outlier, which the other half need not suffer from
    out = np.zeros(quant_dot.packed_bytes(x.numel()), np.uint8)
    ways = quant_dot.INT8 | quant_dot.INT16
    quant_dot.pack(x.data_ptr(), x.numel(), ways, out.ctypes.data)
    size, right = 5 * quant_dot.SHORTS_BYTES, x.numpy()
    shorts = out[:size].reshape(5, quant_dot.SHORTS_BYTES)
    codes = shorts[:, :64].view(np.int16).reshape(5, 8, 4)[..., [0, 2, 1, 3]].reshape(5, 32)
    step, sums = shorts[:, 64:].view(np.float32).T[:, :, None]
    assert (np.abs(codes * step - right) <= step / 2 * (1 + 1e-3)).all()
    assert np.abs(codes).max(1).tolist() == [32767, 32767, 0, 32767, 32767]
    np.testing.assert_allclose(sums, (codes * step).sum(1, keepdims=True), rtol=1e-5)

    blocks = out[size:][: 5 * quant_dot.BYTES_BYTES].reshape(5, quant_dot.BYTES_BYTES)
    codes = blocks[:, :32].view(np.int8).reshape(5, 2, 2, 8).astype(np.float32)
    step, sums = blocks[:, 32:40].view(np.float32).T
    steps = blocks[:, 40:].view(np.int16).reshape(5, 1, 2, 2)
    assert (steps[..., 0] == steps[..., 1]).all()
    steps = steps[..., :1]
    size = step[:, None, None, None] * steps
    kept, right = codes * size, right.reshape(5, 2, 2, 8)
    assert (np.abs(kept - right) <= size / 2 * (1 + 1e-4)).all()
    assert steps[[0, 1, 3, 4]].max(2).ravel().tolist() == [quant_dot.MOST_STEPS] * 4
    assert np.abs(codes).reshape(5, -1).max(1).tolist() == [127, 127, 0, 127, 127]
    assert size[3, 0, 1, 0] < size[3, 0, 0, 0] / 20
    np.testing.assert_allclose(sums, kept.reshape(5, 32).sum(1), rtol=1e-5, atol=1e-3)


_ELSEWHERE = """
import numpy as np, torch
from inferlab.kernels import ops, reference
from inferlab.kernels.quantised import FORMATS, quantise
torch.manual_seed(0)
x = torch.randn(2, 96)
for format in FORMATS:
    weight = quantise(torch.randn(9, 96), format)
    for way, limit in (("float32", 1e-5), ("int8", 1e-2)):
        y = ops.quant_matvec(weight, x, backend="simd", activations=way)
        assert reference.rms_ratio(y, reference.quant_matvec(weight, x)) < limit, (format, way)
        print(format, way, y.numpy().tobytes().hex())
"""


@pytest.mark.slow
@needs_numba
def test_a_cpu_without_avx2_gets_the_same_numbers(tmp_path):
    """The portable instructions compute what AVX2's do, to the last bits of a float32 sum."""
    found = {}
    for name, features in (("here", {}), ("old", {"NUMBA_CPU_NAME": "generic"})):
        environment = os.environ | {"INFERLAB_CACHE": str(tmp_path)} | features
        command = [sys.executable, "-c", _ELSEWHERE]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        lines = (line.split() for line in run.stdout.splitlines())
        found[name] = {(a, b): np.frombuffer(bytes.fromhex(c), np.float32) for a, b, c in lines}
    assert found["here"].keys() == found["old"].keys()
    for key, values in found["here"].items():
        np.testing.assert_allclose(values, found["old"][key], rtol=2e-5, atol=2e-5)
