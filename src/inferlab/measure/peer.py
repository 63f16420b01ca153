"""transformers on our weights, in a process of its own: the other side of `bench decode`.

By itself it runs as its users have it. In our process its threads would sleep between two
products, as ours ask of OpenMP for the sake of shared machines, and be a third slower.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import fields
from importlib import util
from typing import Any

import torch

from inferlab.errors import InferlabError
from inferlab.model import checkpoint
from inferlab.model import source as sources
from inferlab.model.transformer import Transformer

# What libgomp does when nobody says how its threads should wait.
_SPINS_BY_DEFAULT = "300000"


class Peer:
    """A child process that decodes with transformers, some tokens at a time."""

    def __init__(self, source: str | None, prompt: list[int], device: str, dtype: str) -> None:
        command = [sys.executable, "-m", __name__, "--device", device, "--dtype", dtype]
        command += ["--threads", str(torch.get_num_threads())]
        command += [] if source is None else ["--model", source]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"GOMP_SPINCOUNT": _SPINS_BY_DEFAULT} | os.environ,
        )
        self._ask(prompt)

    def decode(self, tokens: int) -> list[float]:
        """Decode the next `tokens` tokens; return the seconds of each."""
        return list(self._ask(tokens))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, question: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(question), file=stdin, flush=True)
        answer = stdout.readline()
        if not answer:
            raise InferlabError("transformers failed in its own process; use --no-peers")
        return json.loads(answer)


def why_not(model: Transformer) -> str | None:
    """Say why transformers cannot be measured beside us; None if it can."""
    if util.find_spec("transformers") is None:
        return "transformers is not installed: pip install 'inferlab[peers]'"
    if model.config.rope.kind != "default" or model.config.rope.divisors:
        return f"transformers is not built here for rope_type {model.config.rope.kind}"
    return None


def step(model: Transformer, prompt: list[int]) -> Callable[[int], int]:
    """Return a step of transformers' model on our tensors, with `prompt[:-1]` in its cache."""
    import transformers

    transformers.logging.set_verbosity_error()
    # The argument's new name is unknown to the older releases that we allow.
    warnings.filterwarnings("ignore", message=".*past_key_values", category=FutureWarning)
    peer = build(model)
    past: Any = None

    @torch.inference_mode()
    def run(ids: list[int]) -> int:
        nonlocal past
        tensor = torch.tensor([ids], device=model.device)
        state = peer(tensor, past_key_values=past, use_cache=True, logits_to_keep=1)
        past = state.past_key_values
        return int(state.logits[0, -1].argmax())

    run(prompt[:-1])
    return lambda token: run([token])


def build(model: Transformer) -> Any:
    """Return transformers' model of this config; it shares our tensors, none is copied."""
    import transformers

    config = model.config
    sizes = {
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "max_position_embeddings": config.max_context,
        "attention_bias": config.qkv_bias,
        "sliding_window": config.sliding_window,
        "use_sliding_window": config.sliding_window is not None,
        "rope_theta": config.rope.theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope.theta},
    }
    theirs = transformers.AutoConfig.for_model(config.family, **sizes)
    with torch.device("meta"):
        peer = transformers.AutoModelForCausalLM.from_config(theirs, dtype=model.dtype)
    w = model.weights
    tensors = {"model.embed_tokens.weight": w.embedding, "model.norm.weight": w.norm}
    tensors["lm_head.weight"] = w.head
    for index, layer in enumerate(w.layers):
        for field in fields(layer):
            tensor = getattr(layer, field.name)
            if tensor is not None:
                tensors[f"model.layers.{index}.{_THEIR_NAMES[field.name]}"] = tensor
    peer.load_state_dict(tensors, assign=True, strict=True)
    # Its angles are computed when it is made, so not on "meta".
    peer.model.rotary_emb = type(peer.model.rotary_emb)(theirs).to(model.device)
    return peer.eval()


_THEIR_NAMES = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    **{p: f"self_attn.{p}_proj.weight" for p in "qkvo"},
    **{f"{p}_bias": f"self_attn.{p}_proj.bias" for p in "qkvo"},
    **{f"{p}_norm": f"self_attn.{p}_norm.weight" for p in "qk"},
    **{p: f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")},
}


def main() -> None:
    """Read a prompt, then numbers of tokens, from stdin; answer each with a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = checkpoint.open(sources.find(options.model))
    model = found.load(torch.device(options.device), getattr(torch, options.dtype), "none")
    prompt = json.loads(sys.stdin.readline())
    run, token = step(model, prompt), prompt[-1]
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        samples = []
        for _ in range(json.loads(line)):
            start = time.perf_counter()
            token = run(token)
            samples.append(time.perf_counter() - start)
        print(json.dumps(samples), flush=True)


if __name__ == "__main__":
    main()
