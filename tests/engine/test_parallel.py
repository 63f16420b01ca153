"""Ranks in processes of their own, over gloo: the logits and the tokens of one process."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import folders
import psutil
import pytest
import tiny
import torch

from inferlab.engine import LLM, SamplingParams
from inferlab.errors import InferlabError
from inferlab.model import checkpoint, source
from inferlab.model import config as configs
from inferlab.model.sharding import shares

RANKS = Path(__file__).with_name("ranks.py")
_spec = importlib.util.spec_from_file_location("ranks", RANKS)
ranks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ranks)

SECONDS = 240
GREEDY = SamplingParams(max_new_tokens=12, ignore_eos=True)
SIZES = tiny.FIELDS | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
}
MODELS = {
    "llama": {},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True},
    "window": {"model_type": "mistral", "sliding_window": 5},
    "odd-width": {"intermediate_size": 71},
    "six-heads": {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 16},
    "nine-heads": {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 16},
    "eight-heads": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "attention_bias": True,
    },
    "vocab-383": {"vocab_size": 383, "tie_word_embeddings": True},
}
#: Models by number of ranks: all on two, beyond that those whose sizes are the question.
FLOATS = {
    2: tuple(MODELS),
    3: ("biased", "nine-heads", "eight-heads", "vocab-383"),
    4: ("llama", "six-heads", "nine-heads"),
    8: ("eight-heads",),
}
#: On two ranks, and quantised while loading.
ROUNDED = [("eight-heads", "q8"), ("nine-heads", "q4"), ("qwen3", "q8")]


def config(name):
    return configs.from_fields(SIZES | MODELS[name])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the function that writes (once) a model of MODELS to a folder, weights drawn wide."""

    @cache
    def write(name):
        path = tmp_path_factory.mktemp(name)
        folders.write(path, SIZES | MODELS[name], seed=7, spread=0.2)
        return path

    return write


@pytest.fixture(scope="module")
def seen(tmp_path_factory, folder):
    """Return what each rank of so many saw, by job: seen[ranks][rank][name]."""
    out = tmp_path_factory.mktemp("seen")

    def job(name, path, quantize=None, steps=ranks.STEPS):
        return {"name": name, "path": str(path), "quantize": quantize, "steps": steps}

    jobs = {ranks: [job(name, folder(name)) for name in names] for ranks, names in FLOATS.items()}
    jobs[2] += [job(f"{name} {how}", folder(name), how) for name, how in ROUNDED]
    if source.installed():
        jobs[2].append(job("gguf", source.installed(), steps=2))
    (out / "jobs.json").write_text(json.dumps(jobs))
    with started([sys.executable, str(RANKS), str(out)]) as process:
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    return {n: [torch.load(out / f"{n}-{rank}.pt") for rank in range(n)] for n in jobs}


@contextlib.contextmanager
def started(command):
    """Yield a running command, and leave nothing behind of what it has started."""
    if sys.platform != "linux":
        pytest.skip("processes are forked and interrupted as on Linux")
    with subprocess.Popen(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()


def torchrun(*arguments):
    """Start `inferlab` on two ranks, as the README says."""
    run = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "inferlab"]
    return started([sys.executable, "-m", *run, *arguments])


ALL = [(ranks, name) for ranks, names in FLOATS.items() for name in names]


@pytest.mark.parametrize(("size", "name"), ALL)
def test_case_50_every_rank_has_the_logits_of_one_process(seen, folder, size, name):
    want = ranks.run(checkpoint.open(folder(name)).load())
    assert want["steps"].std() > 0.5  # far from flat
    for got in (rank[name] for rank in seen[size]):
        for part in ("read", "steps"):
            torch.testing.assert_close(got[part], want[part], atol=1e-4, rtol=0)
        assert got["tokens"] == want["tokens"] == got["answers"][0]
        assert got["read"].shape[-1] == config(name).vocab  # a padded token can't be sampled


@pytest.mark.parametrize(("size", "name"), ALL)
def test_a_rank_holds_its_own_heads_and_its_part_of_the_bytes(seen, folder, size, name):
    whole, kv = ranks.run(checkpoint.open(folder(name)).load()), config(name).kv_heads
    got = [rank[name] for rank in seen[size]]
    assert sum(rank["kv_heads"] for rank in got) == max(kv, size)
    assert all(rank["held"] == rank["floats"] for rank in got)  # no view into what is not its own
    norms = 4 * 64 * (2 * 2 + 1)
    assert max(rank["bytes"] for rank in got) < (whole["bytes"] - norms) * 0.7 + norms
    assert sum(rank["bytes"] for rank in got) >= whole["bytes"]


def test_what_chance_picks_is_the_same_on_every_rank(seen):
    drawn = [[rank[name]["answers"][1] for name in FLOATS[2]] for rank in seen[2]]
    assert drawn[0] == drawn[1]
    assert len(set(map(tuple, drawn[0]))) > len(drawn[0]) // 2


