"""Measure what the book plots and write it down, with all that a reader needs to repeat it.

`inferlab record`, or `python -m inferlab.measure.record` where there is only torch. On a CPU the
model is SmolLM2 as it was trained. On a GPU it is of the catalog's shapes, with random weights:
nothing needs to be brought along, and speed depends on sizes alone.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from inferlab import __version__, machine, records
from inferlab.engine import LLM, SamplingParams
from inferlab.errors import InferlabError
from inferlab.measure import (
    attention,
    batch,
    clock,
    decode,
    kernels,
    launch,
    passes,
    prefill,
    roofline,
)
from inferlab.model import synthetic
from inferlab.model.transformer import FLOATS
from inferlab.theory import models

PROMPT = "Explain in three sentences why the sky is blue."
ANSWER_TOKENS = 96
CONTEXTS = {"cpu": (1, 64, 256, 1024, 4096), "cuda": (1, 256, 1024, 4096, 16384, 32768)}
TOKENS = {"cpu": passes.TOKENS, "cuda": (*passes.TOKENS, 2048, 4096)}
ATTENTION = {"cpu": (256, 1024, 4096, 16384), "cuda": (1024, 4096, 16384, 32768, 131072)}
PROMPTS = {"cpu": (256, 1024), "cuda": (512, 2048, 8192)}
GPU_MODEL = "llama-3.1-8b"
GPU_MODELS = ("smollm2-135m", "llama-3.2-1b", GPU_MODEL)
STEP_CONTEXT = 16
DECODE_TOKENS = 64
_PROMPT_TOKENS = 64  # behind which models without a tokenizer decode
_STEP_RUNS = 12
_PACKAGES = ("torch", "numpy", "numba", "triton", "transformers")
_COMPILE_SECONDS = 240  # after which nothing more is compiled for comparison

Entry = dict[str, Any]


def record(
    source: str | None,
    command: str,
    *,
    quick: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> records.Record:
    """Return a record of this machine, in some minutes; with `quick` of fewer points.

    `source` is what `LLM.load` takes; the model must be one of the catalog's shapes, so that a
    reader can predict what is measured. Without it a GPU runs random weights of such a shape.
    `say` is told what is being measured. A part that fails is left out, and `notes` says why;
    without the model's own passes there is no record. Raises InferlabError where
    `machine.hurried`.
    """
    if machine.hurried():
        raise InferlabError("INFERLAB_HURRY is set: a record needs all its runs, so unset it")
    start = time.monotonic()
    say("this machine's two numbers")
    here = machine.measure()
    synthetic_model = here.device == "cuda" and source is None
    llm = _random(GPU_MODEL) if synthetic_model else LLM.load(source, quantize="none")
    key = _catalog_key(llm)
    llm.warm_up()
    sizes = TOKENS[here.device][:6] if quick else TOKENS[here.device]
    contexts = CONTEXTS[here.device][:3] if quick else CONTEXTS[here.device]
    say("a decode step by each kind of kernels")
    step = _step(llm)
    say("passes by their tokens")
    by_tokens = passes.price_samples(llm, sizes)
    say("decode steps by their context")
    by_context = [passes.decode_samples(llm, context) for context in contexts]
    made: records.Record = {
        "schema": records.SCHEMA,
        "name": _slug(here),
        "made": _made(command),
        "versions": _versions(),
        "machine": asdict(here),
        "model": {
            "name": llm.name,
            "key": key,
            "dtype": llm.dtype,
            "streamed_bytes": llm.model.streamed_bytes,
            "random": synthetic_model,
        },
        "passes": by_tokens | {"warm_ups": passes.WARM_UPS},
        "context": {
            "tokens": list(contexts),
            "samples": by_context,
            "warm_ups": passes.WARM_UPS,
        },
        "step": step | {"warm_ups": passes.WARM_UPS},
    }
    parts = _Parts(say)
    parts.add("batch", "decode steps by their rows", partial(_batch, llm, key, quick))
    parts.add(
        "prefill", "prompts, beside other engines", partial(_prefill, llm, key, source, quick)
    )
    parts.add("ceilings", "memory and matrix products", partial(_ceilings, here.device))
    parts.add("launch", "what a launch costs", _launch)
    parts.add("roofline", "kernels of rising intensity", partial(_roofline, here.device, quick))
    parts.add("kernels", "single kernels", partial(_kernels, say))
    parts.add("attention", "attention by its context", partial(_attention, here.device, key, quick))
    if not synthetic_model:
        parts.add("request", "one request", partial(_request, source))
    for what, run in _decode_runs(source, synthetic_model, key, quick):
        compiled = not quick and time.monotonic() - start < _COMPILE_SECONDS
        parts.add("decode", f"decoding {what}", partial(run, compiled))
    made |= parts.found
    return records.check(made | {"notes": parts.notes, "seconds": time.monotonic() - start})


class _Parts:
    """The parts that a record can do without. One that fails is left out and said to have failed.

    A machine that is lent for an hour must not be lost to one fault.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.found: dict[str, Any] = {}
        self.notes: dict[str, str] = {}
        self._say = say

    def add(self, name: str, what: str, run: Callable[[], Any]) -> None:
        """Measure a part; entries for one that is there already are added to it."""
        self._say(what)
        try:
            found = run()
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            self.notes[what] = f"{type(error).__name__}: {words}"
            self._say(f"{what} failed: {self.notes[what]}")
            return
        self.found[name] = [*self.found[name], *found] if name in self.found else found


