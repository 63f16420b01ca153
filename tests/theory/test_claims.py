"""The documents' numbers and their corrections, entry by entry of the errata's list.

Expected values are the published figures; what computes them is the package. "70B" is the shape
of Llama-2-70B, with 70e9 parameters where a text counts roundly and 68.98e9 where it does not.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from inferlab.theory import (
    classical,
    costs,
    hardware,
    latency,
    limits,
    measurements,
    models,
    nominal,
    roofline,
    trends,
    units,
)
from inferlab.theory.costs import Part
from inferlab.theory.hardware import Hardware

P = 70e9
L70 = models.get("llama-2-70b")
L31_70 = models.get("llama-3.1-70b")
H100, H200, B200 = (hardware.get(name) for name in ("h100-sxm", "h200-sxm", "b200-sxm"))
K20, K20X = hardware.get("k20"), hardware.get("k20x")
ROUND = Hardware("round", "a round accelerator", {"bf16": 1e15}, 3.35e12)
PUBLISHED = {m.id: m for m in measurements.published()}


def about(value, percent=1.0):
    return pytest.approx(value, rel=percent / 100)


# A. Classical models and neural nets


def test_claim_1_logistic_regression_has_half_an_operation_per_byte():
    cost = classical.logistic_regression(features=784)
    assert cost.flops == 2 * 784
    assert cost.intensity == about(0.5)
    assert cost.intensity < costs.decode_step(L70, 0).intensity


def test_claim_2_a_forest_makes_a_thousand_dependent_comparisons():
    assert classical.forest_comparisons(trees=100, depth=10) == 1000
    assert classical.forest_comparisons(trees=100, depth=20) == 2000


def test_claim_3_a_linear_svm_is_one_dot_product_and_a_kernel_one_a_support_vector():
    assert classical.linear_svm(64).flops == classical.logistic_regression(64).flops == 128
    assert classical.kernel_svm(64, support_vectors=500).flops == 500 * 128


def test_claim_4_a_cpu_serves_classical_models():
    cpu = hardware.get("xeon-8480")
    for cost in (classical.logistic_regression(784, 10), classical.kernel_svm(784, 1000)):
        assert roofline.place(cost, cpu, "fp32").seconds < 1e-3


def test_claim_5_a_dense_layer_and_what_llama_made_of_it():
    assert classical.dense(576, 1536).flops == 2 * 576 * 1536
    assert L70.projection_weights.vectors == 80 * 8192  # Norms: no biases are left.
    assert L70.ffn_matrices == 3
    assert models.get("gpt-2").ffn_matrices == 2


def test_claim_6_lenet5_has_61706_parameters():
    layers = classical.lenet5_parameters()
    assert tuple(layers.values()) == (156, 2416, 48120, 10164, 850)
    assert sum(layers.values()) == 61_706


def test_claims_8_and_9_server_cpus_have_many_cores_and_matmul_units():
    epyc, xeon = hardware.get("epyc-9654"), hardware.get("xeon-8480")
    assert (epyc.sm_count, xeon.sm_count) == (96, 56)
    assert 16 * 16 * 32 == 8192
    assert hardware.peak_of_units(2.0e9, 8192 / 16, xeon.sm_count) == about(115e12)
    assert xeon.peak("bf16") == about(115e12)
    assert xeon.ridge("bf16") == about(373)
    assert xeon.ridge("bf16") > H100.ridge("bf16")


def test_claim_10_the_matmul_factory_is_the_tensor_core():
    assert H100.sm_count * 128 == 16_896
    assert H100.flops["bf16"] / (H100.flops["bf16"] + H100.flops["fp32"]) == about(0.93)


# B. Attention


def pairs(n, *, causal=True, shape=L70):
    """Scores of one head of one layer."""
    operations = costs.attention_flops(shape, n, causal=causal)
    return operations / (4 * shape.query_width * shape.layers)


def test_claims_12_to_15_the_score_grid():
    assert pairs(4, causal=False) == 16
    assert pairs(2048, causal=False) == 4_194_304
    assert pairs(2048) == 2_098_176
    assert pairs(2048, causal=False) * L70.heads * L70.layers == about(21.5e9)


def test_claim_16_windows_are_linear_and_only_written_scores_are_quadratic_in_memory():
    windowed = models.get("mistral-7b-v0.1")
    assert costs.attention_flops(windowed, 64_000) == about(
        2 * costs.attention_flops(windowed, 32_000), 7
    )
    assert costs.attention_flops(L70, 64_000) == about(4 * costs.attention_flops(L70, 32_000))
    assert costs.score_bytes(L70, 4000) == 4 * costs.score_bytes(L70, 2000)
    assert costs.activation_bytes(L70, 4000, 2, "fused") == 2 * costs.activation_bytes(
        L70, 2000, 2, "fused"
    )


@pytest.mark.parametrize(
    ("tokens", "percent"), [(512, 0.5), (2048, 1.9), (8192, 7.3), (32768, 23.9), (131072, 55.7)]
)
def test_claim_17_share_of_a_70b_prefill_that_is_quadratic(tokens, percent):
    assert 100 * limits.attention_share(L70, tokens) == pytest.approx(percent, abs=0.06)


def test_claim_17_half_of_the_work_is_quadratic_only_at_100_000_tokens():
    assert limits.attention_half_tokens(L70) == about(104_450, 0.01)
    assert limits.attention_share(L70, 104_450) == about(0.5, 0.1)
    small = models.get("smollm2-135m")
    assert limits.attention_share(small, 2048) == about(0.25)
    assert limits.attention_half_tokens(small) == about(6144, 0.1)


def test_claim_18_flash_attention_saves_bytes_and_no_operations():
    fused, unfused = (costs.prefill(L70, 2000, activations=kind) for kind in ("fused", "unfused"))
    assert fused.flops == unfused.flops
    assert fused.bytes + costs.score_bytes(L70, 2000) > unfused.bytes > fused.bytes


# C. Thirty milliseconds


def test_claim_19_measured_neighbours_of_30_ms():
    assert PUBLISHED[225].seconds == about(27.1e-3)
    assert PUBLISHED[194].seconds == about(18.6e-3)
    assert PUBLISHED[18].seconds == about(64e-3)


def test_claim_20_about_1e15_operations_a_second():
    assert H100.peak("bf16") == about(0.989e15)
    assert B200.peak("bf16") == about(2.25e15)
    assert hardware.get("mi300x").peak("bf16") == about(1.31e15)
    assert H100.measured_matmul == about(0.79e15)


def test_claim_21_about_1e11_operations_a_token():
    assert costs.decode_step(models.get("deepseek-v3"), 0).flops == about(7.5e10, 3)
    assert nominal.decode_step(P, L70).flops == 1.4e11


def test_claims_22_to_25_where_30_ms_go():
    token = roofline.place(Part(flops=1e11, bytes=100e9), ROUND)
    assert token.compute_seconds == about(0.1e-3)
    assert 30e-3 / token.compute_seconds == about(300)
    assert 30e-3 - token.compute_seconds == about(29.9e-3)
    assert token.memory_seconds == about(29.85e-3, 0.01)
    assert token.compute_seconds / 30e-3 == pytest.approx(0.0033, abs=5e-5)
    assert 1 - token.compute_seconds / 30e-3 == about(0.9967)
    assert limits.knee_tokens(H100) == about(295)


# D. The memory wall


def test_claim_26_dense_is_half_of_the_printed_headline():
    assert 2 * H100.flops["bf16"] == about(1979e12)
    assert 2 * H100.flops["fp8"] == about(3958e12)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("h100-sxm", 3350),
        ("a100-sxm-80gb", 2039),
        ("v100-sxm2-32gb", 898),
        ("mi300x", 5325),
        ("rtx-4090", 1008),
    ],
)
def test_claim_27_bandwidth_is_pins_times_rate_over_8(name, gigabytes):
    chip = hardware.get(name)
    assert chip.pin_bandwidth == about(gigabytes * 1e9, 0.05)
    if chip.stacks:
        assert chip.bus_bits == 1024 * chip.stacks


def test_claim_28_most_growth_is_narrower_formats():
    assert trends.compute_growth(K20X, H100, "fp32") == about(17.0)
    assert trends.compute_growth(K20X, H100, "fp32", "bf16") == about(251)
    assert trends.compute_growth(K20X, H100, "fp32", "fp8") == about(503)


def test_claim_29_no_pair_of_shipped_parts_gives_80x():
    assert trends.compute_growth(K20X, H100, "fp64", "fp64-vector") == about(25.6)
    assert trends.compute_growth(K20X, H100, "fp64") == about(51.1)
    assert trends.compute_growth(K20, H100, "fp64") == about(57)


def test_claim_30_bandwidth_grew_13_to_17_times():
    assert trends.bandwidth_growth(K20X, H100) == about(13.4)
    assert trends.bandwidth_growth(K20, H100) == about(16.1)
    announced = replace(H100, bandwidth=3.0e12)
    assert trends.bandwidth_growth(hardware.get("m2090"), announced) == about(16.9)


def test_claim_31_the_gap_depends_on_the_format():
    printed = trends.compound(80, 10, 10) / trends.compound(17, 10, 10)
    assert printed == about(4.706, 0.01)
    assert trends.gap(K20X, H100, "fp64") == about(3.8)
    assert trends.gap(K20X, H100, "fp64", "fp64-vector") == about(1.9)
    assert trends.gap(K20X, H100, "fp32") == about(1.27)
    assert trends.gap(K20X, H100, "fp32", "bf16") == about(18.7)
    assert trends.gap(K20X, H100, "fp32", "fp8") == about(37.5)


def test_claim_32_other_published_rates_of_growth():
    assert trends.compound(3.0, 2, 20) == 59_049
    assert trends.compound(1.6, 2, 20) == about(110)
    assert trends.compound(1.4, 2, 20) == about(29)
    assert trends.compound(3.0, 2, 10) == 243
    assert trends.compound(1.6, 2, 10) == about(10.5)
    assert trends.compound(3.0 / 1.6, 2, 10) == about(23)
    for doubling_years, decade in [(1.43, 127), (1.67, 63), (2.05, 29), (3.79, 6.2), (3.3, 8)]:
        assert trends.compound(2, doubling_years, 10) == about(decade, 3)


@pytest.mark.parametrize(
    ("name", "dtype", "ridge"),
    [
        ("p100-sxm2", "fp16", 29),
        ("v100-sxm2-32gb", "fp16", 139),
        ("a100-sxm-40gb", "bf16", 201),
        ("a100-sxm-80gb", "bf16", 153),
        ("h100-sxm", "bf16", 295),
        ("h200-sxm", "bf16", 206),
        ("b200-sxm", "bf16", 281),
        ("mi300x", "bf16", 247),
        ("l4", "bf16", 403),
        ("l40s", "bf16", 419),
        ("h100-pcie", "bf16", 378),
        ("h100-sxm", "fp8", 591),
        ("b200-sxm", "fp8", 562),
        ("b200-sxm", "fp4", 1125),
        ("k20x", "fp32", 15.8),
        ("a100-sxm-80gb", "fp32", 9.6),
        ("h100-sxm", "fp32", 20.0),
        ("b200-sxm", "fp32", 10.0),
    ],
)
def test_claim_33_ridges(name, dtype, ridge):
    assert hardware.get(name).ridge(dtype) == about(ridge)


def test_claim_33_the_gap_at_16_bits_has_closed_since_2022():
    assert trends.compute_growth(H100, H200, "bf16") == 1.0
    assert trends.bandwidth_growth(H100, H200) == about(1.43)
    assert trends.compute_growth(H100, B200, "bf16") == about(2.27)
    assert trends.bandwidth_growth(H100, B200) == about(2.39)


def test_claims_34_and_35_the_wall_was_named_22_years_before_the_transformer():
    assert trends.MEMORY_WALL_YEAR == 1995
    assert trends.TRANSFORMER_YEAR - trends.MEMORY_WALL_YEAR == 22


# E. A forward pass


def test_claim_38_500_words_are_600_to_800_tokens():
    assert nominal.tokens_of(500) == 650
    assert nominal.tokens_of(500, nominal.TOKENS_PER_WORD_OPENAI) == about(667)


def test_claims_39_and_40_widths_and_depths():
    widths = {"llama-2-70b": 8192, "llama-3.1-8b": 4096, "smollm2-135m": 576}
    assert {name: models.get(name).hidden for name in widths} == widths
    depths = {
        "llama-2-70b": 80,
        "qwen3-32b": 64,
        "deepseek-v3": 61,
        "llama-3.1-405b": 126,
        "gpt-oss-120b": 36,
        "mixtral-8x7b-v0.1": 32,
        "llama-3.1-8b": 32,
    }
    assert {name: models.get(name).layers for name in depths} == depths


def test_claims_41_and_42_only_attention_depends_on_the_context():
    near, far = (costs.decode_step(L70, context) for context in (0, 10_000))
    changed = {name for name in near.parts if near.parts[name] != far.parts[name]}
    assert changed == {"attention"}
    assert {"attention", "ffn"} <= {name for name, part in near.parts.items() if part.flops}


def test_claim_43_three_matrices_make_most_of_a_70b():
    assert L70.ffn_weights.matrices == about(56.4e9)
    assert L70.ffn_weights.matrices / L70.params == about(0.817, 0.1)
    assert replace(L70, ffn_matrices=2).params == about(50.2e9, 0.1)


def test_claim_44_the_pass_ends_in_a_projection_to_the_vocabulary():
    assert costs.decode_step(L70, 0).parts["logits"].flops == 2 * 32_000 * 8192


def test_claim_45_hbm_and_what_is_not():
    hbm = {chip.key for chip in hardware.all() if chip.memory_type.startswith("HBM")}
    assert {"v100-sxm2-32gb", "a100-sxm-80gb", "h100-sxm", "mi300x"} <= hbm
    assert not {"t4", "l4", "a10", "a10g", "l40s", "rtx-3090", "rtx-4090", "rtx-5090"} & hbm


def test_claim_46_140_gb():
    nominally = nominal.decode_step(P, L70).bytes
    assert nominally == 140e9
    assert nominally / 2**30 == about(130.4, 0.05)
    assert costs.weight_bytes(L70) == about(137.95e9, 0.01)
    assert costs.weight_bytes(L31_70) == about(141.1e9, 0.01)
    assert costs.weight_bytes(L31_70) / 2**30 == about(131.42, 0.01)


def test_claim_47_the_input_table_is_gathered_not_streamed():
    assert L70.params == 68_976_648_192
    assert costs.streamed_weight_bytes(L70) == about(137.43e9, 0.01)
    for name, streamed, total in [("llama-3.1-8b", 15.01, 16.06), ("qwen3-8b", 15.14, 16.38)]:
        assert costs.streamed_weight_bytes(models.get(name)) == about(streamed * 1e9, 0.05)
        assert costs.weight_bytes(models.get(name)) == about(total * 1e9, 0.05)
    assert costs.streamed_weight_bytes(models.get("llama-2-7b")) == about(13.21e9, 0.05)
    for name in ("llama-3.2-1b", "smollm2-135m", "qwen3-0.6b"):
        tied = models.get(name)
        assert costs.streamed_weight_bytes(tied) == costs.weight_bytes(tied)


@pytest.mark.parametrize(
    ("name", "batch", "experts"),
    [
        ("deepseek-v3", 1, 8),
        ("deepseek-v3", 8, 57),
        ("deepseek-v3", 32, 163),
        ("deepseek-v3", 64, 222),
        ("mixtral-8x7b-v0.1", 1, 2.0),
        ("mixtral-8x7b-v0.1", 2, 3.5),
        ("mixtral-8x7b-v0.1", 8, 7.2),
    ],
)
def test_claim_48_experts_touched_by_a_batch(name, batch, experts):
    assert models.get(name).experts.expected_distinct(batch) == about(experts)


def test_claim_48_bytes_return_to_the_total_while_operations_stay_active():
    moe = models.get("deepseek-v3")
    one, many = (costs.decode_step(moe, 0, batch) for batch in (1, 1000))
    assert many.flops / 1000 == about(one.flops)
    assert costs.streamed_weight_bytes(moe, batch=1000) > 0.99 * 2 * 670e9


def test_claim_49_weights_are_the_same_for_every_request():
    for context in (0, 1000, 100_000):
        step = costs.decode_step(L70, context)
        assert sum(step.parts[p].bytes for p in ("projections", "ffn", "logits")) == 137_429_008_384


# F. Prefill and decode


def test_claim_50_cached_and_chunked_prompts():
    whole = costs.prefill(L70, 2000)
    rest = costs.prefill(L70, 500, context=1500)
    assert rest.flops < whole.flops / 3
    first = costs.prefill(L70, 1500, logits="none")
    assert (first + rest).flops == whole.flops


def test_claim_51_one_stack_reads_and_writes():
    one_token_prompt, first_step = costs.prefill(L70, 1), costs.decode_step(L70, 0)
    assert one_token_prompt == first_step


def test_claim_52_a_prompt_of_2000_makes_1000_macs_a_byte():
    ffn = costs.prefill(L70, 2000).parts["ffn"]
    assert ffn.intensity == about(2000)
    assert ffn.intensity / 2 == about(1000)


def test_claim_53_the_knee():
    assert limits.knee_tokens(H100) == about(295)
    assert limits.knee_tokens(H200) == about(206)
    assert limits.knee_tokens(hardware.get("t4"), "fp16") == about(203)
    assert limits.knee_tokens(H100, "int4") == about(74)
    cpu = hardware.get("epyc-9654")
    assert limits.knee_tokens(cpu, "fp32") == about(2 * cpu.ridge("fp32"))
    body = {n: costs.prefill(L70, n, activations="none").parts["ffn"] for n in (100, 290, 300)}
    bounds = {n: roofline.place(part, H100).bound for n, part in body.items()}
    assert bounds == {100: "memory", 290: "memory", 300: "compute"}


def test_claim_53_sixteen_times_the_prompt_took_five_times_as_long():
    short, long = PUBLISHED[131], PUBLISHED[132]
    assert (short.prompt, long.prompt) == (128, 2048)
    assert long.seconds / short.seconds == about(5, 3)
    assert short.seconds / short.bound_seconds() == about(3.5)


def test_claims_54_and_55_one_trip_a_token_and_the_other_roof():
    prefill, decode = costs.prefill(L70, 2000), costs.decode_step(L70, 2000)
    weights = ("projections", "ffn", "logits")
    assert [prefill.parts[p].bytes for p in weights] == [decode.parts[p].bytes for p in weights]
    assert roofline.place(prefill, H100).bound == "compute"
    assert roofline.place(decode, H100).bound == "memory"


def test_claims_56_and_57_intensity_and_the_line():
    assert Part(flops=6, bytes=2).intensity == 3
    assert H100.ridge("bf16") / 2 == about(148)


# G. The roofline


def test_claims_58_to_60_the_roof():
    assert "Andrew\nWaterman" in roofline.__doc__
    assert "2009" in roofline.__doc__
    for intensity in (1, 100, 295, 296, 5000):
        placed = roofline.place(Part(intensity, 1), H100)
        assert placed.attainable == min(H100.peak("bf16"), H100.bandwidth * intensity)
    assert roofline.place(Part(100, 1), H100).bound == "memory"
    assert roofline.place(Part(1000, 1), H100).bound == "compute"


def test_claims_61_to_63_two_numbers_of_an_h100():
    pcie = hardware.get("h100-pcie")
    assert hardware.peak_of_units(1.830e9, 512, 528) == about(989.4e12, 0.01)
    assert H100.peak("bf16") == H100.peak("fp16") == 989.4e12
    assert pcie.peak("bf16") == 756e12
    assert (H100.bandwidth, pcie.bandwidth, H200.bandwidth) == (3.35e12, 2.0e12, 4.8e12)
    assert H100.ridge("bf16") == pytest.approx(295.3, abs=0.1)
    assert pcie.ridge("bf16") == about(378)


def test_claim_64_290e12_operations_term_by_term():
    cost = nominal.prefill(P, L70, 2000)
    assert cost.parts["weights"].flops == 280.0e12
    assert cost.parts["attention"].flops == about(10.49e12, 0.05)
    accounts = {name: c.flops for name, c in nominal.prefill_accounts(L70, 2000, P).items()}
    assert accounts["round parameters, no mask"] == about(290.49e12, 0.01)
    assert accounts["with the causal mask"] == about(285.2e12, 0.02)
    assert accounts["logits of the last token"] == about(279.05e12, 0.001)
    assert list(accounts.values()) == sorted(accounts.values(), reverse=True)
    exact = costs.prefill(L70, 2000)
    body = exact.parts["projections"].flops + exact.parts["ffn"].flops
    assert body == about(273.8e12, 0.01)
    assert exact.parts["attention"].flops == about(5.24e12, 0.15)


def test_claim_65_146_gb_term_by_term():
    cost = nominal.prefill(P, L70, 2000)
    assert cost.parts["weights"].bytes == 140e9
    assert cost.parts["kv_write"].bytes == about(0.655e9, 0.1)
    assert cost.parts["activations"].bytes == about(5.243e9, 0.01)
    assert cost.bytes == about(145.90e9, 0.01)


def test_claim_65_what_activations_really_move():
    kv = costs.prefill(L70, 2000).parts["kv_write"].bytes
    fused, unfused = (
        costs.activation_bytes(L70, 2000, 2, kind) + kv for kind in ("fused", "unfused")
    )
    assert fused == about(46e9)
    assert unfused == about(109e9)
    assert costs.score_bytes(L70, 2000) == about(164e9)
    operations = nominal.prefill(P, L70, 2000).flops
    assert operations / (140e9 + fused) == about(1560)
    assert operations / (140e9 + unfused) == about(1160)


def test_claims_66_and_67_intensity_and_headroom():
    cost = nominal.prefill(P, L70, 2000)
    placed = roofline.place(cost, H100)
    assert cost.intensity == about(1986)
    assert cost.intensity / H100.ridge("bf16") == about(6.7)
    assert placed.compute_seconds == about(293e-3)
    assert placed.memory_seconds == pytest.approx(44e-3, abs=0.5e-3)
    assert 1e3 * PUBLISHED[134].seconds == 109
    assert PUBLISHED[134].fraction_of_bound() == about(0.33)
    assert 1e3 * PUBLISHED[140].seconds == 377
    assert PUBLISHED[140].fraction_of_bound() == about(0.61)


def test_claim_68_operations_of_a_decode_step():
    assert nominal.decode_step(P, L70).flops == 140e9
    attention = nominal.decode_step(P, L70, 1).parts["attention"].flops
    assert attention == about(2.62e6, 0.1)
    assert attention * 2000 == about(5.2e9)
    assert attention * 2000 / 140e9 == about(0.037, 2)
    assert attention * 100_000 == about(262e9)
    assert limits.attention_equals_matrices_context(L70) == about(52_225, 0.001)


def test_claim_69_bytes_of_a_decode_step():
    assert nominal.decode_step(P, L70).bytes == 140e9
    assert nominal.decode_step(P, L70, 2000).bytes - 140e9 == about(0.655e9, 0.1)
    assert nominal.decode_step(P, L70, 100_000).bytes - 140e9 == about(32.8e9, 0.1)


@pytest.mark.parametrize(
    ("context", "intensity"), [(0, 1.00), (2000, 1.03), (10_000, 1.16), (100_000, 2.33)]
)
def test_claim_70_intensity_of_a_decode_step(context, intensity):
    assert nominal.decode_step(P, L70, context).intensity == about(intensity, 0.5)


def test_claims_70_and_71_one_is_a_coincidence_of_16_bits():
    for element, intensity in [(2, 1), (1, 2), (0.5, 4)]:
        assert nominal.decode_step(P, L70, element=element).intensity == intensity
    for dtype, intensity in [("bf16", 1), ("int8", 2), ("int4", 4), ("fp32", 0.5)]:
        ffn = costs.decode_step(L70, 0, dtype=dtype).parts["ffn"]
        assert ffn.intensity == about(intensity, 0.1)


def test_claim_72_arithmetic_is_busy_a_third_of_a_percent():
    placed = roofline.place(nominal.decode_step(P, L70), H100)
    assert placed.compute_seconds / placed.memory_seconds == about(0.0034, 1)


def test_claim_73_no_published_decode_passes_its_bound():
    fractions = [
        m.fraction_of_bound()
        for m in measurements.published()
        if m.is_decode and m.batch == 1 and m.fraction_of_bound() is not None
    ]
    assert len(fractions) > 50
    assert max(fractions) < 0.95
    assert sorted(fractions)[len(fractions) // 2] == about(0.66, 10)


def test_claim_74_the_ceiling():
    def ceiling(bytes_moved, chip=H100, chips=1):
        return 1 / roofline.place(Part(0, bytes_moved), chip, chips=chips).seconds

    assert ceiling(140e9) == about(23.93, 0.02)
    assert limits.decode_ceiling(L70, H100) == pytest.approx(24.38, abs=0.01)
    assert limits.decode_ceiling(L70, H100, 2000) == pytest.approx(24.26, abs=0.01)
    assert limits.decode_ceiling(L31_70, H100) == about(24.1, 0.1)
    assert limits.decode_ceiling(L31_70, H100, chips=2) == about(48, 0.5)
    assert limits.decode_ceiling(L31_70, H200) == about(34.5, 0.2)
    assert 1 / PUBLISHED[12].bound_seconds() == about(29.7)
    assert PUBLISHED[12].value == 21.32
    assert PUBLISHED[12].fraction_of_bound() == about(0.72)


def test_claim_74_what_fits():
    assert H100.memory_bytes == about(85.5e9, 0.1)
    assert H200.memory_bytes == about(150.8e9, 0.1)
    assert limits.fits(L70, H100, 0) is False
    assert limits.fits(L31_70, H200, 0) is True
    assert H200.memory_bytes - costs.weight_bytes(L31_70) == about(9.65e9)
    assert limits.fits(L31_70, H200, 40_000) is False
    assert limits.fits(L70, H100, 2000, chips=2) is True
    assert limits.fits(L70, hardware.get("epyc-9654"), 0) is None


def test_claim_75_small_models_fit_in_l2():
    l2 = {name: hardware.get(name).l2_bytes for name in ("h100-sxm", "rtx-4090", "b200-sxm")}
    assert l2 == {"h100-sxm": 50e6, "rtx-4090": 72e6, "b200-sxm": 126e6}
    small = models.get("smollm2-135m")
    assert l2["h100-sxm"] > nominal.decode_step(15e6, small).bytes
    assert costs.streamed_weight_bytes(small) == about(269e6, 0.1)
    body = costs.weight_bytes_by_part(small, "q4_1", 1)
    head = costs.weight_bytes_by_part(small, "q8_0", 1)["logits"]
    mixed = costs.decode_step(small, 0, dtype="q4_1", stored={**body, "logits": head})
    streamed = sum(mixed.parts[p].bytes for p in ("projections", "ffn", "logits"))
    assert streamed == about(96.4e6, 0.2)
    assert streamed < l2["b200-sxm"]


def test_claim_76_layers_on_other_chips_add_no_bandwidth():
    one_card = limits.decode_ceiling(L31_70, hardware.get("rtx-4090"), dtype="fp16")
    assert one_card == about(7.25)
    assert 6.47 / one_card == about(0.89)
    rates = [PUBLISHED[id].value for id in (1, 9, 10, 11)]
    assert [round(rate) for rate in rates] == [105, 169, 254, 328]
    fractions = [PUBLISHED[id].fraction_of_bound() for id in (1, 9, 10, 11)]
    assert fractions == sorted(fractions, reverse=True)
    assert fractions[-1] == about(0.267)


def test_claim_77_fewer_bytes_are_used_less_well():
    """Against the bytes that their formats imply; the source's own count is a little higher."""
    fractions = [PUBLISHED[id].fraction_of_bound() for id in (1, 2, 3)]
    assert fractions == pytest.approx([0.68, 0.53, 0.43], abs=0.03)


