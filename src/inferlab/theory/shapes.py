"""The shape of a model: its sizes, and what follows from them.

A shape knows how many parameters stand in each part of a model and how many elements its KV
cache holds. It knows no format, no time and no chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Weights:
    """Parameter counts of one part of a model.

    `matrices` take part in one multiply-accumulate per token; `vectors` (norms, biases, sinks)
    are read as well, but their arithmetic is too small to count.
    """

    matrices: int = 0
    vectors: int = 0

    @property
    def total(self) -> int:
        """All parameters of the part."""
        return self.matrices + self.vectors

    def __add__(self, other: Weights) -> Weights:
        return Weights(self.matrices + other.matrices, self.vectors + other.vectors)

    def __mul__(self, times: int) -> Weights:
        return Weights(self.matrices * times, self.vectors * times)


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: each token of a layer visits `active` of `count`, each `width` wide.

    `layers` of the model are mixtures, the others dense. `shared_width` is the width that every
    token passes, whatever the router says.
    """

    count: int
    active: int
    width: int
    layers: int
    shared_width: int = 0

    def expected_distinct(self, tokens: int) -> float:
        """Return how many experts of a layer `tokens` tokens touch together, on average.

        E (1 - (1 - k/E)^B): each token draws k of E experts, evenly and independently.
        """
        if tokens == 1:
            return float(self.active)
        return self.count * (1 - (1 - self.active / self.count) ** tokens)


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2): one shared latent replaces K and V.

    A token caches `kv_rank` latent values and `rope_dim` rotated key values per layer.
    `nope_dim` and `value_dim` are the widths of one head's unrotated key and of its value.
    `query_rank` is 0 where queries are projected in one step.
    """

    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder-only transformer. Counts of parameters are exact.

    `heads` query heads share `kv_heads` key-value heads of `head_dim` each. `windowed_layers`
    layers look back at most `window` positions, the others at everything. `ffn_matrices` is 3
    for a gated feed-forward (gate, up, down) and 2 for the original one.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    max_context: int
    ffn_matrices: int = 3
    experts: Experts | None = None
    latent: Latent | None = None
    window: int | None = None
    windowed_layers: int = 0
    learned_positions: int = 0
    norms_per_layer: int = 2
    norm_bias: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    router_bias: bool = False
    sinks: bool = False
    key: str = ""
    source: str = ""
    notes: str = ""
    published: Mapping[str, str] = field(default_factory=dict, compare=False)

    # Widths

    @property
    def query_width(self) -> int:
        """Width of all query heads together; not always `hidden`."""
        if self.latent:
            return self.heads * (self.latent.nope_dim + self.latent.rope_dim)
        return self.heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Width of what attention hands to the output projection."""
        return self.heads * (self.latent.value_dim if self.latent else self.head_dim)

    @property
    def kv_width(self) -> int:
        """Elements that one token leaves in the KV cache of one layer."""
        if self.latent:
            return self.latent.kv_rank + self.latent.rope_dim
        return 2 * self.kv_heads * self.head_dim

    @property
    def full_layers(self) -> int:
        """Layers that attend to the whole context."""
        return self.layers - self.windowed_layers

    def kv_elements(self, context: int) -> int:
        """Elements that a sequence of `context` tokens keeps in the cache, all layers together."""
        seen = min(context, self.window) if self.window else context
        return self.kv_width * (self.full_layers * context + self.windowed_layers * seen)

    # Parameters by part

    @property
    def projection_weights(self) -> Weights:
        """What attention multiplies by: Q, K, V and output projections, with half the norms."""
        d = self.hidden
        vectors = self._norms(self.norms_per_layer // 2)
        if self.latent:
            mla = self.latent
            matrices = d * (mla.kv_rank + mla.rope_dim) + self.value_width * d
            matrices += mla.kv_rank * self.heads * (mla.nope_dim + mla.value_dim)
            vectors += mla.kv_rank
            if mla.query_rank:
                matrices += mla.query_rank * (d + self.query_width)
                vectors += mla.query_rank
            else:
                matrices += d * self.query_width
        else:
            matrices = d * (2 * self.query_width + self.kv_width)
        if self.qkv_bias:
            vectors += self.query_width + self.kv_width
        if self.output_bias:
            vectors += d
        if self.qk_norm:
            vectors += 2 * self.head_dim
        if self.sinks:
            vectors += self.heads
        return Weights(matrices, vectors) * self.layers

    @property
    def ffn_weights(self) -> Weights:
        """Feed-forward weights that every token passes: dense layers, shared experts, routers."""
        norms = Weights(0, self._norms(self.norms_per_layer - self.norms_per_layer // 2))
        weights = norms * self.layers
        dense = self.layers
        if self.experts:
            e = self.experts
            dense -= e.layers
            router = Weights(self.hidden * e.count, e.count if self.router_bias else 0)
            weights += (self._ffn(e.shared_width) + router) * e.layers
        return weights + self._ffn(self.intermediate) * dense

    @property
    def expert_weights(self) -> Weights:
        """One routed expert of one layer; nothing in a dense model."""
        return self._ffn(self.experts.width) if self.experts else Weights()

    @property
    def head_weights(self) -> Weights:
        """The projection to the vocabulary, and the norm before it."""
        return Weights(self.vocab * self.hidden, self._norms(1))

    @property
    def embedding_params(self) -> int:
        """The table that turns token ids into vectors."""
        return self.vocab * self.hidden

    @property
    def params(self) -> int:
        """Every parameter, a tied table counted once."""
        return self._params(self.experts.count if self.experts else 0)

    @property
    def active_params(self) -> int:
        """Parameters that one token passes: all of them but the experts it does not visit."""
        return self._params(self.experts.active if self.experts else 0)

    @property
    def non_embedding_params(self) -> int:
        """Parameters apart from the input table and the vocabulary projection."""
        return self.params - self.embedding_params * (1 if self.tied else 2)

    def _params(self, experts_per_layer: int) -> int:
        total = (self.projection_weights + self.ffn_weights + self.head_weights).total
        if self.experts:
            total += self.expert_weights.total * experts_per_layer * self.experts.layers
        if not self.tied:
            total += self.embedding_params
        return total + self.learned_positions * self.hidden

    def _norms(self, count: int) -> int:
        return count * self.hidden * (2 if self.norm_bias else 1)

    def _ffn(self, width: int) -> Weights:
        if not width:
            return Weights()
        bias = (self.ffn_matrices - 1) * width + self.hidden if self.ffn_bias else 0
        return Weights(self.ffn_matrices * self.hidden * width, bias)
