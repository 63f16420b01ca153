"""The decode step of a CPU: `Transformer.forward` for one token a row, at memory's speed."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inferlab.engine.kv_cache import Rows
from inferlab.errors import InferlabError, unknown
from inferlab.kernels import backends
from inferlab.kernels.quantised import BLOCK, Quantised
from inferlab.model import rope
from inferlab.model.transformer import Layer, Matrix, Transformer

MAX_BATCH = 16
"""Rows of a decode step; with more, a matrix product in torch is the better tool."""
ACTIVATIONS = ("auto", "int8", "float32")
"""How vectors meet quantised matrices; auto is int8, which before weights of 8 bits means int16.

Matrices of float32 see them as they are.
"""

_compiled = threading.Event()
_failure: list[Exception] = []


def supports(transformer: Transformer) -> bool:
    """Whether `CpuDecoder` can run this model: on a CPU, with numba to compile.

    Matrices are float32, or quantised with whole blocks of 32 columns; all else is float32.
    """
    here = transformer.device.type == "cpu" and transformer.dtype == torch.float32
    return (
        backends.has_numba()
        and here
        and all(
            m.shape[1] % BLOCK == 0 if isinstance(m, Quantised) else m.dtype == torch.float32
            for m in (transformer.weights.embedding, *transformer.weights.streamed())
        )
    )


@functools.cache
def prepare() -> None:
    """Start compiling the step in a thread of its own, once a process; return at once.

    Seconds on a machine's first run, half a second when compiled code is found on disk. A process
    that ends earlier waits for it, so that the next one finds it.
    """
    if not backends.has_numba():
        _failure.append(InferlabError("numba is not installed"))
        _compiled.set()
        return

    def compile_() -> None:
        try:
            from inferlab.engine import cpu_step
            from inferlab.kernels.cpu import widen

            widen.prepare()  # first: a prompt comes before the first step
            cpu_step.compile_step()
        except Exception as error:
            _failure.append(error)
        _compiled.set()

    threading.Thread(target=compile_).start()


def ready(timeout: float | None = 0.0) -> bool:
    """Whether the step is compiled, after at most `timeout` seconds (None: however long).

    Until then torch can serve. False for ever if the compiler failed.
    """
    prepare()
    return _compiled.wait(timeout) and not _failure


@functools.lru_cache(maxsize=2)
def _angles(turns: rope.Rope, capacity: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin of every position, each float32 [capacity, pairs].

    A token stands at the end of its context, so dynamic scaling depends on its position alone.
    """
    cos, sin = rope.angles(turns, torch.arange(capacity)[:, None])
    return cos[:, 0, 0].contiguous(), sin[:, 0, 0].contiguous()


