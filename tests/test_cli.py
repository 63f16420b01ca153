"""`generate` and `chat` as a shell sees them: what is printed where, and how they exit.

The model is a tiny one of random weights on disk: what it says has no sense, but all the code of
a real one runs to say it.
"""

import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

import folders
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from inferlab import cli
from inferlab.engine import LLM, SamplingParams

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
KEYS = {
    "text", "token_ids", "prompt_tokens", "cached_tokens", "output_tokens", "finish_reason",
    "ttft_s", "tpot_s", "tokens_per_second", "bytes_per_token", "achieved_bytes_per_second",
    "fraction_of_bandwidth", "device", "dtype", "model",
}  # fmt: skip
LIMIT = 1e9


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder: 258 tokens, 2 layers, a context of 4096."""
    folder = tmp_path_factory.mktemp("tiny")
    fields = tiny.FIELDS | {
        "max_position_embeddings": 4096,
        "eos_token_id": 257,
        "tie_word_embeddings": True,
    }
    folders.write(folder, fields, seed=3, spread=0.3, template=TEMPLATE)
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Return run(command, *options, stdin="", model=folder): (exit code, stdout, stderr)."""
    monkeypatch.setattr(cli, "_read_limit", lambda device: LIMIT)

    def run(command, *options, stdin="", model=folder):
        argv = ["inferlab", command, "--model", str(model), *options]
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture(scope="module")
def llm(folder):
    return LLM.load(folder)


def answer(llm, text="hi", *, system=None, **params):
    ids = llm.tokenizer.chat([{"role": "user", "content": text}], system)
    return llm.generate(ids, SamplingParams(**{"max_new_tokens": 9} | params))[0]


NINE = ("--max-new-tokens", "9")


def test_generate_prints_the_text_on_stdout_and_its_account_on_stderr(run, llm):
    code, out, err = run("generate", "hi", *NINE)
    want = answer(llm)
    assert (code, out) == (0, want.text + "\n")
    assert err.startswith(f"{want.prompt_tokens} prompt + 9 output tokens · fp32 · TTFT ")
    for word in ("TPOT", "tok/s", "B/token", "B/s", "% of the 1 GB/s this machine reads"):
        assert word in err
    assert err.count("\n") == 1


def test_generate_takes_its_prompt_from_standard_input(run, llm):
    want = answer(llm, "two\nlines").text + "\n"
    assert run("generate", "-", *NINE, stdin="two\nlines\n")[1] == want
    assert run("generate", *NINE, stdin="two\nlines")[1] == want


def test_generate_json_has_the_documented_keys_and_adds_up(run, llm):
    code, out, err = run("generate", "hi", *NINE, "--json")
    got, want = json.loads(out), answer(llm)
    assert (code, err) == (0, "")
    assert set(got) >= KEYS
    for key in ("text", "token_ids", "prompt_tokens", "output_tokens", "finish_reason"):
        assert got[key] == getattr(want, key)
    assert (got["device"], got["dtype"], got["model"]) == ("cpu", "fp32", str(llm.name))
    assert got["cached_tokens"] == 0
    assert got["tokens_per_second"] == pytest.approx(1 / got["tpot_s"])
    assert got["achieved_bytes_per_second"] == pytest.approx(got["bytes_per_token"] / got["tpot_s"])
    assert got["fraction_of_bandwidth"] == got["achieved_bytes_per_second"] / LIMIT
    weights = sum(t.nbytes for t in load_file(f"{llm.name}/model.safetensors").values())
    assert got["weight_bytes_per_token"] == weights
    context = want.prompt_tokens + (9 - 2) / 2
    assert got["kv_read_bytes_per_token"] == 2 * 2 * 8 * 2 * 4 * context


def test_case_14_no_token_and_one_token_have_an_account_too(run):
    for tokens in ("0", "1"):
        code, out, _ = run("generate", "hi", "--max-new-tokens", tokens, "--json")
        got = json.loads(out)
        assert (code, got["output_tokens"], got["finish_reason"]) == (0, int(tokens), "length")
        assert got["tpot_s"] is got["bytes_per_token"] is got["fraction_of_bandwidth"] is None
        assert (got["ttft_s"] is None) == (tokens == "0")
    code, _, err = run("generate", "hi", "--max-new-tokens", "1")
    assert (code, "TTFT" in err, "TPOT" in err) == (0, True, False)