def test_claim_78_prefix_reuse_saves_prefill_and_no_decode_bytes():
    assert costs.prefill(L70, 100, context=1900).flops < 0.06 * costs.prefill(L70, 2000).flops
    prefix_reused = costs.decode_step(L70, 2000)
    assert prefix_reused.bytes == costs.decode_step(L70, 2000).bytes
    halved = costs.decode_step(L70, 2000, batch=2).bytes / 2
    assert halved == about(prefix_reused.bytes / 2)


# H. The KV cache


def test_claims_79_to_81_the_past_does_not_change():
    assert pairs(1) == 1
    assert costs.attention_flops(L70, 1, 999) / costs.attention_flops(L70, 1) == 1000
    *_, last = costs.generation(L70, 1, 1000, cache=False)
    *_, cached = costs.generation(L70, 1, 1000)
    for part in ("projections", "ffn", "kv_write"):
        assert last.parts[part].flops == 1000 * cached.parts[part].flops
    assert last.parts["kv_write"].bytes == 1000 * cached.parts["kv_write"].bytes


def test_claims_82_and_106_recomputing_is_quadratic_and_cubic():
    matrices, attention = nominal.generation_flops(P, L70, 1000, cache=False)
    cached_matrices, cached_attention = nominal.generation_flops(P, L70, 1000, cache=True)
    assert matrices == about(70_070e12, 0.01)
    assert cached_matrices == 140e12
    assert matrices / cached_matrices == 500.5
    assert attention == about(438e12, 0.1)
    assert cached_attention == about(1.3e12)
    assert attention / cached_attention == about(333, 0.5)
    doubled, doubled_attention = nominal.generation_flops(P, L70, 2000, cache=False)
    assert doubled / matrices == about(4)
    assert doubled_attention / attention == about(8)
    linear, quadratic = nominal.generation_flops(P, L70, 2000, cache=True)
    assert linear / cached_matrices == 2
    assert quadratic / cached_attention == about(4)