class CpuDecoder:
    """Decode steps of a `transformer` into the memory of `cache`, by the kernels of `kernels.cpu`.

    Reads the transformer's own tensors and writes the memory's pages. Any cache over the same
    memory may take a step (`serves`), with up to 16 rows; a torch pass may come before or after
    it. `threads` defaults to one a physical core. Quantised matrices meet their
    inputs rounded (`kernels.cpu.quant_dot`); with `activations` "float32", unrounded.
    """

    def __init__(
        self,
        transformer: Transformer,
        cache: Rows,
        *,
        threads: int | None = None,
        activations: str = "auto",
    ) -> None:
        if activations not in ACTIVATIONS:
            raise unknown("activations", activations, ACTIVATIONS)
        keys, values = self.pages = cache.pages
        if not supports(transformer) or keys.dtype != torch.float32:
            raise InferlabError(
                "the CPU decode step needs a cache in float32 on a CPU, and weights in float32 "
                "or quantised with columns in whole blocks of 32"
            )
        if not ready(None):
            raise InferlabError(f"the CPU decode step cannot be compiled ({_failure[0]})")
        from inferlab.engine import cpu_step  # not before: numba takes half a second to import
        from inferlab.kernels.cpu.decode_attention import most_pieces
        from inferlab.kernels.cpu.team import team

        config = transformer.config
        self.transformer, self.capacity = transformer, cache.capacity
        self._team, self._kernel = team(threads), cpu_step.decode_step
        self._kept: list[Any] = []
        self._exact = activations == "float32"

        pairs, size = config.rope.dim // 2, config.head_dim
        splits = most_pieces(cache.capacity)
        self._layers = np.zeros(config.layers, cpu_step.LAYER)
        for index, layer in enumerate(transformer.weights.layers):
            self._fill(self._layers[index], layer)
            self._layers[index]["window"] = config.windows[index] or 0
            self._layers[index]["keys"] = keys[index].data_ptr()
            self._layers[index]["values"] = values[index].data_ptr()

        step = self._step = np.zeros(1, cpu_step.STEP)
        step["head_dim"], step["pairs"] = size, pairs
        step["eps"], step["scale"], step["splits"] = config.norm_eps, size**-0.5, splits
        step["norm"] = self._address(transformer.weights.norm)
        step["embedding"] = self._matrix(transformer.weights.embedding)
        step["head"] = self._matrix(transformer.weights.head)
        _, page, head, position, _ = (n * 4 for n in keys.stride())
        step["block"], step["page"] = keys.shape[3], page
        step["cache_head"], step["cache_position"] = head, position

        first = self._layers[0]
        step["layer_bytes"] = cpu_step.layer_bytes(first, MAX_BATCH, size, splits)
        step["own_bytes"] = cpu_step.own_bytes(first, MAX_BATCH, size)
        step["packed_bytes"] = cpu_step.most_packed(first)
        self._phases = cpu_step.phases_bytes(self._layers, step["head"][0])
        desks = self._desks_bytes(MAX_BATCH, cache.capacity)
        x = torch.empty(MAX_BATCH, config.hidden)
        cos, sin = _angles(config.rope, cache.capacity)
        acts = torch.empty(config.layers * int(step["layer_bytes"][0]) // 4)
        own = torch.empty(self._team.threads * int(step["own_bytes"][0]) // 4)
        self._desks = np.zeros(desks // 8, np.int64)
        self._kept += [x, cos, sin, acts, own]
        step["x"], step["layers"], step["own"] = (t.data_ptr() for t in (x, acts, own))
        step["cos"], step["sin"] = cos.data_ptr(), sin.data_ptr()
        step["desks"] = self._desks.ctypes.data

    def serves(self, cache: Rows) -> bool:
        """Whether `cache` lies in the memory whose addresses this decoder knows."""
        same = all(ours is theirs for ours, theirs in zip(self.pages, cache.pages, strict=True))
        return same and cache.capacity == self.capacity

    def step(self, ids: Tensor, cache: Rows) -> Tensor:
        """Run one token of each row, int64 [B]; return float32 logits [B, V].

        Stores keys and values, and advances the cache. Raises InferlabError, and stores nothing,
        if a row is full, a token unknown, there are too many rows, or the cache lies elsewhere.
        """
        vocab = self.transformer.config.vocab
        lengths, tokens = cache.lengths.numpy(), ids.contiguous().numpy()
        if cache.batch > MAX_BATCH:
            raise InferlabError(f"batch {cache.batch} is above {MAX_BATCH} rows a decode step")
        if len(tokens) != len(lengths) or tokens.min() < 0 or tokens.max() >= vocab:
            raise InferlabError(
                f"ids is {ids.tolist()}: {len(lengths)} from 0 to {vocab - 1} are needed"
            )
        for length, room in zip(lengths.tolist(), cache.room(), strict=True):
            if length >= room:
                raise InferlabError(
                    f"the KV cache holds {room} positions a row; {length + 1} would not fit"
                )
        if not self.serves(cache):
            raise InferlabError("the cache is not in the memory of this decoder")
        logits = torch.empty(cache.batch, vocab)
        self._step["logits"], self._step["batch"] = logits.data_ptr(), cache.batch
        longest = int(lengths.max()) + 1
        self._desks[: self._desks_bytes(cache.batch, longest) // 8].fill(0)
        table = cache.table.numpy()
        self._team.run(self._kernel, self._step, self._layers, lengths, table, tokens)
        cache.advance(1)
        return logits

    def _desks_bytes(self, batch: int, longest: int) -> int:
        """Bytes of all desks of a step, the longest row's new position included."""
        from inferlab.kernels.cpu.decode_attention import most_pieces
        from inferlab.kernels.cpu.team import desk_bytes

        config = self.transformer.config
        attention = batch * config.kv_heads * most_pieces(longest)
        return self._phases + config.layers * desk_bytes(attention)

    def _fill(self, record: Any, layer: Layer) -> None:
        for name in ("attn_norm", "mlp_norm", "q_norm", "k_norm"):
            record[name] = self._address(getattr(layer, name))
        for name in ("q", "k", "v", "o", "gate", "up", "down"):
            record[name] = self._matrix(getattr(layer, name), getattr(layer, f"{name}_bias", None))

    def _address(self, tensor: Tensor | None) -> int:
        if tensor is None:
            return 0
        dense = tensor.contiguous()
        self._kept.append(dense)
        return dense.data_ptr()

    def _matrix(self, weight: Matrix, bias: Tensor | None = None) -> Any:
        from inferlab.kernels.cpu.matvec import matrix

        dense = weight.contiguous() if isinstance(weight, Tensor) else weight
        biases = None if bias is None else bias.contiguous()
        self._kept += [dense, biases]
        return matrix(dense, biases, exact=self._exact)
