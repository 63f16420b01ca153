"""The decode step of a GPU: `Transformer.forward` for one token a row, as one recorded graph.

A step is a list of launches over buffers that never move. All it takes from outside is one small
copy: a token, a length and the pages of each row. So the recorded steps of a memory serve every
mixture of rows in it, and of these there are only a few sizes: rows up to the next one are idle.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from inferlab.engine.graphs import Graph, Launch
from inferlab.engine.kv_cache import Rows
from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.kernels.gpu import (
    decode_attention,
    dsl,
    matvec,
    quant_matvec,
    rms_norm,
    rope_and_cache,
)
from inferlab.kernels.quantised import BLOCK, Quantised
from inferlab.model import rope
from inferlab.model.transformer import Layer, Matrix, Transformer

SIZES = (1, 2, 4, 8, 16)
"""Rows of a recorded step. With more, matrix products in torch are the better tool."""

MAX_BATCH = SIZES[-1]

_IDLE = -1  # length and pages of a row that is not there: it writes nothing and sees nothing


def supports(transformer: Transformer) -> bool:
    """Whether `GpuDecoder` can run this model: Triton, and weights on a GPU.

    Or on a CPU, for Triton's interpreter. That multiplies bfloat16 wrongly, so there not in this.
    Quantised matrices have columns in whole blocks, and the gates of a layer one format.
    """
    gpu, weights = transformer.device.type == "cuda", transformer.weights
    dtypes = {torch.float32, torch.float16} | ({torch.bfloat16} if gpu else set())
    return (
        backends.has_triton()
        and (gpu or dsl.interpreted())
        and transformer.dtype in dtypes
        and transformer.config.hidden <= rms_norm.LONGEST
        and all(
            m.shape[-1] % BLOCK == 0 or not isinstance(m, Quantised) for m in weights.streamed()
        )
        and all(_format(layer.gate) == _format(layer.up) for layer in weights.layers)
    )


def reads_prompts(transformer: Transformer) -> bool:
    """Whether our attention over many queries runs as it should: on a T4 torch's is better."""
    modern = dsl.capability(transformer.device) != (7, 5)
    return supports(transformer) and modern and transformer.config.head_dim <= 128


class GpuDecoder:
    """Decode steps of `transformer` into the memory of `cache`, by Triton's kernels.

    Any cache over the same memory may take a step (`serves`), with up to 16 rows; torch passes may
    come before or after. The step of a number of rows is recorded when it is first taken. Without
    `graphs` its kernels are launched one by one.

    The projections to queries, keys and values are joined into one matrix a layer, of which the
    model's own become parts: they are read in one launch, and held once.
    """

    def __init__(self, transformer: Transformer, cache: Rows, *, graphs: bool = True) -> None:
        if not supports(transformer):
            raise InferlabError("kernels triton: this model needs a GPU, or float32 or float16")
        self.transformer, self.graphs = transformer, graphs
        self.pages = cache.pages
        self.columns, self.capacity = cache.table.shape[1], cache.capacity
        for layer in transformer.weights.layers:
            _join(layer)  # a second time, it finds them joined
        # Angles of every position, since a graph can compute none from numbers of the host.
        where = torch.arange(self.capacity, device=transformer.device)[:, None]
        turns = rope.angles(transformer.config.rope, where)  # each [capacity, 1, 1, pairs]
        self._angles = torch.cat([part[:, 0, 0] for part in turns], dim=1)
        self._steps: dict[int, _Step] = {}

    def serves(self, cache: Rows) -> bool:
        """Whether `cache` lies in the memory that the recorded steps know."""
        same = all(ours is theirs for ours, theirs in zip(self.pages, cache.pages, strict=True))
        return same and cache.capacity == self.capacity

    def step(self, ids: Tensor, cache: Rows) -> Tensor:
        """Run one token of each row, int64 [B] on the host; return float32 logits [B, V].

        Stores keys and values, and advances the cache. Raises InferlabError, and stores nothing,
        if a row is full, there are too many rows, or the cache lies in other memory.
        """
        rows, longest = cache.batch, int(cache.lengths.max())
        if longest >= cache.capacity:
            raise InferlabError(
                f"the KV cache holds {cache.capacity} positions a row; {longest + 1} would not fit"
            )
        if rows > MAX_BATCH:
            raise InferlabError(f"batch {rows} is above {MAX_BATCH} rows a decode step")
        if not self.serves(cache):
            raise InferlabError("the cache is not in the memory of this decoder's recorded steps")
        size = next(size for size in SIZES if size >= rows)
        if size not in self._steps:
            self._steps[size] = _Step(
                self.transformer, self.pages, self._angles, size, self.columns
            )
        step = self._steps[size]
        step.put(ids, cache.lengths, cache.table)
        step.run(self.graphs)
        cache.advance(1)
        return step.logits[:rows].clone()


