"""A matrix with up to 16 vectors: what decoding consists of, at the speed of the matrix's bytes.

Every weight is read once, for all rows of the batch, 16 bytes a thread at a time; each thread has
up to eight such loads on their way before it needs the first. That a plain sum of products does for
small batches, with no shared memory until the very end, is the observation of gpt-fast (PyTorch
team 2023); that a few rows of the matrix a program suffice is calm's (Kapoulkine 2024).

Two kernels. `matvec_kernel` multiplies by itself: for up to four rows, for float32, and where
there are no tensor cores. `matvec_dot_kernel` leaves that to the tensor cores: 16 products a weight
would otherwise take longer than its two bytes do. Neither splits the shared dimension over
programs: a sum has one order, so that results repeat. A row's result does not depend on the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from inferlab.errors import InferlabError
from inferlab.kernels.gpu import rms_norm
from inferlab.kernels.gpu.compiled import Capability, Compile, Target
from inferlab.kernels.gpu.dsl import capability, check_dot, jit, tl, triton

MOST_ROWS = 16  # vectors that one pass serves
ROWS_BY_HAND = 4  # with more, tensor cores multiply
PROGRAMS = 256  # enough for each multiprocessor of a large GPU to have two


@jit
def finish(  # type: ignore[no-untyped-def]
    y, n, b, N, B, bias, residual, residual_row, out, out_row,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Add what is to be added to sums y, and write them; n and b, their places, broadcast to y."""
    inside = (n < N) & (b < B)
    if BIAS:
        y += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    if RESIDUAL:
        y += tl.load(residual + b * residual_row + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + b * out_row + n, y, mask=inside)


@jit
def swiglu(gate, up):  # type: ignore[no-untyped-def]
    """silu(gate) * up (Shazeer 2020), in float32."""
    return gate / (1.0 + tl.exp(-gate)) * up


