"""What test_parallel.py starts: for each number of ranks so many processes, which run some models.

    python ranks.py FOLDER

FOLDER/jobs.json says what to run; rank r of n writes what it saw to FOLDER/n-r.pt. Processes are
forked, since importing torch takes longer than their work.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from inferlab.engine import LLM, SamplingParams, parallel
from inferlab.engine.kv_cache import ContiguousCache
from inferlab.errors import InferlabError
from inferlab.model import checkpoint

PROMPT = [3, 141, 59, 26, 53, 58, 97, 93, 23]
STEPS = 8
GREEDY = SamplingParams(ignore_eos=True)
BY_CHANCE = SamplingParams(ignore_eos=True, temperature=1.0)  # no seed


def run(model, steps=STEPS):
    """Read PROMPT, then answer greedily; return the logits of both, and what the rank holds.

    And two answers that the engine gives side by side: a greedy one, and one by chance.
    """
    cache = ContiguousCache(model.config, 1, len(PROMPT) + steps)
    ids = torch.tensor([PROMPT])
    read = model.forward(ids, cache.positions(len(PROMPT)), cache, logits="all")
    logits, tokens, later = read[:, -1], [], []
    for _ in range(steps):
        tokens.append(int(logits.argmax()))
        logits = model.forward(torch.tensor([tokens[-1:]]), cache.positions(1), cache)
        later.append(logits)
    llm = LLM(model, kernels="torch")
    own = [replace(params, max_new_tokens=steps) for params in (GREEDY, BY_CHANCE)]
    answers = llm.generate([PROMPT, PROMPT[:4]], own)
    matrices = [t for t in model.weights.streamed() if isinstance(t, torch.Tensor)]
    return {
        "read": read[0],
        "steps": torch.cat(later),
        "tokens": tokens,
        "kv_heads": cache.k.shape[2],
        "bytes": model.streamed_bytes,
        "formats": sorted(model.formats),
        "answers": [answer.token_ids for answer in answers],
        "floats": sum(t.nbytes for t in matrices),
        "held": sum(t.untyped_storage().nbytes() for t in matrices),
    }


def fail_on_one(group):
    """Return what each rank hears of an error that the last one alone has."""

    def read():
        if group.rank == group.size - 1:
            raise InferlabError("no such file")
        return group.rank

    try:
        group.together(read)
    except InferlabError as error:
        return str(error)


def one(rank, jobs, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    found = {}
    with parallel.join("cpu") as group:
        for job in jobs:
            try:
                opened = checkpoint.open(Path(job["path"])).shared(group)
                found[job["name"]] = run(opened.load(quantize=job["quantize"]), job["steps"])
            except InferlabError as error:
                found[job["name"]] = {"error": str(error)}
        found["lone error"] = fail_on_one(group)
        found["together"] = group.together(lambda: group.rank)
        torch.save(found, folder / f"{group.size}-{rank}.pt")


def main(folder):
    fork = multiprocessing.get_context("fork")
    for ranks, jobs in json.loads((folder / "jobs.json").read_text()).items():
        # The store is ours, as torchrun's is its own: so no port has to be guessed.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.environ |= {
            "WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        processes = [
            fork.Process(target=one, args=(r, jobs, folder), daemon=True) for r in range(int(ranks))
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode:
                sys.exit(f"a rank of {ranks} ended with {process.exitcode}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
