"""What the book says differently from the two articles that it began with, entry by entry.

Each correction is a sentence with its numbers computed by the cost model when it is read. Numbers
of entries are those of the tests, `test_claim_1...`; "70B" is the shape of Llama 2 70B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from inferlab.theory import (
    classical,
    costs,
    hardware,
    inside,
    latency,
    limits,
    measurements,
    models,
    nominal,
    roofline,
    trends,
)
from inferlab.theory.hardware import Hardware
from inferlab.theory.shapes import ModelShape

Values = Mapping[str, float]
ROUND = 70e9
"""The parameters of "70B" as the articles count them."""


@dataclass(frozen=True)
class Erratum:
    """One correction: what the articles say, in short, and what the book says.

    `verdict` is "wrong", or "caveat" for what holds only under conditions; `chapter` is the stem
    of the notebook that shows it. `right` holds fields for the numbers of `values`.
    """

    number: int
    verdict: Literal["wrong", "caveat"]
    chapter: str
    said: str
    right: str
    values: Callable[[], Values] = dict

    @property
    def text(self) -> str:
        """The corrected statement, with its numbers."""
        return self.right.format(**self.values())


def all() -> tuple[Erratum, ...]:
    """Return every correction, in the order of the articles."""
    return _ERRATA


def _seventy() -> ModelShape:
    return models.get("llama-2-70b")


def _small() -> ModelShape:
    return models.get("smollm2-135m")


def _h100() -> Hardware:
    return hardware.get("h100-sxm")


def _published(number: int) -> measurements.Measurement:
    return next(m for m in measurements.published() if m.id == number)


def _score_share(shape: ModelShape, tokens: int) -> float:
    return 100 * limits.attention_share(shape, tokens)


def _growth(before: str, after: str = "") -> float:
    return trends.compute_growth(hardware.get("k20x"), _h100(), before, after)


def _ridge(name: str, dtype: str = "bf16") -> float:
    return hardware.get(name).ridge(dtype)


def _recompute(shape: ModelShape, chip: Hardware, dtype: str) -> float:
    """Return how much longer 1,000 tokens take without a cache, by the roofline."""

    def seconds(cache: bool) -> float:
        passes = costs.generation(shape, 1, 1000, cache=cache, dtype=dtype)
        return sum(roofline.place(cost, chip, dtype).seconds for cost in passes)

    return seconds(False) / seconds(True)


def _without_cache() -> Values:
    matrices, attention = nominal.generation_flops(ROUND, _seventy(), 1000, cache=False)
    kept, kept_attention = nominal.generation_flops(ROUND, _seventy(), 1000, cache=True)
    return {
        "matrices": matrices / kept,
        "attention": attention / kept_attention,
        "time": _recompute(_seventy(), _h100(), "bf16"),
    }


def _prefill_traffic() -> Values:
    cost = nominal.prefill(ROUND, _seventy(), 2000)
    moved = {
        kind: costs.activation_bytes(_seventy(), 2000, 2, kind) + cost.parts["kv_write"].bytes
        for kind in ("ideal", "fused", "unfused")
    }
    weights = cost.parts["weights"].bytes
    return {
        "ideal": cost.bytes / 1e9,
        "fused": (weights + moved["fused"]) / 1e9,
        "unfused": (weights + moved["unfused"]) / 1e9,
        "intensity": cost.intensity,
        "least": cost.flops / (weights + moved["unfused"]),
    }


def _ceilings() -> Values:
    shape, h200 = _seventy(), hardware.get("h200-sxm")
    return {
        "weights": costs.weight_bytes(shape) / 1e9,
        "room": (_h100().memory_bytes or 0) / 1e9,
        "one": limits.decode_ceiling(shape, _h100()),
        "h200": limits.decode_ceiling(shape, h200),
        "two": limits.decode_ceiling(shape, _h100(), chips=2),
    }


def _experts() -> Values:
    experts = models.get("deepseek-v3").experts
    assert experts is not None
    return {f"b{batch}": experts.expected_distinct(batch) for batch in (1, 8, 64)}


def _closed_loop() -> Values:
    return {
        "alone": (_published(195).seconds or 0),
        "crowded": (_published(216).seconds or 0),
    }


def _identity() -> Values:
    """Return how many published rows Little's law with the identity predicts, and how far off."""
    errors = []
    for number in range(194, 221, 3):
        tpot, ttft, measured = (_published(n) for n in (number, number + 1, number + 2))
        predicted = latency.closed_loop_throughput(
            tpot.batch or 1, ttft.seconds or 0, tpot.seconds or 0, tpot.output or 0
        )
        errors.append(100 * abs(predicted / measured.value - 1))
    return {"rows": len(errors), "most": max(errors)}


