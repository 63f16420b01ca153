"""Quantised matrices against the `gguf` package: its blocks, its rounding, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from inferlab.errors import InferlabError
from inferlab.kernels import quantised, reference
from inferlab.kernels.quantised import Quantised, from_blocks, quantise
from inferlab.theory import formats

KIND = {name: GGMLQuantizationType[name.upper()] for name in ("q8_0", "q4_0", "q4_1")}
block_format = pytest.mark.parametrize("name", KIND)
any_format = pytest.mark.parametrize("name", quantised.FORMATS)
GENERATOR = torch.Generator().manual_seed(5)


def draw(*shape):
    return torch.randn(shape, generator=GENERATOR)


def random_blocks(name, rows, blocks):
    """Blocks as a file may hold them: any codes, any finite scales."""
    random = np.random.default_rng(3)
    size = formats.get(name).block_bytes
    raw = random.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in range(0, 4 if name == "q4_1" else 2, 2):
        scales = random.normal(size=(rows, blocks, 1)).astype(np.float16)
        raw[:, :, at : at + 2] = scales.view(np.uint8)
    return raw.reshape(rows, blocks * size)


@block_format
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (3, 5), (129, 7)])
def test_blocks_widen_as_gguf_widens_them(name, rows, blocks):
    raw = random_blocks(name, rows, blocks)
    matrix = from_blocks(torch.from_numpy(raw), name)
    assert matrix.shape == (rows, 32 * blocks)
    assert matrix.nbytes == raw.nbytes
    right = gguf.quants.dequantize(raw, KIND[name]).reshape(matrix.shape)
    assert torch.equal(matrix.dequantise(), torch.from_numpy(right))


@any_format
def test_a_matrix_without_rows_stays_without_rows(name):
    empty = quantise(draw(0, 64), name)
    assert (empty.shape, empty.nbytes) == ((0, 64), 0)
    assert empty.dequantise().shape == (0, 64)


@block_format
def test_slices_of_a_large_matrix_join(name, monkeypatch):
    raw = random_blocks(name, 40, 3)
    whole = from_blocks(torch.from_numpy(raw), name).dequantise()
    monkeypatch.setattr(quantised, "_CPU_SLICE", 350)  # 7 rows: 40 is no multiple
    assert torch.equal(from_blocks(torch.from_numpy(raw), name).dequantise(), whole)
    again = quantise(whole, name)
    monkeypatch.undo()
    assert torch.equal(again.weights, quantise(whole, name).weights)


@block_format
@settings(deadline=None, max_examples=60)
@given(
    weight=arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.sampled_from([32, 64, 160])),
        elements=st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, 1.0, -1.0, 0.5, -2.5]),
    )
)
@example(weight=np.zeros((2, 32), np.float32))
@example(weight=np.full((1, 32), -3.25, np.float32))
@example(weight=np.tile(np.float32([127, -0.5, 0.5, 1.5, -1.5, 2.5, -127, 0.49999997]), (1, 4)))
@example(weight=np.tile(np.float32([8, -8]), (1, 16)))  # of two largest the first decides
def test_rounding_is_that_of_ggml(name, weight):
    with np.errstate(all="ignore"):  # one over a scale may be infinite
        right = gguf.quants.quantize(weight, KIND[name])
    got, expected = (
        quantise(torch.from_numpy(weight), name),
        from_blocks(torch.from_numpy(right), name),
    )
    assert torch.equal(got.scales, expected.scales)
    assert torch.equal(got.dequantise(), expected.dequantise())
    if name == "q4_1":
        assert torch.equal(got.mins, expected.mins)


@block_format
def test_a_quantised_matrix_quantises_to_itself(name):
    once = quantise(draw(17, 96), name).dequantise()
    # The largest code of a block is reached, so its scale is found again, but for its rounding.
    assert (quantise(once, name).dequantise() - once).abs().max() < 2e-3 * once.abs().max()


@pytest.mark.parametrize(
    ("name", "steps"), [("q8_0", 127), ("q4_0", 8), ("q4_1", 15), ("int8", 127)]
)
def test_no_weight_moves_more_than_a_step(name, steps):
    weight = draw(33, 320)
    group = 320 if name == "int8" else 32
    blocks = weight.unflatten(1, (-1, group))
    span = blocks.abs().amax(-1, keepdim=True)
    if name == "q4_1":
        span = blocks.amax(-1, keepdim=True) - blocks.amin(-1, keepdim=True)
    moved = (quantise(weight, name).dequantise().unflatten(1, (-1, group)) - blocks).abs()
    # Half a step; a whole one where q4_0's sixteen codes stop short of the other sign's end.
    allowed = (1.0 if name == "q4_0" else 0.5) * span / steps
    assert (moved <= allowed * 1.01 + 1e-3 * span).all()


def test_int8_has_one_scale_a_row_whatever_its_length():
    weight = draw(5, 37) * torch.tensor([1e-3, 1.0, 40.0, 1e5, 1.0])[:, None]
    weight[4] = 0
    matrix = quantise(weight, "int8")
    assert matrix.shape == (5, 37)
    assert matrix.nbytes == 5 * 37 + 5 * 4
    assert torch.equal(matrix.scales, weight.abs().amax(1) / 127)
    assert (matrix.weights[:4].abs().amax(1) == 127).all()
    assert torch.equal(matrix.dequantise(), matrix.weights * matrix.scales[:, None])


@any_format
def test_rows_are_gathered_before_they_are_widened(name):
    matrix = quantise(draw(50, 64), name)
    whole = matrix.dequantise()
    ids = torch.tensor([3, 3, 49, 0])
    assert torch.equal(matrix.dequantise(rows=ids), whole[ids])
    assert torch.equal(matrix.dequantise(rows=slice(10, 13)), whole[10:13])
    assert matrix.dequantise(rows=slice(0, 0)).shape == (0, 64)


@any_format
@pytest.mark.parametrize("rows", [1, 8, 21, 64, 0])
def test_rows_in_groups_are_the_same_rows(name, rows, monkeypatch):
    monkeypatch.delitem(quantised.WIDEN, "cpu", raising=False)
    plain = quantise(draw(rows, 96), name)
    grouped = plain.in_groups()
    assert grouped.in_groups() is grouped
    assert (grouped.shape, grouped.nbytes) == (plain.shape, plain.nbytes)
    assert torch.equal(grouped.dequantise(), plain.dequantise())
    some, ids = slice(rows // 3, rows), torch.arange(rows).flip(0)
    assert torch.equal(grouped.dequantise(rows=some), plain.dequantise(rows=some))
    assert torch.equal(grouped.dequantise(rows=ids), plain.dequantise(rows=ids))
    for back in (grouped.in_rows(), grouped.to("meta")):
        assert (back.grouped, back.shape, back.weights.shape) == (
            None,
            plain.shape,
            plain.weights.shape,
        )
    assert torch.equal(grouped.in_rows().weights, plain.weights)
    assert torch.equal(grouped.in_rows().scales, plain.scales)
    assert grouped.to("cpu").grouped == rows


def test_where_a_weight_lies_in_a_group():
    matrix = quantise(draw(16, 64), "q8_0")
    weights, scales = matrix.in_groups().weights, matrix.in_groups().scales
    assert weights[1, 9, 3, 2] == matrix.weights[8 + 3, 9 * 4 + 2]
    assert scales[1, 1, 3] == matrix.scales[8 + 3, 1]
    nibbles = quantise(draw(16, 64), "q4_1")
    assert nibbles.in_groups().weights[1, 5, 3, 2] == nibbles.weights[8 + 3, 5 * 4 + 2]


def test_columns_that_fill_no_block_stay_in_rows():
    matrix = quantise(draw(9, 37), "int8")
    assert matrix.in_groups() is matrix


@any_format
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_are_rounded_once_to_the_dtype_asked_for(name, dtype):
    matrix = quantise(draw(9, 64), name)
    out = torch.full((9, 64), torch.nan, dtype=dtype)
    assert matrix.dequantise(dtype, out=out) is out
    assert torch.equal(out, matrix.dequantise().to(dtype))


@any_format
def test_bytes_are_those_of_the_format(name):
    matrix = quantise(draw(6, 128), name)
    per_weight = 1 if name == "int8" else formats.get(name).bytes_per_element
    assert matrix.nbytes == 6 * 128 * per_weight + (24 if name == "int8" else 0)
    there = matrix.to("meta")
    assert (there.device.type, there.shape, there.nbytes) == ("meta", (6, 128), matrix.nbytes)


@any_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_width_weight_is_quantised_by_its_values(name, dtype):
    weight = draw(4, 64).to(dtype)
    assert torch.equal(
        quantise(weight, name).dequantise(), quantise(weight.float(), name).dequantise()
    )


@any_format
def test_weights_too_small_for_a_scale_become_zero(name):
    wide = quantise(torch.full((1, 32), 1e-42), name).dequantise()
    assert wide.isfinite().all()
    assert wide.abs().max() < 1e-6


@pytest.mark.parametrize("columns", [1, 31, 33, 200])
@block_format
def test_columns_that_fill_no_block_are_refused(name, columns):
    with pytest.raises(InferlabError, match=f"^{columns} columns cannot be {name}: .*of 32$"):
        quantise(draw(2, columns), name)


@any_format
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_refused(name, bad):
    weight = draw(2, 64)
    weight[1, 40] = bad
    with pytest.raises(InferlabError, match="not finite"):
        quantise(weight, name)


@block_format
def test_what_a_float16_scale_cannot_hold_is_refused(name):
    with pytest.raises(InferlabError, match=f"too large for {name}"):
        quantise(torch.linspace(-3e7, 1e7, 32)[None], name)


@pytest.mark.parametrize(
    "weight", [torch.zeros(2, 32, dtype=torch.int8), torch.zeros(32), torch.zeros(3, 0)]
)
def test_only_float_matrices_are_quantised(weight):
    with pytest.raises(InferlabError, match="quantise takes a float matrix"):
        quantise(weight, "q8_0")


def test_an_unknown_format_is_named():
    with pytest.raises(InferlabError, match=r"unknown format .q4_2.: .*q4_"):
        quantise(draw(1, 32), "q4_2")
    with pytest.raises(InferlabError, match="unknown format 'int8'"):
        from_blocks(torch.zeros(1, 34, dtype=torch.uint8), "int8")
    with pytest.raises(InferlabError, match="unknown format 'q6_k'"):
        Quantised("q6_k", torch.zeros(1, 32, dtype=torch.int8), torch.zeros(1, 1).half())


@pytest.mark.parametrize(
    "raw", [torch.zeros(1, 33, dtype=torch.uint8), torch.zeros(1, 34), torch.zeros(34).byte()]
)
def test_raw_bytes_that_are_no_rows_of_blocks_are_refused(raw):
    with pytest.raises(InferlabError, match=r"raw is .*q8_0 needs uint8 \[N, a multiple of 34\]"):
        from_blocks(raw, "q8_0")


def planes(codes=torch.uint8, scales=torch.float16, mins=torch.float16, blocks=2):
    return {
        "weights": torch.zeros(3, 32, dtype=codes),
        "scales": torch.zeros(3, blocks, dtype=scales),
        "mins": None if mins is None else torch.zeros(3, 2, dtype=mins),
    }


@pytest.mark.parametrize(
    ("name", "given", "field"),
    [
        ("q4_1", planes(codes=torch.int8), "weights is torch.int8"),
        ("q4_1", planes(scales=torch.float32), "scales is torch.float32"),
        ("q4_1", planes(mins=torch.float32), "mins is torch.float32"),
        ("q4_1", planes(blocks=1), r"scales is .* it must be torch.float16 \[3, 2\]"),
        ("q4_1", planes(mins=None), "mins belong to format q4_1"),
        ("q4_0", planes(), "mins belong to format q4_1"),
        ("int8", planes(codes=torch.int8, mins=None), "scales is .* torch.float32"),
    ],
)
def test_planes_that_do_not_fit_are_named(name, given, field):
    with pytest.raises(InferlabError, match=field):
        Quantised(name, **given)


@pytest.mark.parametrize(
    ("field", "rows", "shape"),
    [
        ("weights", 9, (1, 16, 8, 4)),  # nine rows take two groups
        ("weights", 8, (1, 16, 4, 8)),
        ("scales", 8, (8, 2)),
    ],
)
def test_groups_that_do_not_fit_are_named(field, rows, shape):
    planes = {"weights": (1, 16, 8, 4), "scales": (1, 2, 8), field: shape}
    weights = torch.zeros(planes["weights"], dtype=torch.int8)
    scales = torch.zeros(planes["scales"], dtype=torch.float16)
    with pytest.raises(InferlabError, match=f"{field} is .* it must be"):
        Quantised("q8_0", weights, scales, grouped=rows)


@any_format
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 7), (1,), (0,), (20,)])
def test_linear_multiplies_by_what_the_matrix_widens_to(name, dtype, shape, monkeypatch):
    monkeypatch.setattr(quantised, "_CPU_SLICE", 500)  # 15 rows: 40 is no multiple
    matrix = quantise(draw(40, 64), name)
    x, bias = draw(*shape, 64).to(dtype), draw(40).to(dtype)
    for own in (None, bias):
        got = quantised.linear(x, matrix, own)
        right = torch.nn.functional.linear(x.double(), matrix.dequantise(dtype).double())
        right = right if own is None else right + own.double()
        assert (got.dtype, got.shape) == (dtype, (*shape, 40))
        exact = {torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]
        assert reference.rms_ratio(got.double(), right) < exact


@any_format
@pytest.mark.parametrize("size", [500, 1 << 20], ids=["apart", "side by side"])
def test_linears_is_linear_of_each(name, size, monkeypatch):
    monkeypatch.setattr(quantised, "_CPU_SLICE", size)
    x = draw(2, 5, 64)
    pairs = [(quantise(draw(rows, 64), name), draw(rows) if rows > 8 else None) for rows in (40, 8)]
    pairs = [*pairs, (quantise(draw(8, 64), "q8_0"), None)]
    for some in (pairs, [*pairs, (draw(3, 64), draw(3))]):
        for got, (weight, bias) in zip(quantised.linears(x, *some), some, strict=True):
            right = quantised.linear(x, weight, bias)
            assert got.shape == right.shape
            torch.testing.assert_close(got, right, atol=1e-5, rtol=1e-5)
