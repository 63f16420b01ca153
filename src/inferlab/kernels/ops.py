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
from inferlab.kernels import backends, reference
from inferlab.kernels.quantised import BLOCK, Quantised, linear

SIMD = (
    "chain",
    "decode_attention",
    "matvec",
    "quant_matvec",
    "quant_swiglu",
    "rms_norm",
    "rope",
    "swiglu",
)
TRITON = (
    "add_rms_norm",
    "chain",
    "decode_attention",
    "flash_attention",
    "matmul",
    "matvec",
    "quant_matvec",
    "quant_swiglu",
    "rms_norm",
    "rope_and_cache",
    "sample",
    "softmax",
    "swiglu",
    "vector_add",
)
OPS = tuple(sorted({*SIMD, *TRITON}))
BACKENDS = ("triton", "simd", "torch")
_CHAIN = (0.999, 0.001)  # factor and summand: values stay near those that they had
ACTIVATIONS = ("auto", "int8", "float32")
"""How vectors meet quantised weights; see `quant_matvec`."""
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

    By "simd" each row of the result is bit for bit the same whatever the other rows and the
    threads. More than 16 rows go to torch, unless a backend is named.
    """
    _fit("weight", weight, (None, x.shape[1]))
    _fit("bias", bias, (weight.shape[0],))
    _fit("residual", residual, (x.shape[0], weight.shape[0]))
    if _few(backend, x) and _triton(backend, weight, x, bias, residual):
        from inferlab.kernels.gpu import matvec as gpu

        add = None if residual is None else _dense(residual)
        bias = None if bias is None else _dense(bias)
        return gpu.launch(_dense(weight), _dense(x), bias, add, _empty(x, len(x), len(weight)))
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
    if _few(backend, x) and _triton(backend, gate, up, x):
        from inferlab.kernels.gpu import matvec as gpu

        return gpu.launch_swiglu(_dense(gate), _dense(up), _dense(x), _empty(x, len(x), len(gate)))
    if _simd(backend, gate, up, x, rows=x.shape[0]):
        from inferlab.kernels.cpu import matvec as cpu

        return cpu.launch_swiglu(gate, up, x, _new(x.shape[0], gate.shape[0]), threads)
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def quant_matvec(
    weight: Quantised,
    x: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activations: str = "auto",
    backend: str = "auto",
    threads: int | None = None,
) -> Tensor:
    """Return what `matvec` does for a quantised weight [N, K], never widened as a whole: [B, N].

    With `activations` "int8" the SIMD kernel rounds x first. Weights of 4 bits meet 8, with a scale
    for every 16 elements: an error near 0.5 %, and half the time. Weights of 8 bits meet 16, with
    a scale for every 32: an error near 2e-5. "float32" takes x as it is. "auto" is int8 for the
    SIMD kernel, and float32 for the others, which know nothing else.
    """
    _fit("x", x, (None, weight.shape[1]))
    _fit("bias", bias, (weight.shape[0],))
    _fit("residual", residual, (x.shape[0], weight.shape[0]))
    if _quant_triton(backend, activations, (weight,), x, bias, residual):
        from inferlab.kernels.gpu import quant_matvec as gpu

        weight = weight.in_rows()
        bias, residual = (None if t is None else _dense(t) for t in (bias, residual))
        return gpu.launch(weight, _dense(x), bias, residual, _empty(x, len(x), weight.shape[0]))
    if _quant_simd(backend, activations, (weight,), x, bias, residual):
        from inferlab.kernels.cpu import matvec as cpu

        out, exact = _new(x.shape[0], weight.shape[0]), activations == "float32"
        return cpu.launch(weight, x, bias, residual, out, threads, exact=exact)
    y = linear(x, weight, bias)
    return y if residual is None else y + residual


def quant_swiglu(
    gate: Quantised,
    up: Quantised,
    x: Tensor,
    *,
    activations: str = "auto",
    backend: str = "auto",
    threads: int | None = None,
) -> Tensor:
    """Return silu(gate x) * (up x) for x [B, K] and quantised matrices [F, K]: [B, F].

    `activations` as for `quant_matvec`; the two formats may differ.
    """
    _fit("x", x, (None, gate.shape[1]))
    if up.shape != gate.shape:
        raise InferlabError(f"up has shape {list(up.shape)}; it must be {list(gate.shape)}")
    if _quant_triton(backend, activations, (gate, up), x):
        from inferlab.kernels.gpu import quant_matvec as gpu

        gate, up = gate.in_rows(), up.in_rows()
        if gate.format == up.format:
            return gpu.launch_swiglu(gate, up, _dense(x), _empty(x, len(x), gate.shape[0]))
        return F.silu(quant_matvec(gate, x, backend=backend)) * quant_matvec(up, x, backend=backend)
    if _quant_simd(backend, activations, (gate, up), x):
        from inferlab.kernels.cpu import matvec as cpu

        out, exact = _new(x.shape[0], gate.shape[0]), activations == "float32"
        return cpu.launch_swiglu(gate, up, x, out, threads, exact=exact)
    return F.silu(linear(x, gate)) * linear(x, up)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, backend: str = "auto") -> Tensor:
    """Return x [B, n] over its root mean square, times weight [n]; sums in float32."""
    _fit("weight", weight, (x.shape[1],))
    if _triton(backend, x, weight, mixed=True):
        from inferlab.kernels.gpu import rms_norm as gpu

        return gpu.launch(_dense(x), _dense(weight), eps, _empty(x, *x.shape))
    if _simd(backend, x, weight):
        from inferlab.kernels.cpu import rms_norm as cpu

        return cpu.launch(x, weight, eps, _new(*x.shape))
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Return the RMS norm of x + residual, both [B, n], and the sum itself, in x's dtype."""
    _fit("residual", residual, tuple(x.shape))
    _fit("weight", weight, (x.shape[1],))
    if _triton(backend, x, residual, weight, simd=False, mixed=True):
        from inferlab.kernels.gpu import rms_norm as gpu

        out, total = _empty(x, *x.shape), _empty(x, *x.shape)
        gpu.launch(_dense(x), _dense(weight), eps, out, _dense(residual), total)
        return out, total
    total = x + residual
    return rms_norm(total, weight, eps, backend=backend), total


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


