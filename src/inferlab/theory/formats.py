"""How many bytes a number takes, by the format it is stored in.

A block format stores a group of weights with its scale (and sometimes its minimum), so that a
weight takes a fraction of a byte: Q4_0 packs 32 weights of 4 bits beside one 16-bit scale,
18 bytes in all. Sizes of the GGUF formats follow ggml's `ggml-common.h`, those of the
microscaling formats the OCP MX specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from inferlab.errors import unknown


@dataclass(frozen=True)
class Format:
    """A storage format: `block_bytes` bytes hold `block` elements.

    `arithmetic` names the formats in which a chip can multiply such weights, best first: a
    format without matmul units of its own is widened to 16 bits on the way to them.
    """

    name: str
    block: int
    block_bytes: int
    arithmetic: tuple[str, ...]

    @property
    def bytes_per_element(self) -> float:
        """Bytes an element, its share of the scales included."""
        return self.block_bytes / self.block

    @property
    def is_quantized(self) -> bool:
        """Whether an element takes less than 16 bits."""
        return self.bytes_per_element < 2


_WIDENED = ("bf16", "fp16", "fp32")

_FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        name: Format(name, block, size, arithmetic)
        for name, block, size, arithmetic in (
            ("fp64", 1, 8, ("fp64",)),
            ("fp32", 1, 4, ("fp32",)),
            ("bf16", 1, 2, ("bf16",)),
            ("fp16", 1, 2, ("fp16",)),
            ("fp8", 1, 1, ("fp8",)),
            ("int8", 1, 1, ("int8",)),
            ("fp4", 2, 1, ("fp4",)),
            # Weights only, widened before the multiplication.
            ("int4", 2, 1, _WIDENED),
            ("int4-g32", 32, 20, _WIDENED),
            ("int4-g64", 64, 36, _WIDENED),
            ("int4-g128", 128, 68, _WIDENED),
            ("q8_0", 32, 34, _WIDENED),
            ("q5_1", 32, 24, _WIDENED),
            ("q5_0", 32, 22, _WIDENED),
            ("q4_1", 32, 20, _WIDENED),
            ("q4_0", 32, 18, _WIDENED),
            ("q6_k", 256, 210, _WIDENED),
            ("q5_k", 256, 176, _WIDENED),
            ("q4_k", 256, 144, _WIDENED),
            ("q3_k", 256, 110, _WIDENED),
            ("q2_k", 256, 84, _WIDENED),
            ("mxfp4", 32, 17, _WIDENED),
            ("nvfp4", 16, 9, ("fp4",)),
        )
    }
)

_ALIASES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "f32": "fp32",
    "f16": "fp16",
    "half": "fp16",
    "float8": "fp8",
}


def get(name: str) -> Format:
    """Return the format called `name`, in any case; raise InferlabError for an unknown one."""
    key = name.lower()
    key = _ALIASES.get(key, key)
    if key not in _FORMATS:
        raise unknown("dtype", name, _FORMATS)
    return _FORMATS[key]


def names() -> tuple[str, ...]:
    """Return the name of every format."""
    return tuple(_FORMATS)


def bytes_per_element(name: str) -> float:
    """Return the bytes that one element takes in format `name`, scales included."""
    return get(name).bytes_per_element


def activation_format(name: str) -> str:
    """Return the format in which activations and KV travel when weights are stored as `name`.

    Weights under 16 bits are an economy of storage: what flows between layers stays at 16.
    """
    fmt = get(name)
    return "bf16" if fmt.is_quantized else fmt.name
