"""The clock on attention alone, by its context: our kernel beside torch's, backend by backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from inferlab.engine.graphs import Launch
from inferlab.kernels import backends, ops
from inferlab.measure import clock

#: Bytes of all copies of the operands together: each run finds its own far from any cache.
_PAST_CACHES = {"cpu": 256 << 20, "cuda": 1 << 30}
_MOST_COPIES = 64
_PEERS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True)
class Heads:
    """The heads of one layer of a model, and the format of its keys and values."""

    heads: int
    kv_heads: int
    size: int
    dtype: torch.dtype


def decode(at: Heads, device: str, contexts: Sequence[int]) -> list[dict[str, Any]]:
    """Time one new token over contexts of some lengths.

    Returns a series for our kernel and for each backend of torch's
    `scaled_dot_product_attention` that takes this: `by`, `contexts`, the fewest `bytes` that each
    must move, and raw `samples` in seconds.
    """

    def make(context: int) -> dict[str, Launch]:
        q, (k, v) = _draw(at, device, 1), (_draw(at, device, context, kv=True) for _ in range(2))
        seen = torch.full((1,), context, device=device)
        ours = partial(ops.decode_attention, q[:, :, 0], k, v, seen)
        return {"inferlab": ours, **_theirs(q, k, v, causal=False)}

    moved = [
        (2 * context * at.kv_heads + 2 * at.heads) * at.size * at.dtype.itemsize
        for context in contexts
    ]
    return [series | {"bytes": moved} for series in _series(make, device, contexts, moved)]


def prefill(at: Heads, device: str, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Time whole prompts of some lengths, each token looking at those before it.

    As `decode`, with the `flops` of each length in place of bytes. On a CPU there is only torch's.
    """

    def make(length: int) -> dict[str, Launch]:
        q = _draw(at, device, length)
        k, v = (_draw(at, device, length, kv=True) for _ in range(2))
        theirs = _theirs(q, k, v, causal=True)
        if device == "cpu":
            return theirs
        turned = (t.transpose(1, 2) for t in (q, k, v))
        return {"inferlab": partial(ops.flash_attention, *turned), **theirs}

    work = [4 * at.heads * at.size * n * (n + 1) // 2 for n in lengths]
    size = at.size * at.dtype.itemsize
    moved = [2 * n * (at.heads + at.kv_heads) * size for n in lengths]
    return [series | {"flops": work} for series in _series(make, device, lengths, moved)]


def _series(
    make: Callable[[int], dict[str, Launch]],
    device: str,
    contexts: Sequence[int],
    moved: Sequence[int],
) -> Iterator[dict[str, Any]]:
    found: dict[str, list[list[float]]] = {}
    for context, size in zip(contexts, moved, strict=True):
        copies = min(_MOST_COPIES, max(1, _PAST_CACHES[device] // size))
        made = [make(context) for _ in range(copies)]
        for name in made[0]:
            launches = [each[name] for each in made]
            found.setdefault(name, []).append(clock.per_launch(launches, device, seconds=0.2))
    own = "triton" if device == "cuda" and backends.has_triton() else "simd"
    for name, samples in found.items():
        if len(samples) == len(contexts):  # a backend that takes some lengths only is no series
            by = f"inferlab {own}" if name == "inferlab" else name
            yield {"by": by, "contexts": list(contexts), "samples": samples}


def _draw(at: Heads, device: str, tokens: int, *, kv: bool = False) -> Tensor:
    """Return random heads [1, H or KV, tokens, D], as a contiguous cache holds them."""
    heads = at.kv_heads if kv else at.heads
    return torch.randn(1, heads, tokens, at.size, device=device).to(at.dtype)


def _theirs(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> dict[str, Launch]:
    """Return torch's attention by each backend that takes these tensors [1, H, T, D]."""

    def attend(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    found: dict[str, Launch] = {}
    for name, backend in _PEERS.items():
        if name == "math" and found:
            continue  # for comparison only where there is nothing better
        try:
            attend(backend)
        except RuntimeError:
            continue
        found[f"torch SDPA {name}"] = partial(attend, backend)
    return found
