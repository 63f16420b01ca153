"""A matrix in few bits: GGUF's blocks of 32 weights, or int8 with one scale a row.

A file keeps each block's scale beside its weights. Here scales and weights lie in planes of their
own, the same number of bytes, so that a kernel loads 16 bytes of weights at a time. Blocks and
rounding are those of ggml's `ggml-quants.c`. For a CPU eight rows stand side by side, an idea of
ggml's repacked formats.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from inferlab.errors import InferlabError, unknown

BLOCK = 32
"""Weights of a row that share a scale, in the GGUF formats."""
GROUP = 8
"""Rows that stand side by side where a CPU is to read them (`Quantised.in_groups`)."""

ROW_SCALED = "int8"
FOUR_BITS = ("q4_0", "q4_1")
FORMATS = ("q8_0", *FOUR_BITS, ROW_SCALED)
# Weights widened at a time: on a CPU what its cores' caches hold, on a GPU enough to keep it busy.
_CPU_SLICE = 1 << 20  # a thread
_GPU_SLICE = 1 << 26
_QUAD = 4  # bytes of a row that stand side by side in a group

_held = threading.local()

WIDEN: dict[str, Callable[[Quantised, slice, Tensor], Tensor]] = {}
"""Kernels that widen rows to float32 faster than torch, with the same bits, by kind of device.
They are here once they are compiled.
"""

PRODUCTS: dict[str, Callable[[Sequence[Quantised], Tensor], Tensor | None]] = {}
"""Kernels for float32 x [B, K] times matrices of K columns, the results side by side, likewise.

