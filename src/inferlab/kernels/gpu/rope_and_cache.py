"""What happens to new queries, keys and values between their projection and attention.

Queries and keys are turned by their position (Su et al. 2021), after a norm of each head where the
model has one (Qwen3). Keys and values go to their places in the cache, queries to `out`. A program
takes all heads of one kind, up to 32, so that a token's angles are read once for them all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from inferlab.errors import InferlabError
from inferlab.kernels.gpu.compiled import Capability, Compile, Target
from inferlab.kernels.gpu.dsl import capability, jit, tl, triton

MOST_HEADS = 32  # of a program


@jit
def turn(  # type: ignore[no-untyped-def]
    source, target, read, write, cosine, sine, gains, eps,
    SIZE: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Norm heads of SIZE channels and turn pairs (i, i + PAIRS) of them; what is left is copied.

    `source` and `target` point to the heads, [HEADS, 1]; `read` and `write` say which are there.
    """
    low = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    rest = 2 * PAIRS + tl.arange(0, REST)[None, :]  # [1, REST]
    a = tl.load(source + low, mask=read & (low < PAIRS), other=0.0).to(tl.float32)
    b = tl.load(source + PAIRS + low, mask=read & (low < PAIRS), other=0.0).to(tl.float32)
    c = tl.load(source + rest, mask=read & (rest < SIZE), other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(a * a + b * b, axis=1) + tl.sum(c * c, axis=1)  # [HEADS]
        scale = (1.0 / tl.sqrt(squares / SIZE + eps))[:, None]
        a *= scale * tl.load(gains + low, mask=low < PAIRS, other=0.0).to(tl.float32)
        b *= scale * tl.load(gains + PAIRS + low, mask=low < PAIRS, other=0.0).to(tl.float32)
        c *= scale * tl.load(gains + rest, mask=rest < SIZE, other=0.0).to(tl.float32)
    tl.store(target + low, a * cosine - b * sine, mask=write & (low < PAIRS))
    tl.store(target + PAIRS + low, b * cosine + a * sine, mask=write & (low < PAIRS))
    tl.store(target + rest, c, mask=write & (rest < SIZE))


@jit
def rope_and_cache_kernel(  # type: ignore[no-untyped-def]
    q, k, v, out, k_pages, v_pages, cos, sin, lengths, table, q_norm, k_norm,
    heads, kv_heads, tokens, pages, block, blocks, eps,
    q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head, cos_row, sin_row,
    k_page, k_kv, k_slot, v_page, v_kv, v_slot, table_row,
    SIZE: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
    WHOLE: tl.constexpr, HEADS: tl.constexpr, NORM: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Some heads of a row: the queries' in the first programs of axis 1, then keys, then values."""
    r, part = tl.program_id(0), tl.program_id(1)
    row, b = r.to(tl.int64), r // tokens
    of_q, of_kv = tl.cdiv(heads, HEADS), tl.cdiv(kv_heads, HEADS)
    pair = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    turns = (pair < PAIRS) & (part < of_q + of_kv)
    cosine = tl.load(cos + row * cos_row + pair, mask=turns, other=0.0)
    sine = tl.load(sin + row * sin_row + pair, mask=turns, other=0.0)
    if part < of_q:
        head = (part * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]  # [HEADS, 1]
        here = head < heads
        turn(
            q + row * q_row + head * q_head, out + row * out_row + head * out_head,
            here, here, cosine, sine, q_norm, eps, SIZE, PAIRS, BLOCK, REST, NORM,
        )  # fmt: skip
    else:
        position = tl.load(lengths + b).to(tl.int32) + r % tokens
        cached = (position >= 0) & (position // block < blocks)
        page, slot = b.to(tl.int64), (position % block).to(tl.int64)
        if TABLE:
            entry = table + b.to(tl.int64) * table_row + position // block
            page = tl.load(entry, mask=cached, other=-1).to(tl.int64)
        cached = cached & (page >= 0) & (page < pages)
        head = ((part - of_q) % of_kv * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
        here = head < kv_heads
        if part < of_q + of_kv:
            turn(
                k + row * k_row + head * k_head,
                k_pages + page * k_page + head * k_kv + slot * k_slot,
                here, here & cached, cosine, sine, k_norm, eps, SIZE, PAIRS, BLOCK, REST, NORM,
            )  # fmt: skip
        else:
            channel = tl.arange(0, WHOLE)[None, :]  # [1, WHOLE]
            copied = here & (channel < SIZE) & cached
            value = tl.load(v + row * v_row + head * v_head + channel, mask=copied, other=0.0)
            to = v_pages + page * v_page + head * v_kv + slot * v_slot + channel
            tl.store(to, value, mask=copied)


class Config(NamedTuple):
    """How the op is launched."""

    heads: int  # of a program
    num_warps: int


def config(heads: int, size: int, itemsize: int, capability: Capability) -> Config:
    """Return the launch for rows of `heads` heads of `size` channels: 16 bytes a thread or more."""
    together = min(MOST_HEADS, triton.next_power_of_2(heads))
    moved = together * triton.next_power_of_2(size) * itemsize
    lanes = 64 if isinstance(capability, str) else 32
    return Config(together, min(4, max(1, moved // (16 * lanes))))


def launch(
    q: Any, k: Any, v: Any, cos: Any, sin: Any, k_pages: Any, v_pages: Any,
    lengths: Any, table: Any, out: Any, q_norm: Any = None, k_norm: Any = None, eps: float = 0.0,
) -> Any:  # fmt: skip
    """Fill `out` [R, H, D] with turned queries, and put keys and values into their pages.

    q [R, H, D] and k, v [R, KV, D] may be views of one row, dense in D; out may be q. The rows are
    R / B tokens of each of B sequences. cos and sin are float32 [R, P]: channels (i, i + P) turn,
    those from 2 P on do not. Token t of sequence b goes to position p = lengths[b] + t, in pages
    [pages, KV, block, D] at page table[b, p // block] and slot p % block; without a table page b is
    sequence b. A position or page that the cache does not have is not written: a row
    that is idle has the length -1. q_norm and k_norm [D] norm each head first, with `eps`.
    """
    rows, heads, size = q.shape
    kv_heads, pairs = k.shape[1], cos.shape[1]
    if (q_norm is None) != (k_norm is None):
        raise InferlabError("rope_and_cache: q_norm and k_norm belong together")
    pages, _, block, _ = k_pages.shape
    together, warps = config(heads, size, q.element_size(), capability(q.device))
    parts = triton.cdiv(heads, together) + 2 * triton.cdiv(kv_heads, together)
    if q.numel():
        norm, paged = q_norm is not None, table is not None
        rope_and_cache_kernel[(rows, parts)](
            q, k, v, out, k_pages, v_pages, cos, sin, lengths,
            table if paged else lengths, q_norm if norm else q, k_norm if norm else k,
            heads, kv_heads, rows // lengths.shape[0], pages, block,
            table.shape[1] if paged else 1, eps,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            out.stride(0), out.stride(1), cos.stride(0), sin.stride(0),
            *k_pages.stride()[:3], *v_pages.stride()[:3], table.stride(0) if paged else 0,
            size, pairs, triton.next_power_of_2(pairs),
            triton.next_power_of_2(max(1, size - 2 * pairs)),
            triton.next_power_of_2(size), together, norm, paged,
            num_warps=warps,
        )  # fmt: skip
    return out


def traffic(rows: int, heads: int, kv_heads: int, size: int, pairs: int, itemsize: int) -> int:
    """Return the fewest bytes: each head in and out, and a row's angles."""
    return rows * (2 * (heads + 2 * kv_heads) * size * itemsize + 2 * pairs * 4)


def aot(target: Target) -> list[Compile]:
    """Return what `launch` compiles on such a GPU, for (heads, KV heads, channels) of models."""
    tensors = ("q", "k", "v", "out", "k_pages", "v_pages", "q_norm", "k_norm")
    counts = ("heads", "kv_heads", "tokens", "pages", "block", "blocks", "table_row")
    strides = [f"{tensor}_{step}" for tensor in ("q", "k", "v", "out") for step in ("row", "head")]
    strides += ["cos_row", "sin_row", "k_page", "k_kv", "k_slot", "v_page", "v_kv", "v_slot"]
    cases = []
    for dtype in ("fp32", "bf16" if target.has_bf16 else "fp16"):
        for heads, size, pairs in ((9, 64, 32), (32, 128, 64), (32, 80, 40), (32, 96, 16)):
            for norm in (False, True):
                together, warps = config(
                    heads, size, 4 if dtype == "fp32" else 2, target.capability
                )
                cases.append(
                    Compile(
                        rope_and_cache_kernel,
                        f"{dtype}, {heads} x {size}, {pairs} pairs" + (", norm" if norm else ""),
                        dict.fromkeys(tensors, f"*{dtype}")
                        | {"cos": "*fp32", "sin": "*fp32", "lengths": "*i64", "table": "*i32"}
                        | dict.fromkeys(counts, "i32")
                        | dict.fromkeys(strides, "i32:16")
                        | {"eps": "fp32"},
                        {"SIZE": size, "PAIRS": pairs, "BLOCK": triton.next_power_of_2(pairs)}
                        | {"REST": triton.next_power_of_2(max(1, size - 2 * pairs))}
                        | {"WHOLE": triton.next_power_of_2(size), "HEADS": together}
                        | {"NORM": norm, "TABLE": True},
                        num_warps=warps,
                        wide_loads=True,
                    )
                )
    return cases