_ERRATA = (
    Erratum(
        1,
        "caveat",
        "01-classical-vs-neural",
        "Classical models are cheap because one dot product is little work.",
        "One row of logistic regression does {logistic:.1f} operations per byte, fewer than a "
        "decode step of a 70B ({decode:.1f}). It is cheap because its weights fit in a cache.",
        lambda: {
            "logistic": classical.logistic_regression(784).intensity,
            "decode": costs.decode_step(_seventy(), 0).intensity,
        },
    ),
    Erratum(
        2,
        "caveat",
        "01-classical-vs-neural",
        "A random forest makes a handful of comparisons.",
        "A handful a tree. A hundred trees of depth 10 to 20 make {shallow:,.0f} to {deep:,.0f}, "
        "each waiting for the one before it: a forest waits for memory's latency.",
        lambda: {
            "shallow": classical.forest_comparisons(100, 10),
            "deep": classical.forest_comparisons(100, 20),
        },
    ),
    Erratum(
        6,
        "caveat",
        "01-classical-vs-neural",
        "LeNet made people ask for a GPU.",
        "LeNet-5 has {parameters:,.0f} parameters and ran on processors of its day. The turn to "
        "GPUs came with AlexNet in {year:.0f}, {times:,.0f} times larger.",
        lambda: {
            "parameters": sum(classical.lenet5_parameters().values()),
            "year": next(year for year, event in inside.GPU_YEARS.items() if "AlexNet" in event),
            "times": sum(classical.alexnet_parameters().values())
            / sum(classical.lenet5_parameters().values()),
        },
    ),
    Erratum(
        8,
        "caveat",
        "02-simd-vs-gpu",
        "A CPU has a few fat cores.",
        "Servers have left that behind: an EPYC 9654 has {epyc:.0f} cores, a Xeon 8480+ "
        "{xeon:.0f}.",
        lambda: {
            "epyc": hardware.get("epyc-9654").sm_count or 0,
            "xeon": hardware.get("xeon-8480").sm_count or 0,
        },
    ),
    Erratum(
        9,
        "caveat",
        "02-simd-vs-gpu",
        "Wider vector lanes never make a CPU a machine for matrix products.",
        "Since 2023 server processors have a matrix unit. A Xeon 8480+ reaches {peak:.0f} TFLOP/s "
        "in bf16, a ridge of {ridge:.0f} FLOP/byte against {gpu:.0f} on an H100. What it lacks "
        "for decoding is bandwidth: {slow:.0f} against {fast:,.0f} GB/s.",
        lambda: {
            "peak": hardware.get("xeon-8480").peak("bf16") / 1e12,
            "ridge": _ridge("xeon-8480"),
            "gpu": _ridge("h100-sxm"),
            "slow": hardware.get("xeon-8480").bandwidth / 1e9,
            "fast": _h100().bandwidth / 1e9,
        },
    ),
    Erratum(
        10,
        "caveat",
        "02-simd-vs-gpu",
        "A GPU computes with thousands of simple cores.",
        "An H100 has {lanes:,.0f} float32 lanes, but {share:.0f} % of its 16-bit rate is in "
        "another unit, the tensor cores.",
        lambda: {
            "lanes": (_h100().sm_count or 0) * 128,
            "share": 100 * _h100().flops["bf16"] / (_h100().flops["bf16"] + _h100().flops["fp32"]),
        },
    ),
    Erratum(
        11,
        "wrong",
        "02-simd-vs-gpu",
        "GPUs exist because models grew.",
        "GPUs were made for graphics. CUDA opened them to any program in {cuda:.0f}, and AlexNet "
        "borrowed two of them in {alexnet:.0f}. They won machine learning because they were there "
        "and fitted.",
        lambda: {
            name.lower(): next(year for year, event in inside.GPU_YEARS.items() if name in event)
            for name in ("CUDA", "AlexNet")
        },
    ),
    Erratum(
        13,
        "caveat",
        "03-attention-is-quadratic",
        "Every token is compared with every other one.",
        "In a causal decoder with itself and those before it: of 2,048 x 2,048 scores "
        "{pairs:,.0f} are computed.",
        lambda: {
            "pairs": costs.attention_flops(_seventy(), 2048)
            / (4 * _seventy().query_width * _seventy().layers)
        },
    ),
    Erratum(
        16,
        "caveat",
        "03-attention-is-quadratic",
        "Attention is quadratic by its nature.",
        "Its operations are, for exact attention over all of the context. Its memory need not be, "
        "and with a window neither is: in Mistral 7B twice 32,000 tokens cost {windowed:.1f} "
        "times as much, in a 70B {full:.1f} times.",
        lambda: {
            "windowed": costs.attention_flops(models.get("mistral-7b-v0.1"), 64_000)
            / costs.attention_flops(models.get("mistral-7b-v0.1"), 32_000),
            "full": costs.attention_flops(_seventy(), 64_000)
            / costs.attention_flops(_seventy(), 32_000),
        },
    ),
    Erratum(
        17,
        "caveat",
        "03-attention-is-quadratic",
        "Quadratic growth is what drives you to an accelerator.",
        "At 2,048 tokens the quadratic part is {large:.1f} % of a 70B's prefill and {small:.0f} % "
        "of SmolLM2's; it is half at {half:,.0f} and at {small_half:,.0f} tokens. Before that the "
        "matrices are the work.",
        lambda: {
            "large": _score_share(_seventy(), 2048),
            "small": _score_share(_small(), 2048),
            "half": limits.attention_half_tokens(_seventy()),
            "small_half": limits.attention_half_tokens(_small()),
        },
    ),
    Erratum(
        24,
        "caveat",
        "04-thirty-milliseconds",
        "Of 30 ms, 0.1 are arithmetic and all the others wait for bytes.",
        "The rest is not all bytes: kernels must be launched, requests scheduled, tokens sampled. "
        "On one A100 the same model ran at {eager:.0f} % of its byte bound step by step and at "
        "{compiled:.0f} % compiled.",
        lambda: {
            "eager": 100 * (_published(26).fraction_of_bound() or 0),
            "compiled": 100 * (_published(25).fraction_of_bound() or 0),
        },
    ),
    Erratum(
        28,
        "caveat",
        "05-memory-wall",
        "Compute grows with the density of transistors.",
        "From K20X to H100 float32 vectors gained {vector:.0f}x. Counted to dense bf16 on tensor "
        "cores it is {bf16:.0f}x, to fp8 {fp8:.0f}x: most of the growth is narrower formats in "
        "units of their own.",
        lambda: {
            "vector": _growth("fp32"),
            "bf16": _growth("fp32", "bf16"),
            "fp8": _growth("fp32", "fp8"),
        },
    ),
    Erratum(
        29,
        "caveat",
        "05-memory-wall",
        "Peak floating-point rates of server GPUs grew 80x from 2012 to 2022.",
        "The source says 64-bit, and datasheets do not give it: K20X to H100 is {vector:.0f}x by "
        "vectors and {tensor:.0f}x by tensor cores, K20 to H100 {k20:.0f}x.",
        lambda: {
            "vector": _growth("fp64", "fp64-vector"),
            "tensor": _growth("fp64"),
            "k20": trends.compute_growth(hardware.get("k20"), _h100(), "fp64"),
        },
    ),
    Erratum(
        30,
        "caveat",
        "05-memory-wall",
        "Bandwidth grew 17x in the same years.",
        "With parts of 2012 it is {k20x:.0f}x (K20X) or {k20:.0f}x (K20).",
        lambda: {
            "k20x": trends.bandwidth_growth(hardware.get("k20x"), _h100()),
            "k20": trends.bandwidth_growth(hardware.get("k20"), _h100()),
        },
    ),
    Erratum(
        33,
        "wrong",
        "07-roofline",
        "The gap between arithmetic and memory is still widening.",
        "At dense 16 bits it has been roughly flat on flagships since 2022: {h100:.0f} FLOP/byte "
        "on an H100, {h200:.0f} on an H200, {b200:.0f} on a B200. It is higher on inference cards "
        "(L4 {l4:.0f}) and grows with narrower formats (B200 in fp4 {fp4:,.0f}).",
        lambda: {
            "h100": _ridge("h100-sxm"),
            "h200": _ridge("h200-sxm"),
            "b200": _ridge("b200-sxm"),
            "l4": _ridge("l4"),
            "fp4": _ridge("b200-sxm", "fp4"),
        },
    ),
    Erratum(
        34,
        "caveat",
        "05-memory-wall",
        "The memory wall of 1995 is this gap in bandwidth.",
        "Wulf and McKee, {before} years before the transformer, wrote about the average time of "
        "an access: latency and cache misses.",
        lambda: {"before": trends.TRANSFORMER_YEAR - trends.MEMORY_WALL_YEAR},
    ),
    Erratum(
        40,
        "caveat",
        "06-forward-pass",
        "Large models have 60 to over 100 layers.",
        "Dense ones do (70B: {dense:.0f}). Mixtures of experts grow sideways: gpt-oss-120b has "
        "{moe:.0f}.",
        lambda: {"dense": _seventy().layers, "moe": models.get("gpt-oss-120b").layers},
    ),
    Erratum(
        43,
        "wrong",
        "06-forward-pass",
        "A feed-forward block is two matrices.",
        "In the 70B at hand it is three: gate, up and down, {share:.1f} % of its parameters. With "
        "two it would have {two:.1f} billion.",
        lambda: {
            "share": 100 * _seventy().ffn_weights.matrices / _seventy().params,
            "two": (_seventy().params - _seventy().ffn_weights.matrices / 3) / 1e9,
        },
    ),
    Erratum(
        45,
        "caveat",
        "06-forward-pass",
        "A GPU's memory is HBM.",
        "On data centre flagships. {others:.0f} GPUs of the catalog, those of free notebooks and "
        "workstations among them, have GDDR on the board.",
        lambda: {"others": sum(c.memory_type.startswith("GDDR") for c in hardware.all())},
    ),
    Erratum(
        47,
        "caveat",
        "06-forward-pass",
        "Each pass reads all of the weights.",
        "The input table is looked up, a row a token. Llama 3.1 8B streams {streamed:.2f} of its "
        "{total:.2f} GB. Where the table is also the head, as in SmolLM2, it is streamed.",
        lambda: {
            "streamed": costs.streamed_weight_bytes(models.get("llama-3.1-8b")) / 1e9,
            "total": costs.weight_bytes(models.get("llama-3.1-8b")) / 1e9,
        },
    ),
    Erratum(
        48,
        "caveat",
        "06-forward-pass",
        "A mixture of experts reads its active part only.",
        "At batch 1. Of DeepSeek-V3's 256 experts a layer, a step touches {b1:.0f} at batch 1, "
        "{b8:.0f} at 8 and {b64:.0f} at 64: bytes go back to the total, operations stay active.",
        _experts,
    ),
    Erratum(
        50,
        "caveat",
        "08-prefill-and-decode",
        "Prefill takes the whole prompt in one pass.",
        "Engines cut long prompts into chunks and skip what they have read before. With 1,500 of "
        "2,000 tokens cached, {share:.0f} % of the operations remain.",
        lambda: {
            "share": 100
            * costs.prefill(_seventy(), 500, context=1500).flops
            / costs.prefill(_seventy(), 2000).flops
        },
    ),
    Erratum(
        52,
        "caveat",
        "08-prefill-and-decode",
        "In a prompt of 2,000 each byte serves thousands of multiply-accumulates.",
        "{macs:,.0f} of them, which are {flops:,.0f} operations: two bytes hold a weight, and a "
        "multiply-accumulate is two operations.",
        lambda: {
            "flops": costs.prefill(_seventy(), 2000).parts["ffn"].intensity,
            "macs": costs.prefill(_seventy(), 2000).parts["ffn"].intensity / 2,
        },
    ),
    Erratum(
        53,
        "caveat",
        "08-prefill-and-decode",
        "Prefill is compute-bound.",
        "From the knee on, at ridge x bytes per weight / 2 tokens: {bf16:.0f} on an H100 in bf16, "
        "{int4:.0f} with 4-bit weights. A shorter prompt waits for the weights.",
        lambda: {
            "bf16": limits.knee_tokens(_h100()),
            "int4": limits.knee_tokens(_h100(), "int4"),
        },
    ),
    Erratum(
        55,
        "caveat",
        "08-prefill-and-decode",
        "Prefill and decode run the same kernels.",
        "The same formulas. A product with 2,000 tokens does {many:,.0f} operations with a byte of "
        "weights, one with a single token {one:.0f}: it can use nothing twice. So engines keep "
        "a kernel for each.",
        lambda: {
            "many": costs.prefill(_seventy(), 2000).parts["ffn"].intensity,
            "one": costs.decode_step(_seventy(), 0).parts["ffn"].intensity,
        },
    ),
    Erratum(
        58,
        "wrong",
        "07-roofline",
        "The roofline's second author is given another first name.",
        "Samuel Williams, Andrew Waterman and David Patterson, Communications of the ACM, 2009.",
    ),
    Erratum(
        65,
        "caveat",
        "08-prefill-and-decode",
        "A prefill of 2,000 tokens moves 146 GB.",
        "{ideal:.1f} GB if every activation stays on the chip. A good engine moves {fused:.0f}, "
        "one that fuses nothing {unfused:.0f}; intensity is then {least:,.0f} in place of "
        "{intensity:,.0f}, still right of the ridge.",
        _prefill_traffic,
    ),
    Erratum(
        71,
        "caveat",
        "08-prefill-and-decode",
        "Decode does one operation per byte.",
        "Because a weight of 16 bits is two bytes and takes two operations. In int8 it is "
        "{int8:.0f}, in 4 bits {int4:.0f}.",
        lambda: {
            dtype: costs.decode_step(_seventy(), 0, dtype=dtype).parts["ffn"].intensity
            for dtype in ("int8", "int4")
        },
    ),
    Erratum(
        74,
        "caveat",
        "09-the-ceiling",
        "An H100 could write 24 tokens a second with a 70B.",
        "An H100 that could hold it: {weights:.0f} GB do not fit into {room:.1f}. The bound is "
        "{one:.1f} tokens/s there, {h200:.1f} on an H200, {two:.1f} on two H100.",
        _ceilings,
    ),
    Erratum(
        75,
        "caveat",
        "09-the-ceiling",
        "No kernel can pass bandwidth over bytes.",
        "Unless the weights stay in the last cache. A B200 has {l2:.0f} MB of it; SmolLM2's 4-bit "
        "file streams {file:.0f} MB a token.",
        lambda: {
            "l2": (hardware.get("b200-sxm").l2_bytes or 0) / 1e6,
            "file": _smollm2_file_bytes() / 1e6,
        },
    ),
    Erratum(
        76,
        "caveat",
        "09-the-ceiling",
        "More GPUs raise the bandwidth of one token.",
        "Only where each holds a slice of every layer. On 1, 2, 4 and 8 A100 a 7B reached "
        "{one:.0f}, {two:.0f}, {four:.0f} and {eight:.0f} tokens/s. Whole layers on other GPUs "
        "make room and add no speed.",
        lambda: {
            name: _published(number).value
            for name, number in (("one", 1), ("two", 9), ("four", 10), ("eight", 11))
        },
    ),
    Erratum(
        78,
        "wrong",
        "09-the-ceiling",
        "Reusing a prefix shares the trip of the weights.",
        "It saves prefill: of 2,000 tokens with 1,900 known, {share:.0f} % of the operations are "
        "left. A decode step afterwards moves as many bytes as before.",
        lambda: {
            "share": 100
            * costs.prefill(_seventy(), 100, context=1900).flops
            / costs.prefill(_seventy(), 2000).flops
        },
    ),
    Erratum(
        82,
        "caveat",
        "10-kv-cache",
        "Without a cache the work is quadratic.",
        "That of the matrices; attention's is cubic. Over 1,000 tokens of a 70B a cache saves "
        "{matrices:.0f} times and {attention:.0f} times the operations. In time on an H100 it is "
        "{time:.1f} times: a recomputed step is a prefill, nearly free up to the knee.",
        _without_cache,
    ),
    Erratum(
        83,
        "caveat",
        "10-kv-cache",
        "The cache makes decoding linear.",
        "It makes a step linear in what lies behind it. Twice the tokens still cost {total:.1f} "
        "times the attention.",
        lambda: {
            "total": nominal.generation_flops(ROUND, _seventy(), 2000, cache=True)[1]
            / nominal.generation_flops(ROUND, _seventy(), 1000, cache=True)[1]
        },
    ),
    Erratum(
        85,
        "caveat",
        "11-price-of-memory",
        "A cache holds two vectors a token and layer.",
        "Two for each KV head. DeepSeek-V3 holds one of {width:.0f} numbers for all heads, "
        "{latent:,.0f} bytes a token; the 70B takes {gqa:,.0f}.",
        lambda: {
            "width": models.get("deepseek-v3").kv_width,
            "latent": costs.kv_bytes_per_token(models.get("deepseek-v3")),
            "gqa": costs.kv_bytes_per_token(_seventy()),
        },
    ),
    Erratum(
        92,
        "caveat",
        "14-ttft-tpot-goodput",
        "A short prompt means half a second of pause.",
        "The engine's part is far less: {seven:.0f} ms were published for a 7B and {seventy:.0f} "
        "for a 70B, both with 128 tokens. The rest is network, routing and queue.",
        lambda: {
            "seven": 1e3 * (_published(131).seconds or 0),
            "seventy": 1e3 * (_published(133).seconds or 0),
        },
    ),
    Erratum(
        93,
        "caveat",
        "14-ttft-tpot-goodput",
        "Prefill decides the time to the first token.",
        "On an idle server. With 250 requests under way one server needed {crowded:.1f} s in "
        "place of {alone:.2f}: the queue decides.",
        _closed_loop,
    ),
    Erratum(
        95,
        "caveat",
        "14-ttft-tpot-goodput",
        "TPOT is another name of inter-token latency.",
        "TPOT is one mean a request, (E2E - TTFT) / (N - 1). ITL is every single gap. A stream of "
        "gaps 10, 10 and 100 ms has a TPOT of {tpot:.0f} ms and a longest gap of {longest:.0f}.",
        lambda: _one_stream(),
    ),
    Erratum(
        96,
        "caveat",
        "14-ttft-tpot-goodput",
        "TPOT is a matter of bandwidth.",
        "For a large model on few chips. Llama 3 8B on eight chips took {ms:.2f} ms a token, "
        "{percent:.0f} % of its bound: launches and messages take the rest.",
        lambda: {
            "ms": 1e3 * (_published(224).seconds or 0),
            "percent": 100 * (_published(224).fraction_of_bound() or 0),
        },
    ),
    Erratum(
        97,
        "caveat",
        "14-ttft-tpot-goodput",
        "Goodput counts tokens that come in time.",
        "It counts requests: those a second that keep every promise or, in the paper that made "
        "the word known here, the highest rate at which nine of ten do. A server with "
        "{throughput:,.0f} tokens/s whose every other first token is late has a goodput of "
        "{goodput:.0f} of its {requests:.0f} requests/s.",
        lambda: _every_other_late(),
    ),
    Erratum(
        106,
        "caveat",
        "10-kv-cache",
        "A cache turns a step from quadratic to linear.",
        "The attention of a step. Its matrices go from linear to constant: at token 1,000 they "
        "cost {matrices:,.0f} times less with the cache.",
        lambda: {
            "matrices": costs.prefill(_seventy(), 1000).parts["ffn"].flops
            / costs.decode_step(_seventy(), 999).parts["ffn"].flops
        },
    ),
    Erratum(
        107,
        "caveat",
        "11-price-of-memory",
        "Each step reads the whole cache.",
        "Layers with a window read its last tokens only. At 100,000 tokens Mistral 7B reads "
        "{share:.0f} % of what it would without one.",
        lambda: {"share": 100 * _window_share()},
    ),
    Erratum(
        108,
        "wrong",
        "13-paging-and-prefix-reuse",
        "Paging shrinks the bytes a step moves.",
        "A step of a given batch reads the same bytes, paged or not. Paging wastes less memory, "
        "so more sequences fit; with 32 in place of 8 a 70B moves {less:.1f} times fewer bytes a "
        "token.",
        lambda: {
            "less": costs.decode_step(_seventy(), 1000, 8).bytes
            / 8
            / (costs.decode_step(_seventy(), 1000, 32).bytes / 32)
        },
    ),
    Erratum(
        109,
        "caveat",
        "03-attention-is-quadratic",
        "Attention is shown as softmax(q k) v, and a step as that and an MLP.",
        "Missing are a division by the square root of a head's width ({scale:.0f} in SmolLM2), the "
        "other heads of a layer ({others:.0f} there), rotation, the output projection, residuals "
        "and norms.",
        lambda: {"scale": _small().head_dim ** 0.5, "others": _small().heads - 1},
    ),
    Erratum(
        113,
        "caveat",
        "12-batching",
        "A batch raises the intensity of decoding.",
        "That of the weights. Each sequence has keys and values of its own, at {own:.0f} "
        "operations a byte whatever the batch. On an H100 beyond about {context:,.0f} tokens of "
        "context they take longer than the matrices, however large the batch.",
        lambda: {
            "own": costs.decode_step(_seventy(), 2000, 16).parts["attention"].intensity,
            "context": limits.kv_time_context(ROUND, _seventy(), _h100()),
        },
    ),
    Erratum(
        116,
        "caveat",
        "14-ttft-tpot-goodput",
        "Total time is TTFT + (N - 1) TPOT.",
        "By what TPOT means: it cannot fail. Only with Little's law does it predict something, "
        "and then well: {rows:.0f} published rows of one server within {most:.1f} %.",
        _identity,
    ),
)


