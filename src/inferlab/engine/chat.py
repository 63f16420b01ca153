"""A conversation: its turns, and the cache that spares it reading them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferlab.engine.kv_cache import ContiguousCache
from inferlab.engine.llm import Stream
from inferlab.engine.sampling import SamplingParams
from inferlab.errors import InferlabError

if TYPE_CHECKING:
    from inferlab.engine.llm import LLM


class Chat:
    """Turns with one model through its chat template.

    Each turn's prompt repeats the ones before. What the cache holds of it, up to the first token
    that differs, is not computed again; `Completion.cached_tokens` counts it.
    """

    def __init__(self, llm: LLM, system: str | None = None) -> None:
        if llm.tokenizer is None or not llm.tokenizer.has_chat_template:
            raise InferlabError(f"{llm.name} has no chat template: use generate")
        self._llm, self._tokenizer, self._system = llm, llm.tokenizer, system
        self._past: list[dict[str, str]] = []
        self._ids: list[int] = []  # whose keys and values the cache holds
        self._cache: ContiguousCache | None = None
        self._turn: Stream | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """All turns so far, the last as far as it was answered."""
        if self._turn is None:
            return list(self._past)
        return [*self._past, {"role": "assistant", "content": self._turn.completion.text}]

    def send(self, text: str, params: SamplingParams | None = None) -> Stream:
        """Say something; return the answer as a stream. An answer cut off stays as it is.

        Raises InferlabError, and forgets `text`, if it is empty or the context is full.
        """
        if not text:
            raise InferlabError("prompt is empty: it must have at least one token")
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self._tokenizer.chat(messages, self._system)
        request = self._llm.request(ids, params or SamplingParams())
        self._past = messages

        cache = self._cache = self._cache or self._llm.new_cache([request])
        if self._turn is not None:
            self._ids += self._turn.completion.token_ids
        held = self._ids[: int(cache.lengths[0])]
        # The last token is always read again: its logits are what the answer starts from.
        request.cached_tokens = _shared(held, ids[:-1])
        cache.lengths[0] = request.cached_tokens
        self._ids = list(ids)
        self._llm.reserve(cache, len(ids) - request.cached_tokens)
        self._turn = Stream(request, self._llm.run([request], cache))
        return self._turn


def _shared(a: list[int], b: list[int]) -> int:
    """Return how many tokens two sequences begin with in common."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
