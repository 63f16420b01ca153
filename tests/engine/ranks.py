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
from pathlib import Path

import torch
import torch.distributed as dist

from inferlab.engine import parallel
from inferlab.engine.kv_cache import ContiguousCache
from inferlab.errors import InferlabError
from inferlab.model import checkpoint

PROMPT = [3, 141, 59, 26, 53, 58, 97, 93, 23]
STEPS = 8


def run(model):
    """Read PROMPT, then answer greedily; return the logits of both, and what the rank holds."""
    cache = ContiguousCache(model.config, 1, len(PROMPT) + STEPS)
    ids = torch.tensor([PROMPT])
    read = model.forward(ids, cache.positions(len(PROMPT)), cache, logits="all")
    logits, tokens, steps = read[:, -1], [], []
    for _ in range(STEPS):
        tokens.append(int(logits.argmax()))
        logits = model.forward(torch.tensor([tokens[-1:]]), cache.positions(1), cache)
        steps.append(logits)
    return {
        "read": read[0],
        "steps": torch.cat(steps),
        "tokens": tokens,
        "kv_heads": cache.k.shape[2],
        "bytes": model.streamed_bytes,
        "formats": sorted(model.formats),
    }


def one(rank, jobs, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    found = {}
    with parallel.join(torch.device("cpu")) as group:
        for job in jobs:
            try:
                opened = checkpoint.open(Path(job["path"])).shared(group)
                found[job["name"]] = run(opened.load(quantize=job["quantize"]))
            except InferlabError as error:
                found[job["name"]] = {"error": str(error)}
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