def test_case_11_logprobs_are_strict_json(run):
    options = ["--temperature", "1e-3", "--top-k", "1", "--logprobs", "5", "--json"]
    _, out, _ = run("generate", "hi", *NINE, *options)

    def refuse(constant):
        raise AssertionError(constant)

    got = json.loads(out, parse_constant=refuse)
    assert [at["token_id"] for at in got["logprobs"]] == got["token_ids"]
    assert all(at["top"][str(at["token_id"])] == at["logprob"] <= 0 for at in got["logprobs"])


def test_every_sampling_option_reaches_the_sampler(run, llm):
    params = {"temperature": 1.5, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "seed": 5}
    options = [
        part for name, value in params.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]  # fmt: skip
    _, out, _ = run("generate", "hi", *NINE, *options, "--json")
    assert json.loads(out)["token_ids"] == answer(llm, **params).token_ids
    plain = answer(llm).text
    _, out, _ = run("generate", "hi", *NINE, "--stop", "never there", "--stop", plain[3], "--json")
    got = json.loads(out)
    assert (got["text"], got["finish_reason"]) == (plain[: plain.index(plain[3])], "stop_string")
    _, out, _ = run("generate", "hi", *NINE, "--threads", "1", "--kernels", "torch")
    assert out == plain + "\n"


@pytest.mark.parametrize(("quantize", "name"), [("q8", "q8_0"), ("q4", "fp32")])
def test_case_40_quantised_matrices_are_counted_and_the_others_named(run, folder, quantize, name):
    """Two `down` matrices of 48 columns fill no blocks, and may have most bytes for that."""
    want = answer(LLM.load(folder, quantize=quantize, activations="float32"))
    options = ("--quantize", quantize, "--activations", "float32")
    code, out, err = run("generate", "hi", *NINE, "--json", *options)
    got = json.loads(out)
    assert (code, got["token_ids"], got["dtype"]) == (0, want.token_ids, name)
    expected = {"q8_0": 13, "fp32": 2} if quantize == "q8" else {"q8_0": 1, "q4_1": 12, "fp32": 2}
    assert got["matrices"] == expected
    assert err == "2 of 15 matrices stay float: their columns are no multiple of 32\n"
    assert got["weight_bytes_per_token"] == want.weight_bytes_per_token
    _, _, err = run("generate", "hi", *NINE, *options)
    assert f"output tokens · {name} · TTFT" in err


def test_the_template_is_used_unless_raw_is_asked_for(run, llm):
    _, out, _ = run("generate", "hi", *NINE, "--system", "be brief", "--json")
    assert json.loads(out)["token_ids"] == answer(llm, system="be brief").token_ids
    _, out, _ = run("generate", "hi", *NINE, "--raw", "--json")
    assert json.loads(out)["prompt_tokens"] == 2
    assert run("generate", "hi", "--raw", "--system", "x")[0] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["generate", ""], "prompt is empty"),
        (["generate", "-"], "prompt is empty"),
        (["generate", "x" * 5000], "tokens: the model's context holds 4096"),
        (["generate", "x", "--temperature", "-1"], "temperature must be"),
        (["generate", "x", "--top-p", "1.5"], "top_p must be"),
        (["generate", "x", "--max-new-tokens", "-1"], "max_new_tokens must be"),
        (["generate", "x", "--threads", "0"], "threads must be"),
        (["generate", "x", "--dtype", "int3"], "unknown dtype 'int3'"),
        (["generate", "x", "--device", "gpu"], "unknown device 'gpu'"),
        (["generate", "x", "--quantize", "q5"], "unknown quantize 'q5': did you mean q8, q4?"),
        (["generate", "x", "--quantize", "none", "--stop", ""], "stop must be"),
        (["generate", "x", "--activations", "int4"], "unknown activations 'int4': did you mean"),
        (
            ["generate", "x", "--activations", "int8", "--kernels", "torch"],
            "activations int8 needs kernels simd",
        ),
        (["chat", "--threads", "0"], "threads must be"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, options, words):
    code, out, err = run(*options)
    assert (code, out) == (2, "")
    assert err.startswith("inferlab: ")
    assert words in err
    assert err.count("\n") == 1


def test_an_unknown_option_is_exit_code_2(run):
    code, out, err = run("generate", "x", "--temprature", "1")
    assert (code, out) == (2, "")
    assert "temprature" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_one_line(run):
    code, _, err = run("generate", "x", "--device", "cuda")
    assert (code, err) == (2, "inferlab: device cuda: torch finds no CUDA GPU here; use cpu\n")


def damaged(folder, tmp_path, change):
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    change(copy / "model.safetensors")
    return copy


