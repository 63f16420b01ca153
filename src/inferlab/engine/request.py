"""One request from its prompt to its answer: tokens, text, times, bytes, and why it ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from torch import Tensor

from inferlab.engine.parallel import Group
from inferlab.engine.sampling import SamplingParams, TokenLogprob, logprobs_of, sample
from inferlab.engine.stopping import StopStrings
from inferlab.engine.trace import Event
from inferlab.errors import InferlabError
from inferlab.model.tokenizer import Detokenizer, Tokenizer

FinishReason = Literal["stop", "length", "stop_string", "cancelled", "error"]


@dataclass(frozen=True)
class Completion:
    """What became of one prompt. Times are seconds since the request was made."""

    token_ids: list[int]
    """Every generated token, an end-of-sequence token or those of a stop string included."""
    text: str
    """The text of the tokens without special ones, and only up to a stop string."""
    finish_reason: FinishReason | None
    """"stop" for an end-of-sequence token, "length" when `max_new_tokens` or the context is used
    up, "stop_string"; "cancelled" or "error"; None if generation was cut off."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values stood in the cache already."""
    token_times: list[float]
    """When each token was there."""
    weight_bytes_per_token: float | None
    """Bytes of weights a decode step streams, shared evenly by the rows that ran in it."""
    kv_read_bytes_per_token: float | None
    """Bytes of keys and values that a decode step reads for this request, on average."""
    logprobs: list[TokenLogprob] | None = None

    @property
    def output_tokens(self) -> int:
        """Number of generated tokens."""
        return len(self.token_ids)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token; None without one."""
        return self.token_times[0] if self.token_times else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token, (E2E - TTFT) / (N - 1); None for fewer than two tokens."""
        if self.output_tokens < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.output_tokens - 1)

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes that a decode step moves for one token; None if no decode step ran."""
        if self.weight_bytes_per_token is None or self.kv_read_bytes_per_token is None:
            return None
        return self.weight_bytes_per_token + self.kv_read_bytes_per_token

    @property
    def tokens_per_second(self) -> float | None:
        """Decode speed of this request, 1 / TPOT; the first token's wait is TTFT's."""
        return 1 / self.tpot_s if self.tpot_s else None

    @property
    def achieved_bytes_per_second(self) -> float | None:
        """Bytes per token over TPOT: all that the memory delivered, if the request ran alone."""
        if self.bytes_per_token is None or not self.tpot_s:
            return None
        return self.bytes_per_token / self.tpot_s


class Request:
    """A prompt on its way. `take` gives it its next token; `done` says that it wants no more.

    Raises InferlabError if the prompt is empty or longer than the model's `context`.
    """

    def __init__(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        context: int,
        start: float,
        eos_ids: frozenset[int] = frozenset(),
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if not prompt_ids:
            raise InferlabError("prompt is empty: it must have at least one token")
        if len(prompt_ids) > context:
            raise InferlabError(
                f"prompt has {len(prompt_ids)} tokens: the model's context holds {context}"
            )
        self.prompt_ids = prompt_ids
        self.params = params
        self.start = start
        self.random = Random(params.seed)
        # The last token is never fed back, so one more fits than the context has room for.
        self.room = min(params.max_new_tokens, context - len(prompt_ids) + 1)
        self.cached_tokens = 0
        self.computed = 0  # tokens whose keys and values the cache holds by now
        self.table: list[int] = []  # the blocks that hold them, in a paged cache
        self.id = 0  # among the requests of an engine, by arrival
        self.events: list[Event] = []
        self.error: str | None = None
        self.token_ids: list[int] = []
        self.token_times: list[float] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None if self.room else "length"
        self._ends = frozenset() if params.ignore_eos else eos_ids
        self._detokenizer = Detokenizer(tokenizer) if tokenizer else None
        self._stops = StopStrings(params.stop)
        self._text: list[str] = []
        self._shown = 0
        self._steps, self._weight_bytes, self._kv_bytes = 0, 0.0, 0.0

    @property
    def done(self) -> bool:
        """Whether the answer is complete."""
        return self.finish_reason is not None

    @property
    def ids(self) -> list[int]:
        """The prompt, and the answer so far."""
        return self.prompt_ids + self.token_ids

    @property
    def length(self) -> int:
        """Tokens of `ids`."""
        return len(self.prompt_ids) + len(self.token_ids)

    @property
    def writes(self) -> bool:
        """Whether only its newest token is yet to be computed: its next pass is a decode step."""
        return bool(self.token_ids) and self.computed + 1 == self.length

    @property
    def slots(self) -> int:
        """Cache positions that the longest possible answer needs."""
        return len(self.prompt_ids) + self.room - 1

    def take(self, token: int, now: float) -> None:
        """Record the next token, and whether it is the last."""
        self.token_ids.append(token)
        self.token_times.append(now - self.start)
        if token in self._ends:
            self.finish_reason = "stop"
        else:
            self._show(self._detokenizer.push(token) if self._detokenizer else "")
            if self._stops.hit:
                self.finish_reason = "stop_string"
            elif len(self.token_ids) == self.room:
                self.finish_reason = "length"
        if self.done:
            self._flush()

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """End the answer as it is, for this reason."""
        self.finish_reason, self.error = reason, error
        self._flush()

    def count_step(self, weight_bytes: float, kv_bytes: float) -> None:
        """Count a decode step's bytes: this request's share of the weights, and its own KV."""
        self._steps += 1
        self._weight_bytes += weight_bytes
        self._kv_bytes += kv_bytes

    def new_text(self) -> str:
        """Return the text that came since the last call."""
        fresh = "".join(self._text[self._shown :])
        self._shown = len(self._text)
        return fresh

    def completion(self) -> Completion:
        """Return what there is so far."""
        return Completion(
            token_ids=list(self.token_ids),
            text="".join(self._text),
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.prompt_ids),
            cached_tokens=self.cached_tokens,
            token_times=list(self.token_times),
            weight_bytes_per_token=self._weight_bytes / self._steps if self._steps else None,
            kv_read_bytes_per_token=self._kv_bytes / self._steps if self._steps else None,
            logprobs=list(self.logprobs) if self.params.logprobs is not None else None,
        )

    def _show(self, text: str) -> None:
        self._text.append(self._stops.push(text))

    def _flush(self) -> None:
        self._show(self._detokenizer.flush() if self._detokenizer else "")
        self._text.append(self._stops.flush())


def answer(requests: Sequence[Request], logits: Tensor, group: Group | None = None) -> None:
    """Sample the next token of each request from its row of logits [B, V], and hand it over.

    Ranks of a `group` take what rank 0 sampled.
    Raises InferlabError, and takes nothing, if a row is not finite.
    """
    tokens = sample(logits, [r.params for r in requests], [r.random for r in requests])
    if group:
        tokens = group.agree(tokens)
    now = time.perf_counter()
    for request, row, token in zip(requests, logits, tokens, strict=True):
        if request.params.logprobs is not None:
            request.logprobs.append(logprobs_of(row, token, request.params.logprobs))
        request.take(token, now)
