"""Turned queries and keys, and the pages that they go to, against the float64 oracle."""

from __future__ import annotations

import pytest
import torch
from tensors import draw

from inferlab.errors import InferlabError
from inferlab.kernels import ops, reference
from inferlab.kernels.gpu import rope_and_cache as gpu
from inferlab.kernels.reference import rms_ratio

TOLERANCE = {
    torch.float32: 1e-6,
    torch.float16: 5e-4,
    torch.bfloat16: 8e-3,
}  # the interpreter cuts off
dtypes = pytest.mark.parametrize("dtype", TOLERANCE)
CANARY = 123.0


def case(rows, heads, kv_heads, size, pairs, dtype, device):
    """Queries, keys and values as views of one row, as a fused projection leaves them."""
    fused = draw(rows, (heads + 2 * kv_heads) * size + 5, dtype=dtype, device=device)
    ends = [heads * size, (heads + kv_heads) * size, (heads + 2 * kv_heads) * size]
    q = fused[:, : ends[0]].unflatten(1, (heads, size))
    k = fused[:, ends[0] : ends[1]].unflatten(1, (kv_heads, size))
    v = fused[:, ends[1] : ends[2]].unflatten(1, (kv_heads, size))
    angles = 100 * draw(rows, pairs, device=device)
    return q, k, v, angles.cos(), angles.sin()


def pages(count, kv_heads, block, size, dtype, device):
    """Keys' and values' pages, all canaries, with strides of their own."""
    k = torch.full((count, kv_heads, block, size), CANARY, dtype=dtype, device=device)
    v = torch.full((count, block, kv_heads, size), CANARY, dtype=dtype, device=device)
    return k, v.transpose(1, 2)


def compare(args, caches, lengths, table=None, tolerance=1e-6, backend="triton", **norm):
    """Run the op, and hold q and every element of both caches to the oracle."""
    wide = [t.double().cpu() for t in (*args, *caches)]
    on_host = [None if t is None else t.cpu() for t in (lengths, table)]
    gains = {n: t.double().cpu() if torch.is_tensor(t) else t for n, t in norm.items()}
    right = reference.rope_and_cache(*wide, *on_host, **gains)
    out = ops.rope_and_cache(*args, *caches, lengths, table, **norm, backend=backend)
    for got, want in zip((out, *caches), right, strict=True):
        assert rms_ratio(got.double().cpu(), want) < tolerance
    untouched = torch.from_numpy(right[1]) == CANARY
    assert (caches[0].double().cpu()[untouched] == CANARY).all()
    return out


@dtypes
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "pairs"),
    [
        (9, 3, 64, 32),
        (1, 1, 24, 12),
        (4, 4, 80, 40),
        (6, 2, 96, 48),
        (16, 1, 128, 64),
        (3, 1, 64, 16),  # case 21: half of the head turns
        (2, 2, 80, 10),
        (40, 40, 16, 8),  # more heads than a program takes
    ],
)
def test_heads_of_all_kinds(heads, kv_heads, size, pairs, dtype, device):
    args = case(3, heads, kv_heads, size, pairs, dtype, device)
    lengths = torch.tensor([0, 4, 6], device=device)
    compare(args, pages(3, kv_heads, 7, size, dtype, device), lengths, tolerance=TOLERANCE[dtype])


