"""Read GGUF: typed metadata, a directory of tensors, and their bytes, left where they are.

The file is mapped, not loaded. Only the metadata is decoded when it is opened; a tensor's
bytes are touched when somebody asks for them, either as stored (`blocks`) or widened to
float32 (`tensor`). Layout: the GGUF specification of the ggml project, versions 2 and 3.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inferlab.errors import InferlabError
from inferlab.kernels.quantised import from_blocks

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
Array = NDArray[Any]


@dataclass(frozen=True)
class Format:
    """How one tensor type is stored: `size` bytes hold `width` weights of a row."""

    name: str
    width: int
    size: int
    widen: Callable[[Array], Array]  # uint8 [N, size] -> float32 [N, width], in fresh memory


def _floats(block: Array, dtype: type) -> Array:
    return np.ascontiguousarray(block).view(dtype).astype(np.float32)


def _bf16(block: Array) -> Array:
    # A bfloat16 is the upper half of a float32.
    upper = np.ascontiguousarray(block).view(np.uint16).astype(np.uint32)
    return (upper << 16).view(np.float32)


def _quantised(name: str) -> Callable[[Array], Array]:
    def widen(block: Array) -> Array:
        return from_blocks(torch.from_numpy(block.copy()), name).dequantise().numpy()

    return widen


FORMATS = {
    0: Format("F32", 1, 4, lambda b: _floats(b, np.float32)),
    1: Format("F16", 1, 2, lambda b: _floats(b, np.float16)),
    2: Format("Q4_0", 32, 18, _quantised("q4_0")),
    3: Format("Q4_1", 32, 20, _quantised("q4_1")),
    8: Format("Q8_0", 32, 34, _quantised("q8_0")),
    30: Format("BF16", 1, 2, _bf16),
}

# Types that files in circulation use and this reader does not: an error can name them.
OTHERS = {6: "Q5_0", 7: "Q5_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K"}


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
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
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

    def blocks(self, name: str) -> Array:
        """Return a tensor as stored: uint8 [rows, bytes per row], a view of the mapped file."""
        entry = self.entry(name)
        data = np.frombuffer(self._map, np.uint8, entry.nbytes, entry.offset)
        return data.reshape(math.prod(entry.shape[:-1]), -1)

    def tensor(self, name: str) -> Array:
        """Return a tensor widened to float32, in its own shape and in memory of its own."""
        entry = self.entry(name)
        return widen(self.blocks(name), entry.format).reshape(entry.shape)

    def forget(self, name: str) -> None:
        """Give back the memory of a tensor that has been read; its bytes are still in the file."""
        entry = self.entry(name)
        if hasattr(mmap, "MADV_DONTNEED"):
            start = entry.offset // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, entry.offset + entry.nbytes - start)

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
            found = OTHERS.get(kind, f"number {kind}")
            raise reader.error(f"tensor {name!r} has type {found}; supported types: {known}")
        form = FORMATS[kind]
        if 0 in shape or shape[-1] % form.width:
            raise reader.error(f"tensor {name!r} of shape {shape} does not fit {form.name} blocks")
        return name, shape, form, offset


def widen(blocks: Array, form: Format) -> Array:
    """Widen uint8 [rows, bytes per row] to float32 [rows, weights per row]."""
    return form.widen(blocks.reshape(-1, form.size)).reshape(blocks.shape[0], -1)


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
