"""Flash attention against its float64 oracle: every edge of a tile, poison past the last key."""

from __future__ import annotations

import math

import pytest
import torch
from tensors import draw

from inferlab.errors import InferlabError
from inferlab.kernels import ops, reference
from inferlab.kernels.gpu import dsl
from inferlab.kernels.gpu import flash_attention as gpu
from inferlab.kernels.gpu.compiled import TARGETS
from inferlab.kernels.reference import rms_ratio

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
DTYPES = [
    torch.float32,
    torch.float16,
    pytest.param(
        torch.bfloat16,
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="bf16 products need a GPU"),
    ),
]


def make(batch, tokens, keys, heads, kv_heads, size, dtype=torch.float32):
    return (
        draw(batch, tokens, heads, size, dtype=dtype),
        draw(batch, keys, kv_heads, size, dtype=dtype),
        draw(batch, keys, kv_heads, size, dtype=dtype),
    )


def attend(device, q, k, v, offset=None, causal=True, window=None):
    """What `launch` makes of it, in an output that begins as NaN."""
    offset = torch.zeros(len(q), dtype=torch.int64) if offset is None else torch.tensor(offset)
    q, k, v, offset = (t.to(device) for t in (q, k, v, offset))
    out = torch.full_like(q, math.nan)
    return gpu.launch(q, k, v, offset, out, causal=causal, window=window).cpu().float()


def check(device, q, k, v, offset=None, causal=True, window=None):
    got = attend(device, q, k, v, offset, causal, window)
    wide = (t.float() for t in (q, k, v))
    right = reference.flash_attention(*wide, causal=causal, window=window, offset=offset)
    assert rms_ratio(got, right) < TOLERANCE[q.dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 2, 33, 64, 65, 129])
def test_causal(device, dtype, tokens):
    check(device, *make(2, tokens, tokens, 2, 1, 64, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "keys"), [(1, 1), (3, 64), (65, 127), (17, 129), (130, 3)])
def test_not_causal(device, dtype, tokens, keys):
    check(device, *make(1, tokens, keys, 2, 1, 24, dtype), causal=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 80, 96, 128])
@pytest.mark.parametrize("group", [1, 3, 7])
def test_widths_and_groups(device, dtype, size, group):
    check(device, *make(1, 40, 40, group, 1, size, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 80, 96, 128])
@pytest.mark.parametrize("group", [*range(1, 10), 16])
def test_groups_of_all_widths(device, dtype, size, group):
    q, k, v = make(2, 70, 97, group, 1, size, dtype)
    check(device, q, k, v, [27, 0], window=None if group % 2 else 50)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1000])
def test_a_long_prompt(device, dtype, window):
    check(device, *make(1, 1100, 1100, 2, 1, 128, dtype), window=window)


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 1, 4096])
def test_a_chunk_far_into_a_long_context(device, window):
    check(device, *make(1, 33, 4097, 2, 1, 64, torch.float16), [4064], window=window)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 63, 64, 65, 500])
def test_window_edges(device, dtype, window):
    check(device, *make(1, 140, 140, 1, 1, 24, dtype), window=window)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chunk_begins_where_its_row_says(device, dtype, window):
    q, k, v = make(3, 70, 200, 1, 1, 24, dtype)
    check(device, q, k, v, [0, 63, 130], window=window)


def test_a_prompt_in_chunks_is_the_prompt(device):
    q, k, v = make(1, 100, 100, 2, 1, 24)
    whole = attend(device, q, k, v)
    for size in (17, 64):
        parts = [
            attend(device, q[:, at : at + size], k[:, : at + size], v[:, : at + size], [at])
            for at in range(0, 100, size)
        ]
        assert rms_ratio(torch.cat(parts, 1), whole) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cache_is_read_as_it_stands_and_never_past_the_last_query(device, dtype):
    q, k, v = make(2, 30, 100, 4, 2, 24, dtype)
    caches = [t.transpose(1, 2).contiguous() for t in (k, v)]  # [B, KV, S, D]
    for cache in caches:
        cache[0, :, 30:] = math.nan
        cache[1, :, 77:] = math.nan
    got = attend(device, q, *(t.transpose(1, 2) for t in caches), [0, 47])
    right = reference.flash_attention(q.float(), k.float(), v.float(), offset=[0, 47])
    assert rms_ratio(got, right) < TOLERANCE[dtype]


