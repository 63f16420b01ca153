"""Read GGUF: typed metadata, a directory of tensors, and their bytes, left where they are.

The file is mapped, not loaded. Only the metadata is decoded when it is opened; a tensor's
bytes are touched when somebody asks for them, either as stored (`blocks`) or widened to
float32 (`tensor`). Layout: the GGUF specification of the ggml project, versions 2 and 3.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inferlab.errors import InferlabError

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
LOW_NIBBLES = 0x0F0F0F0F0F0F0F0F


@dataclass(frozen=True)
class Format:
    """How one tensor type is stored: `size` bytes hold `width` weights of a row."""

    name: str
    width: int
    size: int
    widen: Callable[[Tensor], Tensor]  # uint8 [N, size] -> float32 [N, width]


def _q8_0(block: Tensor) -> Tensor:
    scale = block[:, :2].view(torch.float16).float()
    return block[:, 2:].view(torch.int8) * scale


def _q4_0(block: Tensor) -> Tensor:
    scale = block[:, :2].view(torch.float16).float()
    return (_nibbles(block[:, 2:]) - 8) * scale


def _q4_1(block: Tensor) -> Tensor:
    scale, minimum = block[:, :4].view(torch.float16).float().split(1, dim=1)
    return (_nibbles(block[:, 4:]) * scale).add_(minimum)


def _nibbles(packed: Tensor) -> Tensor:
    """Unpack [N, 16] bytes to [N, 32] codes; byte i holds weight i (low) and i + 16 (high)."""
    eight = packed.contiguous().view(torch.int64)  # eight bytes at a time: rows are short
    return torch.cat([eight & LOW_NIBBLES, eight >> 4 & LOW_NIBBLES], dim=1).view(torch.int8)


FORMATS = {
    0: Format("F32", 1, 4, lambda b: b.view(torch.float32)),
    1: Format("F16", 1, 2, lambda b: b.view(torch.float16).float()),
    2: Format("Q4_0", 32, 18, _q4_0),
    3: Format("Q4_1", 32, 20, _q4_1),
    8: Format("Q8_0", 32, 34, _q8_0),
    30: Format("BF16", 1, 2, lambda b: b.view(torch.bfloat16).float()),
}


@dataclass(frozen=True)
class Entry:
    """One tensor of the directory: `shape` in torch's order (rows first), `offset` in the file."""

    shape: tuple[int, ...]
    format: Format
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) // self.format.width * self.format.size


class GGUF:
    """An open GGUF file: `metadata` by key, `entries` by tensor name."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with path.open("rb") as file:
                # A private mapping: torch asks for writable memory, the file must not change.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise InferlabError(f"{path}: cannot be read as GGUF ({error})") from None
        self.metadata: dict[str, Any] = {}
        self.entries: dict[str, Entry] = {}
        self._parse()

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def entry(self, name: str) -> Entry:
        """Return the directory entry of a tensor; a missing one is an error that names it."""
        if name not in self.entries:
            raise InferlabError(f"{self.path}: tensor {name!r} is missing")
        return self.entries[name]

    def blocks(self, name: str) -> Tensor:
        """Return a tensor as stored: uint8 [rows, bytes per row], a view of the mapped file."""
        entry = self.entry(name)
        rows = math.prod(entry.shape[:-1])
        data = torch.frombuffer(
            self._map, dtype=torch.uint8, count=entry.nbytes, offset=entry.offset
        )
        return data.view(rows, -1)

    def tensor(self, name: str) -> Tensor:
        """Return a tensor widened to float32, in its own shape."""
        entry = self.entry(name)
        return widen(self.blocks(name), entry.format).view(entry.shape)

    # -- parsing ---------------------------------------------------------------------------

    def _parse(self) -> None:
        reader = _Reader(self._map, self.path)
        if reader.take(4) != b"GGUF":
            raise reader.error("does not begin with the magic bytes GGUF")
        version = reader.scalar("I")
        if version not in (2, 3):
            raise reader.error(f"GGUF version {version} is not supported; 2 and 3 are")
        tensor_count, key_count = reader.scalar("Q"), reader.scalar("Q")
        for _ in range(key_count):
            key = reader.string()
            self.metadata[key] = reader.value(reader.scalar("I"), key)
        directory = [self._directory_line(reader) for _ in range(tensor_count)]

        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise reader.error(f"general.alignment {alignment!r} is not a power of two from 8 up")
        start = -(-reader.position // alignment) * alignment
        for name, shape, form, offset in directory:
            if name in self.entries:
                raise reader.error(f"tensor {name!r} is listed twice")
            entry = Entry(shape, form, start + offset)
            if offset % alignment:
                raise reader.error(f"tensor {name!r} begins at {offset}, not aligned")
            if entry.offset + entry.nbytes > len(self._map):
                raise reader.error(f"tensor {name!r} reaches past the end: the file is truncated")
            self.entries[name] = entry

    @staticmethod
    def _directory_line(reader: _Reader) -> tuple[str, tuple[int, ...], Format, int]:
        name = reader.string()
        dimensions = reader.scalar("I")
        if not 1 <= dimensions <= 4:
            raise reader.error(f"tensor {name!r} has {dimensions} dimensions; 1 to 4 are allowed")
        # ggml counts the fastest dimension first.
        shape = tuple(reader.scalar("Q") for _ in range(dimensions))[::-1]
        kind, offset = reader.scalar("I"), reader.scalar("Q")
        if kind not in FORMATS:
            known = ", ".join(sorted(f.name for f in FORMATS.values()))
            raise reader.error(f"tensor {name!r} has type {kind}; supported types: {known}")
        form = FORMATS[kind]
        if 0 in shape or shape[-1] % form.width:
            raise reader.error(f"tensor {name!r} of shape {shape} does not fit {form.name} blocks")
        return name, shape, form, offset


def widen(blocks: Tensor, form: Format) -> Tensor:
    """Widen uint8 [rows, bytes per row] to float32 [rows, weights per row]."""
    return form.widen(blocks.reshape(-1, form.size)).view(blocks.shape[0], -1)


class _Reader:
    """A cursor over the header that never steps outside the file."""

    def __init__(self, data: mmap.mmap, path: Path):
        self.data, self.path, self.position = data, path, 0

    def error(self, text: str) -> InferlabError:
        return InferlabError(f"{self.path}: {text}")

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise self.error(f"ends at byte {len(self.data)}, inside its header")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        raw = self.take(int.from_bytes(self.take(8), "little"))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(
                f"holds a string that is not UTF-8, before byte {self.position}"
            ) from None

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.string()
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        if kind != ARRAY:
            raise self.error(f"{key!r} has the unknown value type {kind}")
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == STRING:
            return [self.string() for _ in range(count)]
        if kind not in SCALARS:
            raise self.error(f"{key!r} is an array of the unsupported type {kind}")
        code = SCALARS[kind]
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(code))))
