"""The tiled product against its float64 oracle."""

from __future__ import annotations

import math

import pytest
import torch

from inferlab.errors import InferlabError
from inferlab.kernels import ops, reference
from inferlab.kernels.gpu import compiled, dsl, matmul
from inferlab.kernels.reference import rms_ratio

TOLERANCE = {torch.float32: 5e-7, torch.float16: 5e-4, torch.bfloat16: 4e-3}
in_formats = pytest.mark.parametrize("dtype", TOLERANCE)


def draw(*shape, device, dtype):
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("the interpreter gets products of bf16 wrong")
    return torch.randn(shape, device=device).to(dtype)


def check(a, b):
    got = ops.matmul(a, b, backend="triton")
    assert got.dtype == a.dtype
    right = reference.matmul(a.double().cpu(), b.double().cpu())
    assert rms_ratio(got.double().cpu(), right) < TOLERANCE[a.dtype]


@in_formats
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(1, 1, 1), (2, 3, 1), (3, 127, 129), (127, 129, 33), (5, 123, 123), (129, 260, 65)],
)
def test_awkward_sizes(device, rows, columns, depth, dtype):
    a = draw(rows, depth, device=device, dtype=dtype)
    check(a, draw(depth, columns, device=device, dtype=dtype))


@pytest.mark.slow
@in_formats
@pytest.mark.parametrize("rows", [1, 16, 17, 64, 127, 128, 129, 300, 1000])
@pytest.mark.parametrize(("columns", "depth"), [(1, 300), (257, 63), (1000, 129), (513, 1)])
def test_a_sweep_of_sizes(device, rows, columns, depth, dtype):
    a = draw(rows, depth, device=device, dtype=dtype)
    check(a, draw(depth, columns, device=device, dtype=dtype))


@in_formats
def test_strides(device, dtype):
    def new(*shape):
        return draw(*shape, device=device, dtype=dtype)

    check(new(33, 70).T, new(33, 50))
    check(new(70, 33), new(50, 33).T)
    check(new(70, 90)[:, 5:38], new(80, 50)[3:36])
    check(new(140, 66)[::2, ::2], new(33, 100)[:, ::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nothing_to_add_up_and_nothing_to_return(device, dtype):
    a, b = (
        torch.ones(5, 0, device=device, dtype=dtype),
        torch.ones(0, 7, device=device, dtype=dtype),
    )
    assert torch.equal(ops.matmul(a, b, backend="triton"), torch.zeros_like(a @ b))
    assert ops.matmul(a.T, torch.ones(5, 7, device=device, dtype=dtype)).shape == (0, 7)
    assert ops.matmul(b.T, b[:, :0], backend="triton").shape == (7, 0)


def test_nan_stays_in_its_row(device):
    a = torch.randn(40, 30, device=device)
    a[3, 4] = math.nan
    got = ops.matmul(a, torch.randn(30, 20, device=device), backend="triton")
    assert got.isnan().any(dim=1).nonzero().flatten().tolist() == [3]


def test_bf16_is_refused_where_the_interpreter_would_be_wrong():
    if not dsl.interpreted():
        pytest.skip("there is a GPU")
    a = torch.ones(4, 4, dtype=torch.bfloat16)
    with pytest.raises(InferlabError, match="matmul: bf16 products need a GPU"):
        ops.matmul(a, a, backend="triton")


@pytest.mark.parametrize("group", [1, 2, 3, 5, 8])
def test_every_tile_has_one_program(device, monkeypatch, group):
    """Five rows of three tiles, in groups that divide them and groups that do not."""
    monkeypatch.setattr(matmul, "GROUP", group)
    check(torch.randn(300, 5, device=device), torch.randn(5, 150, device=device))


@pytest.mark.parametrize("target", compiled.TARGETS.values(), ids=str)
def test_case_43_tiles_fit_into_shared_memory(target):
    """By arithmetic; what the compiler makes of them is read elsewhere."""
    for itemsize in (2, 4):
        for rows in (1, 16, 33, 4096):
            made = matmul.config(rows, itemsize, target.capability)
            pair = (made.block_m + made.block_n) * made.block_k * itemsize
            assert pair * made.num_stages <= target.shared_bytes
            assert made.block_m <= max(16, 2 * rows)
