"""Each still draws what it is given: equal data, equal bytes; words and heights from the data."""

from __future__ import annotations

import subprocess
import sys

import pytest
from drawings import check, title, words

from inferlab.errors import InferlabError
from inferlab.explorers import classical as answers
from inferlab.explorers import hardware as machines
from inferlab.explorers import scenes
from inferlab.figures import (
    attention,
    classical,
    forward,
    inside,
    ladder,
    machine,
    memory,
    parts,
    passes,
    pins,
    roofline,
    saving,
    step,
    stills,
    style,
    sweep,
    trace,
    wall,
)
from inferlab.measure.ladder import Rung
from inferlab.measure.rehearsal import Arrival, rehearse
from inferlab.theory import costs, hardware, limits, models, nominal
from inferlab.theory import roofline as roofs
from inferlab.theory.costs import Cost, Part

LLAMA, H100 = models.get("llama-2-70b"), hardware.get("h100-sxm")
SMOL = models.get("smollm2-135m")
RECORD = {
    "prompt": "Say hello",
    "prompt_tokens": 9,
    "model": "SmolLM2-135M",
    "pieces": [{"text": "Hel", "t": 0.2}, {"text": "lo", "t": 0.24}, {"text": "!", "t": 0.29}],
}
STEPS = [{"text": " Paris", "candidates": [(" Paris", 0.7), (" a", 0.1)]}, {"text": "\n"}]
CPUS = [hardware.get(name) for name in ("xeon-8480", "epyc-9654")]

RUNGS = {
    "dot product": [Rung("Python loop", 2e7), Rung("compiled", None, "numba"), Rung("BLAS", 4e9)],
    "matrix product": [Rung("Python loop", 2e7), Rung("threads", 3e10), Rung("BLAS", 8e10)],
}
LIMITS = {"dot product": (5e9, "memory's bytes"), "matrix product": (1e11, "the best product")}


def film() -> dict:
    """Three who meet in one engine; the second begins like the first."""
    prompts = {"A": [*range(52)], "you": [*range(32), *range(90, 120)], "B": [*range(200, 330)]}
    arrivals = [Arrival(name, 0.02 * i, ids, 24) for i, (name, ids) in enumerate(prompts.items())]
    return rehearse(arrivals, SMOL, CPUS[0], "bf16", blocks=14).as_dict()


