"""Decoding one sequence: our engine, the memory's own speed, and transformers, taken in turn.

Whatever is compared is measured within one run, in short alternating blocks, since a shared
machine is twice as fast in one minute as in the next.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from importlib import metadata, util
from typing import Any

import torch

from inferlab import machine
from inferlab.engine import LLM
from inferlab.errors import InferlabError
from inferlab.model.transformer import Transformer

PROMPT = "Tell me about the history of the bicycle, from its beginnings to the present day."
_BLOCK = 8  # tokens that one side decodes before the next has its turn

Step = Callable[[int], int]
"""Take a token, run it, return the likeliest next one."""


def bench(
    llm: LLM,
    tokens: int = 64,
    *,
    peers: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Decode `tokens` tokens after a prompt, and set them against this machine's bandwidth.

    Returns the keys of `inferlab bench decode --json`: rates from the median token, raw samples
    in seconds, and with `peers` the same for transformers on the same weights, if it is here.
    """
    if tokens < 1:
        raise InferlabError(f"tokens is {tokens}; it must be 1 or more")
    prompt = _prompt(llm)
    room = llm.model.config.max_context - len(prompt)
    if tokens > room:
        raise InferlabError(f"tokens is {tokens}; this model's context has room for {room}")
    device = llm.model.device.type
    llm.warm_up()
    sides: dict[str, Step] = {"inferlab": _ours(llm, prompt)}
    note = _why_no_peer(llm.model) if peers else "not asked for"
    if note is None:
        say("transformers: building the model on the same weights")
        sides["transformers"] = _transformers(llm.model, prompt)
    readers = machine.readers_of(device)
    reads: dict[str, list[float]] = {name: [] for name in readers}
    samples: dict[str, list[float]] = {name: [] for name in sides}

    say("decoding, reading memory in between")
    last = dict.fromkeys(sides, prompt[-1])
    for block in _blocks(tokens):
        for name, run in readers.items():
            reads[name].append(_clock(run, device))
        for name, step in sides.items():
            for _ in range(block):
                start = time.perf_counter()
                last[name] = step(last[name])
                samples[name].append(time.perf_counter() - start)
    for name, run in readers.items():
        reads[name].append(_clock(run, device))

    rates = {name: machine.READ_BYTES / min(times) for name, times in reads.items()}
    middle = len(prompt) + tokens // 2
    kv = llm.model.config.shape().kv_elements(middle) * llm.model.weights.norm.element_size()
    moved = llm.model.streamed_bytes + kv
    found = _speed(samples["inferlab"], moved)
    found |= {
        "model": llm.name,
        "device": device,
        "dtype": llm.dtype,
        "threads": torch.get_num_threads(),
        "prompt_tokens": len(prompt),
        "output_tokens": tokens,
        "bytes_per_token": moved,
        "bandwidth": max(rates.values()),
        "readers": rates,
        "fraction_of_bandwidth": found["achieved_bytes_per_second"] / max(rates.values()),
        "peers": {},
        "peers_note": note,
    }
    if "transformers" in samples:
        theirs = _speed(samples["transformers"], moved)
        theirs["version"] = metadata.version("transformers")
        theirs["times_as_fast"] = theirs["seconds_per_token"] / found["seconds_per_token"]
        found["peers"] = {"transformers": theirs}
    return found


def _speed(samples: Sequence[float], moved: float) -> dict[str, Any]:
    seconds = statistics.median(samples)
    return {
        "seconds_per_token": seconds,
        "tokens_per_second": 1 / seconds,
        "achieved_bytes_per_second": moved / seconds,
        "samples": list(samples),
    }


def _blocks(tokens: int) -> Iterator[int]:
    while tokens > 0:
        yield min(_BLOCK, tokens)
        tokens -= _BLOCK


def _clock(run: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _prompt(llm: LLM) -> list[int]:
    if llm.tokenizer is None:
        raise InferlabError("model: this benchmark needs a tokenizer")
    if llm.tokenizer.has_chat_template:
        return llm.tokenizer.chat([{"role": "user", "content": PROMPT}])
    return llm.tokenizer.encode(PROMPT)


def _ours(llm: LLM, prompt: list[int]) -> Step:
    llm.prefill(prompt[:-1])
    return lambda token: int(llm.decode_step([token]).argmax())


def _why_no_peer(model: Transformer) -> str | None:
    """Say why transformers cannot be measured beside us; None if it can."""
    if util.find_spec("transformers") is None:
        return "transformers is not installed: pip install 'inferlab[peers]'"
    if model.config.rope.kind != "default" or model.config.rope.divisors:
        return f"transformers is not built here for rope_type {model.config.rope.kind}"
    return None


def _transformers(model: Transformer, prompt: list[int]) -> Step:
    """Return a step of transformers' model on our tensors, with `prompt[:-1]` in its cache."""
    import transformers

    transformers.logging.set_verbosity_error()
    # The argument's new name is unknown to the older releases that we allow.
    warnings.filterwarnings("ignore", message=".*past_key_values", category=FutureWarning)
    peer = _build(model, transformers)
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


def _build(model: Transformer, transformers: Any) -> Any:
    """Return transformers' model of this config; it shares our tensors, none is copied."""
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
