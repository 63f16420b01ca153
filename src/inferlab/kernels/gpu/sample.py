"""From logits to one token a row, every row with its own parameters, without sorting a vocabulary.

A row is cut into chunks, so that one row occupies many multiprocessors. Weights e^((x - peak) / T)
become whole numbers of 2^-40: their sums are exact in any order, so a token depends on nothing but
its row. The token is the first at which the running sum, by token id, passes a random share of the
whole; a row's random number comes from its own seed and offset (Philox, Salmon et al. 2011).

top-k and top-p need the logit at which the likeliest tokens end. FlashInfer finds it without a sort
by rejection, vLLM by bisection; here a radix search settles four bits of it a pass: it counts, and
weighs, the tokens of each of 16 buckets. Of equal logits at the edge the lowest ids stay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from inferlab.kernels.gpu.compiled import Compile, Target
from inferlab.kernels.gpu.dsl import interpreted, jit, tl, triton

CHUNK = 2048  # tokens a program takes
WARPS = 8
PART = 32 * WARPS  # that it sorts into 16 buckets at a time
BITS = 4  # of a logit, that a pass settles
# A float32 that was a narrower one ends in zeros, which need no pass.
PASSES = {torch.float32: 8, torch.float16: 5, torch.bfloat16: 4}
FIELDS = 8  # of a row's state: see `pick_kernel`


@jit
def peaks_kernel(logits, peaks, places, row, vocab, chunks, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the highest logit of a chunk, NaN if one is NaN or infinite, and its lowest id."""
    chunk, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + b * row + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
    bad = tl.max(((x != x) | (x == float("inf"))).to(tl.int32), 0)
    peak = tl.max(tl.where(x == x, x, float("-inf")), 0)
    place = tl.min(tl.where(x == peak, at, vocab), 0)
    tl.store(peaks + b * chunks + chunk, tl.where(bad > 0, float("nan"), peak))
    tl.store(places + b * chunks + chunk, place)


