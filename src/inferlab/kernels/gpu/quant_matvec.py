"""A quantised matrix with up to 16 vectors: the codes are widened in registers, never in memory.

A thread loads one block of 32 weights in 16 bytes (two loads of them at 8 bits) together with its
scale. What limits such kernels on the fastest memories is no longer memory but the instructions
that make a float of a code, so there is one: mask four or eight bits of a word, and read what is
left as a float. It is a subnormal one, code * 2^(p - 149) for a code at bit p. The vector, scaled
by 2^(90 - p) in advance, brings the product back to code * x * 2^-59, exactly. GPUs multiply
subnormal floats at full speed. (That the low bits of a float are a code times a power of two is
known from FasterTransformer's and Marlin's conversions, which set an exponent and subtract it.)
Codes count from zero; what a format takes away from them is taken from the sum of a block at once.

x must stay below 2^36 in magnitude, and the columns be a multiple of 32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from inferlab.errors import InferlabError
from inferlab.kernels.gpu.compiled import Capability, Compile, Target
from inferlab.kernels.gpu.dsl import capability, jit, tl, triton
from inferlab.kernels.gpu.matvec import (
    MOST_ROWS,
    PROGRAMS,
    SHAPES,
    Norm,
    finish,
    power_below,
    rms_scale,
    swiglu,
)
from inferlab.kernels.quantised import BLOCK, FOUR_BITS, ROW_SCALED, Quantised

ROWS_AT_ONCE = 4  # vectors of a program: as many as registers hold
OFFSETS = {"q8_0": 128, "q4_0": 8, "q4_1": 0, "int8": 128}  # a code of 0 stands for minus this


@jit
def words(at, there, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load four words for each pointer's block, [N, 1, G, 4]; return them one by one [N, 1, G]."""
    w = tl.load(at, mask=there, other=0, eviction_policy="evict_first")
    w = w.to(tl.uint32, bitcast=True)
    if BITS == 8:
        w = w ^ 0x80808080  # two's complement into codes from 0 to 255
    even, odd = tl.split(tl.reshape(w, (w.shape[0], 1, w.shape[2], 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@jit
def place(HIGH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the bit of its half word at which byte k of a word begins, or its high four bits."""
    return tl.arange(0, 4)[None, None, None, :] % 2 * 8 + (4 if HIGH else 0)


@jit
def quad(x_at, gains_at, known, here, HIGH: tl.constexpr, NORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load four values of x for each block, [1, B, G, 4], and return them scaled for `times`.

    With NORM they meet their gains. Beside them: the same not scaled, and the squares of x.
    """
    x = tl.load(x_at, mask=known & here, other=0.0, eviction_policy="evict_last").to(tl.float32)
    squares = x * x
    if NORM:
        x *= tl.load(gains_at, mask=here, other=0.0).to(tl.float32)
    power = (127 + 90 - place(HIGH)) << 23
    return x * power.to(tl.float32, bitcast=True), x, squares


@jit
def quads(x, gains, known, here, BITS: tl.constexpr, NORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return x of each block of 32 in eight scaled quads, and sums of x and x², [1, B, G]."""
    a, a_x, a_2 = quad(x, gains, known, here, False, NORM)
    b, b_x, b_2 = quad(x + 4, gains + 4, known, here, False, NORM)
    c, c_x, c_2 = quad(x + 8, gains + 8, known, here, False, NORM)
    d, d_x, d_2 = quad(x + 12, gains + 12, known, here, False, NORM)
    e, e_x, e_2 = quad(x + 16, gains + 16, known, here, BITS == 4, NORM)
    f, f_x, f_2 = quad(x + 20, gains + 20, known, here, BITS == 4, NORM)
    g, g_x, g_2 = quad(x + 24, gains + 24, known, here, BITS == 4, NORM)
    h, h_x, h_2 = quad(x + 28, gains + 28, known, here, BITS == 4, NORM)
    total = tl.sum((a_x + b_x) + (c_x + d_x) + ((e_x + f_x) + (g_x + h_x)), axis=3)
    squares = tl.sum((a_2 + b_2) + (c_2 + d_2) + ((e_2 + f_2) + (g_2 + h_2)), axis=3)
    return (a, b, c, d, e, f, g, h), total, squares


@jit
def times(word, x, HIGH: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Products of the four bytes of a word [N, 1, G], or their high halves, with a quad of x."""
    half = (tl.arange(0, 4)[None, None, None, :] // 2 * 16).to(tl.uint32)
    mask = (((1 << BITS) - 1) << place(HIGH)).to(tl.uint32)
    return ((word[:, :, :, None] >> half) & mask).to(tl.float32, bitcast=True) * x


@jit
def block_sums(  # type: ignore[no-untyped-def]
    weight, scales, mins, row, block, there, weight_row, scale_row, x, x_sum,
    BITS: tl.constexpr, OFFSET: tl.constexpr, MINS: tl.constexpr, ROW_SCALE: tl.constexpr,
):  # fmt: skip
    """Sums of weights times x over blocks, [N, B, G], of rows [N, 1, 1] and blocks [1, 1, G]."""
    at = row[:, :, :, None] * weight_row + block[:, :, :, None] * BITS  # BITS words a block
    at = weight + at + tl.arange(0, 4)[None, None, None, :]
    w = words(at, there[:, :, :, None], BITS)
    later = w
    if BITS == 8:
        later = words(at + 4, there[:, :, :, None], BITS)
    p = times(w[0], x[0], False, BITS)
    for i in tl.static_range(1, 4):
        p += times(w[i], x[i], False, BITS)
    for i in tl.static_range(0, 4):
        p += times(later[i], x[i + 4], BITS == 4, BITS)
    sums = tl.sum(p, axis=3) * 5.764607523034235e17 - OFFSET * x_sum  # times 2^59
    if ROW_SCALE:
        return sums
    at = row * scale_row + block
    scale = tl.load(scales + at, mask=there, other=0.0, eviction_policy="evict_first")
    sums *= scale.to(tl.float32)
    if MINS:
        least = tl.load(mins + at, mask=there, other=0.0, eviction_policy="evict_first")
        sums += least.to(tl.float32) * x_sum
    return sums


@jit
def quant_matvec_kernel(  # type: ignore[no-untyped-def]
    weight, scales, mins, up, up_scales, up_mins, x, gains, bias, residual, out,
    N, K, B, eps, weight_row, scale_row, up_row, up_scale_row, x_row, residual_row, out_row,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCKS: tl.constexpr, GROUPS: tl.constexpr,
    WHOLE: tl.constexpr, BITS: tl.constexpr, OFFSET: tl.constexpr, MINS: tl.constexpr,
    ROW_SCALE: tl.constexpr, NORM: tl.constexpr, SWIGLU: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """GROUPS times BLOCK_N columns of out = x weight^T + bias + residual, or of the SwiGLU.

    Axis 0 of the grid counts ROWS vectors at a time, so that programs that need the same weights
    run side by side. WHOLE says that BLOCKS cover K: then x is read once for all groups.
    """
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[None, :]  # [1, ROWS]
    # The hint lets each thread load its own block's scale, and not eight scales to hand round.
    block = tl.max_contiguous(tl.arange(0, BLOCKS)[None, None, :], [1, 1, 1])  # [1, 1, BLOCKS]
    column = block[:, :, :, None] * 32 + tl.arange(0, 4)[None, None, None, :]
    x_at = x + b[:, :, None, None].to(tl.int64) * x_row + column  # [1, ROWS, BLOCKS, 4]
    known = (b < B)[:, :, None, None]
    squares = tl.zeros((1, ROWS, BLOCKS), tl.float32)
    scale = tl.full((1, ROWS), 1.0, tl.float32)
    if WHOLE:
        value, x_sum, squares = quads(x_at, gains + column, known, column < K, BITS, NORM)
        if NORM and GROUPS > 1:
            scale = rms_scale(squares, K, eps)
    for group in range(GROUPS):
        n = (tl.program_id(1).to(tl.int64) * GROUPS + group) * BLOCK_N
        n = (n + tl.arange(0, BLOCK_N))[:, None]  # [BLOCK_N, 1]
        row = n[:, :, None]  # [BLOCK_N, 1, 1]
        total = tl.zeros((BLOCK_N, ROWS, BLOCKS), tl.float32)
        total_up = tl.zeros((BLOCK_N, ROWS, BLOCKS), tl.float32)
        for first in range(0, BLOCKS if WHOLE else K // 32, BLOCKS):
            here = (block + first) * 32 < K
            there = (row < N) & here
            if not WHOLE:
                gain_at = gains + first * 32 + column
                left = here[:, :, :, None]
                value, x_sum, more = quads(x_at + first * 32, gain_at, known, left, BITS, NORM)
                squares += more
            total += block_sums(
                weight, scales, mins, row, block + first, there, weight_row, scale_row,
                value, x_sum, BITS, OFFSET, MINS, ROW_SCALE,
            )  # fmt: skip
            if SWIGLU:
                total_up += block_sums(
                    up, up_scales, up_mins, row, block + first, there, up_row, up_scale_row,
                    value, x_sum, BITS, OFFSET, MINS, ROW_SCALE,
                )  # fmt: skip
        if NORM and GROUPS == 1:  # only now: the weights were already on their way
            scale = rms_scale(squares, K, eps)
        y = tl.sum(total, axis=2) * scale  # [BLOCK_N, ROWS]
        if ROW_SCALE:
            y *= tl.load(scales + n * scale_row, mask=n < N, other=0.0)
        if SWIGLU:
            u = tl.sum(total_up, axis=2) * scale
            if ROW_SCALE:
                u *= tl.load(up_scales + n * up_scale_row, mask=n < N, other=0.0)
            y = swiglu(y, u)
        finish(y, n, b, N, B, bias, residual, residual_row, out, out_row, BIAS, RESIDUAL)


class Config(NamedTuple):
    """How a quantised matrix-vector product is launched."""

    rows: int  # vectors at a time
    block_n: int  # rows of the matrix at a time
    blocks: int  # blocks of 32 columns at a time, one a thread
    groups: int  # of block_n rows, one after the other, in a program
    num_warps: int


def config(
    batch: int, rows: int, columns: int, format: str, capability: Capability, matrices: int = 1
) -> Config:
    """Return the launch for a matrix [rows, columns] in `format`.

    As for `matvec`: 128 bytes of codes a thread on their way, less with more vectors, whose values
    take registers; and for matrices as tall as a vocabulary many rows a program, for one x.
    """
    lanes = 64 if isinstance(capability, str) else 32
    blocks = max(lanes, min(128, triton.next_power_of_2(max(1, columns // BLOCK))))
    together = min(ROWS_AT_ONCE, triton.next_power_of_2(batch))
    loads = 8 // matrices // (2 if together > 2 else 1)
    height = (128 if format in FOUR_BITS else 64) // matrices  # rows at which x no longer counts
    block_n = power_below(rows // PROGRAMS, 1, max(1, loads if format in FOUR_BITS else loads // 2))
    groups = 1
    if blocks * BLOCK >= columns:
        programs = PROGRAMS if rows >= PROGRAMS * height else 2 * PROGRAMS
        if matrices == 2 and format == ROW_SCALED and rows >= 2 * programs * block_n:
            block_n = 1  # two rows of both matrices would not fit into the registers
        groups = power_below(rows // (programs * block_n), 1, height // block_n)
    return Config(together, block_n, blocks, groups, blocks // lanes)


def launch(
    weight: Quantised, x: Any, bias: Any, residual: Any, out: Any, norm: Norm | None = None
) -> Any:
    """Fill `out` [B, N] with x [B, K] times weight [N, K] transposed, + bias [N] + residual [B, N].

    Up to 16 rows; all dense in the last dimension. `out` may be `residual`. With a norm, it is the
    normed x that counts.
    """
    return _launch(weight, None, x, bias, residual, out, norm)


def launch_swiglu(
    gate: Quantised, up: Quantised, x: Any, out: Any, norm: Norm | None = None
) -> Any:
    """Fill `out` [B, F] with silu(gate x) * (up x): x [B, K], two matrices [F, K] of one format."""
    return _launch(gate, up, x, None, None, out, norm)


def _launch(
    weight: Quantised, up: Any, x: Any, bias: Any, residual: Any, out: Any, norm: Norm | None
) -> Any:
    (batch, columns), rows = x.shape, weight.shape[0]
    if batch > MOST_ROWS:
        raise InferlabError(f"quant_matvec: {batch} rows; one pass serves at most {MOST_ROWS}")
    if columns % BLOCK:
        raise InferlabError(f"quant_matvec: {columns} columns; a multiple of {BLOCK} is needed")
    if up is not None and up.format != weight.format:
        raise InferlabError(f"quant_matvec: gate is {weight.format} and up {up.format}")
    if not out.numel():
        return out
    made = config(batch, rows, columns, weight.format, capability(x.device), 1 if up is None else 2)
    one, two = _planes(weight), _planes(weight if up is None else up)
    before = out if residual is None else residual
    grid = (triton.cdiv(batch, made.rows), triton.cdiv(rows, made.block_n * made.groups))
    quant_matvec_kernel[grid](
        *one, *two, x, x if norm is None else norm.gains, x if bias is None else bias, before, out,
        rows, columns, batch, 0.0 if norm is None else norm.eps,
        one[0].stride(0), one[1].stride(0), two[0].stride(0), two[1].stride(0),
        x.stride(0), before.stride(0), out.stride(0),
        made.rows, made.block_n, made.blocks, made.groups, made.blocks * BLOCK >= columns,
        **_of_format(weight.format),
        NORM=norm is not None, SWIGLU=up is not None,
        BIAS=bias is not None, RESIDUAL=residual is not None,
        num_warps=made.num_warps,
    )  # fmt: skip
    return out


def _planes(weight: Quantised) -> tuple[Any, Any, Any]:
    """Return codes as words, scales, and mins or what stands in for them."""
    mins = weight.scales if weight.mins is None else weight.mins
    return weight.weights.view(torch.int32), weight.scales, mins


def _of_format(format: str) -> dict[str, Any]:
    return {
        "BITS": 4 if format in FOUR_BITS else 8,
        "OFFSET": OFFSETS[format],
        "MINS": format == "q4_1",
        "ROW_SCALE": format == ROW_SCALED,
    }


def traffic(
    batch: int, rows: int, columns: int, format: str, itemsize: int,
    matrices: int = 1, bias: bool = False, residual: bool = False,
) -> int:  # fmt: skip
    """Return the fewest bytes: codes and scales, each vector in (`itemsize`), the result out."""
    block = {"q8_0": 34, "q4_0": 18, "q4_1": 20, ROW_SCALED: BLOCK}[format]
    matrix = rows * columns // BLOCK * block + (4 * rows if format == ROW_SCALED else 0)
    vectors = batch * columns + batch * rows * (2 if residual else 1) + (rows if bias else 0)
    return matrices * matrix + vectors * itemsize


def aot(target: Target) -> list[Compile]:
    """Return what `launch` compiles on such a GPU."""
    cases: dict[tuple[object, ...], Compile] = {}
    dtype = "bf16" if target.has_bf16 else "fp16"
    for format in OFFSETS:
        for batch, matrices in ((1, 1), (1, 2), (4, 1)):
            for rows, columns in SHAPES[2:]:
                made = config(batch, rows, columns, format, target.capability, matrices)
                whole = made.blocks * BLOCK >= columns
                key = (format, matrices, made, whole)
                cases.setdefault(key, _case(format, dtype, batch, matrices, made, whole))
    return list(cases.values())


def _case(format: str, dtype: str, batch: int, matrices: int, made: Config, whole: bool) -> Compile:
    norm = batch == 1  # and not for the others, so that both are compiled
    fused = {"SWIGLU": matrices == 2, "BIAS": matrices == 1, "RESIDUAL": matrices == 1}
    fused["NORM"] = norm
    floats = "*fp32" if format == ROW_SCALED else "*fp16"
    strides = ("weight_row", "up_row", "x_row", "residual_row", "out_row")
    scale_strides = dict.fromkeys(
        ("scale_row", "up_scale_row"), "i32:1" if format == ROW_SCALED else "i32:16"
    )
    notes = (
        f", {made.groups} groups" if made.groups > 1 else "",
        ", whole rows" if whole else "",
        ", norm" if norm else "",
    )
    return Compile(
        quant_matvec_kernel,
        f"{format}, {batch} x {'SwiGLU ' if matrices == 2 else ''}"
        f"[{made.block_n}, {made.blocks * BLOCK}]{''.join(notes)}",
        {"weight": "*i32", "up": "*i32"}
        | dict.fromkeys(("scales", "mins", "up_scales", "up_mins"), floats)
        | dict.fromkeys(("x", "gains", "bias", "residual", "out"), f"*{dtype}")
        | {"N": "i32:16", "K": "i32:16", "B": "i32:1" if batch == 1 else "i32", "eps": "fp32"}
        | dict.fromkeys(strides, "i32:16") | scale_strides,
        {"ROWS": made.rows, "BLOCK_N": made.block_n, "BLOCKS": made.blocks}
        | {"GROUPS": made.groups, "WHOLE": whole}
        | _of_format(format) | fused,
        made.num_warps,
        wide_loads=True,
    )  # fmt: skip
