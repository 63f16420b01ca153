"""One entry point an op: tensors in, tensor out, by the best backend that is here.

`backend="auto"` takes Triton's kernels on a GPU, the SIMD kernels for float32 on a CPU with numba,
and torch where there is neither; a name asks for that one. "triton" for tensors on a CPU runs the
kernel in Triton's interpreter. Every op computes what its namesake in `reference` says.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from inferlab.errors import InferlabError, unknown
from inferlab.kernels import backends

SIMD = ("chain", "decode_attention", "matvec", "rms_norm", "rope", "swiglu")
TRITON = ("chain", "matmul", "softmax", "vector_add")
OPS = tuple(sorted({*SIMD, *TRITON}))
BACKENDS = ("triton", "simd", "torch")
_CHAIN = (0.999, 0.001)  # factor and summand: values stay near those that they had
MAX_ROWS = 16
"""Vectors that one pass over a matrix serves; for more a matrix product is the better tool."""
_TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def choices(device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, str]:
    """Return which backend each op takes on a device, {op: backend}."""
    chosen = dict.fromkeys(OPS, "torch")
    if device == "cuda" and backends.has_triton():
        chosen |= dict.fromkeys(TRITON, "triton")
    if device == "cpu" and dtype == torch.float32 and backends.has_numba():
        chosen |= dict.fromkeys(SIMD, "simd")
    return chosen


def vector_add(a: Tensor, b: Tensor, *, backend: str = "auto") -> Tensor:
    """Return the sum of two vectors a and b [n]."""
    _fit("a", a, (None,))
    _fit("b", b, (a.shape[0],))
    if _triton(backend, a, b, simd=False):
        from inferlab.kernels.gpu import vector_add as gpu

        return gpu.launch(_dense(a), _dense(b), _empty(a, *a.shape))
    return a + b


def softmax(x: Tensor, *, backend: str = "auto") -> Tensor:
    """Return e^x of each row of x [R, C] over the row's sum; sums in float32."""
    _fit("x", x, (None, None))
    if _triton(backend, x, simd=False):
        from inferlab.kernels.gpu import softmax as gpu

        return gpu.launch(_dense(x), _empty(x, *x.shape))
    return torch.softmax(x, dim=-1)


def matmul(a: Tensor, b: Tensor, *, backend: str = "auto") -> Tensor:
    """Return the product of a [M, K] and b [K, N], of any strides; sums in float32."""
    _fit("a", a, (None, None))
    _fit("b", b, (a.shape[1], None))
    if _triton(backend, a, b, simd=False):
        from inferlab.kernels.gpu import matmul as gpu

        return gpu.launch(a, b, _empty(a, a.shape[0], b.shape[1]))
    return a @ b


def matvec(
    weight: Tensor,
    x: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    backend: str = "auto",
    threads: int | None = None,
) -> Tensor:
    """Return x [B, K] times weight [N, K] transposed, plus bias [N] and residual [B, N]: [B, N].

    Each row of the result is bit for bit the same whatever the other rows and the threads.
    """
    _fit("weight", weight, (None, x.shape[1]))
    _fit("bias", bias, (weight.shape[0],))
    _fit("residual", residual, (x.shape[0], weight.shape[0]))
    if _simd(backend, weight, x, bias, residual, rows=x.shape[0]):
        from inferlab.kernels.cpu import matvec as cpu

        return cpu.launch(weight, x, bias, residual, _new(x.shape[0], weight.shape[0]), threads)
    y = F.linear(x, weight, bias)
    return y if residual is None else y + residual


def swiglu(
    gate: Tensor, up: Tensor, x: Tensor, *, backend: str = "auto", threads: int | None = None
) -> Tensor:
    """Return silu(gate x) * (up x) for x [B, K] and two matrices [F, K]: [B, F]."""
    _fit("gate", gate, (None, x.shape[1]))
    _fit("up", up, tuple(gate.shape))
    if _simd(backend, gate, up, x, rows=x.shape[0]):
        from inferlab.kernels.cpu import matvec as cpu

        return cpu.launch_swiglu(gate, up, x, _new(x.shape[0], gate.shape[0]), threads)
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, backend: str = "auto") -> Tensor:
    """Return x [B, n] over its root mean square, times weight [n]; sums in float32."""
    _fit("weight", weight, (x.shape[1],))
    if _simd(backend, x, weight):
        from inferlab.kernels.cpu import rms_norm as cpu

        return cpu.launch(x, weight, eps, _new(*x.shape))
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, backend: str = "auto") -> Tensor:
    """Return x [B, H, D] with channels (i, i + P) turned by angles of cos and sin [B, P]."""
    _fit("cos", cos, (x.shape[0], None))
    _fit("sin", sin, tuple(cos.shape))
    if _simd(backend, x, cos, sin):
        from inferlab.kernels.cpu import rope as cpu

        return cpu.launch(x, cos, sin, _new(*x.shape))
    half = cos.shape[1]
    low, high, rest = x.split([half, half, x.shape[2] - 2 * half], dim=-1)
    c, s = cos[:, None], sin[:, None]
    turned = [low * c - high * s, high * c + low * s]
    return torch.cat([*(t.to(x.dtype) for t in turned), rest], dim=-1)


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    window: int | None = None,
    *,
    backend: str = "auto",
    threads: int | None = None,
) -> Tensor:
    """Let one query a row, q [B, H, D], see its `lengths` positions of k and v [B, KV, S, D].

    `lengths` is int64 [B], each at least 1. Query head h reads KV head h // (H / KV); with a
    window only the last `window` positions count. What stands past a length is never read.
    """
    _fit("k", k, (q.shape[0], None, None, q.shape[2]))
    _fit("v", v, tuple(k.shape))
    _fit("lengths", lengths, (q.shape[0],))
    if q.shape[1] % k.shape[1]:
        raise InferlabError(f"q has {q.shape[1]} heads: a multiple of k's {k.shape[1]} is needed")
    if lengths.numel() and not 1 <= int(lengths.min()) <= int(lengths.max()) <= k.shape[2]:
        raise InferlabError(f"lengths must be from 1 to {k.shape[2]}, the positions that k has")
    if _simd(backend, q, k, v) and k.stride() == v.stride():
        from inferlab.kernels.cpu import decode_attention as cpu

        return cpu.launch(q, k, v, lengths, window, _new(*q.shape), threads)
    out = torch.empty_like(q)
    for b, length in enumerate(lengths.tolist()):
        start = 0 if window is None else max(0, length - window)
        seen_k, seen_v = k[b, :, start:length], v[b, :, start:length]
        out[b] = F.scaled_dot_product_attention(q[b, :, None], seen_k, seen_v, enable_gqa=True)[
            :, 0
        ]
    return out