def rope_and_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lengths: Tensor,
    table: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    *,
    backend: str = "auto",
) -> Tensor:
    """Return q [R, H, D] turned; turn k and put k and v [R, KV, D] into their pages, in place.

    The R rows are the same number of tokens of each of B sequences. cos and sin are float32 [R, P].
    Token t of sequence b goes to position p = lengths[b] + t of b's cache: slot p % block of page
    table[b, p // block] in k_pages and v_pages [pages, KV, block, D]; without a table page b is all
    of sequence b. Positions and pages that are not there are left out. q_norm and k_norm [D] norm
    each head before it turns.
    """
    rows, _, size = q.shape
    _fit("k", k, (rows, None, size))
    _fit("v", v, tuple(k.shape))
    _fit("cos", cos, (rows, None))
    _fit("sin", sin, tuple(cos.shape))
    _fit("k_pages", k_pages, (None, k.shape[1], None, size))
    _fit("v_pages", v_pages, tuple(k_pages.shape))
    _fit("q_norm", q_norm, (size,))
    _fit("k_norm", k_norm, (size,))
    _fit("lengths", lengths, (None,))
    _fit("table", table, (lengths.shape[0], None))
    if not 2 * cos.shape[1] <= size:
        raise InferlabError(f"cos has {cos.shape[1]} pairs; a head of {size} has {size // 2}")
    if rows % max(1, len(lengths)) or (rows and not len(lengths)):
        raise InferlabError(
            f"q has {rows} rows: a multiple of the {len(lengths)} lengths is needed"
        )
    if _triton(backend, q, k, v, simd=False):
        from inferlab.kernels.gpu import rope_and_cache as gpu

        return gpu.launch(
            _dense(q), _dense(k), _dense(v), _dense(cos), _dense(sin), k_pages, v_pages,
            lengths.contiguous(), None if table is None else _dense(table),
            _empty(q, *q.shape), q_norm, k_norm, eps,
        )  # fmt: skip
    if q_norm is not None and k_norm is not None:
        q, k = (
            rms_norm(x.flatten(0, 1), gains, eps, backend="torch").view(x.shape)
            for x, gains in ((q.contiguous(), q_norm), (k.contiguous(), k_norm))
        )
    k, block = rope(k, cos, sin, backend="torch"), k_pages.shape[2]
    tokens = rows // max(1, len(lengths))
    for row in range(rows):
        b = row // tokens
        position = int(lengths[b]) + row % tokens
        entry, slot = divmod(position, block)
        if 0 <= entry < (1 if table is None else table.shape[1]):
            page = b if table is None else int(table[b, entry])
            if 0 <= page < len(k_pages):
                k_pages[page, :, slot], v_pages[page, :, slot] = k[row], v[row]
    return rope(q, cos, sin, backend="torch")


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    window: int | None = None,
    *,
    table: Tensor | None = None,
    backend: str = "auto",
    threads: int | None = None,
) -> Tensor:
    """Let one query a row, q [B, H, D], see its `lengths` positions of k and v [B, KV, S, D].

    `lengths` is int64 [B], each at least 1 (on a GPU that is not checked: it would be waited for).
    Query head h reads KV head h // (H / KV); with a window only the last `window` positions count.
    With a `table`, int32 [B, M], k and v are pages [P, KV, block, D], and position p of row b is
    k[table[b, p // block], :, p % block]. What stands past a length is never read.
    """
    _fit("table", table, (q.shape[0], None))
    if table is not None and table.dtype != torch.int32:
        raise InferlabError(f"table must be int32, not {table.dtype}")
    _fit("k", k, (q.shape[0] if table is None else None, None, None, q.shape[2]))
    _fit("v", v, tuple(k.shape))
    _fit("lengths", lengths, (q.shape[0],))
    _grouped(q.shape[1], k.shape[1])
    _window(window)
    capacity = k.shape[2] * (1 if table is None else table.shape[1])
    on_host = lengths.numel() and not lengths.is_cuda
    if on_host and not 1 <= int(lengths.min()) <= int(lengths.max()) <= capacity:
        raise InferlabError(f"lengths must be from 1 to {capacity}, the positions that k has")
    if _triton(backend, q, k, v) and k.stride(-1) == v.stride(-1) == 1:
        from inferlab.kernels.gpu import decode_attention as gpu

        table = _one_page_a_row(q) if table is None else table
        out, scratch = _empty(q, *q.shape), gpu.scratch(q, k, table)
        seen = lengths.to(q.device)
        return gpu.launch(_dense(q), k, v, table, seen, window, out, scratch)
    if _simd(backend, q, k, v) and k.stride() == v.stride():
        from inferlab.kernels.cpu import decode_attention as cpu

        table = _one_page_a_row(q) if table is None else table.contiguous()
        return cpu.launch(q, k, v, table, lengths, window, _new(*q.shape), threads)
    if table is not None:
        k, v = (_unpaged(pages, table) for pages in (k, v))
    out = torch.empty_like(q)
    for b, length in enumerate(lengths.tolist()):
        start = 0 if window is None else max(0, length - window)
        seen_k, seen_v = k[b, :, start:length], v[b, :, start:length]
        out[b] = F.scaled_dot_product_attention(q[b, :, None], seen_k, seen_v, enable_gqa=True)[
            :, 0
        ]
    return out


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    offset: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Let queries q [B, T, H, D] see keys and values k, v [B, S, KV, D]: [B, T, H, D].

    Causal: query t of row b stands at position offset[b] + t, int64 [B] (all 0 if left out; on a
    GPU its range is not checked), and sees the keys up to its own, with a window the last `window`
    of them. Otherwise it sees all S. Query head h reads KV head h // (H / KV).
    """
    batch, tokens, heads, size = q.shape
    _fit("k", k, (batch, None, None, size))
    _fit("v", v, tuple(k.shape))
    _fit("offset", offset, (batch,))
    _grouped(heads, k.shape[2])
    _window(window)
    if window is not None and not causal:
        raise InferlabError("window needs causal attention")
    most = k.shape[1] - tokens
    if causal and most < 0:
        raise InferlabError(f"k has {k.shape[1]} positions: {tokens} queries need {tokens}")
    start = torch.zeros(batch, dtype=torch.int64) if offset is None else offset
    if causal and not start.is_cuda and bool(((start < 0) | (start > most)).any()):
        raise InferlabError(f"offset must be from 0 to {most}, as k has what the queries see")
    start = start.to(q.device).contiguous()
    if _triton(backend, q, k, v) and size <= 128 and k.stride(-1) == v.stride(-1) == 1:
        from inferlab.kernels.gpu import flash_attention as gpu

        out = _empty(q, *q.shape)
        return gpu.launch(_dense(q), k, v, start, out, causal=causal, window=window)
    plain = offset is None and window is None
    mask = None
    if causal and not plain:
        position = start[:, None] + torch.arange(tokens, device=q.device)  # [B, T]
        key = torch.arange(k.shape[1], device=q.device)
        mask = key <= position[..., None]
        mask = mask if window is None else mask & (key > position[..., None] - window)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=None if mask is None else mask[:, None],
        is_causal=causal and plain,
        enable_gqa=True,
    )
    return out.transpose(1, 2)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    offsets: Tensor,
    *,
    backend: str = "auto",
) -> Tensor:
    """Return a token for each row of logits [B, V], int64 [B]; -1 for a row that is not numbers.

    Each row has its own parameters, tensors [B]: temperature (0 is greedy), top_k (0: all), top_p
    (1: all; float64 where 0.9 should mean 0.9), min_p, in this order; and its own random number, of
    its seed and the offset in that seed's stream. Where Triton does not run, the oracle computes
    it, on the CPU.
    """
    _fit("logits", logits, (None, None))
    parameters = (temperature, top_k, top_p, min_p, seeds, offsets)
    names = ("temperature", "top_k", "top_p", "min_p", "seeds", "offsets")
    for name, tensor in zip(names, parameters, strict=True):
        _fit(name, tensor, (logits.shape[0],))
    if not logits.shape[1]:
        raise InferlabError("logits has no columns: there is nothing to sample from")
    if _triton(backend, logits):
        from inferlab.kernels.gpu import sample as gpu

        own = gpu.Parameters(*(tensor.to(logits.device).contiguous() for tensor in parameters))
        out = logits.new_empty(logits.shape[0], dtype=torch.int64)
        scratch = gpu.scratch(logits.shape[0], logits.shape[1], logits.device)
        return gpu.launch(_dense(logits), own, out, scratch)
    wide = [tensor.cpu().double() for tensor in (logits, temperature, top_p, min_p)]
    whole = [tensor.cpu() for tensor in (top_k, seeds, offsets)]
    tokens = reference.sample(wide[0], wide[1], whole[0], wide[2], wide[3], whole[1], whole[2])
    return torch.from_numpy(tokens).to(logits.device)


def chain(
    x: Tensor,
    steps: int,
    *,
    backend: str = "auto",
    threads: int | None = None,
    lone: bool = False,
    rounds: int = 1,
) -> Tensor:
    """Return the sum of x [n] after `steps` times v -> 0.999 v + 0.001 on each number: a scalar.

    2 `steps` + 1 operations a number, all on what was read once; torch goes through memory every
    step. For the SIMD kernel only: `lone` lets each vector finish its chain before the next one
    begins, and `rounds` does the same work so many times, from a cache after the first.
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
        cpu.launch(x, steps, *_CHAIN, sums, threads, lone=lone, rounds=rounds)
        return sums.sum()
    value = x
    for _ in range(steps):
        value = value * _CHAIN[0] + _CHAIN[1]
    return value.sum()


