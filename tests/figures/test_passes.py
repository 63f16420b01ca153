"""Steps that answers share: the predicted curve, and what is said of two measured ones."""

import pytest

from inferlab.figures import passes
from inferlab.theory import costs, hardware, limits, models, roofline

SMOL, CPU = models.get("smollm2-135m"), hardware.get("epyc-9654")


@pytest.mark.parametrize("dtype", ["fp32", "q4_1"])
def test_a_shared_step_costs_what_theory_says(dtype):
    curve = passes.step_curve(SMOL, CPU, dtype, arithmetic="fp32")
    assert curve["tokens"] == list(range(1, 17))
    only = hardware.Hardware("x", "x", {"fp32": CPU.flops["fp32"]}, CPU.bandwidth)
    for answers, seconds in zip(curve["tokens"], curve["seconds"], strict=True):
        step = costs.decode_step(SMOL, 0, answers, dtype=dtype)
        assert seconds == roofline.place(step, only, dtype).seconds
    assert curve["knee"] == limits.knee_tokens(only, dtype)


def test_narrow_weights_bring_the_knee_forward():
    """Claim 53, second check: the knee is at ridge x bytes per weight / 2."""
    wide, narrow = (passes.step_curve(SMOL, CPU, d, arithmetic="fp32") for d in ("fp32", "q4_1"))
    assert wide["knee"] / narrow["knee"] == pytest.approx(4 / (20 / 32))


def test_the_file_s_own_bytes_can_be_given():
    stored = {"projections": 1e6, "ffn": 2e6, "logits": 3e6}
    curve = passes.step_curve(SMOL, CPU, "q4_1", stored=stored, answers=(1,))
    assert curve["seconds"][0] < passes.step_curve(SMOL, CPU, "q4_1", answers=(1,))["seconds"][0]


def test_what_two_measured_steps_say():
    wide = {"label": "fp32", "tokens": [1, 16], "seconds": [0.04, 0.06]}
    narrow = {"label": "4 bits", "tokens": [1, 16], "seconds": [0.01, 0.12]}
    assert passes.faster(wide, narrow) == (
        "In 4 bits a step of one answer was 4 times as fast as in fp32, "
        "a step of 16 answers 0.5 times"
    )
    curve = passes.step_curve(SMOL, CPU, "fp32")
    figure = passes.price([curve], [wide, narrow], title="Mine", across="answers in the step")
    assert figure.axes[0].get_xlabel() == "answers in the step"
