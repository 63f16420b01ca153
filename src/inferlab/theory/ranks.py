"""A decode step that several chips share: bytes divided, messages added.

Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053) gives every chip a part of each matrix.
Then the parts of a sum must meet: an all-reduce after attention and one after the feed-forward
block, in each layer. A message costs a time that does not depend on its size, and its bytes over
the rate of the link (Hockney 1994, Parallel Computing 20(3)).
"""

from __future__ import annotations

from dataclasses import dataclass

from inferlab.errors import InferlabError
from inferlab.theory import costs, formats, roofline
from inferlab.theory.costs import Cost, Part
from inferlab.theory.hardware import Hardware
from inferlab.theory.shapes import ModelShape


@dataclass(frozen=True)
class Link:
    """What joins chips: seconds until the smallest message has been exchanged by all, and
    bytes per second that a chip sends while it receives as many.
    """

    latency: float
    rate: float

    def __post_init__(self) -> None:
        if self.latency < 0:
            raise InferlabError(f"latency is {self.latency}: it must be 0 or more seconds")
        if self.rate <= 0:
            raise InferlabError(f"rate is {self.rate}: it must be above 0 bytes per second")


def all_reduce_seconds(size: float, ranks: int, link: Link) -> float:
    """Return the time until every rank has the sum of `size` bytes of each.

    2 (N - 1) / N of the bytes leave a rank and as many reach it, the least there can be
    (Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69(2)).
    """
    return link.latency + 2 * (ranks - 1) / ranks * size / link.rate if ranks > 1 else 0.0


def all_gather_seconds(size: float, ranks: int, link: Link) -> float:
    """Return the time until every rank has all `size` bytes, of which each had a part."""
    return link.latency + (ranks - 1) / ranks * size / link.rate if ranks > 1 else 0.0


def messages(shape: ModelShape) -> int:
    """Return how many a pass exchanges: two a layer, one of embeddings, one of logits."""
    return 2 * shape.layers + 2


def decode_step_seconds(
    shape: ModelShape,
    hardware: Hardware,
    context: int = 0,
    batch: int = 1,
    *,
    ranks: int,
    link: Link,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
) -> float:
    """Return the least time of a decode step on `ranks` chips, messages included.

    Shares are taken as equal. KV heads are divided as far as there are any: with more ranks each
    head's cache is read on several.
    """
    if ranks < 1:
        raise InferlabError(f"ranks is {ranks}: it must be at least 1")
    if shape.latent is not None:
        raise InferlabError(f"ranks of {shape.name}: a latent cache has no heads to be shared by")
    step = costs.decode_step(shape, context, batch, dtype=dtype, kv_dtype=kv_dtype)
    parts = dict(step.parts)
    for name in ("attention", "kv_write"):
        bytes_ = parts[name].bytes * max(1.0, ranks / shape.kv_heads)
        parts[name] = Part(parts[name].flops, bytes_)
    seconds = roofline.place(Cost(parts), hardware, dtype, ranks).seconds

    element = formats.bytes_per_element(formats.activation_format(dtype))
    row, logits = (batch * width * element for width in (shape.hidden, shape.vocab))
    sums = messages(shape) - 1
    seconds += sums * all_reduce_seconds(row, ranks, link)
    return seconds + all_gather_seconds(logits, ranks, link)