class _Step:
    """The step of `rows` rows: its buffers, its launches, and their recording once it has run."""

    def __init__(
        self,
        transformer: Transformer,
        pages: tuple[Tensor, Tensor],
        angles: Tensor,
        rows: int,
        columns: int,
    ) -> None:
        config, device, dtype = transformer.config, transformer.device, transformer.dtype
        widths = (config.heads, config.kv_heads, config.kv_heads)

        def buffer(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(rows, *shape, dtype=dtype, device=device)

        # All that changes from step to step, side by side so that one copy brings it.
        self.inputs = torch.empty(rows * (2 + columns), dtype=torch.int32, device=device)
        self.ids, self.lengths, self.table = _parts(self.inputs, rows)
        self._host = torch.empty_like(self.inputs, device="cpu")
        # A few numbers at a time: numpy writes them in a tenth of torch's time.
        self._host_parts = [part.numpy() for part in _parts(self._host, rows)]
        self.seen, self.positions = (buffer(dtype=torch.int32) for _ in range(2))
        self.angles = buffer(angles.shape[1], dtype=torch.float32)
        self.x, self.next_x, self.normed = (buffer(config.hidden) for _ in range(3))
        self.qkv = buffer(sum(widths) * config.head_dim)
        self.heads = self.qkv.view(rows, -1, config.head_dim).split(widths, dim=1)
        self.attended = buffer(config.heads, config.head_dim)
        self.active = buffer(config.intermediate)
        self.scratch = decode_attention.scratch(self.heads[0], pages[0][0], self.table)
        self.logits = buffer(config.vocab, dtype=torch.float32)
        self._launches = list(self._plan(transformer, pages, angles))
        self._graph: Graph | None = None

    def put(self, ids: Tensor, lengths: Tensor, table: Tensor) -> None:
        """Copy in what this step is for. Rows past the given ones are idle."""
        rows = len(ids)
        for part, given, idle in zip(
            self._host_parts, (ids, lengths, table), (0, _IDLE, _IDLE), strict=True
        ):
            part[:rows], part[rows:] = given.numpy(), idle
        self.inputs.copy_(self._host)

    def run(self, graphs: bool) -> None:
        """Run every launch: by replay, or while recording the first time, or one by one."""
        if self._graph is not None:
            self._graph.replay()
        elif graphs:
            self._graph = Graph(self._launches, self.inputs.device)
        else:
            for launch in self._launches:
                launch()

    def _plan(
        self, transformer: Transformer, pages: tuple[Tensor, Tensor], angles: Tensor
    ) -> Iterator[Launch]:
        """Yield the launches of a step, in order."""
        config, weights = transformer.config, transformer.weights
        pairs = self.angles.shape[1] // 2
        cos, sin = self.angles[:, :pairs], self.angles[:, pairs:]
        q, k, v = self.heads
        x, after = self.x, self.next_x

        def norm(gains: Tensor) -> matvec.Norm:
            return matvec.Norm(gains, config.norm_eps, self.normed)

        yield partial(torch.add, self.lengths, 1, out=self.seen)
        yield partial(torch.clamp, self.lengths, min=0, out=self.positions)
        yield partial(torch.index_select, angles, 0, self.positions, out=self.angles)
        yield _embed(weights.embedding, self.ids, x)
        for index, layer in enumerate(weights.layers):
            keys, values = pages[0][index], pages[1][index]
            yield from self._project(layer, x, norm(layer.attn_norm))
            yield partial(
                rope_and_cache.launch, q, k, v, cos, sin, keys, values, self.lengths, self.table,
                q, layer.q_norm, layer.k_norm, config.norm_eps,
            )  # fmt: skip
            yield partial(
                decode_attention.launch, q, keys, values, self.table, self.seen,
                config.windows[index], self.attended, self.scratch,
            )  # fmt: skip
            yield _matvec(layer.o, self.attended.flatten(1), layer.o_bias, x, after)
            x, after = after, x
            yield _swiglu(layer.gate, layer.up, x, self.active, norm(layer.mlp_norm))
            yield _matvec(layer.down, self.active, None, x, after)
            x, after = after, x
        yield _matvec(weights.head, x, None, None, self.logits, norm(weights.norm))

    def _project(self, layer: Layer, x: Tensor, norm: matvec.Norm) -> Iterator[Launch]:
        """Yield the launches to queries, keys and values: one if the three are joined."""
        biases = [b for b in (layer.q_bias, layer.k_bias, layer.v_bias) if b is not None]
        whole = _join(layer)
        if whole is not None:
            bias = torch.cat(biases) if biases else None
            yield _matvec(whole, x, bias, None, self.qkv, norm)
            return
        for name, part in zip("qkv", self.heads, strict=True):
            bias = getattr(layer, f"{name}_bias")
            yield _matvec(getattr(layer, name), x, bias, None, part.flatten(1), norm)


def _parts(inputs: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens [rows], lengths [rows] and table [rows, M] that lie in one piece."""
    return inputs[:rows], inputs[rows : 2 * rows], inputs[2 * rows :].view(rows, -1)


def _embed(table: Matrix, ids: Tensor, x: Tensor) -> Launch:
    if isinstance(table, Tensor):
        return partial(torch.index_select, table, 0, ids, out=x)
    return partial(table.dequantise, x.dtype, ids, out=x)


def _join(layer: Layer) -> Matrix | None:
    """Return q, k and v of a layer as one matrix, of which they become parts.

    None if they are of several formats.
    """
    q, k, v = layer.q, layer.k, layer.v
    if isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor):
        whole, (layer.q, layer.k, layer.v) = _side_by_side([q, k, v])
        return whole
    matrices = [m for m in (q, k, v) if isinstance(m, Quantised)]
    formats = {m.format for m in matrices}
    if len(matrices) < 3 or len(formats) > 1:
        return None
    (format,) = formats
    planes = [_side_by_side(p) for p in zip(*(_planes(m) for m in matrices), strict=True)]
    layer.q, layer.k, layer.v = (
        Quantised(format, *parts) for parts in zip(*(parts for _, parts in planes), strict=True)
    )
    return Quantised(format, *(whole for whole, _ in planes))


def _format(matrix: Matrix) -> torch.dtype | str:
    return matrix.dtype if isinstance(matrix, Tensor) else matrix.format


def _planes(matrix: Quantised) -> list[Tensor]:
    return [p for p in (matrix.weights, matrix.scales, matrix.mins) if p is not None]


def _side_by_side(parts: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """Return tensors [n, ...] in one piece, and as parts of it; they move only if they must."""
    sizes = [len(part) for part in parts]
    memory = {part.untyped_storage().data_ptr() for part in parts}
    follow = all(a.data_ptr() + a.nbytes == b.data_ptr() for a, b in itertools.pairwise(parts))
    if len(memory) == 1 and follow and all(part.is_contiguous() for part in parts):
        whole = parts[0].as_strided((sum(sizes), *parts[0].shape[1:]), parts[0].stride())
    else:
        whole = torch.cat(list(parts))
    return whole, whole.split(sizes)


def _matvec(
    weight: Matrix,
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    norm: matvec.Norm | None = None,
) -> Launch:
    kernel = quant_matvec if isinstance(weight, Quantised) else matvec
    return partial(kernel.launch, weight, x, bias, residual, out, norm)


def _swiglu(gate: Matrix, up: Matrix, x: Tensor, out: Tensor, norm: matvec.Norm) -> Launch:
    kernel = quant_matvec if isinstance(gate, Quantised) else matvec
    return partial(kernel.launch_swiglu, gate, up, x, out, norm)
