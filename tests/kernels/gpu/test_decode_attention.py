"""Decode attention against its float64 oracle: every piece, page and window edge, in poison."""

from __future__ import annotations

import math

import pytest
import torch
from tensors import draw

from inferlab.errors import InferlabError
from inferlab.kernels import ops, reference
from inferlab.kernels.gpu import decode_attention as gpu
from inferlab.kernels.gpu.compiled import TARGETS
from inferlab.kernels.reference import rms_ratio

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
DTYPES = list(TOLERANCE)


def cache(batch, kv_heads, capacity, size, lengths, dtype=torch.float32):
    """Keys and values [B, KV, S, D], NaN from each row's length on."""
    k, v = (draw(batch, kv_heads, capacity, size, dtype=dtype) for _ in range(2))
    for row, length in enumerate(lengths):
        k[row, :, length:], v[row, :, length:] = math.nan, math.nan
    return k, v


def paged(k, block, pages=None):
    """The same cache in shuffled pages: pages, table. All that no row has stored is NaN."""
    batch, kv_heads, capacity, size = k.shape
    columns = -(-capacity // block)
    order = torch.randperm(batch * columns + 3, generator=torch.Generator().manual_seed(8))
    held = torch.full((len(order), kv_heads, block, size), math.nan, dtype=k.dtype)
    table = order[: batch * columns].reshape(batch, columns).int()
    for p in range(capacity):
        held[table[:, p // block].long(), :, p % block] = k[:, :, p]
    return held, table


def attend(device, q, k, v, lengths, window=None, table=None, pieces=None):
    """What `launch` makes of it, in outputs and scratch that begin as NaN."""
    if table is None:
        table = torch.arange(len(q), dtype=torch.int32)[:, None]
    q, k, v, table, lengths = (t.to(device) for t in (q, k, v, table, torch.as_tensor(lengths)))
    scratch = gpu.scratch(q, k, table)
    if pieces:
        scratch = scratch.new_empty(*q.shape[:2], pieces, q.shape[2] + 1)
    scratch.fill_(math.nan)
    out = torch.full_like(q, math.nan)
    gpu.launch(q, k, v, table, lengths, window, out, scratch)
    return out.cpu()


def check(device, q, k, v, lengths, window=None, dtype=torch.float32, **how):
    got = attend(device, q, k, v, lengths, window, **how)
    right = reference.decode_attention(q.float(), k.float(), v.float(), lengths, window)
    assert rms_ratio(got.float(), right) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 3, 33, 127, 129])
def test_every_length(device, dtype, length):
    lengths = [length, max(1, length // 3)]
    k, v = cache(2, 2, length + 9, 64, lengths, dtype)
    check(device, draw(2, 6, 64, dtype=dtype), k, v, lengths, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [512, 1000, 4097])
@pytest.mark.parametrize("window", [None, 1000])
def test_long_contexts(device, dtype, length, window):
    lengths = [length, length // 3]
    k, v = cache(2, 1, length + 1, 128, lengths, dtype)
    check(device, draw(2, 4, 128, dtype=dtype), k, v, lengths, window, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("group", [*range(1, 10), 16])
def test_heads_of_a_group(device, dtype, group):
    k, v = cache(1, 2, 80, 24, [77], dtype)
    check(device, 2 * draw(1, 2 * group, 24, dtype=dtype), k, v, [77], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 80, 96, 128])
def test_widths_of_heads(device, dtype, size):
    k, v = cache(1, 1, 50, size, [45], dtype)
    check(device, draw(1, 3, size, dtype=dtype), k, v, [45], dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("group", [*range(1, 10), 16])
@pytest.mark.parametrize("size", [64, 80, 96, 128])
def test_groups_of_all_widths(device, dtype, group, size):
    lengths, block = [150, 33], None if group % 2 else 16
    k, v = cache(2, 2, 160, size, lengths, dtype)
    q, how = draw(2, 2 * group, size, dtype=dtype), {}
    right = reference.decode_attention(q.float(), k.float(), v.float(), lengths)
    if block:
        (k, how["table"]), (v, _) = paged(k, block), paged(v, block)
    assert rms_ratio(attend(device, q, k, v, lengths, **how).float(), right) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [1, 63, 64, 65, 129, 500])
def test_window_edges(device, dtype, window):
    lengths = [130, 64]
    k, v = cache(2, 1, 131, 24, lengths, dtype)
    for row, length in enumerate(lengths):  # what the window has left behind is never read either
        k[row, :, : max(0, length - window)] = math.nan
        v[row, :, : max(0, length - window)] = math.nan
    check(device, draw(2, 2, 24, dtype=dtype), k, v, lengths, window, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 50])
def test_any_number_of_pieces_gives_the_same(device, dtype, pieces):
    lengths = [300, 1, 65]
    k, v = cache(3, 1, 300, 24, lengths, dtype)
    check(device, draw(3, 4, 24, dtype=dtype), k, v, lengths, dtype=dtype, pieces=pieces)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [1, 16, 48])
@pytest.mark.parametrize("window", [None, 37])
def test_pages(device, dtype, block, window):
    lengths = [97, 5, 64]
    k, v = cache(3, 2, 97, 24, lengths, dtype)
    q = draw(3, 4, 24, dtype=dtype)
    (k_pages, table), (v_pages, _) = paged(k, block), paged(v, block)
    for row, length in enumerate(lengths):
        table[row, -(-length // block) :] = 2**30  # a page that does not exist is never looked up
    got = attend(device, q, k_pages, v_pages, lengths, window, table)
    right = reference.decode_attention(q.float(), k.float(), v.float(), lengths, window)
    assert rms_ratio(got.float(), right) < TOLERANCE[dtype]


def test_rows_that_share_pages(device):
    k, v = (draw(4, 1, 16, 24) for _ in range(2))
    q = draw(1, 2, 24).expand(3, 2, 24).contiguous()
    table = torch.tensor([[0, 1, 2], [0, 1, 3], [0, 1, 2]], dtype=torch.int32)
    got = attend(device, q, k, v, [40, 40, 32], table=table)
    whole = [torch.cat([t[p] for p in (0, 1, 2, 3)], 1)[None] for t in (k, v)]
    for row, seen in enumerate(([*range(40)], [*range(32), *range(48, 56)], [*range(32)])):
        keys, values = (t[:, :, seen] for t in whole)
        right = reference.decode_attention(q[:1], keys, values, [len(seen)])
        assert rms_ratio(got[row : row + 1], right) < TOLERANCE[torch.float32]


def test_case_48_the_table_is_used_to_its_last_column(device):
    k, v = cache(1, 1, 64, 24, [64])
    (k_pages, table), (v_pages, _) = paged(k, 16), paged(v, 16)
    q = draw(1, 1, 24)
    right = reference.decode_attention(q, k, v, [64])
    got = attend(device, q, k_pages, v_pages, [64], table=table)
    assert rms_ratio(got, right) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("pieces", [1, 4])
def test_case_48_rows_that_a_graph_holds_in_reserve_touch_nothing(device, pieces):
    k, v = cache(4, 1, 70, 24, [70, 3, 9, 0])
    q = draw(4, 2, 24)
    q[3] = math.nan
    table = torch.tensor([[0], [1], [2], [2**30]], dtype=torch.int32)
    got = attend(device, q, k, v, [70, 3, 9, 0], table=table, pieces=pieces)
    right = reference.decode_attention(q[:3], k[:3], v[:3], [70, 3, 9])
    assert rms_ratio(got[:3], right) < TOLERANCE[torch.float32]
    assert torch.equal(got[3], torch.zeros(2, 24))


def test_strides(device):
    lengths = [50, 7]
    k, v = cache(2, 2, 60, 24, lengths)
    q = draw(2, 4, 24)
    right = reference.decode_attention(q, k, v, lengths)
    k = k.transpose(1, 2).contiguous().transpose(1, 2)  # positions before heads
    v = torch.cat([v, torch.full_like(v, math.nan)], -1)[..., :24]
    q = torch.cat([q, torch.full_like(q, math.nan)], -1)[..., :24]
    got = ops.decode_attention(
        *(t.to(device) for t in (q, k, v, torch.tensor(lengths))), backend="triton"
    )
    assert rms_ratio(got.cpu(), right) < TOLERANCE[torch.float32]


def test_scores_far_from_zero(device):
    q, (k, v) = 40 * draw(1, 1, 64), cache(1, 1, 200, 64, [200])
    got = attend(device, q, 40 * k, v, [200])
    # Scores near a thousand: their rounding alone is 1e-4.
    assert rms_ratio(got, reference.decode_attention(q, 40 * k, v, [200])) < 1e-3


def test_nan_is_passed_on(device):
    k, v = cache(2, 1, 90, 24, [90, 90])
    k[0, 0, 44, 4] = math.nan
    got = attend(device, draw(2, 2, 24), k, v, [90, 90])
    assert got[0].isnan().all()
    assert got[1].isfinite().all()


@pytest.mark.slow
def test_addresses_past_two_to_the_31(device):
    far = 2**31 + 16
    memory = torch.empty(far + 1024, dtype=torch.float16, device=device)  # untouched, no memory
    k = memory.as_strided((2, 1, 8, 16), (far, 128, 16, 1))
    k.copy_(draw(2, 1, 8, 16, dtype=torch.float16))
    q, table = draw(1, 1, 16, dtype=torch.float16), torch.tensor([[1]], dtype=torch.int32)
    right = reference.decode_attention(q.float(), k[1:].cpu().float(), k[1:].cpu().float(), [8])
    assert rms_ratio(attend(device, q, k, k, [8], table=table).float(), right) < 1e-3


def test_the_entry_point(device):
    lengths = [40, 3]
    k, v = cache(2, 2, 48, 24, lengths)
    q = draw(2, 4, 24)
    right = reference.decode_attention(q, k, v, lengths, 9)
    (k_pages, table), (v_pages, _) = paged(k, 16), paged(v, 16)
    table[1, 1:] = 2**30
    seen = torch.tensor(lengths)
    for backend in ("triton", "torch"):
        got = ops.decode_attention(
            *(t.to(device) for t in (q, k_pages, v_pages, seen)),
            9,
            table=table.to(device),
            backend=backend,
        )
        assert rms_ratio(got.cpu(), right) < TOLERANCE[torch.float32]
    none = torch.empty(0, 2, 24, device=device)
    for more in ({}, {"table": torch.empty(0, 3, dtype=torch.int32, device=device)}):
        empty = k_pages[:0].to(device)
        got = ops.decode_attention(none, empty, empty, seen[:0], backend="triton", **more)
        assert got.shape == (0, 2, 24)


def test_wrong_shapes_get_one_line(device):
    q, k, seen = draw(2, 2, 8), draw(5, 1, 4, 8), torch.tensor([4, 9])
    table = torch.zeros(2, 2, dtype=torch.int32)
    with pytest.raises(InferlabError, match="lengths must be from 1 to 8"):
        ops.decode_attention(q, k, k, seen, table=table)
    with pytest.raises(InferlabError, match=r"table has shape \[2, 2\]; it must be \[3, any\]"):
        ops.decode_attention(draw(3, 2, 8), k, k, seen, table=table)
    with pytest.raises(InferlabError, match="table must be int32"):
        ops.decode_attention(q, k, k, seen, table=table.float())
    with pytest.raises(InferlabError, match="window is 0; it must be at least 1"):
        ops.decode_attention(q, k, k, seen, 0, table=table)


@pytest.mark.parametrize("capacity", [1, 100, 2048, 32768, 131072])
@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 1), (1, 8), (3, 8), (40, 8), (256, 8)])
def test_pieces_fill_whole_waves(capacity, batch, kv_heads):
    made = gpu.config(4, 128, 2, False, (9, 0))
    pieces = gpu.splits(batch, kv_heads, capacity, made, 132)
    assert 1 <= pieces <= max(1, -(-capacity // made.tile))
    slots, programs = 132 * made.resident, batch * kv_heads * pieces
    if capacity == 32768 and kv_heads == 8:  # a single head has too few tiles for all
        waves = -(-programs // slots)
        assert programs / (waves * slots) > 0.85


def test_traffic_counts_each_key_and_value_once():
    assert gpu.traffic(1000, 32, 8, 128, 2) == 1000 * 2 * 8 * 128 * 2 + 2 * 32 * 128 * 2


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_has_its_configurations(name):
    cases = gpu.aot(TARGETS[name])
    assert all(case.wide_loads for case in cases)
    assert any(case.tensor_cores for case in cases) == TARGETS[name].has_tensor_cores
