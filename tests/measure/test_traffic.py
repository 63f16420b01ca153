"""Bytes counted access by access, against counts by hand; loads outside of tensors are seen."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from inferlab.errors import InferlabError
from inferlab.kernels import ops
from inferlab.measure import kernels, traffic

pytestmark = pytest.mark.skipif(traffic.why_not() is not None, reason=str(traffic.why_not()))

#: A kernel whose mask is one column too wide, and that loads and stores what it is told to.
PLANTED = """
from inferlab.kernels.gpu.dsl import jit, tl

@jit
def helper(at):
    return tl.load(at)

@jit
def rows(x, out, columns, x_stride, MORE: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * x_stride + at, mask=at < columns + MORE, other=0.0)
    tl.store(out + row * columns + at, values + helper(x), mask=at < columns)
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    (tmp_path / "planted_traffic.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("planted_traffic")


@pytest.mark.parametrize(("more", "outside"), [(0, 0), (1, 3 * 4), (4, 3 * 4 * 4)])
def test_what_lies_outside_of_a_tensor_is_seen(planted, more, outside):
    """Also a hole between two rows is outside: three rows, each of them too wide by `more`."""
    x, out = torch.randn(3, 40)[:, 3:23], torch.empty(3, 20)
    with traffic.counting(planted) as found:
        planted.rows[(3,)](x, out, 20, x.stride(0), MORE=more, BLOCK=32)
    assert torch.equal(out, x + x[0, 0])
    assert found.outside == outside
    assert found.loaded == 3 * (20 + more + 1) * 4
    assert found.stored == 3 * 20 * 4


def test_what_lies_before_a_tensor_is_outside_too(planted):
    x, out = torch.randn(64)[32:], torch.empty(2, 8)
    with traffic.counting(planted) as found:
        planted.rows[(2,)](x, out, 8, -8, MORE=0, BLOCK=8)
    assert found.outside == 8 * 4


def test_kernels_are_as_before_when_the_count_is_over(planted):
    kernel = planted.rows
    with traffic.counting(planted):
        assert planted.rows is not kernel
    assert planted.rows is kernel
    with pytest.raises(ZeroDivisionError), traffic.counting(planted):
        1 / 0  # noqa: B018
    assert planted.rows is kernel


def test_addresses_within_views():
    import numpy as np

    base = torch.arange(60, dtype=torch.int32)
    views = [
        base,
        base[7:8],
        base.view(6, 10)[1:5, 2:7],
        base.view(6, 10).T[::3],
        base.view(2, 3, 10)[:, 1:, ::2],
        base[:10].expand(3, 10),
        base[:0],
    ]
    addresses = base.data_ptr() + np.arange(-40, 300)
    for view in views:
        starts = {base.data_ptr() + 4 * int(value) for value in view.flatten()}
        got = traffic._within(addresses, view)
        assert set(addresses[got].tolist()) == starts


def test_half_as_many_bytes_for_numbers_half_as_wide():
    from inferlab.kernels.gpu import softmax

    found = {}
    for dtype in (torch.float32, torch.float16):
        with traffic.counting(softmax) as found[dtype]:
            ops.softmax(torch.randn(3, 129).to(dtype), backend="triton")
    assert found[torch.float32].bytes == 2 * found[torch.float16].bytes == 2 * 3 * 129 * 4


def test_a_kernel_that_moves_too_much_is_not_good(monkeypatch):
    """The online softmax reads its row twice: three bytes for two."""
    from inferlab.kernels.gpu import softmax

    monkeypatch.setattr(softmax, "LONGEST_BLOCK", 1024)
    for case in kernels.cases(kernels.Place("interpreter", torch.float32), ["softmax"]):
        found = kernels.count(case)
        assert found["ratio"] == pytest.approx(1.5)
        assert not found["good"]


def test_without_its_tools_it_is_one_line(monkeypatch):
    monkeypatch.setenv("INFERLAB_HIDE", "triton")
    with pytest.raises(InferlabError, match="counting traffic needs Triton"):
        kernels.counted()
    monkeypatch.setenv("INFERLAB_HIDE", "")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name != "triton_viz" and find(name)
    )
    with pytest.raises(InferlabError, match="needs triton-viz: pip install"):
        kernels.counted()
    monkeypatch.undo()
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(InferlabError, match="TRITON_INTERPRET=1"):
        kernels.counted()
