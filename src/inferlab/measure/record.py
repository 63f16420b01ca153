"""Measure what the book plots and write it down, with all that a reader needs to repeat it.

`inferlab record`, or `python -m inferlab.measure.record` where there is only torch.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from inferlab import __version__, machine, records
from inferlab.engine import LLM, SamplingParams
from inferlab.errors import InferlabError
from inferlab.measure import passes
from inferlab.theory import models

PROMPT = "Explain in three sentences why the sky is blue."
ANSWER_TOKENS = 96
CONTEXTS = (1, 64, 256, 1024, 4096)
STEP_CONTEXT = 16
_STEP_RUNS = 12
_PACKAGES = ("torch", "numpy", "numba", "triton", "transformers")


def record(
    llm: LLM, command: str, *, quick: bool = False, say: Callable[[str], None] = lambda _: None
) -> records.Record:
    """Return a record of `llm` on this machine, in some minutes; with `quick` of fewer points.

    `say` is told what is being measured. The model must be one of the catalog's shapes, so that
    a reader can predict what is measured.
    """
    key = _catalog_key(llm)
    say("this machine's two numbers")
    here = machine.measure()
    llm.warm_up()
    say("one request")
    request = _request(llm)
    say("a decode step by each kind of kernels")
    step = _step(llm)
    say("passes by their tokens")
    few, many = passes.TOKENS[:6], passes.TOKENS
    sizes = passes.price_samples(llm, few if quick else many)
    say("decode steps by their context")
    contexts = list(CONTEXTS[:3] if quick else CONTEXTS)
    made = {
        "schema": records.SCHEMA,
        "name": _slug(here),
        "made": _made(command),
        "versions": {"inferlab": __version__, "python": platform.python_version()}
        | {name: _version(name) for name in _PACKAGES},
        "machine": asdict(here),
        "model": {
            "name": llm.name,
            "key": key,
            "dtype": llm.dtype,
            "streamed_bytes": llm.model.streamed_bytes,
        },
        "passes": sizes,
        "context": {
            "tokens": contexts,
            "samples": [passes.decode_samples(llm, context) for context in contexts],
        },
        "step": step,
        "request": request,
    }
    return records.check(made)


def _request(llm: LLM) -> dict[str, Any]:
    """Return one greedy answer of the model's chat, piece by piece as a reader would see it."""
    if llm.tokenizer is None:
        raise InferlabError("model: recording a request needs a tokenizer")
    ids = llm.tokenizer.chat([{"role": "user", "content": PROMPT}])
    params = SamplingParams(max_new_tokens=ANSWER_TOKENS)
    stream = llm.stream(ids, params)
    pieces: list[dict[str, Any]] = []
    told = 0
    for piece in stream:
        count = stream.completion.output_tokens
        pieces.append({"text": piece.text, "t": piece.time_s, "tokens": count - told})
        told = count
    return {
        "model": llm.name,
        "prompt": PROMPT,
        "prompt_tokens": len(ids),
        "pieces": pieces,
    }


def _step(llm: LLM) -> dict[str, Any]:
    """Return times of one decode step by torch's own kernels and by ours, taken in turn."""
    plain = LLM(llm.model, llm.tokenizer, kernels="torch")
    samples: dict[str, list[float]] = {"torch": [], "auto": []}
    for _ in range(_STEP_RUNS):
        for kind, one in (("torch", plain), ("auto", llm)):
            samples[kind] += passes.decode_samples(one, STEP_CONTEXT, runs=2)[1:]
    return {"context": STEP_CONTEXT, **samples}


def _catalog_key(llm: LLM) -> str:
    """Return the catalog's name of the model's shape."""
    mine = llm.model.config.shape()
    for key in models.names():
        known = models.get(key)
        if (known.params, known.layers, known.kv_width) == (
            mine.params,
            mine.layers,
            mine.kv_width,
        ):
            return key
    raise InferlabError(f"model {llm.name}: its shape is none of the catalog's")


def _slug(here: machine.Machine) -> str:
    """Return a file name for the device, such as "cpu-intel-xeon-2-cores"."""
    words = re.sub(r"\([^)]*\)|@.*?(?=,|$)|\b(CPU|Processor|NVIDIA)\b", " ", here.name)
    slug = re.sub(r"[^a-z0-9]+", "-", f"{here.device} {words}".lower())
    return slug.strip("-")


def _made(command: str) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    commit = _git("rev-parse", "HEAD")
    changed = None if commit is None else bool(_git("status", "--porcelain", "--", ":/src"))
    return {"date": now.isoformat(), "command": command, "commit": commit, "changed": changed}


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def write(made: records.Record, output: Path | None) -> Path:
    """Write a record as JSON, by default into the current folder; return where."""
    path = output or Path(f"{made['name']}.json")
    text = json.dumps(made, indent=1, ensure_ascii=False, allow_nan=False)
    # Raw samples on one line each keep the file readable.
    text = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InferlabError(f"output {path} cannot be written ({error})") from None
    return path


def main() -> None:
    """Record this machine from a shell that has neither Typer nor Jupyter."""
    parser = argparse.ArgumentParser(prog="python -m inferlab.measure.record")
    parser.add_argument("--model", help="what LLM.load takes; SmolLM2 by default")
    parser.add_argument("--output", type=Path, help="the file to write")
    parser.add_argument("--quick", action="store_true", help="fewer points")
    options = parser.parse_args()
    start = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - start:5.0f} s  {what}", file=sys.stderr, flush=True)

    command = " ".join(["python -m inferlab.measure.record", *sys.argv[1:]])
    try:
        made = record(LLM.load(options.model), command, quick=options.quick, say=say)
        print(write(made, options.output))
    except InferlabError as error:
        sys.exit(f"inferlab: {error}")


if __name__ == "__main__":
    main()
