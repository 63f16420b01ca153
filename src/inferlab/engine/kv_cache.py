"""Where keys and values wait: what every cache does, and the plain one with a block a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from inferlab.errors import InferlabError
from inferlab.kernels import ops
from inferlab.model.config import ModelConfig


@dataclass(frozen=True)
class _Pass:
    """What the layers of one pass share: `tokens` a row, after rows of these `lengths`."""

    tokens: int = 0
    lengths: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    positions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    first: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    masks: dict[int | None, Tensor] = field(default_factory=dict)  # by window


class Rows:
    """Sequences during a pass: their lengths, and how queries attend to what is stored.

    `lengths`, int64 [B] on the host, says how many positions of each row are filled. Position p of
    row b lies in page `table[b, p // block]` of the memory, at slot p % block. With `kernels`
    "triton", queries that torch could only mask go through our own attention.
    """

    def __init__(self, windows: Sequence[int | None], kernels: str, lengths: Tensor) -> None:
        self.windows, self.kernels = windows, kernels
        # On the host, so that checking a bound never waits for a GPU.
        self.lengths = lengths
        self._pass = _Pass()

    @property
    def pages(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the whole memory, [L, P, KV, block, D] each, dense in D."""
        raise NotImplementedError

    @property
    def table(self) -> Tensor:
        """The pages of each row, int32 [B, M], on the host."""
        raise NotImplementedError

    @property
    def capacity(self) -> int:
        """Positions that a table has columns for, at most M * block."""
        raise NotImplementedError

    @property
    def batch(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    def room(self) -> Sequence[int]:
        """Return how many positions each row may have."""
        raise NotImplementedError

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k and v [B, T, KV, D] behind each row."""
        raise NotImplementedError

    def seen(self, layer: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of positions start..end-1, [B, KV, end - start, D]."""
        raise NotImplementedError

    def positions(self, tokens: int) -> Tensor:
        """Return the positions of the next `tokens` tokens of each row, int64 [B, tokens].

        They go to the device once a pass, not once a layer.
        """
        if self._pass.tokens != tokens or not torch.equal(self._pass.lengths, self.lengths):
            positions = (self.lengths[:, None] + torch.arange(tokens)).to(self.pages[0].device)
            first = positions[:, 0].contiguous()
            self._pass = _Pass(tokens, self.lengths.clone(), positions, first)
        return self._pass.positions

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v [B, T, KV, D] behind each row; attend with q [B, T, H, D].

        A query sees its own position and those before it, the nearest `window` of them in a
        windowed layer. Query head h reads KV head h // (H / KV). Raises InferlabError, and
        stores nothing, if a row would pass its room.
        """
        tokens = q.shape[1]
        shortest, longest = int(self.lengths.min()), int(self.lengths.max())
        end = longest + tokens
        for length, room in zip(self.lengths.tolist(), self.room(), strict=True):
            if length + tokens > room:
                raise InferlabError(
                    f"the KV cache holds {room} positions a row; {length + tokens} would not fit"
                )
        self.store(layer, k, v)

        window = self.windows[layer]
        start = 0 if window is None else max(0, shortest + 1 - window)
        fresh = start == longest == 0 and (window is None or tokens <= window)
        one = tokens == 1 and shortest == longest
        if fresh:  # what was stored just now is all there is
            keys, values = k.transpose(1, 2), v.transpose(1, 2)
        elif self.kernels == "triton" and not one:
            seen_k, seen_v = (part.transpose(1, 2) for part in self.seen(layer, 0, end))
            self.positions(tokens)
            return ops.flash_attention(
                q, seen_k, seen_v, window=window, offset=self._pass.first, backend="triton"
            )
        else:
            keys, values = self.seen(layer, start, end)
        mask = None if fresh or one else self._mask(tokens, start, end, window)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            keys,
            values,
            attn_mask=mask,
            is_causal=fresh and tokens > 1,
            enable_gqa=True,
        )
        return out.transpose(1, 2)  # [B, T, H, D]

    def advance(self, tokens: int) -> None:
        """Count `tokens` more positions as filled in every row."""
        self.lengths += tokens

    def _mask(self, tokens: int, start: int, end: int, window: int | None) -> Tensor:
        """Return True where a query may look, [B, 1, tokens, end - start]; once for all layers."""
        query = self.positions(tokens)[:, None, :, None]
        masks = self._pass.masks
        if window not in masks:
            key = torch.arange(start, end, device=query.device)
            mask = key <= query
            masks[window] = mask if window is None else mask & (key > query - window)
        return masks[window]


class ContiguousCache(Rows):
    """Keys and values of `batch` sequences, `capacity` positions reserved for each.

    `k` and `v` are [L, B, KV, capacity, D]. Lower a length to forget what follows it.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        capacity: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        kernels: str = "torch",
    ):
        super().__init__(config.windows, kernels, torch.zeros(batch, dtype=torch.int64))
        shape = (config.layers, batch, config.kv_heads, capacity, config.head_dim)
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self._pages: tuple[Tensor, Tensor] | None = None  # of the whole memory, if this is a part
        self._first = 0  # row of the memory

    @property
    def pages(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all rows of the memory, [L, P, KV, block, D]: one page a row."""
        return self._pages or (self.k, self.v)

    @property
    def table(self) -> Tensor:
        """The pages of each row, int32 [B, 1], on the host."""
        return torch.arange(self._first, self._first + self.batch, dtype=torch.int32)[:, None]

    @property
    def capacity(self) -> int:
        """Positions reserved for each row."""
        return self.k.shape[3]

    def row(self, index: int) -> ContiguousCache:
        """Return a cache of one row that shares this one's memory and length."""
        return self.rows(index, index + 1)

    def rows(self, start: int, stop: int) -> ContiguousCache:
        """Return a cache of some rows that shares their memory and lengths."""
        view = object.__new__(ContiguousCache)
        Rows.__init__(view, self.windows, self.kernels, self.lengths[start:stop])
        view.k, view.v = self.k[:, start:stop], self.v[:, start:stop]
        view._pages, view._first = self.pages, self._first + start
        return view

    def copy_row(self, source: int, target: int) -> None:
        """Overwrite one row with another."""
        length = int(self.lengths[source])
        for kept in (self.k, self.v):
            kept[:, target, :, :length] = kept[:, source, :, :length]
        self.lengths[target] = length

    def grow(self, capacity: int) -> None:
        """Move to memory of `capacity` positions a row. Views made before keep the old memory."""
        filled = int(self.lengths.max())
        for name in ("k", "v"):
            old = getattr(self, name)
            new = old.new_zeros(*old.shape[:3], capacity, old.shape[4])
            new[:, :, :, :filled] = old[:, :, :, :filled]
            setattr(self, name, new)
        self._pages, self._first = None, 0

    def room(self) -> Sequence[int]:
        """Return how many positions each row may have."""
        return [self.capacity] * self.batch

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k and v [B, T, KV, D] behind each row."""
        tokens, first = k.shape[1], int(self.lengths[0])
        keys, values = self.k[layer], self.v[layer]  # [B, KV, capacity, D]
        if bool((self.lengths == first).all()):
            keys[:, :, first : first + tokens] = k.transpose(1, 2)
            values[:, :, first : first + tokens] = v.transpose(1, 2)
        else:
            rows = torch.arange(self.batch, device=k.device)[:, None]
            keys[rows, :, self.positions(tokens)] = k
            values[rows, :, self.positions(tokens)] = v

    def seen(self, layer: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of positions start..end-1, [B, KV, end - start, D]."""
        return self.k[layer, :, :, start:end], self.v[layer, :, :, start:end]