def _random(key: str, format: str | None = None, dtype: torch.dtype | None = None) -> LLM:
    """Return a model of a catalog's shape with random weights, in the format this device likes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = dtype or kernels.place().dtype
    model = synthetic.transformer(synthetic.catalog_config(key), device, dtype, format=format)
    return LLM(model, name=key)


def _decode_runs(
    source: str | None, synthetic_model: bool, key: str, quick: bool
) -> Iterator[tuple[str, Callable[[bool], list[Entry]]]]:
    """Yield runs of `decode.bench` by name, each a function of whether to compile for comparison.

    On a GPU every model in 16 bits, then quantised; elsewhere the checkpoint as it is stored, as
    floats, and the formats that it has not.
    """
    tokens = 16 if quick else DECODE_TOKENS

    def run(make: Callable[[], LLM], key: str, *, peers: bool = True) -> Callable[..., list[Entry]]:
        def measure(compiled: bool) -> list[Entry]:
            llm = make()
            prompt = None if llm.tokenizer else passes.random_ids(llm, _PROMPT_TOKENS)
            found = decode.bench(
                llm, tokens, peers=peers, source=source, prompt=prompt, compiled=compiled
            )
            return list(_entries(found, key, FLOATS[llm.model.dtype]))

        return measure

    if synthetic_model:
        for each in GPU_MODELS[:1] if quick else GPU_MODELS:
            yield f"{each} in 16 bits", run(partial(_random, each), each)
            for format in ("q8_0", "q4_0"):
                yield f"{each} in {format}", run(partial(_random, each, format), each, peers=False)
        small = GPU_MODELS[1]
        floats = partial(_random, small, dtype=torch.float32)
        yield f"{small} in 32 bits", run(floats, small, peers=False)
        return
    yield "as stored", run(partial(LLM.load, source), key)
    yield "as floats", run(partial(LLM.load, source, quantize="none"), key, peers=False)
    for format in ("q8_0", "q4_0"):
        yield f"random in {format}", run(partial(_random, key, format), key, peers=False)


def _entries(found: Entry, key: str, floats: str) -> Iterator[Entry]:
    """Yield what the record keeps of a run of `decode.bench`: our side, then each other."""
    sides = {"inferlab": found | {"version": __version__}, **found["peers"]}
    for name, side in sides.items():
        yield {
            "model": key,
            "by": name,
            "version": side["version"],
            "weights": found["dtype"] if name == "inferlab" else floats,
            "dtype": floats,
            "context": found["context"],
            "bytes": side["bytes_per_token"],
            "bandwidth": found["bandwidth"],
            "fraction": side["fraction_of_bandwidth"],
            "warm_ups": found["warm_ups"],
            "samples": side["samples"],
        }


def _batch(llm: LLM, key: str, quick: bool) -> Entry:
    """Return decode steps that several answers share."""
    answers = batch.ANSWERS[::3] if quick else batch.ANSWERS
    return {
        "model": key,
        "dtype": llm.dtype,
        "context": batch.CONTEXT,
        "answers": list(answers),
        "samples": [batch.step_samples(llm, n) for n in answers],
        "warm_ups": batch.WARM_UPS,
    }


def _prefill(llm: LLM, key: str, source: str | None, quick: bool) -> list[Entry]:
    """Return times to the first token: ours, then each other engine's."""
    lengths = prefill.TOKENS[:2] if quick else prefill.TOKENS
    found = prefill.bench(llm, lengths, runs=1 if quick else 5, source=source)
    sides = {"inferlab": found | {"version": __version__}, **found["peers"]}
    return [
        {
            "model": key,
            "by": name,
            "version": side["version"],
            "dtype": found["dtype"],
            "tokens": found["tokens"],
            "flops": found["flops"],
            "product_rate": found["product_rate"],
            "fraction": side["fraction_of_product"],
            "warm_ups": found["warm_ups"],
            "samples": side["samples"],
        }
        for name, side in sides.items()
    ]


