"""Counting on the back of an envelope: a round number of parameters and nothing left out.

Texts about inference, the two documents of this book among them, count with "70 billion
parameters", score every token against every other, and project every position to the
vocabulary. `costs` counts what a good engine really does. Both are here, so that one can be led
over to the other term by term.
"""

from __future__ import annotations

from collections.abc import Mapping

from inferlab.theory import costs
from inferlab.theory.costs import Cost, Part
from inferlab.theory.shapes import ModelShape

# Rules of thumb for English: Anyscale's "LLM numbers", and OpenAI's 100 tokens for 75 words.
TOKENS_PER_WORD = 1.3
TOKENS_PER_WORD_OPENAI = 100 / 75


def tokens_of(words: float, tokens_per_word: float = TOKENS_PER_WORD) -> float:
    """Return about how many tokens a text of `words` English words makes."""
    return words * tokens_per_word


def prefill(
    parameters: float, shape: ModelShape, tokens: int, *, causal: bool = False, element: float = 2
) -> Cost:
    """Return 2 P T + 4 T^2 d L operations, half of the second term with `causal`.

    Bytes are every parameter once, the keys and values written, and the residual stream read
    and written once a layer, each in elements of `element` bytes.
    """
    scores = 4.0 * tokens**2 * shape.query_width * shape.layers
    return Cost(
        {
            "weights": Part(2 * parameters * tokens, element * parameters),
            "attention": Part(scores / 2 if causal else scores),
            "kv_write": Part(0, tokens * shape.kv_width * shape.layers * element),
            "activations": Part(0, costs.activation_bytes(shape, tokens, element)),
        }
    )


def decode_step(
    parameters: float, shape: ModelShape, context: int = 0, batch: int = 1, *, element: float = 2
) -> Cost:
    """Return B (2 P + 4 S d L) operations and 2 P + B S kv bytes, for `context` S and `batch` B."""
    return Cost(
        {
            "weights": Part(2 * parameters * batch, element * parameters),
            "attention": Part(
                4.0 * batch * context * shape.query_width * shape.layers,
                batch * context * shape.kv_width * shape.layers * element,
            ),
        }
    )


def generation_flops(
    parameters: float, shape: ModelShape, tokens: int, *, cache: bool
) -> tuple[float, float]:
    """Return operations of matrices and of attention to write `tokens` tokens from nothing.

    With a cache n tokens cost n passes of one token: n and n^2. Without, pass t reads t tokens
    again: n^2 and n^3.
    """
    n = tokens
    passes = n if cache else n * (n + 1) / 2
    pairs = n * (n + 1) / 2 if cache else n * (n + 1) * (n + 2) / 6
    return 2 * parameters * passes, 4 * shape.query_width * shape.layers * pairs


def prefill_accounts(shape: ModelShape, tokens: int, parameters: float) -> Mapping[str, Cost]:
    """Return the same prefill counted ever more exactly, from the envelope to `costs.prefill`."""
    return {
        "round parameters, no mask": prefill(parameters, shape, tokens),
        "with the causal mask": prefill(parameters, shape, tokens, causal=True),
        "exact parameters": costs.prefill(shape, tokens, logits="all"),
        "logits of the last token": costs.prefill(shape, tokens),
    }
