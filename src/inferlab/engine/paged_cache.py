"""A KV cache in blocks: sequences grow a block at a time, and nothing is reserved or moved."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inferlab.engine.kv_cache import Rows
from inferlab.model.config import ModelConfig


class PagedCache:
    """The memory: `blocks` blocks of `size` positions, k and v each [L, P, KV, size, D].

    Who holds which block is `blocks.BlockPool`'s business.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: int,
        size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        kernels: str = "torch",
    ) -> None:
        shape = (config.layers, blocks, config.kv_heads, size, config.head_dim)
        self.windows, self.kernels = config.windows, kernels
        # Every table has room for the longest sequence, so that a recorded step fits them all.
        self.columns = -(-config.max_context // size)
        # Written, so that memory which is not there is missed now and not amid an answer.
        self.k, self.v = (torch.empty(shape, device=device, dtype=dtype).zero_() for _ in "kv")

    def rows(self, tables: Sequence[Sequence[int]], lengths: Sequence[int]) -> PagedRows:
        """Return a cache for one pass over sequences with these block tables and lengths."""
        return PagedRows(self, tables, lengths)


class PagedRows(Rows):
    """Some sequences of a `PagedCache` during one pass.

    Each row's table must have blocks for what the pass adds; blocks are pages.
    """

    def __init__(
        self, memory: PagedCache, tables: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> None:
        super().__init__(memory.windows, memory.kernels, torch.tensor(lengths, dtype=torch.int64))
        self.memory = memory
        self.size = memory.k.shape[3]
        self._table = torch.zeros(len(tables), memory.columns, dtype=torch.int32)
        for row, table in zip(self._table.numpy(), tables, strict=True):
            row[: len(table)] = table
        self._room = [len(table) * self.size for table in tables]
        used = max(len(table) for table in tables)
        self._here = self._table[:, :used].long().to(memory.k.device)

    @property
    def pages(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the whole memory, [L, P, KV, size, D]."""
        return self.memory.k, self.memory.v

    @property
    def table(self) -> Tensor:
        """The blocks of each row, int32 [B, M], on the host; 0 where there are none yet."""
        return self._table

    @property
    def capacity(self) -> int:
        """Positions that a row's table could name."""
        return self.memory.columns * self.size

    def room(self) -> Sequence[int]:
        """Return the positions that each row has blocks for."""
        return self._room

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k and v [B, T, KV, D] behind each row."""
        where = self.positions(k.shape[1])  # [B, T]
        blocks = self._here.gather(1, where // self.size)
        self.memory.k[layer][blocks, :, where % self.size] = k
        self.memory.v[layer][blocks, :, where % self.size] = v

    def seen(self, layer: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of positions start..end-1 of every row, [B, KV, end - start, D].

        Gathered: torch's attention wants them side by side.
        """
        first, last = start // self.size, -(-end // self.size)
        blocks = self._here[:, first:last]
        offset = first * self.size
        parts = []
        for pages in (self.memory.k, self.memory.v):
            found = pages[layer][blocks].transpose(1, 2).flatten(2, 3)  # [B, KV, positions, D]
            parts.append(found[:, :, start - offset : end - offset])
        return parts[0], parts[1]