def _one_page_a_row(q: Tensor) -> Tensor:
    return torch.arange(len(q), device=q.device, dtype=torch.int32)[:, None]


def _unpaged(pages: Tensor, table: Tensor) -> Tensor:
    """Return pages [P, KV, block, D] as their rows stand in the table: [B, KV, M * block, D]."""
    rows = pages[table.long().clamp(0, max(0, len(pages) - 1))]  # [B, M, KV, block, D]
    return rows.transpose(1, 2).flatten(2, 3)


def _triton(backend: str, *tensors: Tensor | None, simd: bool = True, mixed: bool = False) -> bool:
    """Whether the Triton kernel runs this; raises InferlabError if asked for and impossible.

    `simd` says whether the op has a SIMD kernel to fall back on, `mixed` whether its tensors may
    differ in dtype.
    """
    _known(backend)
    if backend == "simd" and not simd:
        raise InferlabError("backend simd has no kernel for this op: use triton or torch")
    if backend in ("simd", "torch"):
        return False
    given = [tensor for tensor in tensors if tensor is not None]
    fits = backends.has_triton() and len({t.device for t in given}) == 1
    dtypes = {t.dtype for t in given}
    fits &= (mixed or len(dtypes) == 1) and dtypes <= set(_TRITON_DTYPES)
    if fits and given[0].is_cuda and torch.bfloat16 in dtypes:
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