def _ceilings(device: str) -> Entry:
    """Return raw times of each way of reading, and of a matrix product in each format."""
    reads = machine.readers_of(device).items()
    products = machine.products_of(device).items()
    return {
        "read_bytes": machine.READ_BYTES,
        "reads": {name: clock.samples(run, device) for name, run in reads},
        "products": {
            format: {"flops": operations, "samples": clock.samples(run, device)}
            for format, (operations, run) in products
        },
        "warm_ups": clock.WARM_UPS,
    }


def _launch() -> Entry:
    return {"ways": launch.samples(), "warm_ups": clock.WARM_UPS}


def _roofline(device: str, quick: bool) -> Entry:
    return roofline.samples(device, quick=quick) | roofline.beside(device)


def _kernels(say: Callable[[str], None]) -> Entry:
    """Return `bench kernels`, of each backend its raw samples and the fraction it reached."""
    found = kernels.bench(say=say)
    return {
        "dtype": found["dtype"],
        "bandwidth": found["bandwidth"],
        "product_rate": found["product_rate"],
        "warm_ups": clock.WARM_UPS,
        "cases": [
            {name: case[name] for name in ("op", "label", "bytes", "flops", "memory_bound")}
            | {
                "backends": {
                    name: {"fraction": side["fraction"], "samples": side["samples"]}
                    for name, side in case["backends"].items()
                }
            }
            for case in found["cases"]
        ],
    }


def _attention(device: str, key: str, quick: bool) -> list[Entry]:
    """Return attention of one token, then of whole prompts, with the heads of a layer."""
    shape, dtype = models.get(key), kernels.place(device).dtype
    heads = attention.Heads(shape.heads, shape.kv_heads, shape.head_dim, dtype)
    about = {
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "dtype": FLOATS[dtype],
        "warm_ups": clock.WARM_UPS,
    }
    contexts, lengths = ATTENTION[device], PROMPTS[device]
    if quick:
        contexts, lengths = contexts[:2], lengths[:1]
    return [
        {"kind": kind} | series | about
        for kind, found in (
            ("decode", attention.decode(heads, device, contexts)),
            ("prefill", attention.prefill(heads, device, lengths)),
        )
        for series in found
    ]


def _request(source: str | None) -> dict[str, Any]:
    """Return one greedy answer of the model's chat, piece by piece as a reader would see it."""
    llm = LLM.load(source)
    if llm.tokenizer is None:
        raise InferlabError("model: recording a request needs a tokenizer")
    llm.warm_up()
    ids = llm.tokenizer.chat([{"role": "user", "content": PROMPT}])
    params = SamplingParams(max_new_tokens=ANSWER_TOKENS)
    for _ in llm.stream(ids, SamplingParams(max_new_tokens=2)):
        pass  # a warm-up of the same prompt
    stream = llm.stream(ids, params)
    pieces: list[dict[str, Any]] = []
    told = 0
    for piece in stream:
        count = stream.completion.output_tokens
        pieces.append({"text": piece.text, "t": piece.time_s, "tokens": count - told})
        told = count
    return {
        "model": llm.name,
        "dtype": llm.dtype,
        "stored": batch.stored(llm),
        "prompt": PROMPT,
        "prompt_tokens": len(ids),
        "pieces": pieces,
        "warm_ups": 1,
    }


def _step(llm: LLM) -> dict[str, Any]:
    """Return times of one decode step by torch's own kernels and by ours, taken in turn."""
    plain = LLM(llm.model, llm.tokenizer, kernels="torch")
    samples: dict[str, list[float]] = {"torch": [], "auto": []}
    for _ in range(_STEP_RUNS):
        for kind, one in (("torch", plain), ("auto", llm)):
            samples[kind] += passes.decode_samples(one, STEP_CONTEXT, runs=1)
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
    return _said(["git", "-C", str(Path(__file__).parent), *arguments])


def _said(command: Sequence[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"inferlab": __version__, "python": platform.python_version()}
    found |= {name: _version(name) for name in _PACKAGES}
    if torch.cuda.is_available():
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        found |= {"cuda": torch.version.cuda, "driver": _said(asked)}
    return found


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
    parser.add_argument(
        "--model", help="what LLM.load takes; by default SmolLM2, and on a GPU random weights"
    )
    parser.add_argument("--output", type=Path, help="the file to write")
    parser.add_argument("--quick", action="store_true", help="fewer points")
    options = parser.parse_args()
    start = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - start:5.0f} s  {what}", file=sys.stderr, flush=True)

    command = " ".join(["python -m inferlab.measure.record", *sys.argv[1:]])
    try:
        made = record(options.model, command, quick=options.quick, say=say)
        print(write(made, options.output))
    except InferlabError as error:
        sys.exit(f"inferlab: {error}")


if __name__ == "__main__":
    main()
