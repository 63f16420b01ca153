"""What a pass through a model costs: operations and bytes, part by part.

Prefill and decode are one pass with different numbers in it: `forward` is that pass, `prefill`
gives it a whole prompt and `decode_step` a single token. Counted are the multiply-accumulates of
matrices and attention (two operations each) and the bytes that must cross between memory and
chip. Norms, rotations, softmax and activation functions are left out of the operations: they are
a few per element, where a matrix product spends two a weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from inferlab.errors import InferlabError, unknown
from inferlab.theory import formats
from inferlab.theory.shapes import ModelShape, Weights

Logits = Literal["last", "all", "none"]
Activations = Literal["ideal", "fused", "unfused", "none"]
LatentForm = Literal["absorbed", "expanded"]

# The parts of a pass, in the order in which a table shows them.
PARTS: Mapping[str, str] = MappingProxyType(
    {
        "projections": "attention weights",
        "ffn": "feed-forward weights",
        "attention": "attention scores, KV read",
        "kv_write": "KV write",
        "activations": "activations",
        "logits": "logits",
    }
)


@dataclass(frozen=True, slots=True)
class Part:
    """Operations and bytes of one part of a pass."""

    flops: float = 0.0
    bytes: float = 0.0

    @property
    def intensity(self) -> float:
        """Operations per byte; infinite for work that moves nothing."""
        if self.bytes:
            return self.flops / self.bytes
        return float("inf") if self.flops else 0.0

    def __add__(self, other: Part) -> Part:
        return Part(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Part:
        return Part(self.flops * times, self.bytes * times)


@dataclass(frozen=True)
class Cost:
    """The parts of some work. Costs add part by part and can be repeated: `step * 100`."""

    parts: Mapping[str, Part]

    @property
    def total(self) -> Part:
        """All parts together."""
        return sum(self.parts.values(), Part())

    @property
    def flops(self) -> float:
        """Operations of all parts."""
        return self.total.flops

    @property
    def bytes(self) -> float:
        """Bytes of all parts."""
        return self.total.bytes

    @property
    def intensity(self) -> float:
        """Operations per byte of the whole."""
        return self.total.intensity

    def __add__(self, other: Cost) -> Cost:
        names = [*self.parts, *(name for name in other.parts if name not in self.parts)]
        zero = Part()
        return Cost(
            {name: self.parts.get(name, zero) + other.parts.get(name, zero) for name in names}
        )

    def __mul__(self, times: float) -> Cost:
        return Cost({name: part * times for name, part in self.parts.items()})


def prefill(
    shape: ModelShape,
    tokens: int,
    *,
    context: int = 0,
    batch: int = 1,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    causal: bool = True,
    logits: Logits = "last",
    activations: Activations = "ideal",
    latent: LatentForm = "expanded",
    stored: Mapping[str, float] | None = None,
) -> Cost:
    """Return the cost of reading `tokens` prompt tokens in one pass. See `forward`."""
    return forward(
        shape,
        tokens,
        context=context,
        batch=batch,
        dtype=dtype,
        kv_dtype=kv_dtype,
        causal=causal,
        logits=logits,
        activations=activations,
        latent=latent,
        stored=stored,
    )


def decode_step(
    shape: ModelShape,
    context: int,
    batch: int = 1,
    *,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    activations: Activations = "ideal",
    latent: LatentForm = "absorbed",
    stored: Mapping[str, float] | None = None,
) -> Cost:
    """Return the cost of one more token for each of `batch` sequences. See `forward`.

    `context` tokens already stand in each sequence's cache; the new one attends to them and to
    itself.
    """
    return forward(
        shape,
        1,
        context=context,
        batch=batch,
        dtype=dtype,
        kv_dtype=kv_dtype,
        activations=activations,
        latent=latent,
        stored=stored,
    )


def forward(
    shape: ModelShape,
    tokens: int,
    *,
    context: int = 0,
    batch: int = 1,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    causal: bool = True,
    logits: Logits = "last",
    activations: Activations = "ideal",
    latent: LatentForm = "absorbed",
    stored: Mapping[str, float] | None = None,
) -> Cost:
    """Return the cost of one pass over `tokens` new tokens in each of `batch` sequences.

    `context` tokens of each sequence are cached already. Weights are stored as `dtype`, keys
    and values as `kv_dtype` (16 bits where the weights are smaller). Without `causal` every new
    token is scored against every other, as the textbook's n x n counts it. `logits` says for
    which new tokens the vocabulary projection runs. `activations` is the traffic between
    kernels (see `activation_bytes`); `latent` how multi-head latent attention multiplies (see
    `attention_flops`). `stored` gives the true bytes of all weights of "projections", "ffn" and
    "logits" as a checkpoint holds them, in place of what `dtype` implies.
    """
    _check_counts(tokens=tokens, batch=batch, context=context)
    _check_choice("logits", logits, Logits)
    _check_choice("latent", latent, LatentForm)
    rows = tokens * batch
    sampled = {"last": batch, "all": rows, "none": 0}[logits]
    kv_dtype = kv_dtype or formats.activation_format(dtype)
    element = formats.bytes_per_element(formats.activation_format(dtype))
    kv_element = formats.bytes_per_element(kv_dtype)
    weights = weight_bytes_by_part(shape, dtype, rows, stored)

    ffn_matrices = shape.ffn_weights.matrices
    if shape.experts:
        ffn_matrices += shape.expert_weights.matrices * shape.experts.active * shape.experts.layers
    return Cost(
        {
            "projections": Part(
                2 * rows * shape.projection_weights.matrices, weights["projections"]
            ),
            "ffn": Part(2 * rows * ffn_matrices, weights["ffn"]),
            "attention": Part(
                batch * attention_flops(shape, tokens, context, causal=causal, latent=latent),
                batch * shape.kv_elements(context) * kv_element,
            ),
            "kv_write": Part(0, rows * shape.kv_width * shape.layers * kv_element),
            "activations": Part(0, activation_bytes(shape, rows, element, activations)),
            "logits": Part(
                2 * sampled * shape.head_weights.matrices, weights["logits"] if sampled else 0
            ),
        }
    )


def _check_counts(*, tokens: int, batch: int, context: int) -> None:
    for name, value, least in (("tokens", tokens, 1), ("batch", batch, 1), ("context", context, 0)):
        if value < least:
            raise InferlabError(f"{name} is {value}: it must be at least {least}")


def _check_choice(name: str, value: str, choices: object) -> None:
    if value not in get_args(choices):
        raise unknown(name, value, get_args(choices))


def attention_flops(
    shape: ModelShape,
    tokens: int,
    context: int = 0,
    *,
    causal: bool = True,
    latent: LatentForm = "absorbed",
) -> float:
    """Return the operations of scores and weighted values for one sequence, all layers.

    A query meets a key in one dot product and hands back one weighted value: for H heads of
    width D that is 4 H D operations per pair and layer. With `causal` a token meets the cached
    ones, the new ones before it, and itself; a window caps how many that is.

    Latent attention multiplies either way. "absorbed" stays in the latent space, where a pair
    costs H (2 kv_rank + rope_dim) multiply-accumulates and nothing is unpacked. "expanded" unpacks
    keys and values of full width first, which makes pairs cheap but cached tokens dear.
    """
    pairs = _pairs(tokens, context, None, causal) * shape.full_layers
    if shape.windowed_layers:
        pairs += _pairs(tokens, context, shape.window, causal) * shape.windowed_layers
    if shape.latent is None:
        return 2 * pairs * (shape.query_width + shape.value_width)
    mla = shape.latent
    if latent == "absorbed":
        return 2 * pairs * shape.heads * (2 * mla.kv_rank + mla.rope_dim)
    unpack = mla.kv_rank * shape.heads * (mla.nope_dim + mla.value_dim) * shape.layers
    return 2 * pairs * (shape.query_width + shape.value_width) + 2 * context * unpack


def _pairs(tokens: int, context: int, window: int | None, causal: bool) -> int:
    """Return how many (query, key) pairs one layer scores for one sequence."""
    span = context + tokens
    limit = span if window is None else min(window, span)
    if not causal:
        return tokens * limit
    # The first queries see one key more each, the rest see `limit`.
    growing = max(0, min(tokens, limit - context))
    return growing * context + growing * (growing + 1) // 2 + (tokens - growing) * limit


def activation_bytes(
    shape: ModelShape, rows: int, element: float, traffic: Activations = "ideal"
) -> float:
    """Return the bytes of activations that `rows` tokens move between kernels.

    "ideal" is what no implementation can avoid once a layer's weights have to be fetched: the
    residual stream read and written once a layer. "fused" is a good engine: norms and
    activation functions ride in the matrix products, attention keeps its scores on the chip.
    "unfused" runs norms, rotation, additions and the gate as kernels of their own. Scores that
    are written out come on top: see `score_bytes`.
    """
    _check_choice("activations", traffic, Activations)
    d, ff, q, kv = shape.hidden, _ffn_width(shape), shape.query_width, shape.kv_width
    if traffic == "none":
        return 0.0
    if traffic == "ideal":
        per_layer = 2 * d
    elif traffic == "fused":
        # qkv: x -> q, k, v; attention: q, k, v -> o; out: o, x -> x; up: x -> h; down: h, x -> x.
        per_layer = 6 * d + 4 * q + 2 * ff + kv
    else:
        # Norm, qkv, rotate, attention, out, add; norm, gate and up, their product, down, add.
        per_layer = 14 * d + 6 * q + 6 * ff + 2 * kv
    return float(rows * per_layer * shape.layers * element)


def _ffn_width(shape: ModelShape) -> int:
    if shape.experts is None:
        return shape.intermediate
    return shape.experts.width * shape.experts.active + shape.experts.shared_width


def score_bytes(shape: ModelShape, tokens: int, dtype: str = "bf16") -> float:
    """Return the bytes that n x n scores move if they are written to memory, unmasked.

    Four trips: scores written, read by softmax, probabilities written, read for the values.
    """
    element = formats.bytes_per_element(dtype)
    return 4 * tokens**2 * shape.heads * shape.layers * element


def kv_bytes_per_token(shape: ModelShape, kv_dtype: str = "bf16") -> float:
    """Return the bytes that one more token adds to the cache, before any window is full."""
    return shape.kv_width * shape.layers * formats.bytes_per_element(kv_dtype)


def kv_bytes(shape: ModelShape, context: int, kv_dtype: str = "bf16") -> float:
    """Return the bytes that one sequence of `context` tokens keeps in the cache."""
    return shape.kv_elements(context) * formats.bytes_per_element(kv_dtype)


def weight_bytes(shape: ModelShape, dtype: str = "bf16") -> float:
    """Return the bytes of all weights: what has to fit in memory."""
    fmt = formats.get(dtype)
    vectors = formats.bytes_per_element(formats.activation_format(dtype))
    stored = shape.projection_weights + shape.ffn_weights + shape.head_weights
    if shape.experts:
        stored += shape.expert_weights * (shape.experts.count * shape.experts.layers)
    matrices = shape.params - stored.vectors
    return matrices * fmt.bytes_per_element + stored.vectors * vectors


def streamed_weight_bytes(shape: ModelShape, dtype: str = "bf16", batch: int = 1) -> float:
    """Return the bytes of weights that one decode step over `batch` sequences reads.

    All of them, but for an untied input table (a step gathers a row a token) and for experts
    that nobody visits.
    """
    return sum(weight_bytes_by_part(shape, dtype, batch).values())


def weight_bytes_by_part(
    shape: ModelShape, dtype: str, rows: int, stored: Mapping[str, float] | None = None
) -> Mapping[str, float]:
    """Return the weight bytes that `rows` tokens in one pass read, for each part that has any."""
    matrix = formats.bytes_per_element(dtype)
    vector = formats.bytes_per_element(formats.activation_format(dtype))

    def size(weights: Weights) -> float:
        return weights.matrices * matrix + weights.vectors * vector

    parts = {
        "projections": size(shape.projection_weights),
        "ffn": size(shape.ffn_weights),
        # The catalog counts learned positions as streamed, like the tied table they are added to.
        "logits": size(shape.head_weights) + shape.learned_positions * shape.hidden * matrix,
    }
    experts = shape.experts
    touched = full = 0.0
    if experts:
        expert = size(shape.expert_weights) * experts.layers
        touched = expert * experts.expected_distinct(rows)
        full = expert * experts.count
    if stored:
        for name in stored:
            if name not in parts:
                raise unknown("part", name, parts)
        parts.update(stored)
        # Of a file's experts a pass reads the share that it touches.
        if "ffn" in stored and experts:
            dense = size(shape.ffn_weights)
            parts["ffn"] *= (dense + touched) / (dense + full)
            touched = 0.0
    parts["ffn"] += touched
    return parts


def generation(
    shape: ModelShape, prompt: int, new_tokens: int, *, cache: bool = True, dtype: str = "bf16"
) -> Iterator[Cost]:
    """Yield the cost of each pass that writes `new_tokens` tokens after a prompt.

    With a cache the first pass is a prefill and every other a decode step. Without one, each
    pass reads the whole text again.
    """
    yield prefill(shape, prompt, dtype=dtype)
    for context in range(prompt, prompt + new_tokens - 1):
        if cache:
            yield decode_step(shape, context, dtype=dtype)
        else:
            yield prefill(shape, context + 1, dtype=dtype)