def test_an_error_of_one_rank_is_raised_on_all(seen):
    for size, rank_saw in seen.items():
        assert {rank["lone error"] for rank in rank_saw} == {f"rank {size - 1}: no such file"}
        assert [rank["together"] for rank in rank_saw] == list(range(size))


@pytest.mark.parametrize(("name", "how"), ROUNDED[:2])
def test_weights_rounded_while_loading_are_the_parts_of_those_of_one_process(
    seen, folder, name, how
):
    want = ranks.run(checkpoint.open(folder(name)).load(quantize=how))
    for got in (rank[f"{name} {how}"] for rank in seen[2]):
        assert got["formats"] == want["formats"]
        torch.testing.assert_close(got["steps"], want["steps"], atol=1e-4, rtol=0)


def test_blocks_that_ranks_would_cut_are_refused_by_name(seen):
    for got in (rank["qwen3 q8"] for rank in seen[2]):
        assert "2 ranks would cut the columns of 'o' inside a block of 32" in got["error"]


@pytest.mark.skipif(source.installed() is None, reason="make setup fetches SmolLM2")
def test_smollm2_is_shared_as_its_file_stores_it(seen):
    """Blocks of 4 bits, rows of q and k in llama.cpp's order, three KV heads on two ranks."""
    want = ranks.run(checkpoint.open(source.installed()).load(), steps=2)
    got = [rank["gguf"] for rank in seen[2]]
    assert [rank["kv_heads"] for rank in got] == [1, 2]
    for rank in got:
        assert rank["formats"] == want["formats"]
        assert rank["tokens"] == want["tokens"]
        torch.testing.assert_close(rank["read"], want["read"], atol=1e-3, rtol=0)


@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (6, 6), (8, 4), (9, 3), (12, 3), (32, 8)])
def test_every_head_is_somewhere_and_a_rank_has_the_kv_heads_it_needs(heads):
    query, kv = heads
    fields = {"num_attention_heads": query, "num_key_value_heads": kv, "head_dim": 16}
    fields["vocab_size"] = 1999
    c = configs.from_fields(SIZES | fields)
    for size in range(1, query + 1):
        try:
            found = shares(c, size)
        except InferlabError:
            assert size > kv
            assert query // kv < -(-size // kv)  # more ranks on a KV head than read it
            continue
        assert [h for share in found for h in share.heads] == list(range(query))
        assert {h for share in found for h in share.kv_heads} == set(range(kv))
        for share in found:
            each = len(share.heads) // len(share.kv_heads)
            needed = [h // (query // kv) for h in share.heads]
            assert needed == [share.kv_heads[i // each] for i in range(len(share.heads))]
        assert [t for share in found for t in share.tokens] == list(range(c.vocab))
        assert [i for share in found for i in share.channels] == list(range(c.intermediate))


@pytest.mark.parametrize(
    ("fields", "size", "named"),
    [
        ({}, 5, "num_attention_heads 4"),
        ({"num_attention_heads": 6, "head_dim": 16}, 7, "num_attention_heads 6"),
        ({"intermediate_size": 3}, 4, "intermediate_size 3"),
        ({"vocab_size": 5}, 4, "vocab_size 5"),
    ],
)
def test_case_50_a_model_too_small_for_the_ranks_is_refused_by_name(fields, size, named):
    with pytest.raises(InferlabError, match=f"{named} is too small to be shared by {size} ranks"):
        shares(configs.from_fields(SIZES | fields), size)


def test_torchrun_prints_one_answer_that_of_one_process(folder):
    path = folder("nine-heads")
    want = LLM.load(path, kernels="torch").generate("two\nlines", GREEDY)[0]
    options = ("--model", str(path), "--max-new-tokens", "12", "--ignore-eos", "--json")
    with torchrun("generate", "-", *options) as process:
        out, said = process.communicate("two\nlines\n", timeout=SECONDS)
    assert process.returncode == 0, said
    got = json.loads(out)  # rank 1 has printed nothing
    assert (got["text"], got["token_ids"]) == (want.text, want.token_ids)
    assert (got["ranks"], got["fraction_of_bandwidth"]) == (2, None)
    assert said.count("2 ranks; torch decodes") == 1


@pytest.mark.slow
def test_ctrl_c_ends_every_rank_and_keeps_what_was_said(folder):
    options = ("--max-new-tokens", "3900", "--ignore-eos")
    with torchrun("generate", "hello", "--model", str(folder("llama")), *options) as process:
        assert process.stdout.read(3)
        ranks = psutil.Process(process.pid).children(recursive=True)
        assert len(ranks) == 2
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS)
        assert psutil.wait_procs(ranks, timeout=10)[1] == []
    assert process.returncode != 0
    assert said.count("rank 0 of 2") == 1  # its account
    assert "SIGKILL" not in said


@pytest.mark.slow
def test_what_all_ranks_refuse_is_said_once(folder):
    options = ("--model", str(folder("llama")), "--kernels", "simd")
    with torchrun("generate", "hello", *options) as process:
        out, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (1, "")
    assert said.count("inferlab: kernels simd can't add up what several ranks compute") == 1
    assert said.count("Traceback") <= 1  # torchrun's own
