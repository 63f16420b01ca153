"""Properties of costs and roofs that hold for any model and any setting."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlab.errors import InferlabError
from inferlab.theory import costs, formats, hardware, models, roofline
from inferlab.theory.costs import Cost, Part
from inferlab.theory.hardware import Hardware

shapes = st.sampled_from(models.all())
dense = st.sampled_from([shape for shape in models.all() if not shape.experts])
mixtures = st.sampled_from([shape for shape in models.all() if shape.experts])
dtypes = st.sampled_from(formats.names())
tokens = st.integers(1, 20_000)
contexts = st.integers(0, 200_000)
batches = st.integers(1, 512)


@given(shapes, tokens, contexts, batches, dtypes)
def test_parts_add_up(shape, n, context, batch, dtype):
    cost = costs.prefill(shape, n, context=context, batch=batch, dtype=dtype)
    assert set(cost.parts) == set(costs.PARTS)
    assert cost.flops == pytest.approx(sum(part.flops for part in cost.parts.values()))
    assert cost.bytes == pytest.approx(sum(part.bytes for part in cost.parts.values()))
    doubled, repeated = cost + cost, cost * 2
    assert doubled.flops == pytest.approx(2 * cost.flops)
    assert doubled == repeated


@given(shapes, contexts, batches, dtypes)
def test_more_of_anything_never_costs_less(shape, context, batch, dtype):
    here = costs.decode_step(shape, context, batch, dtype=dtype)
    for more in (
        costs.decode_step(shape, context + 1000, batch, dtype=dtype),
        costs.decode_step(shape, context, batch + 1, dtype=dtype),
    ):
        assert more.flops >= here.flops
        assert more.bytes >= here.bytes * (1 - 1e-12)


@given(shapes, tokens, contexts, st.integers(1, 20_000))
def test_a_prompt_in_two_chunks_does_the_same_arithmetic(shape, first, context, second):
    """Chunks read the weights twice and look back through the cache; the operations are equal."""
    whole = costs.prefill(shape, first + second, context=context, latent="absorbed")
    chunks = costs.prefill(
        shape, first, context=context, logits="none", latent="absorbed"
    ) + costs.prefill(shape, second, context=context + first, latent="absorbed")
    assert chunks.flops == whole.flops
    assert chunks.bytes > whole.bytes


@given(shapes, st.integers(1, 60))
def test_prefill_is_the_sum_of_its_decode_steps_in_arithmetic(shape, n):
    prefill = costs.prefill(shape, n, logits="all", latent="absorbed")
    steps = [costs.decode_step(shape, t) for t in range(n)]
    assert prefill.flops == sum(step.flops for step in steps)
    assert prefill.parts["kv_write"].bytes == sum(s.parts["kv_write"].bytes for s in steps)


@given(dense, batches, dtypes)
def test_dense_weights_are_read_once_whatever_the_batch(shape, batch, dtype):
    alone = costs.streamed_weight_bytes(shape, dtype)
    assert costs.streamed_weight_bytes(shape, dtype, batch) == alone
    table = 0 if shape.tied else shape.embedding_params * formats.bytes_per_element(dtype)
    assert alone == pytest.approx(costs.weight_bytes(shape, dtype) - table)


@given(mixtures, batches)
def test_mixtures_go_from_active_to_total(shape, batch):
    table = 0 if shape.tied else 2 * shape.embedding_params
    alone = costs.streamed_weight_bytes(shape)
    assert alone == 2 * shape.active_params - table
    shared = costs.streamed_weight_bytes(shape, batch=batch)
    assert alone <= shared <= costs.weight_bytes(shape) - table
    assert costs.streamed_weight_bytes(shape, batch=100_000) == pytest.approx(
        costs.weight_bytes(shape) - table
    )
    assert costs.decode_step(shape, 0, batch).flops == pytest.approx(
        batch * costs.decode_step(shape, 0).flops
    )


@given(shapes, tokens, contexts)
def test_attention_pairs_counted_one_by_one(shape, n, context):
    n, context = n % 40 + 1, context % 40
    window = (shape.window or 0) % 30 + 1

    def seen(t):
        return min(context + t + 1, window)

    assert costs._pairs(n, context, window, True) == sum(seen(t) for t in range(n))
    assert costs._pairs(n, context, None, True) == sum(context + t + 1 for t in range(n))
    assert costs._pairs(n, context, None, False) == n * (n + context)


@given(shapes, tokens, st.sampled_from(hardware.all()), st.integers(1, 16))
def test_times_follow_from_parts(shape, n, chip, chips):
    dtype = chip.default_dtype
    cost = costs.prefill(shape, n, dtype=dtype)
    placed = roofline.place(cost, chip, dtype, chips)
    assert placed.seconds == pytest.approx(sum(p.seconds for p in placed.parts.values()))
    longest = max(placed.compute_seconds, placed.memory_seconds)
    assert longest <= placed.seconds * (1 + 1e-12) <= 2 * longest * (1 + 1e-9)
    assert placed.bound == (
        "compute" if placed.compute_seconds > placed.memory_seconds else "memory"
    )
    assert roofline.place(cost, chip, dtype).seconds == pytest.approx(placed.seconds * chips)


@given(st.floats(1e-3, 1e6), st.sampled_from(hardware.all()))
def test_the_roof_is_one_line(intensity, chip):
    """Attainable = min(peak, bandwidth x intensity): continuous at the ridge, never above it."""
    dtype = chip.default_dtype
    placed = roofline.place(Part(intensity * 1e9, 1e9), chip, dtype)
    assert placed.attainable == pytest.approx(1e9 * intensity / placed.seconds)
    assert placed.attainable <= chip.peak(dtype)
    assert placed.bound == ("compute" if intensity > chip.ridge(dtype) else "memory")
    corner = roofline.place(Part(chip.ridge(dtype) * 1e9, 1e9), chip, dtype)
    assert corner.attainable == pytest.approx(chip.peak(dtype))
    assert corner.compute_seconds == pytest.approx(corner.memory_seconds)


def test_the_bound_of_a_sum_is_the_resource_with_the_larger_total():
    chip = Hardware("toy", "toy", {"bf16": 10.0}, 1.0)
    cost = Cost({"a": Part(100, 1), "b": Part(0, 8)})
    placed = roofline.place(cost, chip)
    assert placed.seconds == 10 + 8
    assert placed.bound == "compute"
    assert roofline.place(Cost({"a": Part(100, 1), "b": Part(0, 10)}), chip).bound == "memory"


def test_absorbed_latents_can_be_compute_bound():
    """Absorbed attention multiplies 242 times a byte it reads: above an H200's ridge."""
    step = costs.decode_step(models.get("deepseek-v3"), 100_000, batch=1)
    attention = step.parts["attention"]
    assert attention.intensity == pytest.approx(242, rel=2e-3)
    parts = roofline.place(step, hardware.get("h200-sxm")).parts
    assert parts["attention"].bound == "compute"
    assert parts["projections"].bound == "memory"


