"""The contiguous cache: what it stores, what a query may see, and its end."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from inferlab.engine.kv_cache import ContiguousCache
from inferlab.errors import InferlabError
from inferlab.model.config import ModelConfig, from_fields

CONFIG = from_fields(
    dict(
        model_type="llama",
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=50,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
    )
)


def windowed(window: int) -> ModelConfig:
    return dataclasses.replace(CONFIG, windows=(None, window))


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def oracle(q, keys, values, position, window=None):
    """One query of all heads [H, D] at `position` of one row, keys [S, KV, D], head by head."""
    out = torch.empty_like(q)
    first = 0 if window is None else max(0, position + 1 - window)
    for head in range(q.shape[0]):
        group = head // (q.shape[0] // keys.shape[1])
        k, v = keys[first : position + 1, group], values[first : position + 1, group]
        weights = torch.softmax(k @ q[head] / q.shape[1] ** 0.5, dim=0)
        out[head] = weights @ v
    return out


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 1, 6], [5, 5, 1]], ids=str)
def test_chunks_of_any_size_attend_as_one_query_at_a_time(window, chunks):
    total, batch = sum(chunks), 3
    q, k, v = (draw(batch, total, h, 8, seed=h + i) for i, h in enumerate((6, 2, 2)))
    cache = ContiguousCache(windowed(window) if window else CONFIG, batch, total, dtype=q.dtype)
    done = 0
    for chunk in chunks:
        span = slice(done, done + chunk)
        out = cache.attend(1, q[:, span], k[:, span], v[:, span])
        cache.advance(chunk)
        for row in range(batch):
            for step in range(chunk):
                expected = oracle(q[row, done + step], k[row], v[row], done + step, window)
                torch.testing.assert_close(out[row, step], expected, atol=1e-12, rtol=0)
        done += chunk
    assert torch.equal(cache.k[1].transpose(1, 2), k)
    assert not cache.k[0].any()


@pytest.mark.parametrize("window", [None, 3])
def test_rows_of_different_lengths_attend_as_each_alone(window):
    config = windowed(window) if window else CONFIG
    lengths, capacity = [7, 2, 5], 12
    cache = ContiguousCache(config, 3, capacity, dtype=torch.float64)
    alone = [ContiguousCache(config, 1, capacity, dtype=torch.float64) for _ in lengths]
    for row, length in enumerate(lengths):
        q, k, v = (draw(1, length, h, 8, seed=10 * row + h) for h in (6, 2, 2))
        for one in (cache.row(row), alone[row]):
            one.attend(1, q, k, v)
            one.advance(length)
    assert cache.lengths.tolist() == lengths
    assert cache.positions(2).tolist() == [[7, 8], [2, 3], [5, 6]]
    for tokens in (1, 3):
        q, k, v = (draw(3, tokens, h, 8, seed=h) for h in (6, 2, 2))
        together = cache.attend(1, q, k, v)
        cache.advance(tokens)
        for row, one in enumerate(alone):
            span = slice(row, row + 1)
            expected = one.attend(1, q[span], k[span], v[span])
            one.advance(tokens)
            torch.testing.assert_close(together[span], expected, atol=1e-12, rtol=0)


def test_a_lowered_length_forgets_what_follows():
    cache = ContiguousCache(CONFIG, 1, 8, dtype=torch.float64)
    q, k, v = (draw(1, 5, h, 8, seed=h) for h in (6, 2, 2))
    cache.attend(0, q, k, v)
    cache.advance(5)
    cache.lengths[0] = 3
    out = cache.attend(0, q[:, 3:4], k[:, 3:4], v[:, 3:4])
    torch.testing.assert_close(out[0, 0], oracle(q[0, 3], k[0], v[0], 3), atol=1e-12, rtol=0)


@pytest.mark.parametrize("lengths", [[4, 4], [1, 4]])
def test_nothing_is_written_past_the_end(lengths):
    """One position too many raises and stores nothing, in this row or in the next."""
    cache = ContiguousCache(CONFIG, 2, 5)
    cache.lengths.copy_(torch.tensor(lengths))
    cache.k.fill_(7)
    cache.v.fill_(7)
    q, k = torch.zeros(2, 2, 6, 8), torch.zeros(2, 2, 2, 8)
    with pytest.raises(InferlabError, match="holds 5 positions a row; 6 would not fit"):
        cache.attend(0, q, k, k)
    assert (cache.k == 7).all()
    assert (cache.v == 7).all()
    cache.attend(0, q[:, :1], k[:, :1], k[:, :1])  # the last position is still free
    assert (cache.k[0, 1, :, 4] == 0).all()
    assert (cache.k[1] == 7).all()


def test_the_layers_of_a_pass_share_positions_and_masks(monkeypatch):
    """Each copy from the host to a GPU would make every layer wait for it."""
    cache = ContiguousCache(windowed(4), 2, 32, dtype=torch.float64)
    cache.lengths[:] = torch.tensor([3, 7])
    made = []
    right = torch.arange
    monkeypatch.setattr(torch, "arange", lambda *a, **o: made.append(a) or right(*a, **o))

    def run(tokens):
        made.clear()
        q, k = draw(2, tokens, 6, 8), draw(2, tokens, 2, 8)
        for _ in range(3):
            for layer in range(2):
                cache.attend(layer, q, k, k)
        return sum(a == (tokens,) for a in made)

    assert run(5) == 1
    cache.advance(5)
    assert run(5) == 1  # other lengths, other positions
    assert cache.positions(5)[:, 0].tolist() == [8, 12]
    cache.lengths[0] = 2
    assert cache.positions(5)[:, 0].tolist() == [2, 12]
    assert run(3) == 1
