"""What is seen inside a pass is what transformers sees, and what the pass itself computes."""

from __future__ import annotations

import pytest
import torch

from inferlab.engine import LLM
from inferlab.errors import InferlabError
from inferlab.model import lens
from inferlab.model.transformer import Transformer

IDS = [5, 9, 2, 7, 7, 1]


@pytest.fixture
def pair(tmp_path):
    """A tiny wide-weight Llama: transformers' model, and ours of the same files."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=32,
        attn_implementation="eager",
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    for tensor in theirs.parameters():
        torch.nn.init.normal_(tensor, std=0.4)
    theirs.save_pretrained(tmp_path)
    from inferlab.model import checkpoint

    return theirs, checkpoint.open(tmp_path).load()


def test_heads_look_where_transformers_says(pair):
    theirs, ours = pair
    with torch.inference_mode():
        right = theirs(torch.tensor([IDS]), output_attentions=True).attentions
    seen = lens.attention(ours, IDS)
    assert len(seen.weights) == len(right) == 3
    for got, want in zip(seen.weights, right, strict=True):
        assert torch.allclose(got, want[0], atol=1e-5)
        assert torch.allclose(got.sum(-1), torch.ones(6, len(IDS)), atol=1e-5)
        assert bool((got.triu(1) == 0).all())


def test_layers_say_what_transformers_hidden_states_say(pair):
    theirs, ours = pair
    with torch.inference_mode():
        states = theirs(torch.tensor([IDS]), output_hidden_states=True).hidden_states
        # transformers norms its last state already.
        right = [theirs.lm_head(theirs.model.norm(h))[0] for h in states[1:-1]]
        right.append(theirs.lm_head(states[-1])[0])
    said = lens.layers_would_say(ours, IDS)
    assert said.shape == (3, len(IDS), 32)
    for got, want in zip(said, right, strict=True):
        assert torch.allclose(got, want, atol=1e-4)


def test_the_last_layer_says_what_the_model_says(pair):
    _, ours = pair
    said = lens.layers_would_say(ours, IDS)[-1, -1]
    assert torch.allclose(said, LLM(ours, kernels="torch").prefill(IDS)[0], atol=1e-4)


def test_a_model_with_windows_is_refused(pair):
    from dataclasses import replace

    ours = pair[1]
    windowed = Transformer(replace(ours.config, windows=(4, None, None)), ours.weights)
    with pytest.raises(InferlabError, match="window"):
        lens.attention(windowed, IDS)
