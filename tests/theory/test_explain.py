"""`inferlab explain`: its numbers, its table, and one clear line for bad input."""

from __future__ import annotations

import json
import sys

import pytest

from inferlab import cli
from inferlab.theory import explain, hardware, limits, models

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}


@pytest.fixture
def run(monkeypatch, capsys):
    def _run(*arguments):
        monkeypatch.setattr(sys, "argv", ["inferlab", "explain", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            cli.main()
        captured = capsys.readouterr()
        return done.value.code or 0, captured.out, captured.err

    return _run


def test_the_numbers_of_a_70b_on_an_h100(run):
    code, out, _ = run("--model", "llama-2-70b", "--device", "h100-sxm", "--prompt", 2000, "--json")
    answer = json.loads(out)
    assert code == 0
    assert list(answer) == [
        "ridge",
        "weight_bytes",
        "kv_bytes_per_token",
        "fits",
        "prefill",
        "decode",
        "parts",
    ]
    assert answer["ridge"] == pytest.approx(295.3, abs=0.2)
    assert answer["kv_bytes_per_token"] == 327_680
    assert answer["fits"] is False
    assert answer["prefill"]["flops"] == pytest.approx(279.05e12, rel=1e-5)
    assert answer["prefill"]["bound"] == "compute"
    assert answer["decode"]["tokens_per_second"] == pytest.approx(24.26, abs=0.05)
    assert answer["decode"]["bound"] == "memory"
    assert set(answer["prefill"]) == {"flops", "bytes", "intensity", "bound", "seconds"}
    assert set(answer["decode"]) == {*answer["prefill"], "tokens_per_second"}
    for phase in ("prefill", "decode"):
        parts = answer["parts"][phase].values()
        for total in ("flops", "bytes", "seconds"):
            assert sum(p[total] for p in parts) == pytest.approx(answer[phase][total])


def test_an_empty_cache(run):
    _, out, _ = run(*("--model", "llama-2-70b", "--device", "h100-sxm", "--context", 0, "--json"))
    assert json.loads(out)["decode"]["tokens_per_second"] == pytest.approx(24.38, abs=0.05)


def test_a_t4_counts_in_fp16_and_says_so(run):
    code, out, err = run("--model", "smollm2-135m", "--device", "t4", "--json")
    assert code == 0
    assert json.loads(out)["ridge"] == pytest.approx(203, abs=0.2)
    assert "fp16" in err


def test_the_table_has_every_part_and_the_roof(run):
    code, out, _ = run("--model", "deepseek-v3", "--device", "h200-sxm", "--chips", 8)
    assert code == 0
    for words in (
        "feed-forward weights",
        "KV write",
        "logits",
        "tokens/s",
        "of peak",
        "not fit in 1.21 TB",
    ):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80


def test_chips_share_a_pass_and_its_memory():
    shape, chip = models.get("llama-2-70b"), hardware.get("h100-sxm")
    one, two = (explain.report(shape, chip, 2000, chips=n) for n in (1, 2))
    assert two["decode"]["seconds"] == pytest.approx(one["decode"]["seconds"] / 2)
    assert (one["fits"], two["fits"]) == (False, True)
    assert two["ridge"] == one["ridge"]


def test_batch_counts_tokens_of_the_whole_batch():
    shape, chip = models.get("llama-3.1-8b"), hardware.get("h100-sxm")
    answer = explain.report(shape, chip, 100, batch=32, context=1000)
    assert answer["decode"]["tokens_per_second"] == pytest.approx(
        limits.decode_ceiling(shape, chip, 1000, 32)
    )
    assert answer["prefill"] == explain.report(shape, chip, 100)["prefill"]


def test_a_config_file_or_its_folder(run, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    for name in (path, tmp_path):
        code, out, err = run("--model", name, "--device", "l4", "--prompt", 500, "--json")
        assert code == 0
        assert json.loads(out)["kv_bytes_per_token"] == 2 * 2 * 64 * 2
        assert "128 tokens" in err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--model": "llama-2-70"}, "llama-2-70b"),
        ({"--device": "h100"}, "h100-sxm"),
        ({"--prompt": -1}, "prompt is -1"),
        ({"--prompt": 0}, "prompt is 0"),
        ({"--batch": 0}, "batch is 0"),
        ({"--context": -5}, "context is -5"),
        ({"--chips": 0}, "chips is 0"),
        ({"--dtype": "bf17"}, "bf16"),
        ({"--kv-dtype": "nope"}, "dtype"),
        ({"--dtype": "fp8", "--device": "a100-sxm-80gb"}, "no fp8"),
        ({"--dtype": "bf16", "--device": "t4"}, "fp16"),
        ({"--model": "absent/config.json"}, "no such config"),
        ({"--model": "{bad}"}, "not JSON"),
        ({"--model": "{list}"}, "JSON object"),
    ],
)
def test_bad_input_is_one_line_and_code_2(run, tmp_path, changes, words):
    (tmp_path / "bad.json").write_text('{"model_type": ')
    (tmp_path / "list.json").write_text("[]")
    settings = {"--model": "llama-2-7b", "--device": "h100-sxm", **changes}
    files = {"{bad}": tmp_path / "bad.json", "{list}": tmp_path / "list.json"}
    settings["--model"] = files.get(settings["--model"], settings["--model"])
    code, out, err = run(*(word for pair in settings.items() for word in pair))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_sketch_stands_its_letters_on_the_roof(ascii_only):
    picture = explain.sketch(295.0, {"P": 2000.0, "D": 1.0}, ascii_only=ascii_only)
    lines = picture.splitlines()
    rows = {letter: y for y, line in enumerate(lines[:9]) for letter in "PD" if letter in line}
    assert rows["P"] == 0
    assert 4 <= rows["D"] <= 7
    assert picture.isascii() == ascii_only


@pytest.mark.parametrize("shape", models.all(), ids=lambda shape: shape.key)
@pytest.mark.parametrize("chip", ["h100-sxm", "t4", "k20x", "epyc-9654"])
def test_any_model_on_any_chip_is_valid_json(shape, chip):
    answer = explain.report(shape, hardware.get(chip), 1000, context=0)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert explain.sketch(answer["ridge"], {"D": answer["decode"]["intensity"]})