def _few(backend: str, x: Tensor) -> bool:
    """Whether a kernel that passes once over a matrix is the tool for the rows of x [B, K]."""
    return len(x) <= MAX_ROWS or backend != "auto"


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


def _quant_triton(
    backend: str, activations: str, weights: tuple[Quantised, ...], x: Tensor, *rest: Tensor | None
) -> bool:
    """Whether the Triton kernel runs this; raises InferlabError if asked for and impossible."""
    fits = all(w.device == x.device and w.shape[1] % BLOCK == 0 for w in weights)
    if activations not in ("auto", "float32") or (
        backend == "auto" and not (fits and _few(backend, x))
    ):
        return False
    return _triton(backend, x, *rest, mixed=True)


def _quant_simd(
    backend: str, activations: str, weights: tuple[Quantised, ...], x: Tensor, *rest: Tensor | None
) -> bool:
    """Whether the SIMD kernel runs this; raises InferlabError if asked for and impossible."""
    if activations not in ACTIVATIONS:
        raise unknown("activations", activations, ACTIVATIONS)
    fits = all(w.device.type == "cpu" and w.shape[1] % BLOCK == 0 for w in weights)
    if backend == "simd" and not fits:
        raise InferlabError(
            f"backend simd needs quantised weights on a CPU, their columns in blocks of {BLOCK}"
        )
    simd = _simd(backend, x, *rest, rows=x.shape[0]) and fits
    if activations == "int8" and not simd:
        raise InferlabError("activations int8 needs backend simd: the others take x as it is")
    return simd


def _known(backend: str) -> None:
    if backend not in ("auto", *BACKENDS):
        raise unknown("backend", backend, ("auto", *BACKENDS))


def _grouped(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise InferlabError(f"q has {heads} heads: a multiple of k's {kv_heads} is needed")


def _window(window: int | None) -> None:
    if window is not None and window < 1:
        raise InferlabError(f"window is {window}; it must be at least 1")


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