def test_claims_82_and_106_closed_forms_equal_the_sum_of_passes():
    shape = models.get("smollm2-135m")
    body = shape.projection_weights.matrices + shape.ffn_weights.matrices
    for cache in (True, False):
        passes = list(costs.generation(shape, 1, 50, cache=cache))
        matrices, attention = nominal.generation_flops(body, shape, 50, cache=cache)
        assert sum(p.parts["attention"].flops for p in passes) == attention
        assert sum(p.parts["projections"].flops + p.parts["ffn"].flops for p in passes) == matrices


@pytest.mark.parametrize(
    ("shape", "chip", "dtype", "ratio"),
    [
        (L70, H100, "bf16", 1.84),
        (
            models.get("smollm2-135m"),
            Hardware("cpu", "two cores", {"fp32": 80e9}, 16e9),
            "fp32",
            43,
        ),
    ],
    ids=["70b-h100", "135m-cpu"],
)
def test_claims_82_and_106_recomputing_in_time(shape, chip, dtype, ratio):
    """A recomputed step is a prefill: nearly free until the knee."""

    def seconds(cache):
        passes = costs.generation(shape, 1, 1000, cache=cache, dtype=dtype)
        return sum(roofline.place(cost, chip, dtype).seconds for cost in passes)

    assert seconds(cache=False) / seconds(cache=True) == about(ratio, 10)


