"""Frequencies and rotations against closed forms and published values."""

from __future__ import annotations

import math

import pytest
import torch

from inferlab.model.config import Rope
from inferlab.model.rope import angles, frequencies, rotate

LENGTH = torch.tensor([1])


def plain(theta, dim):
    """The definition, in Python's double precision."""
    return [theta ** (-2 * i / dim) for i in range(dim // 2)]


def test_default_frequencies_are_powers_of_theta():
    got = frequencies(Rope(10_000.0, 64), LENGTH)
    torch.testing.assert_close(
        got.double(), torch.tensor(plain(1e4, 64)).double(), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize(
    ("dim", "factor", "kept", "blended"), [(64, 32.0, 15, 3), (128, 8.0, 29, 6)]
)
def test_llama3_keeps_fast_pairs_and_divides_slow_ones(dim, factor, kept, blended):
    rope = Rope(5e5, dim, "llama3", factor, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    got, base = frequencies(rope, LENGTH).double(), torch.tensor(plain(5e5, dim)).double()
    ratio = base / got
    assert ratio[:kept].tolist() == pytest.approx([1.0] * kept, rel=1e-5)
    middle = ratio[kept : kept + blended]
    assert ((middle > 1.0001) & (middle < factor * 0.9999)).all()
    slow = dim // 2 - kept - blended
    assert ratio[-slow:].tolist() == pytest.approx([factor] * slow, rel=1e-5)


def test_linear_divides_every_frequency():
    got = frequencies(Rope(1e4, 8, "linear", 4.0, 32), LENGTH)
    assert got.tolist() == pytest.approx([f / 4 for f in plain(1e4, 8)], rel=1e-6)


def test_dynamic_stretches_the_base_once_the_context_outgrows_training():
    rope = Rope(1e4, 8, "dynamic", 2.0, 32)
    short, trained, double = frequencies(rope, torch.tensor([5, 32, 64]))
    assert short.tolist() == trained.tolist() == pytest.approx(plain(1e4, 8), rel=1e-6)
    # At twice the trained length: base * (2 * 2 - 1) ** (8 / 6).
    assert double.tolist() == pytest.approx(plain(1e4 * 3 ** (8 / 6), 8), rel=1e-6)


def test_yarn_keeps_what_turns_fast_and_divides_what_turns_slowly():
    rope = Rope(1e4, 128, "yarn", 16.0, 4096)
    ratio = torch.tensor(plain(1e4, 128)) / frequencies(rope, LENGTH)
    turns = [4096 * f / (2 * math.pi) for f in plain(1e4, 128)]
    for pair, count in enumerate(turns):
        if count > 33:  # a whole pair away from the bound, which is rounded
            assert ratio[pair] == pytest.approx(1.0, rel=1e-5)
        if count < 0.8:
            assert ratio[pair] == pytest.approx(16.0, rel=1e-5)
    assert (ratio.diff() > -1e-4).all()


def test_gguf_divisors_divide_pair_by_pair():
    got = frequencies(Rope(1e4, 4, divisors=(1.0, 8.0)), LENGTH)
    assert got.tolist() == pytest.approx([1.0, 0.01 / 8])


@pytest.mark.parametrize("position", [257, 15962, 131071])
def test_angles_are_float32_grade_whatever_the_weights_are(position):
    cos, sin = angles(Rope(5e5, 64), torch.tensor([[position]]))
    assert cos.dtype == sin.dtype == torch.float32
    exact = [position * f for f in plain(5e5, 64)]
    assert cos.flatten().tolist() == pytest.approx([math.cos(a) for a in exact], abs=0.01)
    assert sin.flatten().tolist() == pytest.approx([math.sin(a) for a in exact], abs=0.01)
    x = torch.randn(1, 1, 2, 64, dtype=torch.float64)
    for dtype in (torch.bfloat16, torch.float16):
        turned = rotate(x.to(dtype), cos, sin)
        assert turned.dtype == dtype
        exact_turn = rotate(x.to(dtype).double(), cos.double(), sin.double())
        torch.testing.assert_close(turned.double(), exact_turn, atol=0.02, rtol=0.01)


def test_each_row_of_a_batch_has_its_own_positions():
    rope = Rope(1e4, 8, "dynamic", 2.0, 4)
    together, _ = angles(rope, torch.tensor([[0, 1, 2], [7, 8, 9]]))
    for row, positions in enumerate(([0, 1, 2], [7, 8, 9])):
        alone, _ = angles(rope, torch.tensor([positions]))
        torch.testing.assert_close(together[row], alone[0])


def test_a_rotation_pairs_channel_i_with_i_plus_half_and_passes_the_rest_on():
    """Half of a 64 wide head: 16 frequencies theta ** (-2 i / 32), pairs (i, i + 16)."""
    cos, sin = angles(Rope(1e4, 32), torch.tensor([[3]]))
    assert cos.shape == (1, 1, 1, 16)
    x = torch.randn(1, 1, 1, 64)
    turned = rotate(x, cos, sin)[0, 0, 0].tolist()
    before = x[0, 0, 0].tolist()
    for i, frequency in enumerate(plain(1e4, 32)):
        pair = complex(before[i], before[i + 16]) * complex(
            math.cos(3 * frequency), math.sin(3 * frequency)
        )
        assert (turned[i], turned[i + 16]) == pytest.approx((pair.real, pair.imag), abs=1e-5)
    assert turned[32:] == before[32:]


def test_attention_scores_depend_on_distance_only():
    rope = Rope(1e4, 16)
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)
    scores = []
    for start in (0, 5, 1000):
        positions = torch.tensor([[start, start + 7]])
        cos, sin = (t.double() for t in angles(rope, positions))
        turned_q = rotate(q, cos[:, 1:], sin[:, 1:])
        scores.append(float((turned_q * rotate(k, cos[:, :1], sin[:, :1])).sum()))
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-3)
