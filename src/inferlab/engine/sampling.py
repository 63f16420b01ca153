"""From logits to a token: greedy, temperature, top-k, top-p, min-p, and log-probabilities.

Every row of a batch has its own parameters and its own random numbers, and one uniform number a
token is all the randomness there is. So a row's tokens do not depend on its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from random import Random

import torch
from torch import Tensor

from inferlab.errors import InferlabError

MAX_LOGPROBS = 20


@dataclass(frozen=True)
class SamplingParams:
    """How one request picks its tokens and when it ends.

    The filters act in this order: temperature, `top_k`, `top_p` (on what `top_k` left), `min_p`.
    Any value out of range raises `InferlabError` with the name of the field.
    """

    temperature: float = 0.0
    """0 picks the likeliest token; otherwise logits are divided by it."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the fewest likeliest tokens whose probabilities reach this sum (Holtzman, 2019)."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the likeliest (Nguyen, 2024)."""
    seed: int | None = None
    """The same seed gives the same tokens, whatever else is in the batch; None is fresh chance."""
    max_new_tokens: int = 256
    """The most tokens to generate; 0 is allowed and gives none."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; the text ends before them. One string is taken as one stop."""
    ignore_eos: bool = False
    """Go on past every end-of-sequence token."""
    logprobs: int | None = None
    """Report each token's log-probability and this many alternatives; None reports nothing."""

    def __post_init__(self) -> None:
        _check_real("temperature", self.temperature, 0, math.inf)
        _check_whole("top_k", self.top_k, 0)
        _check_real("top_p", self.top_p, 0, 1, open_low=True)
        _check_real("min_p", self.min_p, 0, 1)
        _check_whole("max_new_tokens", self.max_new_tokens, 0)
        if self.seed is not None:
            _check_whole("seed", self.seed, 0)
        if self.logprobs is not None:
            _check_whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if not isinstance(self.ignore_eos, bool):
            raise InferlabError(f"ignore_eos must be true or false, not {self.ignore_eos!r}")
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stops, (list, tuple)) or not all(isinstance(s, str) and s for s in stops):
            raise InferlabError(f"stop must be non-empty strings, not {self.stop!r}")
        object.__setattr__(self, "stop", tuple(stops))

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0


@dataclass(frozen=True)
class TokenLogprob:
    """A generated token's log-probability, and the likeliest tokens at its place.

    Both are of the model's raw distribution, before temperature and filters, so they mean the same
    at every setting. `top` is likeliest first and always holds the token itself; tokens of
    probability zero are left out, so every number is finite.
    """

    token_id: int
    logprob: float
    top: dict[int, float]


def sample(
    logits: Tensor, params: Sequence[SamplingParams], randoms: Sequence[Random]
) -> list[int]:
    """Pick one token a row.

    Args:
        logits: float [B, V]; entries may be -inf (that token is impossible).
        params: one a row.
        randoms: one a row; a row that is not greedy takes one number from its own.

    Raises:
        InferlabError: a row holds NaN or +inf, or nothing but -inf.
    """
    peak, likeliest = logits.max(-1)  # a maximum over NaN is NaN
    if not bool(peak.isfinite().all()):
        row = int((~peak.isfinite()).nonzero()[0])
        raise InferlabError(
            f"logits of row {row} are not finite (peak {float(peak[row])}): "
            "the weights are damaged, or the dtype overflows; try dtype float32"
        )
    tokens: list[int] = likeliest.tolist()
    # Greedy rows are never divided by their temperature: 0 would turn -inf entries into NaN.
    rows = [i for i, p in enumerate(params) if not p.greedy]
    if rows:
        chosen = [params[i] for i in rows]
        draws = [randoms[i].random() for i in rows]
        drawn = _draw(logits[rows] - peak[rows, None], chosen, draws)
        for i, token in zip(rows, drawn, strict=True):
            tokens[i] = token
    return tokens


def logprobs_of(logits: Tensor, token: int, alternatives: int) -> TokenLogprob:
    """Return a token's log-probability under raw logits [V], with its likeliest alternatives."""
    scores = logits.float().log_softmax(-1)
    values, ids = scores.topk(min(alternatives, scores.shape[-1]))
    top = {i: v for i, v in zip(ids.tolist(), values.tolist(), strict=True) if v > -math.inf}
    own = float(scores[token])
    return TokenLogprob(token, own, top | {token: own})


def _draw(logits: Tensor, params: Sequence[SamplingParams], draws: Sequence[float]) -> list[int]:
    """Sample rows by inverting their cumulative distribution. logits [R, V], each row's peak 0."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    # float64: a float32 running sum over 100,000 tokens loses the tail. Tiny temperatures are
    # greedy in effect, and would turn 0 / T into NaN where denormals are flushed.
    temperature = column([max(p.temperature, 1e-6) for p in params])
    probs = (logits.double() / temperature).softmax(-1)
    cut = [i for i, p in enumerate(params) if p.top_k or p.top_p < 1 or p.min_p]
    if cut:
        kept = support(
            probs[cut],
            top_k=column([params[i].top_k for i in cut]).long(),
            top_p=column([params[i].top_p for i in cut]),
            min_p=column([params[i].min_p for i in cut]),
        )
        probs[cut] = probs[cut].masked_fill(~kept, 0)
    cumulative = probs.cumsum(-1)
    # Strictly below the total, so the token found is one with probability.
    target = column(draws) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).flatten().tolist()


def support(probs: Tensor, *, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Return which tokens the filters leave: bool [R, V]. The parameters are columns [R, 1].

    Among equally likely tokens at the edge the lowest ids stay, so that the set never grows past
    k, nor past the fewest that reach `top_p`.
    """
    vocab = probs.shape[-1]
    # Sorting a whole vocabulary takes longer than reading it. Tokens below (1 - top_p) / V hold
    # less than 1 - top_p together, so the nucleus is complete before the first of them.
    floor = torch.maximum(min_p * probs.amax(-1, keepdim=True), (1 - top_p) / vocab)
    count = (probs >= floor).sum(-1, keepdim=True)
    count = torch.where(top_k > 0, top_k.clamp(max=vocab), count)
    best = probs.topk(int(count.max())).values  # [R, K], descending
    best = best.masked_fill(torch.arange(best.shape[-1], device=probs.device) >= count, 0)
    total = torch.where(top_k > 0, best.sum(-1, keepdim=True), 1.0)
    before = best.cumsum(-1) - best  # what the likelier tokens hold: the crossing token stays
    stays = (best > 0) & ((before < top_p * total) | (top_p == 1)) & (best >= min_p * best[:, :1])
    size = stays.sum(-1, keepdim=True)
    edge = best.gather(-1, size - 1)
    tied = probs == edge
    above = probs > edge
    return above | (tied & (tied.cumsum(-1) <= size - above.sum(-1, keepdim=True)))


def _check_real(
    name: str, value: object, low: float, high: float, *, open_low: bool = False
) -> None:
    good = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= value <= high or (open_low and value == low):  # type: ignore[operator]
        least = f"above {low:g}" if open_low else f"{low:g} or more"
        most = "" if high == math.inf else f" and at most {high:g}"
        raise InferlabError(f"{name} must be a number {least}{most}, not {value!r}")


def _check_whole(name: str, value: object, low: int, high: int | None = None) -> None:
    good = isinstance(value, Integral) and not isinstance(value, bool)
    if not good or value < low or (high is not None and value > high):  # type: ignore[operator]
        span = f"{low} or more" if high is None else f"from {low} to {high}"
        raise InferlabError(f"{name} must be a whole number, {span}, not {value!r}")