def test_claim_83_work_per_token_is_linear_and_in_total_quadratic():
    def step(t):
        return nominal.decode_step(P, L70, t).flops

    assert step(2000) - step(1000) == step(3000) - step(2000) == 4 * 1000 * 8192 * 80
    total = sum(costs.attention_flops(L70, 1, t) for t in range(1000))
    assert sum(costs.attention_flops(L70, 1, t) for t in range(2000)) == about(4 * total)


@pytest.mark.parametrize("shape", models.all(), ids=lambda shape: shape.key)
def test_claim_84_every_model_of_the_catalog_gains_by_a_cache(shape):
    with_cache, without = costs.decode_step(shape, 1000), costs.prefill(shape, 1001)
    assert shape.kv_width > 0
    assert without.flops > 100 * with_cache.flops


def test_claim_85_a_latent_per_token_not_two_vectors_per_head():
    v3 = models.get("deepseek-v3")
    assert v3.kv_width == 576
    assert costs.kv_bytes_per_token(v3) == 70_272
    assert costs.kv_bytes_per_token(v3) / 1024 == about(68.6, 0.1)


def test_claims_86_and_87_kv_bytes():
    assert costs.kv_bytes_per_token(L70) == 327_680 == 320 * 1024
    for tokens, gigabytes, gibibytes in [(1e3, 0.3277, 0.3052), (1e4, 3.277, 3.05)]:
        assert costs.kv_bytes(L70, int(tokens)) == about(gigabytes * 1e9, 0.05)
        assert costs.kv_bytes(L70, int(tokens)) / 2**30 == about(gibibytes, 0.1)
    assert costs.kv_bytes(L70, 1000) / 2**20 == 312.5
    assert costs.kv_bytes(L70, 100_000) == about(32.77e9, 0.05)
    assert units.binary_bytes_text(costs.kv_bytes(L70, 100_000)) == "30.5 GiB"