@jit
def products(w, x, VECTOR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Products of w [N, 1, K] and x [1, B, K], VECTOR neighbours added up: [N, B, K / VECTOR].

    Neighbours were loaded by one thread, so that this sum needs no other.
    """
    p = w.to(tl.float32) * x
    return tl.sum(tl.reshape(p, (p.shape[0], p.shape[1], p.shape[2] // VECTOR, VECTOR)), axis=3)


@jit
def rms_scale(squares, K, eps):  # type: ignore[no-untyped-def]
    """One over the root mean square of rows of K values, from squares [1, B, ..]: [1, B]."""
    return 1.0 / tl.sqrt(tl.sum(squares, axis=2) / K + eps)


@jit
def matvec_kernel(  # type: ignore[no-untyped-def]
    weight, up, x, gains, bias, residual, out,
    N, K, B, eps, weight_row, up_row, x_row, residual_row, out_row,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUPS: tl.constexpr,
    WHOLE: tl.constexpr, VECTOR: tl.constexpr,
    NORM: tl.constexpr, SWIGLU: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """GROUPS times BLOCK_N columns of out = x weight^T + bias + residual, or of the SwiGLU.

    WHOLE says that BLOCK_K covers K: then x is read once for all groups. With NORM every program
    norms x for itself: x meets the gains at once, and the sums are scaled at the end.
    """
    k = tl.arange(0, BLOCK_K)[None, None, :]  # [1, 1, BLOCK_K]
    b = tl.arange(0, ROWS)[None, :]  # [1, ROWS]
    x_at = x + b[:, :, None].to(tl.int64) * x_row + k  # [1, ROWS, BLOCK_K]
    there = b[:, :, None] < B
    value = tl.zeros((1, ROWS, BLOCK_K), tl.float32)
    squares = tl.zeros((1, ROWS, BLOCK_K), tl.float32)
    scale = tl.full((1, ROWS), 1.0, tl.float32)
    if WHOLE:
        value = tl.load(x_at, mask=there & (k < K), other=0.0, eviction_policy="evict_last")
        value = value.to(tl.float32)
        if NORM:
            squares = value * value
            value *= tl.load(gains + k, mask=k < K, other=0.0).to(tl.float32)
            if GROUPS > 1:
                scale = rms_scale(squares, K, eps)
    for group in range(GROUPS):
        n = (tl.program_id(0).to(tl.int64) * GROUPS + group) * BLOCK_N
        n = (n + tl.arange(0, BLOCK_N))[:, None]  # [BLOCK_N, 1]
        rows = n[:, :, None]  # [BLOCK_N, 1, 1]
        total = tl.zeros((BLOCK_N, ROWS, BLOCK_K // VECTOR), tl.float32)
        total_up = tl.zeros((BLOCK_N, ROWS, BLOCK_K // VECTOR), tl.float32)
        for first in range(0, BLOCK_K if WHOLE else K, BLOCK_K):
            left = k < K - first
            inside = (rows < N) & left
            at = rows * weight_row + first + k  # [BLOCK_N, 1, BLOCK_K]
            w = tl.load(weight + at, mask=inside, other=0.0, eviction_policy="evict_first")
            if SWIGLU:
                at = rows * up_row + first + k
                u = tl.load(up + at, mask=inside, other=0.0, eviction_policy="evict_first")
            if not WHOLE:
                value = tl.load(
                    x_at + first, mask=there & left, other=0.0, eviction_policy="evict_last"
                ).to(tl.float32)
                if NORM:
                    squares += value * value
                    value *= tl.load(gains + first + k, mask=left, other=0.0).to(tl.float32)
            total += products(w, value, VECTOR)
            if SWIGLU:
                total_up += products(u, value, VECTOR)
        if NORM and GROUPS == 1:  # only now: the weights were already on their way
            scale = rms_scale(squares, K, eps)
        y = tl.sum(total, axis=2) * scale  # [BLOCK_N, ROWS]
        if SWIGLU:
            y = swiglu(y, tl.sum(total_up, axis=2) * scale)
        finish(y, n, b, N, B, bias, residual, residual_row, out, out_row, BIAS, RESIDUAL)


@jit
def matvec_dot_kernel(  # type: ignore[no-untyped-def]
    weight, up, x, bias, residual, out,
    N, K, B, weight_row, up_row, x_row, residual_row, out_row,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SWIGLU: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """BLOCK_N columns of the same, with tiles on their way through shared memory."""
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [BLOCK_N, 1]
    b = tl.arange(0, ROWS)[None, :]  # [1, ROWS]
    k = tl.arange(0, BLOCK_K)
    weight_at = weight + n * weight_row + k[None, :]  # [BLOCK_N, BLOCK_K]
    up_at = up + n * up_row + k[None, :]
    x_at = x + b.to(tl.int64) * x_row + k[:, None]  # [BLOCK_K, ROWS]
    total = tl.zeros((BLOCK_N, ROWS), tl.float32)
    total_up = tl.zeros((BLOCK_N, ROWS), tl.float32)
    for first in range(0, K, BLOCK_K):
        inside = (n < N) & (k < K - first)[None, :]
        w = tl.load(weight_at + first, mask=inside, other=0.0, eviction_policy="evict_first")
        value = tl.load(x_at + first, mask=(b < B) & (k < K - first)[:, None], other=0.0)
        total = tl.dot(w, value, total)
        if SWIGLU:
            u = tl.load(up_at + first, mask=inside, other=0.0, eviction_policy="evict_first")
            total_up = tl.dot(u, value, total_up)
    if SWIGLU:
        total = swiglu(total, total_up)
    finish(total, n, b, N, B, bias, residual, residual_row, out, out_row, BIAS, RESIDUAL)


class Config(NamedTuple):
    """How a matrix-vector product is launched."""

    dot: bool  # by tensor cores
    block_n: int  # rows of the matrix at a time
    block_k: int  # columns of it at a time
    groups: int  # of block_n rows, one after the other, in a program
    num_warps: int
    num_stages: int


def config(
    batch: int, rows: int, columns: int, itemsize: int, capability: Capability, matrices: int = 1
) -> Config:
    """Return the launch for a matrix [rows, columns] of numbers of `itemsize` bytes.

    What counts is bytes on their way. A thread asks for 128 at a time (less with more vectors,
    whose sums take registers), and PROGRAMS programs ask at once. All threads of a program share
    each row of a tile, so that a thread meets the same few values of x in every row. Only matrices
    as tall as a vocabulary have enough rows to let a program take many, and read x once for them.
    """
    amd = isinstance(capability, str)
    if batch > ROWS_BY_HAND and itemsize == 2 and capability != (7, 5):
        tall = power_below(2 * rows // PROGRAMS, 16, 64)
        block_n = max(16, tall // matrices)
        block_k = min(256, 8192 // (block_n * matrices))  # 16 KiB of weights on their way a stage
        return Config(True, block_n, block_k, 1, block_n * matrices // 16, 2 if amd else 4)
    threads = 128
    vector = threads * (16 // itemsize)  # columns that all threads load at once
    together = triton.next_power_of_2(batch)
    loads = max(1, 8 // matrices // max(1, together // 2))
    cover = triton.next_power_of_2(max(1, -(-columns // vector)))  # loads to cover a row
    block_n = power_below(rows // PROGRAMS, 1, loads)
    if together <= 2 and rows >= PROGRAMS * 64 and cover <= 4:
        block_n = max(1, loads // cover)
    block_k = vector * min(cover, loads // block_n)
    groups = 1
    if block_k >= columns:
        groups = power_below(rows // (2 * PROGRAMS * block_n), 1, max(1, 32 // block_n))
    return Config(False, block_n, block_k, groups, threads // (64 if amd else 32), 1)


def power_below(value: int, least: int, most: int) -> int:
    """Return the largest power of two up to `value`, no less than `least`, no more than `most`."""
    return min(most, max(least, 1 << max(1, value).bit_length() - 1))


class Norm(NamedTuple):
    """An RMS norm of x before the product, which saves a launch of its own."""

    gains: Any
    """[K]"""
    eps: float
    scratch: Any
    """[B, K] like x: where normed rows go if tensor cores multiply, which need them rounded."""


def launch(
    weight: Any, x: Any, bias: Any, residual: Any, out: Any, norm: Norm | None = None
) -> Any:
    """Fill `out` [B, N] with x [B, K] times weight [N, K] transposed, + bias [N] + residual [B, N].

    Up to 16 rows; all dense in the last dimension. `out` may be `residual`. Numbers of x and
    weight have the same format, the others any. With a norm, it is the normed x that counts.
    """
    return _launch(weight, None, x, bias, residual, out, norm)


def launch_swiglu(gate: Any, up: Any, x: Any, out: Any, norm: Norm | None = None) -> Any:
    """Fill `out` [B, F] with silu(gate x) * (up x), for x [B, K] and two matrices [F, K]."""
    return _launch(gate, up, x, None, None, out, norm)


def _launch(
    weight: Any, up: Any, x: Any, bias: Any, residual: Any, out: Any, norm: Norm | None
) -> Any:
    (batch, columns), rows = x.shape, weight.shape[0]
    if batch > MOST_ROWS:
        raise InferlabError(f"matvec: {batch} rows; one pass serves at most {MOST_ROWS}")
    if not out.numel():
        return out
    size = weight.element_size()
    made = config(batch, rows, columns, size, capability(x.device), 1 if up is None else 2)
    second, before = weight if up is None else up, out if residual is None else residual
    add = weight if bias is None else bias

    def strides(x: Any) -> tuple[int, ...]:
        return tuple(t.stride(0) for t in (weight, second, x, before, out))

    fused = {"SWIGLU": up is not None, "BIAS": bias is not None, "RESIDUAL": residual is not None}
    how = {"num_warps": made.num_warps, "num_stages": made.num_stages}
    grid = (triton.cdiv(rows, made.block_n * made.groups),)
    if made.dot:
        check_dot("matvec", x)
        if norm is not None:
            x = rms_norm.launch(x, norm.gains, norm.eps, norm.scratch)
        matvec_dot_kernel[grid](
            weight, second, x, add, before, out, rows, columns, batch, *strides(x),
            MOST_ROWS, made.block_n, made.block_k, **fused, **how,
        )  # fmt: skip
    else:
        gains, eps = (x, 0.0) if norm is None else (norm.gains, norm.eps)
        matvec_kernel[grid](
            weight, second, x, gains, add, before, out, rows, columns, batch, eps, *strides(x),
            triton.next_power_of_2(batch), made.block_n, made.block_k, made.groups,
            made.block_k >= columns, 16 // size, NORM=norm is not None, **fused, **how,
        )  # fmt: skip
    return out


def traffic(
    batch: int, rows: int, columns: int, itemsize: int,
    matrices: int = 1, bias: bool = False, residual: bool = False,
) -> int:  # fmt: skip
    """Return the fewest bytes: each matrix and each vector in, the result out."""
    vectors = batch * columns + batch * rows * (2 if residual else 1) + (rows if bias else 0)
    return (matrices * rows * columns + vectors) * itemsize


SHAPES = ((1536, 576), (4096, 4096), (4096, 14336), (128256, 4096))
"""Matrices of models that `aot` compiles for: SmolLM2's, then Llama 3's of 8B."""


def aot(target: Target) -> list[Compile]:
    """Return what `launch` compiles on such a GPU."""
    cases: dict[tuple[object, ...], Compile] = {}
    for dtype in ("fp32", "fp16", "bf16") if target.has_bf16 else ("fp32", "fp16"):
        size = 4 if dtype == "fp32" else 2
        for batch, matrices in ((1, 1), (1, 2), (4, 1), (16, 1), (16, 2)):
            for rows, columns in SHAPES:
                made = config(batch, rows, columns, size, target.capability, matrices)
                whole = made.block_k >= columns
                key = (dtype, batch, matrices, made, whole)
                cases.setdefault(key, _case(dtype, batch, matrices, made, whole))
    return list(cases.values())


def _case(dtype: str, batch: int, matrices: int, made: Config, whole: bool) -> Compile:
    norm = batch == 1  # and not for the others, so that both are compiled
    fused = {"SWIGLU": matrices == 2, "BIAS": matrices == 1, "RESIDUAL": matrices == 1}
    constants: dict[str, Any] = {"BLOCK_N": made.block_n, "BLOCK_K": made.block_k} | fused
    if made.dot:
        constants |= {"ROWS": MOST_ROWS}
    else:
        constants |= {"ROWS": triton.next_power_of_2(batch), "GROUPS": made.groups}
        constants |= {"WHOLE": whole, "VECTOR": 4 if dtype == "fp32" else 8, "NORM": norm}
    strides = ("weight_row", "up_row", "x_row", "residual_row", "out_row")
    notes = (
        f", {made.groups} groups" if made.groups > 1 else "",
        ", whole rows" if whole else "",
        ", norm" if norm else "",
    )
    return Compile(
        matvec_dot_kernel if made.dot else matvec_kernel,
        f"{dtype}, {batch} x {'SwiGLU ' if matrices == 2 else ''}"
        f"[{made.block_n}, {made.block_k}]{''.join(notes)}",
        dict.fromkeys(("weight", "up", "x", "gains", "bias", "residual", "out"), f"*{dtype}")
        | {"N": "i32:16", "K": "i32:16", "B": "i32:1" if batch == 1 else "i32", "eps": "fp32"}
        | dict.fromkeys(strides, "i32:16"),
        constants,
        made.num_warps,
        made.num_stages,
        tensor_cores=made.dot,
        wide_loads=True,
    )
