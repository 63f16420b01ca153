"""Where one cost overtakes another: knees, crossings and ceilings, each one formula."""

from __future__ import annotations

import math

from inferlab.errors import InferlabError
from inferlab.theory import costs, formats, roofline
from inferlab.theory.hardware import Hardware
from inferlab.theory.shapes import ModelShape


def knee_tokens(hardware: Hardware, dtype: str = "bf16") -> float:
    """Return how many tokens in a pass make its matrices compute-bound.

    Each weight takes w bytes to fetch and 2 operations a token, so arithmetic catches up at
    ridge x w / 2 tokens: at 16 bits the ridge itself, at 4 bits a quarter of it.
    """
    return hardware.ridge(dtype) * formats.bytes_per_element(dtype) / 2


def decode_ceiling(
    shape: ModelShape,
    hardware: Hardware,
    context: int = 0,
    batch: int = 1,
    *,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    chips: int = 1,
) -> float:
    """Return the tokens per second, over the whole batch, that no engine can pass."""
    step = costs.decode_step(shape, context, batch, dtype=dtype, kv_dtype=kv_dtype)
    return batch / roofline.place(step, hardware, dtype, chips).seconds


def footprint(
    shape: ModelShape,
    context: int,
    batch: int = 1,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
) -> float:
    """Return the bytes of all weights and of `batch` caches of `context` tokens."""
    kv_dtype = kv_dtype or formats.activation_format(dtype)
    return costs.weight_bytes(shape, dtype) + batch * costs.kv_bytes(shape, context, kv_dtype)


def fits(
    shape: ModelShape,
    hardware: Hardware,
    context: int,
    batch: int = 1,
    *,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    chips: int = 1,
) -> bool | None:
    """Return whether weights and caches fit; None if the chip's memory is not known."""
    if hardware.memory_bytes is None:
        return None
    return footprint(shape, context, batch, dtype, kv_dtype) <= hardware.memory_bytes * chips


def sequences_that_fit(
    shape: ModelShape,
    hardware: Hardware,
    context: int,
    *,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    chips: int = 1,
) -> int | None:
    """Return how many sequences of `context` tokens fit beside the weights."""
    if hardware.memory_bytes is None:
        return None
    if context < 1:
        raise InferlabError(f"context is {context}: it must be at least 1")
    kv_dtype = kv_dtype or formats.activation_format(dtype)
    room = hardware.memory_bytes * chips - costs.weight_bytes(shape, dtype)
    return max(0, math.floor(room / costs.kv_bytes(shape, context, kv_dtype)))


def attention_share(shape: ModelShape, tokens: int) -> float:
    """Return the share of a causal prefill's operations that grows with its length squared."""
    cost = costs.prefill(shape, tokens)
    return cost.parts["attention"].flops / cost.flops


def attention_half_tokens(shape: ModelShape) -> float:
    """Return the prompt length at which attention takes half of a prefill's operations.

    A token meets n/2 others on average, at 4 H D operations a layer, against 2 for each body
    parameter it passes: n = body / (H D L). Layers with a window or latents have no such n.
    """
    return _body(shape) / (shape.query_width * shape.layers)


def attention_equals_matrices_context(shape: ModelShape) -> float:
    """Return the context at which one decode step's attention costs as much as its matrices."""
    return _body(shape) / (2 * shape.query_width * shape.layers)


def _body(shape: ModelShape) -> float:
    return shape.active_params - (shape.params - shape.non_embedding_params)


def kv_parity_context(
    weight_bytes: float, shape: ModelShape, batch: int = 1, kv_dtype: str = "bf16"
) -> float:
    """Return the context at which `batch` caches are as large as the weights."""
    return weight_bytes / (batch * costs.kv_bytes_per_token(shape, kv_dtype))


# One intensity for a whole decode step merges two kinds of work that batching treats
# differently. The next three show where that leads, for `parameters` of 16 bits.


def saturated_intensity(parameters: float, shape: ModelShape, context: int) -> float:
    """Return the intensity of a decode step as its batch grows without end.

    (2 P + 4 S d L) / (S kv): weights are shared by the batch, keys and values are not.
    """
    if context < 1:
        return math.inf
    attention = costs.attention_flops(shape, 1, context - 1)
    return (2 * parameters + attention) / (context * costs.kv_bytes_per_token(shape))


def critical_batch(parameters: float, shape: ModelShape, context: int, hardware: Hardware) -> float:
    """Return the batch at which the merged intensity reaches the ridge; infinite if none does."""
    ridge = hardware.ridge("bf16")
    gained = 2 * parameters + costs.attention_flops(shape, 1, context - 1)
    gained -= ridge * context * costs.kv_bytes_per_token(shape)
    return ridge * 2 * parameters / gained if gained > 0 else math.inf


def critical_context(parameters: float, shape: ModelShape, hardware: Hardware) -> float:
    """Return the context beyond which no batch brings the merged intensity to the ridge.

    2 P / (kv (ridge - G)), where G is the intensity of attention itself: the query heads that
    share a KV head.
    """
    kv = costs.kv_bytes_per_token(shape)
    own = costs.attention_flops(shape, 1, 0) / kv
    return 2 * parameters / (kv * (hardware.ridge("bf16") - own))


def kv_time_context(parameters: float, shape: ModelShape, hardware: Hardware) -> float:
    """Return the context at which reading KV takes as long as compute-bound matrices.

    Both grow with the batch, so it cancels: 2 P / F = S kv / BW.
    """
    return 2 * parameters / (hardware.ridge("bf16") * costs.kv_bytes_per_token(shape))
