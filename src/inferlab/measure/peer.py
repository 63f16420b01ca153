"""Other engines on our weights, the other side of our benchmarks: transformers, compiled torch.

On a CPU transformers runs in a process of its own, as its users have it. In ours its threads would
sleep between two products, as ours ask of OpenMP for the sake of shared machines, and be a third
slower. On a GPU both may share a process, and the weights.
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
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import metadata, util
from typing import Any, Protocol

import torch

from inferlab.errors import InferlabError
from inferlab.kernels.quantised import Quantised
from inferlab.model import checkpoint
from inferlab.model import source as sources
from inferlab.model.transformer import Transformer

# What libgomp does when nobody says how its threads should wait.
_SPINS_BY_DEFAULT = "300000"
# What `build` can hand on of the scalings of positions.
_ROPES = ("default", "linear", "llama3")


class Side(Protocol):
    """An engine that decodes beside ours."""

    version: str

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a new sequence: read all of the prompt but its last token."""

    def decode(self, tokens: int) -> list[float]:
        """Decode the next `tokens` tokens; return the seconds of each."""

    def close(self) -> None:
        """Let go of everything."""


def beside(
    model: Transformer, source: str | None, *, compiled: bool = False
) -> tuple[dict[str, Side], dict[str, str]]:
    """Return the engines that can decode beside ours on the same weights, and why others cannot.

    `source` is what `LLM.load` took. `compiled` asks for compiled torch too, on a GPU: it takes a
    minute to compile.
    """
    sides: dict[str, Side] = {}
    notes: dict[str, str] = {}
    if note := why_not(model):
        notes["transformers"] = note
    else:
        sides["transformers"] = start(model, source)
    if compiled and model.device.type == "cuda":
        from inferlab.measure.compiled import Compiled

        if _is_quantised(model):
            notes["compiled torch"] = "compiled torch is measured on float weights"
        else:
            sides["compiled torch"] = Compiled(model)
    return sides, notes


def start(model: Transformer, source: str | None) -> Transformers | Apart:
    """Return transformers on the weights of `model`: on a CPU those of `source`, read anew."""
    if model.device.type == "cuda":
        return Transformers(model)
    return Apart(source, model.device.type, str(model.dtype).removeprefix("torch."))


def why_not(model: Transformer) -> str | None:
    """Say why transformers cannot be measured beside us; None if it can."""
    if util.find_spec("transformers") is None:
        return "transformers is not installed: pip install 'inferlab[peers]'"
    if model.config.rope.kind not in _ROPES or model.config.rope.divisors:
        return f"transformers is not built here for rope_type {model.config.rope.kind}"
    if model.device.type == "cuda" and _is_quantised(model):
        return "transformers is measured on float weights"
    return None


def _is_quantised(model: Transformer) -> bool:
    return any(isinstance(matrix, Quantised) for matrix in model.weights.streamed())


class Transformers:
    """transformers in this process, on our tensors."""

    def __init__(self, model: Transformer) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        # The argument's new name is unknown to the older releases that we allow.
        warnings.filterwarnings("ignore", message=".*past_key_values", category=FutureWarning)
        self.version = metadata.version("transformers")
        self._peer, self._device = build(model), model.device
        self._past: Any = None
        self._token = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a new sequence: read all of the prompt but its last token."""
        self._past, self._token = None, prompt[-1]
        if len(prompt) > 1:
            self._run(prompt[:-1])

    def step(self, token: int) -> int:
        """Add a token to the sequence; return the likeliest next one."""
        return self._run([token])

    def decode(self, tokens: int) -> list[float]:
        """Decode the next `tokens` tokens; return the seconds of each."""
        samples = []
        for _ in range(tokens):
            start = time.perf_counter()
            self._token = self.step(self._token)
            samples.append(time.perf_counter() - start)
        return samples

    def prefill(self, prompt: Sequence[int]) -> float:
        """Return the seconds from a prompt, with nothing cached, to its next token."""
        self._past = None
        start = time.perf_counter()
        self._run(prompt)
        return time.perf_counter() - start

    def close(self) -> None:
        """Let go of everything."""
        self._peer = self._past = None

    @torch.inference_mode()
    def _run(self, ids: Sequence[int]) -> int:
        tensor = torch.tensor([ids], device=self._device)
        state = self._peer(tensor, past_key_values=self._past, use_cache=True, logits_to_keep=1)
        self._past = state.past_key_values
        return int(state.logits[0, -1].argmax())


class Apart:
    """transformers in a child process, which reads the checkpoint by itself, as floats."""

    def __init__(self, source: str | None, device: str, dtype: str) -> None:
        command = [sys.executable, "-m", __name__, "--device", device, "--dtype", dtype]
        command += ["--threads", str(torch.get_num_threads())]
        command += [] if source is None else ["--model", source]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"GOMP_SPINCOUNT": _SPINS_BY_DEFAULT},
        )
        self.version = str(self._answer())

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a new sequence: read all of the prompt but its last token."""
        self._ask(begin=list(prompt))

    def decode(self, tokens: int) -> list[float]:
        """Decode the next `tokens` tokens; return the seconds of each."""
        return list(self._ask(decode=tokens))

    def prefill(self, prompt: Sequence[int]) -> float:
        """Return the seconds from a prompt, with nothing cached, to its next token."""
        return float(self._ask(prefill=list(prompt)))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, **question: Any) -> Any:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(question), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise InferlabError("transformers failed in its own process; use --no-peers")
        return json.loads(answer)


def build(model: Transformer) -> Any:
    """Return transformers' model of this config; it shares our tensors, none is copied."""
    import transformers

    config, turn = model.config, model.config.rope
    positions: dict[str, Any] = {"rope_type": turn.kind, "rope_theta": turn.theta}
    if turn.kind != "default":
        positions["factor"] = turn.factor
    if turn.kind == "llama3":
        positions |= {
            "low_freq_factor": turn.low_freq_factor,
            "high_freq_factor": turn.high_freq_factor,
            "original_max_position_embeddings": turn.original_context,
        }
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
        "rope_theta": turn.theta,
        "rope_parameters": positions,
    }
    if turn.kind != "default":
        sizes["rope_scaling"] = positions  # its name before release 5
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
    """Say the version; then answer each question from stdin, a line of JSON, with another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = checkpoint.open(sources.find(options.model))
    model = found.load(torch.device(options.device), getattr(torch, options.dtype), "none")
    side = Transformers(model)
    print(json.dumps(side.version), flush=True)
    answers: dict[str, Callable[[Any], Any]] = {
        "begin": side.begin,
        "decode": side.decode,
        "prefill": side.prefill,
    }
    for line in sys.stdin:
        ((what, argument),) = json.loads(line).items()
        print(json.dumps(answers[what](argument)), flush=True)


if __name__ == "__main__":
    main()