def drop(path):
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path)


def retype(path):
    tensors = load_file(path)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int32)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "cannot be read"),
        (lambda path: path.write_bytes(b"\xff" * 64), "cannot be read"),
        (drop, "tensor 'model.norm.weight' is missing"),
        (retype, "tensor 'model.norm.weight' has dtype torch.int32"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_it(run, folder, tmp_path, change, words):
    code, out, err = run("generate", "x", model=damaged(folder, tmp_path, change))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_no_such_model_is_one_line(run):
    code, _, err = run("generate", "x", model="no-such-model")
    assert code == 2
    assert err.startswith("inferlab: no such model: no-such-model")


def test_chat_answers_each_line_and_reuses_the_cache(run, llm):
    code, out, err = run("chat", *NINE, stdin="hi\n\nand you?\n/reset\nhi\n/exit\nnever\n")
    chat = llm.chat()
    turns = []
    for text in ("hi", "and you?"):
        stream = chat.send(text, SamplingParams(max_new_tokens=9))
        turns.append("".join(piece.text for piece in stream))
    assert code == 0
    assert out == "".join(turn + "\n" for turn in [*turns, turns[0]])
    accounts = err.splitlines()
    assert len(accounts) == 3
    assert ["cached" in account for account in accounts] == [False, True, False]


def test_chat_json_is_one_object_a_turn(run):
    _, out, err = run("chat", *NINE, "--json", stdin="hi\nmore\n")
    first, second = map(json.loads, out.splitlines())
    assert err == ""
    assert set(first) >= KEYS
    assert first["cached_tokens"] == 0 < second["cached_tokens"] < second["prompt_tokens"]


def test_a_piped_chat_that_outgrows_the_context_is_an_error(run):
    code, out, err = run("chat", *NINE, stdin="hi\n" + "x" * 5000 + "\n")
    assert (code, out.count("\n")) == (2, 1)
    assert err.splitlines()[-1].endswith("the model's context holds 4096")


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_ctrl_c_while_the_machine_is_measured_leaves_the_account(run, monkeypatch, command):
    def interrupted(device):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_read_limit", interrupted)
    given = {"generate": (("hi", *NINE), ""), "chat": (NINE, "hi\nmore\n")}[command]
    code, _, err = run(command, *given[0], stdin=given[1])
    assert code == cli.INTERRUPTED
    assert len(err.splitlines()) == 1
    assert "9 output tokens" in err
    assert "this machine reads" not in err


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT between processes")
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_ctrl_c_ends_with_what_was_generated(folder, command):
    options = ["--model", str(folder), "--max-new-tokens", "4000", "--threads", "1"]
    options += ["hi", "--ignore-eos"] if command == "generate" else []
    process = subprocess.Popen(
        [sys.executable, "-m", "inferlab.cli", command, *options, "--kernels", "torch"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdin.write(b"hi\n" * 3)
    process.stdin.flush()
    ready, _, _ = select.select([process.stdout], [], [], 60)
    assert ready
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == cli.INTERRUPTED, err
    assert out.endswith(b"\n")
    accounts = err.splitlines()  # one a turn: a chat may have ended some by itself
    assert accounts
    assert all(b"output tokens" in line for line in accounts)
    assert command == "chat" or len(accounts) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explain", "--foo"], "no such option: --foo"),
        (["fly"], "no such command 'fly'"),
        (["explain", "--device", "t4"], "missing option '--model'"),
        (["explain", "--model", "gpt-2", "--device", "t4", "--prompt", "nan"], "'--prompt'"),
        (["explain", "--model", "gpt-2", "--device", "t4", "--batch", "1" + 400 * "0"], "batch"),
        (["explain", "--model", 5000 * "x", "--device", "t4"], "model"),
        (["explain", "--model", "", "--device", "t4"], "unknown model"),
        (["bench", "decode", "--tokens", "99999999", "--no-peers"], "tokens is 99999999"),
        (["bench", "prefill", "--tokens", "0", "--no-peers"], "tokens is [0]"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(sys, "argv", ["inferlab", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_an_output_that_cannot_be_written_is_one_line():
    command = [
        sys.executable,
        "-m",
        "inferlab.cli",
        "explain",
        "--model",
        "gpt-2",
        "--device",
        "h100-sxm",
    ]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("inferlab: the output cannot be written")
    assert "Traceback" not in done.stderr


def test_the_package_loads_without_torch():
    code = "import sys, inferlab.cli; sys.exit('torch' in sys.modules or 'numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