@dtypes
@pytest.mark.parametrize("pairs", [12, 32])
def test_with_a_norm_of_each_head(dtype, pairs, device):
    args = case(2, 6, 2, 64, pairs, dtype, device)
    norm = {"q_norm": draw(64, device=device), "k_norm": draw(64, device=device), "eps": 1e-6}
    lengths = torch.tensor([3, 0], dtype=torch.int32, device=device)
    for backend in ("triton", "torch"):
        caches = pages(2, 2, 5, 64, dtype, device)
        compare(args, caches, lengths, tolerance=2 * TOLERANCE[dtype], backend=backend, **norm)


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_pages_in_any_order_and_several_tokens_a_sequence(backend, device):
    tokens, block = 5, 4
    args = case(3 * tokens, 4, 2, 32, 16, torch.float32, device)
    lengths = torch.tensor([0, 3, 9], device=device)
    table = torch.tensor([[7, 2, 0, 99], [5, 1, 9, 99], [4, 8, 6, 3]], device=device)
    caches = pages(10, 2, block, 32, torch.float32, device)
    compare(args, caches, lengths, table.int(), backend=backend)
    assert (caches[0][9] == CANARY).all()  # no token came that far


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_case_29_what_the_cache_does_not_have_is_not_written(backend, device):
    args = case(4, 2, 1, 16, 8, torch.float32, device)
    around = torch.full((6, 1, 8, 16), CANARY, device=device)
    caches = around[1:5], around.clone()[1:5]
    compare(args, caches, torch.tensor([7, 8, -1, 1 << 30], device=device), backend=backend)
    written = (around != CANARY).any(-1).nonzero().tolist()
    assert written == [[1, 0, 7]]
    table = torch.tensor([[-1], [4], [0], [0]], device=device)  # four pages: 4 is one too far
    before = around.clone()
    compare(args, caches, torch.tensor([0, 0, -1, 8], device=device), table, backend=backend)
    assert torch.equal(around, before)


def test_case_46_in_place_twice_from_the_same_input_gives_the_same(device):
    q, k, v, cos, sin = case(2, 4, 2, 32, 16, torch.float32, device)
    lengths, results = torch.tensor([1, 2], device=device), []
    for _ in range(2):
        own, caches = q.clone(), pages(2, 2, 4, 32, torch.float32, device)
        gpu.launch(own, k, v, cos, sin, *caches, lengths, None, own)
        gpu.launch(q.clone(), k, v, cos, sin, *caches, lengths, None, torch.empty_like(q))
        results.append((own, *caches))
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)
    assert rms_ratio(results[0][0].cpu(), reference.rope(q.cpu(), cos.cpu(), sin.cpu())) < 1e-6


def test_a_cache_narrower_than_the_keys(device):
    args = case(2, 2, 1, 16, 8, torch.float32, device)
    caches = pages(2, 1, 4, 16, torch.float16, device)
    compare(args, caches, torch.tensor([1, 3], device=device), tolerance=5e-4)


def test_no_rows(device):
    args = case(0, 2, 1, 16, 8, torch.float32, device)
    none = torch.empty(0, dtype=torch.int64, device=device)
    for backend in ("triton", "torch"):
        caches = pages(1, 1, 4, 16, torch.float32, device)
        assert ops.rope_and_cache(*args, *caches, none, backend=backend).shape == (0, 2, 16)
        assert (caches[0] == CANARY).all()


def test_what_does_not_fit_is_refused(device):
    args = case(2, 2, 1, 16, 8, torch.float32, device)
    caches = pages(2, 1, 4, 16, torch.float32, device)
    lengths = torch.tensor([0, 0], device=device)
    with pytest.raises(InferlabError, match="q has 2 rows: a multiple of the 3 lengths"):
        ops.rope_and_cache(*args, *caches, lengths.repeat(2)[:3])
    q, k, v = args[:3]
    with pytest.raises(InferlabError, match="cos has 9 pairs; a head of 16 has 8"):
        ops.rope_and_cache(q, k, v, *(2 * [torch.ones(2, 9)]), *caches, lengths)
    with pytest.raises(InferlabError, match="q_norm and k_norm belong together"):
        gpu.launch(*args, *caches, lengths, None, torch.empty_like(q), q_norm=q[0, 0])


def test_traffic():
    # Two rows, 3 + 2 * 1 heads of 4 half words in and out, and 2 pairs of angles in words.
    assert gpu.traffic(2, 3, 1, 4, 2, 2) == 2 * (2 * 5 * 4 * 2 + 2 * 2 * 4)