def test_claim_88_parity_with_the_weights():
    assert costs.kv_bytes(L70, 100_000) / 140e9 == about(0.23, 2)
    assert limits.kv_parity_context(140e9, L70) == about(427_246, 0.001)
    assert limits.kv_parity_context(140e9, L70, batch=32) == about(13_400, 0.5)


@pytest.mark.parametrize(("context", "rate"), [(0, 24.0), (10_000, 23.4), (100_000, 19.4)])
def test_claim_89_the_ceiling_sinks_with_the_context(context, rate):
    step = nominal.decode_step(P, L70, context)
    assert 1 / roofline.place(step, H100).memory_seconds == about(rate, 0.5)


def test_claim_89_seen_on_a_4090():
    empty, full = PUBLISHED[35], PUBLISHED[36]
    assert (empty.value, full.value) == (69, 60)
    assert 1 / empty.bound_seconds() == about(76.3, 0.2)
    assert 1 / full.bound_seconds() == about(65.8, 0.2)


def test_claim_90_weights_and_kv_share_the_bus():
    step = costs.decode_step(L70, 100_000, activations="none")
    kv = step.parts["attention"].bytes + step.parts["kv_write"].bytes
    placed = roofline.place(step, H100)
    assert placed.memory_seconds * H100.bandwidth == about(137.43e9 + kv, 0.01)