def test_true_bytes_of_a_checkpoint_replace_the_format():
    dense = models.get("smollm2-135m")
    stored = {"projections": 1e6, "ffn": 2e6, "logits": 3e6}
    step = costs.decode_step(dense, 0, dtype="q4_1", stored=stored)
    assert {name: step.parts[name].bytes for name in stored} == stored
    mixture = models.get("mixtral-8x7b-v0.1")
    full = costs.weight_bytes_by_part(mixture, "bf16", 10**6)
    assert costs.weight_bytes_by_part(mixture, "bf16", 1, full) == pytest.approx(
        costs.weight_bytes_by_part(mixture, "bf16", 1)
    )


def test_small_formats_keep_norms_and_the_cache_at_16_bits():
    shape = models.get("smollm2-135m")
    matrices = shape.params - 61 * 576
    assert costs.weight_bytes(shape, "q4_0") == matrices * 18 / 32 + 61 * 576 * 2
    step, half = (costs.decode_step(shape, 1000, dtype=d) for d in ("q4_0", "bf16"))
    assert step.parts["attention"].bytes == half.parts["attention"].bytes
    packed = costs.decode_step(shape, 1000, dtype="q4_0", kv_dtype="q8_0")
    assert packed.parts["attention"].bytes == half.parts["attention"].bytes * 34 / 64


def test_activations_from_ideal_to_unfused():
    for shape in models.all():
        ideal, fused, unfused = (
            costs.activation_bytes(shape, 100, 2, kind) for kind in ("ideal", "fused", "unfused")
        )
        assert 0 == costs.activation_bytes(shape, 100, 2, "none") < ideal < fused < unfused


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": -1}, "tokens"),
        ({"tokens": 1, "batch": 0}, "batch"),
        ({"tokens": 1, "context": -1}, "context"),
        ({"tokens": 1, "dtype": "bf17"}, "dtype"),
        ({"tokens": 1, "kv_dtype": "bf17"}, "dtype"),
        ({"tokens": 1, "logits": "some"}, "logits"),
        ({"tokens": 1, "activations": "some"}, "activations"),
        ({"tokens": 1, "latent": "some"}, "latent"),
    ],
)
def test_bad_settings_are_named(arguments, field):
    with pytest.raises(InferlabError, match=field):
        costs.prefill(models.get("llama-2-7b"), **arguments)


def test_no_chips_is_an_error():
    with pytest.raises(InferlabError, match="chips"):
        roofline.place(Part(1, 1), hardware.get("h100-sxm"), chips=0)


def test_theory_needs_neither_numpy_nor_torch():
    code = (
        "import sys, pkgutil, importlib, inferlab.theory as t\n"
        "for m in pkgutil.iter_modules(t.__path__, 'inferlab.theory.'):\n"
        "    importlib.import_module(m.name)\n"
        "print([m for m in ('numpy', 'torch', 'rich', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
