"""Crossings and ceilings where no claim of the documents checks them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlab.errors import InferlabError
from inferlab.theory import costs, formats, hardware, limits, models, roofline
from inferlab.theory.costs import Part

H100 = hardware.get("h100-sxm")
SHAPE = models.get("llama-3.1-8b")


@given(st.integers(1, 100_000), st.integers(1, 8), st.sampled_from(["bf16", "fp8", "q4_0"]))
def test_one_more_sequence_than_fits_does_not_fit(context, chips, dtype):
    settings = {"dtype": dtype, "chips": chips}
    most = limits.sequences_that_fit(SHAPE, H100, context, **settings)
    assert limits.fits(SHAPE, H100, context, most, **settings)
    assert not limits.fits(SHAPE, H100, context, most + 1, **settings)


@given(st.sampled_from(["bf16", "fp8", "int4", "q4_0", "q8_0"]))
def test_the_knee_is_where_a_matrix_changes_sides(dtype):
    knee = limits.knee_tokens(H100, dtype)
    weights, size = 10**6, formats.bytes_per_element(dtype)
    sides = [
        roofline.place(Part(2 * weights * tokens, weights * size), H100, dtype).bound
        for tokens in (0.99 * knee, 1.01 * knee)
    ]
    assert sides == ["memory", "compute"]


def test_parity_and_crossings_are_where_the_costs_meet():
    parity = limits.kv_parity_context(costs.weight_bytes(SHAPE), SHAPE)
    assert costs.kv_bytes(SHAPE, round(parity)) == pytest.approx(costs.weight_bytes(SHAPE))
    step = costs.decode_step(SHAPE, round(limits.attention_equals_matrices_context(SHAPE)))
    body = step.parts["projections"].flops + step.parts["ffn"].flops
    assert step.parts["attention"].flops == pytest.approx(body, rel=1e-4)


def test_what_has_no_answer():
    assert limits.saturated_intensity(8e9, SHAPE, 0) == math.inf
    assert limits.sequences_that_fit(SHAPE, hardware.get("epyc-9654"), 1000) is None
    assert limits.sequences_that_fit(models.get("llama-2-70b"), H100, 1000) == 0
    with pytest.raises(InferlabError, match="context"):
        limits.sequences_that_fit(SHAPE, H100, 0)