# J. Batches and metrics


def test_claims_110_and_111_an_8b_at_batch_1():
    step = costs.decode_step(models.get("llama-3.1-8b"), 0)
    assert step.flops == about(15.0e9)
    assert step.bytes == about(15.0e9)
    assert 1 - 1 / H100.ridge("bf16") == about(0.9966, 0.01)


@pytest.mark.parametrize(
    ("context", "intensity"),
    [(512, 842), (1000, 435), (2000, 222), (4000, 115), (8000, 61), (32_000, 21)],
)
def test_claim_113_merged_intensity_saturates(context, intensity):
    assert limits.saturated_intensity(P, L70, context) == pytest.approx(intensity, abs=0.5)
    huge = nominal.decode_step(P, L70, context, batch=10**6)
    assert huge.intensity == pytest.approx(intensity, abs=0.5)


def test_claim_113_attention_keeps_its_own_intensity_at_any_batch():
    for batch in (1, 16, 1024):
        part = costs.decode_step(L70, 2000, batch).parts["attention"]
        assert part.intensity == about(8, 0.1)
        mha = costs.decode_step(models.get("llama-2-7b"), 2000, batch).parts["attention"]
        assert mha.intensity == about(1, 0.1)


def test_claim_113_where_the_merged_intensity_ends():
    assert limits.critical_context(P, L70, H100) == about(1488, 0.1)
    assert limits.critical_context(P, L70, H200) == about(2157, 0.1)
    assert limits.critical_batch(P, L70, 1000, H100) == about(901, 0.2)
    assert limits.critical_batch(P, L70, 1500, H100) == math.inf
    assert 901 * costs.kv_bytes(L70, 1000) == about(295e9)