def chain(
    x: Tensor,
    steps: int,
    *,
    backend: str = "auto",
    threads: int | None = None,
    lone: bool = False,
) -> Tensor:
    """Return the sum of x [n] after `steps` times v -> 0.999 v + 0.001 on each number: a scalar.

    2 `steps` + 1 operations a number, all on what was read once. `lone`, for the SIMD kernel, lets
    each vector finish its chain before the next one begins. torch goes through memory every step.
    """
    _fit("x", x, (None,))
    if steps < 0:
        raise InferlabError(f"steps is {steps}; it must be 0 or more")
    if _triton(backend, x):
        from inferlab.kernels.gpu import chain as gpu

        sums = x.new_empty(gpu.programs(x.numel()))
        return gpu.launch(x.contiguous(), steps, *_CHAIN, sums).sum()
    if _simd(backend, x):
        from inferlab.kernels.cpu import chain as cpu

        sums = _new(cpu.pieces(x.numel()))
        return cpu.launch(x, steps, *_CHAIN, sums, threads, lone).sum()
    value = x
    for _ in range(steps):
        value = value * _CHAIN[0] + _CHAIN[1]
    return value.sum()


def _triton(backend: str, *tensors: Tensor | None, simd: bool = True) -> bool:
    """Whether the Triton kernel runs this; raises InferlabError if asked for and impossible.

    `simd` says whether the op has a SIMD kernel to fall back on.
    """
    _known(backend)
    if backend == "simd" and not simd:
        raise InferlabError("backend simd has no kernel for this op: use triton or torch")
    if backend in ("simd", "torch"):
        return False
    given = [tensor for tensor in tensors if tensor is not None]
    fits = backends.has_triton() and len({t.device for t in given}) == 1
    fits &= len({t.dtype for t in given}) == 1 and given[0].dtype in _TRITON_DTYPES
    if fits and given[0].is_cuda and given[0].dtype == torch.bfloat16:
        fits = torch.cuda.get_device_capability(given[0].device) >= (8, 0)
    if backend == "auto":
        return fits and given[0].is_cuda
    if not fits:
        raise InferlabError(
            "backend triton needs Triton, and tensors on one device, all of them fp32, fp16 or "
            "(from sm_80 on) bf16"
        )
    from inferlab.kernels.gpu import dsl

    if not given[0].is_cuda and not dsl.interpreted():
        raise InferlabError("backend triton: on a CPU it needs the interpreter, TRITON_INTERPRET=1")
    return True


def _simd(backend: str, *tensors: Tensor | None, rows: int = 1) -> bool:
    """Whether the SIMD kernel runs this; raises InferlabError if asked for and impossible."""
    _known(backend)
    fits = backends.has_numba() and rows <= MAX_ROWS
    for tensor in tensors:
        if tensor is not None:
            dense = tensor.stride(-1) == 1 or tensor.shape[-1] <= 1
            fits &= tensor.device.type == "cpu" and tensor.dtype == torch.float32 and dense
    if backend == "simd" and not fits:
        raise InferlabError(
            "backend simd needs numba and float32 on a CPU, dense in the last dimension, "
            f"at most {MAX_ROWS} rows"
        )
    return fits and backend in ("auto", "simd")


def _known(backend: str) -> None:
    if backend not in ("auto", *BACKENDS):
        raise unknown("backend", backend, ("auto", *BACKENDS))


def _fit(name: str, tensor: Tensor | None, shape: tuple[int | None, ...]) -> None:
    if tensor is not None and (
        tensor.dim() != len(shape)
        or any(want not in (None, have) for want, have in zip(shape, tensor.shape, strict=True))
    ):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise InferlabError(f"{name} has shape {list(tensor.shape)}; it must be [{wanted}]")


def _new(*shape: int) -> Tensor:
    return torch.empty(shape)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape)


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()