def test_keys_before_the_window_are_never_read(device):
    q, k, v = make(1, 40, 140, 2, 1, 24)
    right = reference.flash_attention(q, k, v, window=30, offset=[100])
    k[:, :64], v[:, :64] = math.nan, math.nan  # whole tiles that lie before
    assert rms_ratio(attend(device, q, k, v, [100], window=30), right) < 2e-6


def test_strides(device):
    q, k, v = make(2, 20, 20, 4, 2, 24)
    right = reference.flash_attention(q, k, v)
    q, k = (torch.cat([t, torch.full_like(t, math.nan)], -1)[..., :24] for t in (q, k))
    v = v.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    got = ops.flash_attention(*(t.to(device) for t in (q, k, v)), backend="triton")
    assert rms_ratio(got.cpu(), right) < TOLERANCE[torch.float32]


def test_scores_far_from_zero(device):
    q, k, v = make(1, 50, 50, 1, 1, 64)
    got = attend(device, 40 * q, 40 * k, v)
    # Scores near a thousand: their rounding alone is 1e-4.
    assert rms_ratio(got, reference.flash_attention(40 * q, 40 * k, v)) < 1e-3


def test_nan_reaches_the_queries_that_see_it(device):
    q, k, v = make(1, 70, 70, 1, 1, 24)
    k[0, 40] = math.nan
    got = attend(device, q, k, v)
    assert got[0, 40:].isnan().all()
    assert got[0, :40].isfinite().all()


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("offset", [None, [5, 0]])
def test_the_entry_point(device, backend, window, offset):
    q, k, v = make(2, 20, 25, 4, 2, 24)
    given = [t.to(device) for t in (q, k, v)]
    where = None if offset is None else torch.tensor(offset)
    got = ops.flash_attention(*given, window=window, offset=where, backend=backend)
    right = reference.flash_attention(q, k, v, window=window, offset=offset)
    assert rms_ratio(got.cpu(), right) < TOLERANCE[torch.float32]
    whole = ops.flash_attention(*given, causal=False, backend=backend)
    assert rms_ratio(whole.cpu(), reference.flash_attention(q, k, v, causal=False)) < 2e-6
    assert ops.flash_attention(*(t[:0] for t in given), backend=backend).shape == (0, 20, 4, 24)
    none = ops.flash_attention(given[0][:, :0], *given[1:], backend=backend)
    assert none.shape == (2, 0, 4, 24)


def test_bad_input_gets_one_line(device):
    q, k, v = make(1, 4, 6, 2, 1, 24)
    for bad, message in (
        ({"offset": torch.tensor([3])}, "offset must be from 0 to 2"),
        ({"offset": torch.tensor([1, 2])}, r"offset has shape \[2\]"),
        ({"window": 0}, "window is 0; it must be at least 1"),
        ({"window": 3, "causal": False}, "window needs causal attention"),
    ):
        with pytest.raises(InferlabError, match=message):
            ops.flash_attention(q, k, v, **bad)
    with pytest.raises(InferlabError, match="q has 2 heads"):
        ops.flash_attention(q, torch.cat([k] * 3, 2), torch.cat([v] * 3, 2))
    with pytest.raises(InferlabError, match="k has 6 positions: 7 queries need 7"):
        ops.flash_attention(draw(1, 7, 2, 24), k, v)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU gets them right")
def test_the_interpreter_refuses_products_of_bf16():
    q, k, v = make(1, 4, 4, 1, 1, 16, torch.bfloat16)
    with pytest.raises(InferlabError, match="flash_attention: bf16 products need a GPU"):
        ops.flash_attention(q, k, v, backend="triton")
    assert dsl.interpreted()


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_has_its_configurations(name):
    target = TARGETS[name]
    assert any(case.tensor_cores for case in gpu.aot(target))
    for tokens in (1, 17, 4096):
        for itemsize in (2, 4):
            made = gpu.config(tokens, 128, itemsize, target.capability)
            tiles = 2 * made.block_n * max(1, made.num_stages - 1) + made.block_m
            assert tiles * 128 * itemsize <= target.shared_bytes


def test_traffic_counts_everything_once():
    assert gpu.traffic(10, 20, 8, 2, 64, 2) == (2 * 10 * 8 + 2 * 20 * 2) * 64 * 2