They widen nothing. One row they take as it is; more are rounded to 16 bits, an error of 2e-5, or
refused (None) where a matrix does not suit them.
"""


@dataclass(frozen=True, eq=False)
class Quantised:
    """A matrix [N, K] stored in `format`.

    Weight k of row n is scales[n, k // 32] * code, plus mins[n, k // 32] for q4_1. A code is an
    int8, or 4 bits from 0 to 15, of which q4_0 takes 8 away. Byte j of a block's 16 holds
    weight j in its low four bits and weight j + 16 in its high ones.
    """

    format: str
    """"q8_0", "q4_0", "q4_1" or "int8"."""
    weights: Tensor
    """Codes: int8 [N, K], or uint8 [N, K / 2] for 4 bits."""
    scales: Tensor
    """float16 [N, K / 32]; of "int8", float32 [N]."""
    mins: Tensor | None = None
    """float16 [N, K / 32], for "q4_1" only."""
    grouped: int | None = field(default=None, kw_only=True)
    """Rows N, where they lie in groups (`in_groups`) and not one after the other."""

    def __post_init__(self) -> None:
        _known(self.format)
        rows, columns = self.shape
        code = torch.uint8 if self.format in FOUR_BITS else torch.int8
        shape, whole = self.weights.shape, rows
        scales: tuple[int, ...] = rows, columns // BLOCK
        if self.grouped is not None:
            whole = _whole_groups(rows)
            shape = torch.Size((whole // GROUP, shape[1], GROUP, _QUAD))
            scales = whole // GROUP, columns // BLOCK, GROUP
        _check("weights", self.weights, code, tuple(shape))
        if self.format == ROW_SCALED:
            _check("scales", self.scales, torch.float32, (whole,))
        else:
            _whole_blocks(columns, self.format)
            _check("scales", self.scales, torch.float16, scales)
        if (self.mins is not None) != (self.format == "q4_1"):
            raise InferlabError("mins belong to format q4_1 and to no other")
        if self.mins is not None:
            _check("mins", self.mins, torch.float16, tuple(self.scales.shape))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows N and columns K of the matrix, in weights."""
        codes = 2 if self.format in FOUR_BITS else 1
        rows, columns = self.weights.shape[:2]
        if self.grouped is not None:
            return self.grouped, columns * _QUAD * codes
        return rows, columns * codes

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, scales and mins included: as many as the blocks have in a file."""
        stored = sum(plane.nbytes for plane in self._planes())
        if self.grouped:
            stored = stored * self.grouped // _whole_groups(self.grouped)
        return stored

    @property
    def device(self) -> torch.device:
        """Where the planes are."""
        return self.weights.device

    def to(self, device: torch.device | str) -> Quantised:
        """Return the same matrix on `device`, its rows one after the other if it isn't a CPU."""
        here = self if torch.device(device).type == "cpu" else self.in_rows()
        planes = (plane.to(device) for plane in here._planes())
        return Quantised(self.format, *planes, grouped=here.grouped)

    def in_groups(self) -> Quantised:
        """Return the same matrix as a CPU's vector registers read it: eight rows side by side.

        Weights become [N / 8, bytes of a row / 4, 8, 4], four bytes of each row at a time; scales
        and mins [N / 8, K / 32, 8]. What is missing in the last group is zero. A matrix whose
        columns fill no blocks stays as it is.
        """
        rows, columns = self.shape
        if self.grouped is not None or columns % BLOCK:
            return self
        missing = _whole_groups(rows) - rows

        def turn(plane: Tensor) -> Tensor:
            whole = F.pad(plane, (0, 0, 0, missing)) if missing else plane
            return whole.unflatten(0, (len(whole) // GROUP, GROUP)).transpose(1, 2).contiguous()

        weights = turn(self.weights.view(torch.int32))[..., None].view(self.weights.dtype)
        if self.format == ROW_SCALED:
            planes = [F.pad(self.scales, (0, missing))]
        else:
            planes = [turn(plane) for plane in (self.scales, self.mins) if plane is not None]
        return Quantised(self.format, weights, *planes, grouped=rows)

    def in_rows(self) -> Quantised:
        """Return the same matrix with one row after the other."""
        return self if self.grouped is None else self._some(slice(None))

    def dequantise(
        self,
        dtype: torch.dtype = torch.float32,
        rows: slice | Tensor | None = None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return the matrix widened, [N, K], or the `rows` of it that a slice or int64 ids name.

        Computed in float32 whatever `dtype` is. `out`, of the right shape and dtype, is filled
        and returned in place of fresh memory.
        """
        if isinstance(rows, Tensor):
            return self._some(rows).dequantise(dtype, out=out)
        first, end, _ = (rows or slice(None)).indices(self.shape[0])
        columns = self.shape[1]
        if out is None:
            out = torch.empty(end - first, columns, dtype=dtype, device=self.device)
        kernel = WIDEN.get(self.device.type) if dtype == torch.float32 else None
        if kernel and columns % BLOCK == 0 and out.stride(1) == 1:
            return kernel(self, slice(first, end), out)
        for part in slices(out.shape, self.device):
            self._widen(slice(first + part.start, first + part.stop), out[part])
        return out

    def _planes(self) -> Iterator[Tensor]:
        yield self.weights
        yield self.scales
        if self.mins is not None:
            yield self.mins

    def _some(self, rows: slice | Tensor) -> Quantised:
        """Return some rows, one after the other."""
        if self.grouped is None:
            return Quantised(self.format, *(plane[rows] for plane in self._planes()))
        if isinstance(rows, slice):
            rows = torch.arange(self.grouped, device=self.device)[rows]
        group, row = rows // GROUP, rows % GROUP
        planes = [p[rows] if p.dim() == 1 else p[group, :, row] for p in self._planes()]
        return Quantised(self.format, planes[0].flatten(1), *planes[1:])

    def _widen(self, rows: slice, out: Tensor) -> None:
        """Write float values of some rows to `out` [n, K]."""
        some = self._some(rows)
        codes, scales = some.weights, some.scales.float()
        wide = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
        if self.format == ROW_SCALED:
            torch.mul(codes, scales[:, None], out=wide)
        else:
            blocks = wide.unflatten(1, (scales.shape[1], BLOCK))  # [n, K / 32, 32]
            size = BLOCK // 2 if self.format in FOUR_BITS else BLOCK
            packed = codes.unflatten(1, (scales.shape[1], size))
            halves = [packed]
            if self.format in FOUR_BITS:
                halves = [packed & 15, packed >> 4]
            if self.format == "q4_0":
                halves = [(half - 8).view(torch.int8) for half in halves]
            for half, part in zip(halves, blocks.split(size, -1), strict=True):
                torch.mul(half, scales[..., None], out=part)
            if some.mins is not None:
                blocks += some.mins.float()[..., None]
        if wide is not out:
            out.copy_(wide)


def from_blocks(raw: Tensor, format: str) -> Quantised:
    """Return GGUF's blocks, uint8 [N, bytes per row], as planes. Every bit is kept."""
    head, size = {"q8_0": (2, 34), "q4_0": (2, 18), "q4_1": (4, 20)}.get(format, (0, 0))
    if not size:
        raise unknown("format", format, ("q8_0", *FOUR_BITS))
    if raw.dtype != torch.uint8 or raw.dim() != 2 or raw.shape[1] % size:
        raise InferlabError(
            f"raw is {raw.dtype} {list(raw.shape)}: {format} needs uint8 [N, a multiple of {size}]"
        )
    blocks = raw.unflatten(1, (raw.shape[1] // size, size))  # [N, K / 32, size]
    weights = blocks[..., head:].flatten(1).contiguous()
    floats = [
        blocks[..., at : at + 2].contiguous().view(torch.float16).squeeze(-1)
        for at in range(0, head, 2)
    ]
    return Quantised(format, weights.view(torch.int8) if format == "q8_0" else weights, *floats)


def quantise(weight: Tensor, format: str) -> Quantised:
    """Return the float matrix `weight` [N, K] in `format`, rounded as ggml rounds.

    "int8" scales each row by its largest magnitude over 127. Raises InferlabError if K is not a
    multiple of 32 (any K does for int8), or a weight is not finite or beyond what the scale holds.
    """
    _known(format)
    if weight.dim() != 2 or not weight.shape[1] or not weight.is_floating_point():
        raise InferlabError(
            f"weight is {weight.dtype} {list(weight.shape)}: quantise takes a float matrix [N, K]"
        )
    if format != ROW_SCALED:
        _whole_blocks(weight.shape[1], format)
    parts = [
        _quantise(weight[part].float(), format) for part in slices(weight.shape, weight.device)
    ]
    planes = [torch.cat(plane) for plane in zip(*parts, strict=True)]
    if not all(bool(plane.isfinite().all()) for plane in planes[1:]):
        raise InferlabError(f"weight holds values that are not finite, or too large for {format}")
    return Quantised(format, *planes)


def linear(
    x: Tensor, weight: Tensor | Quantised, bias: Tensor | None = None, *, rounded: bool = False
) -> Tensor:
    """Return x [..., K] times `weight` [N, K] transposed, plus bias [N]: [..., N].

    A quantised matrix is widened some rows at a time into one small buffer, never as a whole; or
    not at all where there is a kernel for that, and x may be `rounded` to 16 bits or is one vector.
    """
    if isinstance(weight, Tensor):
        return F.linear(x, weight, bias)
    rows, columns = weight.shape
    flat = x.reshape(-1, columns)
    y = _product([weight], flat, rounded)
    if y is None:
        y = x.new_empty(len(flat), rows)
        for part in slices(weight.shape, x.device):
            wide = _buffer(part.stop - part.start, columns, x)
            weight.dequantise(x.dtype, part, out=wide)
            torch.mm(flat, wide.T, out=y[:, part])
    if bias is not None:
        y += bias
    return y.view(*x.shape[:-1], rows)


def linears(
    x: Tensor, *pairs: tuple[Tensor | Quantised, Tensor | None], rounded: bool = False
) -> list[Tensor]:
    """Return `linear` of x with each pair of weight and bias.

    Quantised matrices share one product, unless they must be widened and are not small.
    """
    weights = [weight for weight, _ in pairs if isinstance(weight, Quantised)]
    rows = [weight.shape[0] for weight in weights]
    y = None
    if len(weights) == len(pairs):
        flat = x.reshape(-1, x.shape[-1])
        y = _product(weights, flat, rounded)
        whole = sum(rows), x.shape[-1]
        if y is None and next(slices(whole, x.device)).stop == whole[0]:
            wide = _buffer(*whole, x)
            for weight, part in zip(weights, wide.split(rows), strict=True):
                weight.dequantise(x.dtype, out=part)
            y = flat @ wide.T
    if y is None:
        return [linear(x, weight, bias, rounded=rounded) for weight, bias in pairs]
    parts = y.view(*x.shape[:-1], sum(rows)).split(rows, dim=-1)
    return [y if bias is None else y + bias for y, (_, bias) in zip(parts, pairs, strict=True)]


def _product(weights: Sequence[Quantised], x: Tensor, rounded: bool) -> Tensor | None:
    """Return x [B, K] times all weights, [B, sum of N], if a kernel does it without widening."""
    kernel = PRODUCTS.get(x.device.type)
    if kernel is None or x.dtype != torch.float32 or x.shape[1] % BLOCK:
        return None
    if len(x) != 1 and not rounded:
        return None
    return kernel(weights, x if x.stride(1) == 1 else x.contiguous())


def _buffer(rows: int, columns: int, like: Tensor) -> Tensor:
    """Return memory [rows, columns] for such numbers, on a CPU the same again and again.

    Fresh memory costs as much time as filling it: the operating system clears it first.
    """
    if like.device.type != "cpu":
        return like.new_empty(rows, columns)
    held: Tensor | None = getattr(_held, "buffer", None)
    size = rows * columns * like.element_size()
    if held is None or len(held) < size:
        held = _held.buffer = torch.empty(size, dtype=torch.uint8)
    return held[:size].view(like.dtype).view(rows, columns)


def slices(shape: Sequence[int], device: torch.device) -> Iterator[slice]:
    """Yield the rows of a matrix in pieces to be widened one after the other; at least one."""
    rows, columns = shape
    cores = torch.get_num_threads()
    size = _CPU_SLICE * max(2, cores) if device.type == "cpu" else _GPU_SLICE
    step = max(1, size // columns)
    for start in range(0, max(1, rows), step):
        yield slice(start, min(start + step, rows))


def _quantise(weight: Tensor, format: str) -> list[Tensor]:
    """Return the planes of some rows, float32 [n, K]."""
    block = weight.shape[1] if format == ROW_SCALED else BLOCK
    blocks = weight.unflatten(1, (weight.shape[1] // block, block))  # [n, K / block, block]
    if format not in FOUR_BITS:
        scale = _over(_largest(blocks).abs(), 127)
        codes = _rounded(blocks * _inverse(scale)).to(torch.int8).flatten(1)
        return [codes, scale.flatten() if format == ROW_SCALED else scale[..., 0].half()]
    if format == "q4_0":
        scale = _over(_largest(blocks), -8)
        steps, floats = blocks * _inverse(scale) + 8.5, [scale]
    else:
        least = blocks.amin(-1, keepdim=True)
        scale = _over(blocks.amax(-1, keepdim=True) - least, 15)
        steps, floats = (blocks - least) * _inverse(scale) + 0.5, [scale, least]
    codes = steps.clamp(0, 15).to(torch.uint8)
    half = BLOCK // 2
    packed = (codes[..., :half] | codes[..., half:] << 4).flatten(1)
    return [packed, *(f[..., 0].half() for f in floats)]


def _largest(blocks: Tensor) -> Tensor:
    """Return the value of the largest magnitude of each block, the first of equals: [n, b, 1]."""
    return blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))


def _over(values: Tensor, divisor: float) -> Tensor:
    # By a tensor: CUDA multiplies by a number's reciprocal, which rounds otherwise.
    return values / values.new_tensor(divisor)


def _inverse(scale: Tensor) -> Tensor:
    inverse = 1 / scale
    return torch.where(inverse.isfinite(), inverse, 0)


def _rounded(values: Tensor) -> Tensor:
    """Round to the nearest whole number, halves away from zero as in C."""
    whole = values.abs().floor()
    return (whole + (2 * (values.abs() - whole)).floor()).copysign(values)


def _whole_groups(rows: int) -> int:
    """Return `rows` rounded up to whole groups."""
    return -(-rows // GROUP) * GROUP


def _known(format: str) -> None:
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)


def _whole_blocks(columns: int, format: str) -> None:
    if columns % BLOCK:
        raise InferlabError(
            f"{columns} columns cannot be {format}: they must be a multiple of {BLOCK}"
        )


def _check(name: str, plane: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if plane.dtype != dtype or tuple(plane.shape) != shape:
        raise InferlabError(
            f"{name} is {plane.dtype} {list(plane.shape)}; it must be {dtype} {list(shape)}"
        )
