"""Models that need no download: one that follows a script, one that is random but whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tiny
import torch
from tiny import ByteTokenizer

from inferlab.engine import LLM
from inferlab.kernels import backends
from inferlab.model import source, synthetic
from inferlab.model.transformer import Transformer


@pytest.fixture
def device() -> str:
    """Where Triton's kernels run: on a GPU, or on a CPU in the interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def byte_tokenizer():
    return ByteTokenizer()


class ScriptedModel:
    """Says `answer` after a prompt of `prompt_tokens`, then repeats its last token.

    It stores to the cache like a real model and keeps the positions of every pass in `passes`.
    """

    device, dtype, streamed_bytes, formats = torch.device("cpu"), torch.float64, 1000, {}

    def __init__(self, answer: Sequence[int], prompt_tokens: int = 1, **fields) -> None:
        self.config = tiny.config(**fields)
        self.answer, self.prompt_tokens = list(answer), prompt_tokens
        self.passes: list[list[int]] = []

    def forward(self, ids, positions, cache, *, logits="last"):
        self.passes.append(positions[0].tolist())
        q = torch.zeros(*ids.shape, self.config.heads, self.config.head_dim, dtype=self.dtype)
        k = q[:, :, : self.config.kv_heads]
        for layer in range(self.config.layers):
            cache.attend(layer, q, k, k)
        cache.advance(ids.shape[1])
        out = torch.zeros(ids.shape[0], self.config.vocab)
        for row, position in enumerate(positions[:, -1].tolist()):
            place = position - self.prompt_tokens + 1
            out[row, self.answer[min(max(place, 0), len(self.answer) - 1)]] = 9
        return out


@pytest.fixture
def scripted():
    """Return a function from an answer (text, bytes or ids) to (LLM, model), prompt "?"."""

    def make(answer, *, prompt_tokens=1, **fields):
        answer = answer.encode() if isinstance(answer, str) else answer
        model = ScriptedModel(answer, prompt_tokens, **fields)
        return LLM(model, ByteTokenizer()), model

    return make


def random_model(**fields) -> Transformer:
    """Weights wide enough that attention is far from flat and positions matter."""
    return synthetic.transformer(tiny.config(**fields), seed=7, spread=0.3)


@pytest.fixture(name="random_model")
def _random_model():
    """Return a function from a config's fields to a small random transformer."""
    return random_model


@pytest.fixture(name="tiny", params=["torch", "simd"])
def _tiny(request):
    """A random model on each kind of kernels."""
    if request.param == "simd" and not backends.has_numba():
        pytest.skip("no numba here")
    return LLM(random_model(), ByteTokenizer(), kernels=request.param)


@pytest.fixture(scope="session")
def smollm2():
    """The real thing, on this machine's best kernels."""
    if source.installed() is None:
        pytest.skip("SmolLM2 is not installed: make setup")
    return LLM.load(device="cpu")