def _smollm2_file_bytes() -> float:
    small = _small()
    body = costs.weight_bytes_by_part(small, "q4_1", 1)
    head = costs.weight_bytes_by_part(small, "q8_0", 1)["logits"]
    step = costs.decode_step(small, 0, dtype="q4_1", stored={**body, "logits": head})
    return sum(step.parts[part].bytes for part in ("projections", "ffn", "logits"))


def _one_stream() -> Values:
    times = latency.RequestTimes(scheduled=0, pieces=(0.5, 0.51, 0.52, 0.62))
    return {"tpot": 1e3 * (times.tpot or 0), "longest": 1e3 * max(times.itl)}


def _every_other_late() -> Values:
    """Return what a second of 20 answers of 100 tokens counts for, half of them begun too late."""
    requests = [
        latency.RequestTimes(0, (start, 1.0), output_tokens=100) for start in (0.2, 0.8) * 10
    ]
    return {
        "throughput": latency.throughput(requests, 1),
        "goodput": latency.goodput(requests, {"ttft": 0.5}, 1),
        "requests": len(requests),
    }


def _window_share() -> float:
    windowed = models.get("mistral-7b-v0.1")
    whole = costs.kv_bytes_per_token(windowed) * 100_000
    return costs.decode_step(windowed, 100_000).parts["attention"].bytes / whole