@jit
def peak_of(peaks, chunks, CHUNKS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a row's highest logit, and whether it and all others may be sampled from."""
    chunk = tl.arange(0, CHUNKS)
    x = tl.load(peaks + chunk, mask=chunk < chunks, other=float("-inf"))
    bad = tl.max((x != x).to(tl.int32), 0)
    peak = tl.max(tl.where(x == x, x, float("-inf")), 0)
    return peak, (bad == 0) & (peak > float("-inf"))


@jit
def weigh(x, peak, temperature):  # type: ignore[no-untyped-def]
    """Return each logit's weight, 1 for the peak, as a float and in units of 2^-40; and its key.

    Keys are whole numbers from 0 to 2^32, in the order of the logits.
    """
    scale = 1.4426950408889634 / tl.maximum(temperature, 1e-6)  # below, all is greedy in effect
    weight = tl.exp2((x - peak) * scale)
    mass = (weight * 1099511627776.0).to(tl.int64)
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0, which it equals
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648
    return weight, mass, key


@jit
def count_kernel(  # type: ignore[no-untyped-def]
    logits, temperatures, limits, peaks, state, buckets,
    row, vocab, chunks, shift,
    CHUNK: tl.constexpr, PART: tl.constexpr, CHUNKS: tl.constexpr, FIELDS: tl.constexpr,
    MASS: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Count and weigh a chunk's tokens by the four bits at `shift`, of those that begin as found.

    `limits` is top-p with MASS, else top-k. Writes 16 counts and 16 masses to `buckets`
    [B, chunks, 32].
    """
    chunk, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    temperature = tl.load(temperatures + b).to(tl.float32)
    limit = tl.load(limits + b)
    wanted = (limit < 1) if MASS else (limit > 0)
    peak, good = peak_of(peaks + b * chunks, chunks, CHUNKS)
    if wanted & good & (temperature > 0):
        prefix = tl.cast(0, tl.int64)
        if not FIRST:
            prefix = tl.load(state + b * FIELDS)
        bucket = tl.arange(0, 16)  # [16]
        counts = tl.zeros((16, PART), tl.int32)
        masses = tl.zeros((16, PART), tl.int64)
        for part in tl.static_range(CHUNK // PART):
            at = chunk * CHUNK + part * PART + tl.arange(0, PART)
            x = tl.load(logits + b * row + at, mask=at < vocab, other=float("-inf"))
            _, mass, key = weigh(x.to(tl.float32), peak, temperature)
            like = (at < vocab) & ((key >> (shift + 4)) == prefix)
            digit = tl.where(like, (key >> shift) & 15, 16)
            mine = digit[None, :] == bucket[:, None]  # [16, PART]
            counts += mine.to(tl.int32)
            masses += tl.where(mine, mass[None, :], 0)
        to = buckets + (b * chunks + chunk) * 32 + bucket
        tl.store(to, tl.sum(counts, 1).to(tl.int64))
        tl.store(to + 16, tl.sum(masses, 1))


@jit
def pick_kernel(  # type: ignore[no-untyped-def]
    temperatures, top_k, limits, peaks, state, buckets,
    chunks, vocab,
    CHUNKS: tl.constexpr, FIELDS: tl.constexpr,
    MASS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Take the bucket in which the likeliest tokens' number, or mass, reaches its limit.

    A row's state: the key's bits found so far; number and mass of tokens above them; the limit; and
    after the last pass the edge's key, how many tokens of that key stay, the mass of all that stay.
    """
    b = tl.program_id(0).to(tl.int64)
    own = state + b * FIELDS
    temperature, limit_by = tl.load(temperatures + b).to(tl.float32), tl.load(limits + b)
    wanted = (limit_by < 1) if MASS else (limit_by > 0)
    _, good = peak_of(peaks + b * chunks, chunks, CHUNKS)
    if wanted & good & (temperature > 0):
        chunk, bucket = tl.arange(0, CHUNKS), tl.arange(0, 16)
        at = buckets + (b * chunks + chunk[:, None]) * 32 + bucket[None, :]
        inside = (chunk < chunks)[:, None]
        counts = tl.sum(tl.load(at, mask=inside, other=0), 0)  # [16]
        masses = tl.sum(tl.load(at + 16, mask=inside, other=0), 0)
        prefix, above, mass_above = tl.cast(0, tl.int64), tl.cast(0, tl.int64), tl.cast(0, tl.int64)
        if FIRST:
            if MASS:
                among = tl.where(tl.load(top_k + b) > 0, tl.load(own + 6), tl.sum(masses, 0))
                limit = tl.ceil(limit_by.to(tl.float64) * among.to(tl.float64)).to(tl.int64)
                limit = tl.maximum(limit, 1)
            else:
                limit = tl.minimum(limit_by.to(tl.int64), vocab)
        else:
            prefix, above, mass_above = tl.load(own), tl.load(own + 1), tl.load(own + 2)
            limit = tl.load(own + 3)
        sizes = masses if MASS else counts
        reached = (mass_above if MASS else above) + tl.sum(sizes, 0) - tl.cumsum(sizes, 0)
        crossing = (reached < limit) & (limit <= reached + sizes)
        digit = tl.sum(tl.where(crossing, bucket, 0), 0)
        prefix = prefix * 16 + digit
        above += tl.sum(tl.where(bucket > digit, counts, 0), 0)
        mass_above += tl.sum(tl.where(bucket > digit, masses, 0), 0)
        tl.store(own, prefix)
        tl.store(own + 1, above)
        tl.store(own + 2, mass_above)
        tl.store(own + 3, limit)
        if LAST:
            tied = tl.sum(tl.where(crossing, counts, 0), 0)
            each = tl.sum(tl.where(crossing, masses, 0), 0) // tl.maximum(tied, 1)
            stay = tl.cdiv(limit - mass_above, tl.maximum(each, 1)) if MASS else limit - above
            tl.store(own + 4, prefix)
            tl.store(own + 5, stay)
            tl.store(own + 6, mass_above + stay * each)


@jit
def edge_of(state, top_k, top_p):  # type: ignore[no-untyped-def]
    """Return the key at which a row's tokens end, and how many of that key stay; -1 if all stay."""
    cut = (top_k > 0) | (top_p < 1)
    edge = tl.load(state + 4, mask=cut, other=-1)
    return edge, tl.load(state + 5, mask=cut, other=0)


@jit
def mass_kernel(  # type: ignore[no-untyped-def]
    logits, temperatures, top_k, top_p, min_p, peaks, state, held,
    row, vocab, chunks, last,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """Weigh the tokens of a chunk above the edge, and count those at it: `held` [B, chunks, 3].

    Third stands the mass of one token at the edge, 0 where there is none. The `last` bits of a key
    were not searched for: they are the same for all of a sign.
    """
    chunk, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    temperature = tl.load(temperatures + b).to(tl.float32)
    peak, good = peak_of(peaks + b * chunks, chunks, CHUNKS)
    if good & (temperature > 0):
        edge, _ = edge_of(state + b * FIELDS, tl.load(top_k + b), tl.load(top_p + b))
        least = tl.load(min_p + b).to(tl.float64)
        at = chunk * CHUNK + tl.arange(0, CHUNK)
        x = tl.load(logits + b * row + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        weight, mass, key = weigh(x, peak, temperature)
        likely = (at < vocab) & (weight.to(tl.float64) >= least)
        tied = likely & ((key >> last) == edge)
        to = held + (b * chunks + chunk) * 3
        tl.store(to, tl.sum(tl.where(likely & ((key >> last) > edge), mass, 0), 0))
        tl.store(to + 1, tl.sum(tied.to(tl.int64), 0))
        tl.store(to + 2, tl.max(tl.where(tied, mass, 0), 0))


@jit
def draw_kernel(  # type: ignore[no-untyped-def]
    logits, temperatures, top_k, top_p, min_p, seeds, offsets, peaks, places, state, held, out,
    row, vocab, chunks, last,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """Write a row's token: the likeliest at temperature 0, else a drawn one; -1 for a bad row."""
    b = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + b).to(tl.float32)
    peak, good = peak_of(peaks + b * chunks, chunks, CHUNKS)
    chunk = tl.arange(0, CHUNKS)
    inside = chunk < chunks
    highest = tl.load(peaks + b * chunks + chunk, mask=inside, other=float("-inf"))
    place = tl.load(places + b * chunks + chunk, mask=inside & (highest == peak), other=2147483647)
    token = tl.where(good, tl.min(place, 0), -1)
    if good & (temperature > 0):
        edge, stay = edge_of(state + b * FIELDS, tl.load(top_k + b), tl.load(top_p + b))
        own = held + (b * chunks + chunk) * 3
        ties = tl.load(own + 1, mask=inside, other=0)  # [CHUNKS]
        each = tl.max(tl.load(own + 2, mask=inside, other=0), 0)
        staying = tl.minimum(tl.maximum(stay - (tl.cumsum(ties, 0) - ties), 0), ties)
        masses = tl.load(own, mask=inside, other=0) + staying * each

        high, low, _, _ = tl.randint4x(tl.load(seeds + b), tl.load(offsets + b))
        high = high.to(tl.uint32, bitcast=True).to(tl.uint64)
        random = (high << 32) | low.to(tl.uint32, bitcast=True).to(tl.uint64)
        target = tl.umulhi(random, tl.sum(masses, 0).to(tl.uint64)).to(tl.int64)
        found = tl.sum((tl.cumsum(masses, 0) <= target).to(tl.int32), 0)  # the chunk it lies in
        target -= tl.sum(tl.where(chunk < found, masses, 0), 0)
        staying_here = tl.sum(tl.where(chunk == found, staying, 0), 0)

        at = found * CHUNK + tl.arange(0, CHUNK)
        x = tl.load(logits + b * row + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        weight, mass, key = weigh(x, peak, temperature)
        likely = (at < vocab) & (weight.to(tl.float64) >= tl.load(min_p + b).to(tl.float64))
        tied = likely & ((key >> last) == edge)
        first = tl.cumsum(tied.to(tl.int32), 0) <= staying_here  # among those tied
        keep = (likely & ((key >> last) > edge)) | (tied & first)
        running = tl.cumsum(tl.where(keep, mass, 0), 0)
        token = found * CHUNK + tl.sum((running <= target).to(tl.int32), 0)
    tl.store(out + b, token.to(tl.int64))


class Parameters(NamedTuple):
    """What each row is sampled by: dense tensors [B]."""

    temperature: Any  # float; 0 is greedy
    top_k: Any  # integer; 0 keeps all
    top_p: Any  # float, of float64 where 0.9 should mean 0.9; 1 keeps all
    min_p: Any  # float
    seeds: Any  # integer
    offsets: Any  # integer: which of a seed's random numbers


class Scratch(NamedTuple):
    """What the kernels leave for each other."""

    peaks: Any  # float32 [B, chunks]
    places: Any  # int32 [B, chunks]
    state: Any  # int64 [B, FIELDS]
    buckets: Any  # int64 [B, chunks, 32]
    held: Any  # int64 [B, chunks, 3]


def scratch(batch: int, vocab: int, device: Any) -> Scratch:
    """Return the memory that `launch` needs to itself."""
    chunks = -(-vocab // CHUNK)

    def new(*shape: int, dtype: Any = torch.int64) -> Any:
        return torch.empty(shape, dtype=dtype, device=device)

    return Scratch(
        new(batch, chunks, dtype=torch.float32),
        new(batch, chunks, dtype=torch.int32),
        new(batch, FIELDS),
        new(batch, chunks, 32),
        new(batch, chunks, 3),
    )


def launch(
    logits: Any,
    parameters: Parameters,
    out: Any,
    scratch: Scratch,
    *,
    search_k: bool = True,
    search_p: bool = True,
) -> Any:
    """Fill `out`, int64 [B], with a token for each row of logits [B, V], dense in V.

    Filters act in the order temperature, top-k, top-p of what is left, min-p. A row that holds NaN
    or +inf, or nothing but -inf, gets -1. `search_k=False` and `search_p=False` promise that no row
    has that filter, and save its passes.
    """
    batch, vocab = logits.shape
    if not batch:
        return out
    chunks = triton.cdiv(vocab, CHUNK)
    wide = {"CHUNKS": triton.next_power_of_2(chunks), "FIELDS": FIELDS, "num_warps": WARPS}
    grid, sizes = (chunks, batch), (logits.stride(0), vocab, chunks)
    passes = PASSES[logits.dtype]
    part = CHUNK if interpreted() else PART  # the interpreter pays by the operation
    last = 32 - BITS * passes
    peaks, places, state, buckets, held = scratch
    temperature, top_k, top_p, min_p, seeds, offsets = parameters
    peaks_kernel[grid](logits, peaks, places, *sizes, CHUNK, num_warps=WARPS)
    for wanted, limits, mass in ((search_k, top_k, False), (search_p, top_p, True)):
        for step in range(passes if wanted else 0):
            count_kernel[grid](
                logits, temperature, limits, peaks, state, buckets, *sizes, 32 - BITS * (step + 1),
                CHUNK, part, MASS=mass, FIRST=step == 0, **wide,
            )  # fmt: skip
            pick_kernel[(batch,)](
                temperature, top_k, limits, peaks, state, buckets, chunks, vocab,
                MASS=mass, FIRST=step == 0, LAST=step == passes - 1, **wide,
            )  # fmt: skip
    filters = (logits, temperature, top_k, top_p, min_p)
    mass_kernel[grid](*filters, peaks, state, held, *sizes, last, CHUNK, **wide)
    draw_kernel[(batch,)](
        *filters, seeds, offsets, peaks, places, state, held, out, *sizes, last, CHUNK, **wide
    )
    return out


def traffic(batch: int, vocab: int, itemsize: int) -> int:
    """Return the fewest bytes: every logit once, a token a row. The passes find them in L2."""
    return batch * (vocab * itemsize + 8)


def aot(target: Target) -> list[Compile]:
    """Return what `launch` compiles on such a GPU, for a vocabulary of up to 262,144 tokens."""
    tensors = {"peaks": "*fp32", "places": "*i32", "state": "*i64", "buckets": "*i64"}
    tensors |= {"held": "*i64", "seeds": "*i64", "offsets": "*i64", "out": "*i64"}
    tensors |= {"temperatures": "*fp32", "top_k": "*i32", "top_p": "*fp64", "min_p": "*fp64"}
    sizes = {"row": "i32:16", "vocab": "i32:16", "chunks": "i32", "shift": "i32", "last": "i32"}
    constants = {"CHUNK": CHUNK, "PART": PART, "CHUNKS": 128, "FIELDS": FIELDS}
    search = [{"MASS": mass, "FIRST": False} for mass in (False, True)]
    kinds: list[tuple[Any, dict[str, bool]]] = [(peaks_kernel, {}), (mass_kernel, {})]
    kinds += [(draw_kernel, {})] + [(count_kernel, flags) for flags in search]
    kinds += [(pick_kernel, flags | {"LAST": True}) for flags in search]
    cases = []
    for dtype in ("fp32", "fp16"):
        for kernel, flags in kinds:
            if dtype == "fp16" and kernel is pick_kernel:
                continue  # it reads no logits
            limits = "*fp64" if flags.get("MASS") else "*i32"
            known = tensors | sizes | {"logits": f"*{dtype}", "limits": limits}
            names = kernel.arg_names
            cases.append(
                Compile(
                    kernel,
                    f"{dtype}, {kernel.__name__.removesuffix('_kernel')}"
                    + (" by mass" if flags.get("MASS") else ""),
                    {name: known[name] for name in names if name in known},
                    {name: value for name, value in (constants | flags).items() if name in names},
                    WARPS,
                    wide_loads=kernel is peaks_kernel and dtype == "fp32",
                )
            )
    return cases