def test_claim_113_separate_roofs_tell_another_story():
    for context in (0, 1000, 100_000):
        parts = roofline.place(costs.decode_step(L70, context, 300), H100).parts
        assert parts["ffn"].bound == "compute"
        assert not context or parts["attention"].bound == "memory"
    assert limits.kv_time_context(P, L70, H100) == about(1447, 0.1)


def test_claim_116_the_identity_with_littles_law_predicts_a_server():
    rows = [m for m in measurements.published() if "NIM" in m.engine]
    for id in range(194, 221, 3):
        tpot, ttft, measured = (PUBLISHED[n] for n in (id, id + 1, id + 2))
        assert {tpot, ttft, measured} <= set(rows)
        predicted = latency.closed_loop_throughput(
            tpot.batch, ttft.seconds, tpot.seconds, tpot.output
        )
        assert predicted == about(measured.value, 0.6)


def test_claim_117_batches_trade_a_users_pace_for_the_servers():
    assert (PUBLISHED[196].value, PUBLISHED[208].value) == (51.67, 917.26)
    assert (PUBLISHED[194].value, PUBLISHED[206].value) == (18.58, 92.91)
    assert 128 / PUBLISHED[223].seconds == about(10_815)


@pytest.mark.parametrize(
    ("counting", "compute", "gap"),
    [
        ("64 bit", 51.1, 3.8),
        ("32 bit", 17.0, 1.27),
        ("16 bit", 251, 18.7),
        ("narrowest", 503, 37.5),
    ],
)
def test_claim_31_history_ends_where_two_datasheets_do(counting, compute, gap):
    """The table of the ledger: K20X to H100, counted in four ways."""
    last = next(g for g in trends.history(counting) if g.chip.key == "h100-sxm")
    assert last.compute == about(compute)
    assert last.bandwidth == about(13.4)
    assert last.gap == about(gap)
    first = trends.history(counting)[0]
    assert (first.compute, first.bandwidth) == (1, 1)
