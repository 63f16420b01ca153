"""A model that answers: prompts in, completions out, one decode step for all of them at a time."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from inferlab.engine import cpu_decode, parallel
from inferlab.engine.kv_cache import ContiguousCache, Rows
from inferlab.engine.request import Completion, Request, answer
from inferlab.engine.sampling import SamplingParams, sample
from inferlab.errors import InferlabError, unknown
from inferlab.model import checkpoint
from inferlab.model import source as sources
from inferlab.model.sharding import ShardedTransformer
from inferlab.model.tokenizer import Tokenizer
from inferlab.model.transformer import FLOATS, Transformer

if TYPE_CHECKING:
    from inferlab.engine.chat import Chat
    from inferlab.engine.gpu_decode import GpuDecoder

Prompt = str | list[int]

DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}
KERNELS = ("auto", "simd", "triton", "torch")
MAX_THREADS = 1024
_FIRST_SLOTS = 256
# With rounded activations an answer that torch begins could go on otherwise: better wait a little
# for machine code that lies on disk. A compiler takes longer, and torch begins.
_PATIENCE_S = 3.0
_GPU_SLOTS = 256  # a GPU's kernels are compiled for a capacity: let there be few


@dataclass(frozen=True)
class Piece:
    """Some text of an answer, never half a character, and when it came (seconds)."""

    text: str
    time_s: float


class Stream:
    """The pieces of one answer as they come. `completion` is what there is so far."""

    def __init__(self, request: Request, steps: Iterator[Request]) -> None:
        self._request, self._steps = request, steps

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        for request in self._steps:
            if text := request.new_text():
                return Piece(text, request.token_times[-1])
        raise StopIteration

    @property
    def completion(self) -> Completion:
        """The answer so far; complete once its `finish_reason` is set."""
        return self._request.completion()


class LLM:
    """A transformer with its tokenizer, and the loop that lets it write.

    `LLM.load` reads a checkpoint. The constructor takes what is there already; without a
    tokenizer prompts are token ids and completions have no text.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer | None = None,
        *,
        name: str | None = None,
        kernels: str = "auto",
        threads: int | None = None,
        activations: str = "auto",
    ) -> None:
        _check_choices(kernels, threads, activations)
        self._group: parallel.Group | None = None
        if isinstance(model, ShardedTransformer):
            self._group = cast("parallel.Group", model.group)
            kernels = parallel.kernels(kernels)
        simd = cpu_decode.supports(model)
        if kernels == "simd" and not simd:
            raise InferlabError(
                "kernels simd needs numba, and a model on a CPU in float32 or quantised"
            )
        if threads is not None:
            torch.set_num_threads(threads)
        self.model, self.tokenizer = model, tokenizer
        self.name = name or model.config.name
        self.kernels, self.simd = kernels, simd and kernels in ("auto", "simd")
        self.triton = _takes_triton(model, kernels)
        if activations == "int8" and not self.simd:
            raise InferlabError("activations int8 needs kernels simd: others have float ones")
        self.activations = activations
        if self.simd:
            self.model = model.rounding(activations != "float32")
            cpu_decode.prepare()
        self.eos_ids = model.config.eos_ids | (tokenizer.eos_ids if tokenizer else frozenset())
        self.cache: ContiguousCache | None = None
        """Of the sequence that `prefill` began."""
        self._threads = threads
        self._patience_s = _PATIENCE_S if set(model.formats) - set(FLOATS.values()) else 0.0
        self._shape = model.config.shape()
        self._decoder: cpu_decode.CpuDecoder | GpuDecoder | None = None

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | None = None,
        device: str = "auto",
        dtype: str = "auto",
        quantize: str | None = None,
        kernels: str = "auto",
        *,
        threads: int | None = None,
        activations: str = "auto",
        group: parallel.Group | None = None,
    ) -> LLM:
        """Read a checkpoint; see `model.source.find` for what `source` may be.

        `device` is auto, cpu or cuda. `dtype` auto is float32 on a CPU, and on a GPU bfloat16
        where it has that, float16 where not. `kernels` auto decodes by the SIMD kernels on a CPU
        in float32 and by Triton's on a GPU, else by torch; triton on a CPU is its interpreter.
        `quantize` is None for weights as they are stored, none, q8 or q4 (`Checkpoint.load`).
        Where the SIMD kernels meet quantised weights they round `activations` (auto), to int16
        with a scale for each 32, or in a decode step and before weights of 4 bits to int8 with one
        for each 16; or leave them float32.
        Without numba torch widens quantised weights in each step, at half the speed of float32
        ones: there "none" trades memory for time.
        With a `group` this process reads and holds its part alone, and decodes by torch.
        """
        _check_choices(kernels, threads, activations)
        checkpoint.check_quantize(quantize)
        where = _device(device)
        number = _dtype(dtype, where)
        path = sources.find(source)
        found = checkpoint.open(path)
        if group is not None:
            kernels, found = parallel.kernels(kernels), found.shared(group)
        name = path.stem if path.is_file() else str(source)
        tokenizer = found.tokenizer()
        if where.type == "cpu" and number == torch.float32 and kernels in ("auto", "simd"):
            cpu_decode.prepare()  # compiles while the weights are read
        model = found.load(where, number, quantize)
        llm = cls(
            model, tokenizer, name=name, kernels=kernels, threads=threads, activations=activations
        )
        if group is None:  # the others may still be reading
            llm.warm_up(wait=False)
        return llm

    @property
    def ranks(self) -> int:
        """Processes that share the model; each has the same answers."""
        return self._group.size if self._group else 1

    @property
    def dtype(self) -> str:
        """The format that holds most of the weights' bytes, such as "fp32" or "q4_1"."""
        formats = self.model.formats
        return max(formats, key=lambda name: sum(matrix.nbytes for matrix in formats[name]))

    def warm_up(self, *, wait: bool = True) -> None:
        """Run one pass of each kind, so that no request waits for a compiler or a thread.

        Without `wait`, torch decodes until the SIMD kernels are compiled.
        """
        if self.simd:
            cpu_decode.ready(None if wait else 0)
        cache = self._cache(1, _GPU_SLOTS if self.triton else 4)
        ids = torch.zeros(1, 2, dtype=torch.int64, device=self.model.device)
        self.model.forward(ids, cache.positions(2), cache)
        patience, self._patience_s = self._patience_s, 0.0
        sample(self.decode([0], cache), [SamplingParams()], [Random()])
        self._decoder, self._patience_s = None, patience

    def generate(
        self,
        prompts: Prompt | list[str] | list[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        batch_size: int = 16,
        chunk: int | None = None,
    ) -> list[Completion]:
        """Complete prompts, each a text or token ids, `batch_size` of them at a time.

        A text is taken as it is, after one BOS if the model is trained so; for a chat see `chat`.
        `params` is one for all (its seed then counts for each) or one a prompt. In float32 the
        tokens are those that each prompt gets alone. Times count from this call: rows of a batch
        wait for each other's prefill, or with `chunk` only for so many tokens of it at a time.
        """
        start = time.perf_counter()
        if not isinstance(prompts, str | list | tuple):
            raise InferlabError(f"prompts is {prompts!r}: give a text, token ids or a list of them")
        one = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
        batch = cast("list[Prompt]", [prompts] if one else prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(batch)
        if len(params) != len(batch):
            raise InferlabError(f"params has {len(params)} entries for {len(batch)} prompts")
        if batch_size < 1:
            raise InferlabError(f"batch_size must be 1 or more, not {batch_size}")
        if chunk is not None and chunk < 1:
            raise InferlabError(f"chunk must be 1 or more tokens, not {chunk}")
        requests = [self.request(p, own, start) for p, own in zip(batch, params, strict=True)]
        for first in range(0, len(requests), batch_size):
            for _ in self.run(requests[first : first + batch_size], chunk=chunk):
                pass
        return [request.completion() for request in requests]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Complete one prompt, text piece by text piece. The prompt is checked at once."""
        request = self.request(prompt, params or SamplingParams())
        return Stream(request, self.run([request]))

    def chat(self, system: str | None = None) -> Chat:
        """Begin a conversation, whose turns reuse what the cache holds of those before."""
        from inferlab.engine.chat import Chat

        return Chat(self, system)

    def prefill(self, prompt: Prompt) -> Tensor:
        """Begin a new sequence in `cache` with this prompt; return float32 logits [1, V]."""
        request = self.request(prompt, SamplingParams(max_new_tokens=_FIRST_SLOTS))
        self.cache = self.new_cache([request])
        return cast("Tensor", self._prefill(request, self.cache))

    def decode_step(self, ids: list[int]) -> Tensor:
        """Add one token, given as a list of one, to the sequence; return float32 logits [1, V]."""
        if self.cache is None:
            raise InferlabError("decode_step needs a sequence: call prefill first")
        if len(ids) != self.cache.batch:
            raise InferlabError(f"decode_step takes {self.cache.batch} token, not {len(ids)}")
        self.reserve(self.cache, 1)
        return self.decode(self._checked(ids), self.cache)

    # What `generate`, `stream` and `chat` share

    def request(
        self, prompt: Prompt, params: SamplingParams, start: float | None = None
    ) -> Request:
        """Return the request for a prompt; raises InferlabError if it cannot be run."""
        start = time.perf_counter() if start is None else start
        if not isinstance(params, SamplingParams):
            raise InferlabError(f"params is {params!r}: it must be SamplingParams")
        if isinstance(prompt, str):
            if not prompt:
                raise InferlabError("prompt is empty: it must have at least one token")
            if self.tokenizer is None:
                raise InferlabError("this model has no tokenizer: give the prompt as token ids")
            prompt = self.tokenizer.encode(prompt)
        return Request(
            self._checked(prompt),
            params,
            context=self.model.config.max_context,
            start=start,
            eos_ids=self.eos_ids,
            tokenizer=self.tokenizer,
        )

    def run(
        self,
        requests: list[Request],
        cache: ContiguousCache | None = None,
        *,
        chunk: int | None = None,
    ) -> Iterator[Request]:
        """Run requests together until all are done; yield each one after each of its tokens.

        Every prompt is read in a pass of its own, and needs no padding. Then each decode step
        adds a token to every row, and a row that is done leaves. With `chunk`, prompts are read
        so many tokens a pass, and after each pass the rows that write already take their step.
        A `cache` of one row may be given: it then holds the first `cached_tokens` of the prompt.
        """
        waiting = deque(request for request in requests if not request.done)
        if not waiting:
            return
        memory = cache or self.new_cache(waiting)
        running: list[Request] = []
        rows = memory.rows(0, 0)
        try:
            while waiting or running:
                if waiting:
                    # Whoever writes stands in the rows before: while one waits, the last is free.
                    request, row = waiting[0], memory.row(memory.batch - 1)
                    logits = self._prefill(request, row, chunk)
                    if logits is not None:
                        waiting.popleft()
                        answer([request], logits, self._group)
                        yield request
                        running, rows = self._seat(memory, [*running, request], memory.batch - 1)
                    if waiting and chunk is None:
                        continue
                if running:
                    if self._reserve(memory, int(rows.lengths.max()) + 1):
                        rows = memory.rows(0, len(running))
                    self._count_bytes(running, rows)
                    logits = self.decode([request.token_ids[-1] for request in running], rows)
                    answer(running, logits, self._group)
                    yield from running
                    if any(request.done for request in running):
                        running, rows = self._seat(memory, running)
        finally:
            self._decoder = None  # lets go of the cache

    def new_cache(self, requests: Sequence[Request]) -> ContiguousCache:
        """Return a cache for requests, with room for their prompts and the first of the answers."""
        slots = max(min(r.slots, len(r.prompt_ids) + _FIRST_SLOTS) for r in requests)
        if self.triton:
            slots = -(-slots // _GPU_SLOTS) * _GPU_SLOTS
        return self._cache(len(requests), slots)

    @property
    def cache_kernels(self) -> str:
        """What attends to a cache while a prompt is read: "triton" or "torch"."""
        if self.triton:
            from inferlab.engine import gpu_decode

            return "triton" if gpu_decode.reads_prompts(self.model) else "torch"
        return "torch"

    def kv_bytes(self, tokens: int) -> float:
        """Bytes of the keys and values that one decode step reads behind so many tokens."""
        return self._shape.kv_elements(tokens) * self.model.dtype.itemsize

    def _cache(self, batch: int, slots: int) -> ContiguousCache:
        model, kernels = self.model, self.cache_kernels
        return ContiguousCache(model.config, batch, slots, model.device, model.dtype, kernels)

    def reserve(self, cache: ContiguousCache, tokens: int) -> None:
        """Make room for more tokens in each row, doubling the memory up to the whole context."""
        self._reserve(cache, int(cache.lengths.max()) + tokens)

    def _reserve(self, cache: ContiguousCache, needed: int) -> bool:
        """Make room for `needed` positions a row; return whether the memory moved."""
        most = self.model.config.max_context
        if needed > most:
            raise InferlabError(f"the context of {most} tokens is full")
        if needed <= cache.capacity:
            return False
        cache.grow(min(most, max(needed, 2 * cache.capacity)))
        self._decoder = None  # it holds the addresses of the old memory
        return True

    def _prefill(
        self, request: Request, row: ContiguousCache, chunk: int | None = None
    ) -> Tensor | None:
        """Read `chunk` more tokens of a prompt (None: all); return logits [1, V] once read."""
        if not request.computed:
            row.lengths[0] = request.computed = request.cached_tokens
        ids = request.prompt_ids[request.computed :][:chunk]
        tensor = torch.tensor([ids], device=self.model.device)
        logits = self.model.forward(tensor, row.positions(len(ids)), row)
        request.computed += len(ids)
        return logits if request.computed == len(request.prompt_ids) else None

    def decode(self, tokens: list[int], cache: Rows) -> Tensor:
        """Run one token a row, by whatever decodes here; return float32 logits [B, V]."""
        ids = torch.tensor(tokens)
        if self.triton:
            from inferlab.engine import gpu_decode

            if cache.batch <= gpu_decode.MAX_BATCH:
                known = self._decoder
                if not isinstance(known, gpu_decode.GpuDecoder) or not known.serves(cache):
                    known = self._decoder = gpu_decode.GpuDecoder(self.model, cache)
                return known.step(ids, cache)
        simd = self.simd and (self.kernels == "simd" or cpu_decode.ready(self._patience_s))
        self._patience_s = 0.0
        if simd and cache.batch <= cpu_decode.MAX_BATCH:
            own = self._decoder
            if not isinstance(own, cpu_decode.CpuDecoder) or not own.serves(cache):
                own = cpu_decode.CpuDecoder(
                    self.model, cache, threads=self._threads, activations=self.activations
                )
                self._decoder = own
            return own.step(ids, cache)
        return self.model.forward(ids[:, None].to(self.model.device), cache.positions(1), cache)

    def _seat(
        self, memory: ContiguousCache, running: list[Request], last: int | None = None
    ) -> tuple[list[Request], ContiguousCache]:
        """Close ranks: move rows from the end into the gaps of those that are done.

        The last request stands in row `last`, the others in order from row 0.
        """
        seats = list(range(len(running)))
        if last is not None:
            seats[-1] = last
        staying = [pair for pair in zip(seats, running, strict=True) if not pair[1].done]
        kept = {seat: request for seat, request in staying if seat < len(staying)}
        free = (seat for seat in range(len(staying)) if seat not in kept)
        for seat, request in staying:
            if seat not in kept:
                target = next(free)
                memory.copy_row(seat, target)
                kept[target] = request
        return [kept[seat] for seat in range(len(kept))], memory.rows(0, len(kept))

    def _count_bytes(self, running: list[Request], cache: ContiguousCache) -> None:
        weights = self.model.streamed_bytes / len(running)
        for request, length in zip(running, cache.lengths.tolist(), strict=True):
            request.count_step(weights, self.kv_bytes(length))

    def _checked(self, ids: list[int]) -> list[int]:
        vocab = self.model.config.vocab
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
                raise InferlabError(f"prompt has token id {token!r}: ids go from 0 to {vocab - 1}")
        return ids


def _check_choices(kernels: str, threads: int | None, activations: str) -> None:
    if kernels not in KERNELS:
        raise unknown("kernels", kernels, KERNELS)
    if activations not in cpu_decode.ACTIVATIONS:
        raise unknown("activations", activations, cpu_decode.ACTIVATIONS)
    if threads is not None and (
        isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS
    ):
        raise InferlabError(
            f"threads must be a whole number from 1 to {MAX_THREADS}, not {threads!r}"
        )


def _takes_triton(model: Transformer, kernels: str) -> bool:
    """Whether Triton's kernels decode: on a GPU, or wherever they are asked for."""
    if kernels != "triton" and (kernels != "auto" or model.device.type != "cuda"):
        return False
    from inferlab.engine import gpu_decode  # not before: Triton takes half a second to import

    fits = gpu_decode.supports(model)
    if kernels == "triton" and not fits:
        raise InferlabError(
            "kernels triton needs Triton, and a GPU or (slowly) a float32 or float16 model on a CPU"
        )
    return fits


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise unknown("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise InferlabError("device cuda: torch finds no CUDA GPU here; use cpu")
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    # Before Ampere a GPU has no arithmetic in bfloat16.
    has_bf16 = device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 0)
    if name == "auto":
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if has_bf16 else torch.float16
    if name not in DTYPES:
        raise unknown("dtype", name, ("auto", *DTYPES))
    if DTYPES[name] == torch.bfloat16 and not has_bf16:
        raise InferlabError("dtype bf16: this GPU has no bfloat16; use fp16")
    return DTYPES[name]