FIGURES = {
    "lives": lambda: trace.lives(film(), "you"),
    "lives without blocks": lambda: trace.lives({"requests": film()["requests"]}, "you"),
    "two bars": lambda: machine.two_bars(17e9, 81e9, dtype="fp32"),
    "sweep": sweep.plot,
    "prediction": lambda: step.prediction(0.003, 0.03, 0.035),
    "waterfall": lambda: step.waterfall([("weights", 0.03, "bytes")], 0.04),
    "price": lambda: passes.price([passes.curve(LLAMA, H100), passes.curve(LLAMA, H100, "int4")]),
    "flops": lambda: parts.bars(nominal.prefill_accounts(LLAMA, 2000, 70e9)),
    "bytes": lambda: parts.bars(nominal.prefill_accounts(LLAMA, 2000, 70e9), "bytes"),
    "roofline": lambda: roofline.plot(
        H100.peak("bf16"),
        H100.bandwidth,
        {"decode": roofs.place(costs.decode_step(LLAMA, 0), H100)},
        measured={"decode": (1.0, 2e12)},
    ),
    "request still": lambda: stills.request(scenes.request_data(RECORD, SMOL, H100, "bf16")),
    "thirty-ms still": lambda: stills.thirty_ms(scenes.thirty_ms_data([(LLAMA, H100, "bf16")])),
    "loop still": lambda: stills.loop(
        scenes.loop_data(["The", " capital"], STEPS, model="SmolLM2", bytes_per_pass=5e8)
    ),
    "shared-trip still": lambda: stills.shared_trip(scenes.shared_trip_data(LLAMA, H100)),
    "ladder": lambda: ladder.plot(RUNGS, LIMITS),
    "steps": lambda: inside.steps([*CPUS, H100]),
    "memories": lambda: inside.memories(H100),
    "programs": lambda: inside.programs([at // 16 for at in range(70)], 16, 70),
    "waves still": lambda: inside.waves(machines.waves_data(CPUS[0], H100)),
    "pins": pins.plot,
    "wall": lambda: wall.bars("k20x", "b200-sxm", "32 bit"),
    "reached": lambda: wall.reached(20.0, 24.0, "a chip"),
    "ceiling still": lambda: stills.ceiling(scenes.ceiling_data(LLAMA, H100)),
    "saving": lambda: saving.plot(
        [saving.curve(LLAMA, H100, "bf16", 40), saving.curve(SMOL, CPUS[0], "fp32", 40)],
        {"tokens": [4, 16], "ratios": [1.1, 2.0], "label": "measured here"},
    ),
    "append still": lambda: stills.append(scenes.append_data([(LLAMA, H100, "bf16")], 12)),
    "head": lambda: attention.head(["a", "b"], [[1.0, 0.0], [0.3, 0.7]], 1, "One head looks back"),
    "grids": attention.grids,
    "shares": lambda: attention.shares([LLAMA, SMOL], (64, 2048, 131_072)),
    "slope": lambda: attention.slope([256, 512], [0.001, 0.004], [1e6, 4e6], 2.0),
    "lens": lambda: attention.lens(["' a'", "' Paris'"], [0.4, 0.8], "The last layer knows"),
    "answers": lambda: classical.answers(answers.rows(SMOL, 780, 12)),
    "rates": lambda: classical.rates([64, 128, 256], [1e9, 4e9, 9e9]),
    "stack": lambda: forward.stack(LLAMA, "bf16"),
    "depths": lambda: forward.depths(models.all()),
    "experts": lambda: forward.experts(models.get("deepseek-v3"), [1, 8, 64]),
    "kv growth": lambda: memory.growth([LLAMA, SMOL]),
    "kv per token": lambda: memory.per_token(
        [LLAMA, SMOL], {"llama-2-70b": "8 share one", "smollm2-135m": "3 share one"}
    ),
    "steps with a past": lambda: memory.steps(
        [
            {"label": "predicted", "contexts": [1, 9], "seconds": [0.02, 0.03], "role": "bytes"},
            {
                "label": "measured",
                "contexts": [1, 9],
                "seconds": [0.022, 0.034],
                "role": "kv",
                "measured": True,
            },
        ],
        "A longer past makes each step dearer",
    ),
    "memory-wall still": lambda: stills.memory_wall(scenes.memory_wall_data()),
    "tiles still": lambda: inside.tiles(machines.tile_loads_data()),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_states_a_finding_in_the_palette_whole_and_the_same_each_time(name):
    check(FIGURES[name])


def test_equal_bytes_come_from_another_process_too():
    code = (
        "from inferlab.figures import style, sweep\n"
        "import hashlib; print(hashlib.sha256(style.svg(sweep.plot()).encode()).hexdigest())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in "ab"
    ]
    assert runs[0].stdout == runs[1].stdout != ""


# A machine's two numbers


def test_two_bars_say_the_ratio_of_the_two_numbers():
    assert title(machine.two_bars(20e9, 100e9)).startswith("This machine can do 5 operations")
    assert "can fetch 2 bytes" in title(machine.two_bars(20e9, 10e9, name="It"))
    said = words(machine.two_bars(17e9, 81e9, dtype="fp32"))
    assert "17 GB/s" in said
    assert "81 GFLOP/s" in said
    assert "(fp32)" in said


def test_two_bars_refuse_nothing():
    with pytest.raises(InferlabError, match="positive"):
        machine.two_bars(0, 1e9)


# Sweeps of memory


def test_sweeps_are_the_catalogs_capacities_over_bandwidths():
    found = {one.name: one for one in sweep.chips()}
    assert len([one for one in found.values() if one.flagship]) == len(sweep.FLAGSHIPS)
    for chip in hardware.all():
        name = chip.name.replace("Tesla ", "")
        if chip.memory_bytes and chip.year >= 2012:
            assert found[name].seconds == chip.memory_bytes / chip.bandwidth
        else:
            assert name not in found


def test_the_title_of_the_sweep_is_its_range():
    some = [one for one in sweep.chips() if one.name in ("K20X", "H100 SXM", "L4")]
    assert title(sweep.plot(some)) == (
        "Reading all of its memory once takes a flagship 24 to 26 ms, in 2012 as in 2022"
    )
    assert "14 times the memory, 13 times the bandwidth" in words(sweep.plot(some))


def test_a_sweep_of_the_flagships_takes_about_thirty_milliseconds():
    """Claim 23: about 100 GB through an H100 is 30 ms, and so is a sweep of nearly any flagship."""
    times = [one.seconds for one in sweep.chips() if one.flagship]
    assert 0.022 < min(times) < max(times) < 0.043
    assert 0.029 < sorted(times)[len(times) // 2] < 0.035


# One step against the clock


def test_a_prediction_says_what_share_of_the_clock_it_explains():
    assert title(step.prediction(0.001, 0.02, 0.025)) == (
        "The bytes alone explain 80 % of the step, the arithmetic 4 %"
    )
    assert title(step.prediction(0.02, 0.001, 0.025, what="pass")) == (
        "The arithmetic alone explains 80 % of the pass, the bytes 4 %"
    )
    assert "one of the two numbers is off" in title(step.prediction(0.001, 0.03, 0.024))


def test_a_waterfall_adds_up_to_the_clock():
    figure = step.waterfall(
        [("weights", 0.030, "bytes"), ("arithmetic", 0.001, "compute"), ("Python", 0.004, "wait")],
        0.040,
    )
    axes = figure.axes[0]
    bars = [patch for patch in axes.patches if patch.get_width() > 0]
    assert [round(1e3 * bar.get_width(), 6) for bar in bars] == [30, 1, 4, 5, 40]
    starts = [round(1e3 * bar.get_x(), 6) for bar in bars]
    assert starts == [0, 30, 31, 35, 0]
    assert [label.get_text() for label in axes.get_yticklabels()][-2:] == [
        "everything else",
        "the whole step",
    ]
    assert title(figure) == "75 % of a step is bytes on their way, 22 % is overhead"


def test_a_waterfall_names_a_role_that_is_none():
    with pytest.raises(InferlabError, match="role of weights"):
        step.waterfall([("weights", 0.03, "ink")])


# The price of a pass


@pytest.mark.parametrize("dtype", ["bf16", "int4", "q4_0"])
def test_the_price_of_a_pass_is_what_theory_says(dtype):
    curve = passes.curve(LLAMA, H100, dtype)
    assert (curve["tokens"][0], curve["tokens"][-1]) == (1, 1024)
    for tokens, seconds in zip(curve["tokens"], curve["seconds"], strict=True):
        cost = costs.prefill(LLAMA, tokens, dtype=dtype)
        assert seconds == roofs.place(cost, H100, dtype).seconds
    assert curve["knee"] == limits.knee_tokens(H100, dtype)


def test_the_price_is_flat_before_the_knee_and_proportional_after():
    """Claim 53, as corrected: the knee stands at ridge x bytes per weight / 2."""
    for dtype, knee in (("bf16", 295), ("int4", 74)):
        curve = passes.curve(LLAMA, H100, dtype, tokens=[1, knee // 2, 4 * knee, 8 * knee])
        one, before, after, twice = curve["seconds"]
        assert before < 1.01 * one
        assert after / one == pytest.approx(4, rel=0.03)
        assert twice / after == pytest.approx(2, rel=0.03)


def test_the_finding_and_the_marks_of_the_price_come_from_its_curves():
    curve = {"label": "test", "tokens": [1, 10, 100], "seconds": [0.01, 0.01, 0.1], "knee": 10.0}
    other = curve | {"label": "half", "knee": 5.0}
    figure = passes.price([curve, other], [{"label": "seen", "tokens": [1], "seconds": [0.02]}])
    assert title(figure) == "Up to 10 tokens share a pass at the price of one; in half, up to 5"
    said = words(figure)
    for word in ("test", "half", "seen"):
        assert word in said
    blue, orange = style.PALETTE["bytes"], style.PALETTE["compute"]
    lines = [(line.get_color(), *map(list, line.get_data())) for line in figure.axes[0].lines]
    assert (blue, [1, 10.0], [0.01, 0.01]) in [(c, x[:2], y[:2]) for c, x, y in lines]
    assert (orange, [10.0, 10, 100], [0.01, 0.01, 0.1]) in lines


def test_rings_on_both_sides_of_the_knee_are_the_finding():
    curve = {"label": "test", "tokens": [1, 10, 100], "seconds": [0.01, 0.01, 0.1], "knee": 10.0}
    rings = {"label": "seen", "tokens": [1, 8, 16, 64], "seconds": [0.02, 0.03, 0.05, 0.5]}
    figure = passes.price([curve], [rings])
    expected = "8 tokens in a pass took 1.5 times as long as one, 64 took 25 times"
    assert title(figure) == expected


def test_an_engine_that_multiplies_in_one_format_gives_all_weights_the_same_slope():
    chip = hardware.Hardware("cpu", "a CPU", {"fp32": 1e11, "bf16": 1e12}, 1e10)
    wide = passes.curve(LLAMA, chip, "fp32", arithmetic="fp32")
    small = passes.curve(LLAMA, chip, "int4", arithmetic="fp32")
    assert small["seconds"][-1] == pytest.approx(wide["seconds"][-1], rel=0.01)
    assert small["knee"] == wide["knee"] / 8
    assert passes.curve(LLAMA, chip, "int4")["knee"] == 10 * small["knee"]


def test_a_knee_beyond_the_plot_leaves_a_flat_line():
    curve = {"label": "flat", "tokens": [1, 8], "seconds": [0.01, 0.01], "knee": 300.0}
    lines = passes.price([curve]).axes[0].lines
    assert [line.get_color() for line in lines] == [style.PALETTE["bytes"]]


# Parts, and the roof


def test_bars_of_operations_add_up_as_the_accounts_do():
    """Claim 64: 290.49, 285.2, 279.05 TFLOP."""
    figure = FIGURES["flops"]()
    said = words(figure)
    for total in ("290.5 TFLOP", "285.2 TFLOP", "279.1 TFLOP"):
        assert total in said
    assert title(figure).startswith("290 TFLOP or 279 TFLOP")


def test_bars_of_bytes_show_weights_kv_and_activations():
    """Claim 65: 140 + 0.655 + 5.243 = 145.90 GB."""
    rough = nominal.prefill(70e9, LLAMA, 2000)
    groups = parts.grouped(rough, "bytes")
    assert groups == {
        "weights": pytest.approx(140e9),
        "KV write": pytest.approx(0.65536e9),
        "activations": pytest.approx(5.24288e9),
    }
    assert "145.9 GB" in words(parts.bars({"a pass": rough}, "bytes"))


def test_an_unknown_part_is_named():
    with pytest.raises(InferlabError, match="'ether'"):
        parts.grouped(Cost({"ether": Part(1, 1)}), "flops")


def test_a_roofline_places_work_by_its_two_numbers():
    figure = roofline.plot(100e9, 10e9, {"decode": (1.0, 10e9), "prefill": (40.0, 100e9)})
    assert title(figure) == "Decode waits for bytes, prefill waits for arithmetic"
    marks = {
        line.get_marker(): (line.get_xdata()[0], line.get_ydata()[0], line.get_color())
        for line in figure.axes[0].lines
        if line.get_marker() in "s|"
    }
    assert marks["|"] == (1.0, 10e9, style.PALETTE["bytes"])
    assert marks["s"] == (40.0, 100e9, style.PALETTE["compute"])
    assert "ridge 10" in words(figure)


def test_a_measured_point_says_what_it_reached():
    figure = roofline.plot(100e9, 10e9, {"decode": (1.0, 10e9)}, measured={"decode": (1.0, 8e9)})
    assert "measured: 80 %" in words(figure)
    with pytest.raises(InferlabError, match="bandwidth"):
        roofline.plot(1e9, 0, {"x": (1, 1)})


# What moves, standing still


def test_stills_count_what_their_data_hold():
    still = FIGURES["request still"]()
    assert title(still) == "One pass reads the prompt's 9 tokens, 2 more write a token each"
    assert "Hello!" in words(still)
    trip = scenes.thirty_ms_data([(LLAMA, H100, "bf16")])
    case = trip["cases"][0]
    assert f"{int(case['memory_s'] / case['compute_s'])} tokens" in words(stills.thirty_ms(trip))


# Requests in time


def test_the_times_of_a_request_are_those_of_its_events():
    for one in film()["requests"]:
        found, events = trace.spans(one["events"]), one["events"]
        times = {
            kind: [e["time_s"] for e in events if e["kind"] == kind]
            for kind in ("scheduled", "chunk", "token")
        }
        assert [to for _, to in found["wait"]] == times["scheduled"]
        assert [to for _, to in found["read"]] == times["chunk"]
        assert [to for _, to in found["write"]] == times["token"]
        assert found["wait"][0][0] == 0
        assert all(since <= to for part in found.values() for since, to in part)
    assert title(FIGURES["lives"]()).startswith("You waited")
    assert "still to be found" in words(FIGURES["lives"]())
    assert "still to be found" not in words(FIGURES["lives without blocks"]())
