"""What a client gets: OpenAI's answers and stream chunks, and our account of the time."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from inferlab.engine import trace
from inferlab.server.protocol import ApiError, Asked

if TYPE_CHECKING:
    from inferlab.engine.llm import LLM
    from inferlab.engine.request import Request
    from inferlab.engine.sampling import TokenLogprob
    from inferlab.server.worker import Call

_FROM_COMPLETION = (
    *("prompt_tokens", "cached_tokens", "output_tokens", "ttft_s", "tpot_s", "tokens_per_second"),
    *("bytes_per_token", "weight_bytes_per_token", "kv_read_bytes_per_token"),
    *("achieved_bytes_per_second", "finish_reason"),
)
_REASONS = {"stop": "stop", "stop_string": "stop", "length": "length"}


def dumps(value: Any) -> bytes:
    """Return strict JSON: it has no NaN and no Infinity."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def event(value: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + (value if isinstance(value, bytes) else dumps(value)) + b"\n\n"


class Reply:
    """The bodies of one answer. A subclass knows the shape of its choices."""

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, asked: Asked, llm: LLM, bandwidth: float | None) -> None:
        self._asked, self._llm, self._bandwidth = asked, llm, bandwidth
        self._id, self._created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())
        self._told: Counter[int] = Counter()  # characters of tokens with log-probabilities

    def whole(self, call: Call) -> dict[str, Any]:
        """Return the answer of a call that is done; raises ApiError if it failed."""
        for request in call.requests:
            _check(request)
        body = self._frame(self.kind, [self._choice(i, r) for i, r in enumerate(call.requests)])
        body["usage"] = _usage(call.requests)
        if self._asked.trace:
            (request,) = call.requests
            events = _events(request.events, request.start)
            body["inferlab"] = {"events": events, "account": self._account(request)}
        return body

    async def stream(self, call: Call) -> AsyncIterator[bytes]:
        """Yield the events of a stream while the call runs; raises ApiError if it fails."""
        usage, traced = self._asked.include_usage, self._asked.trace
        for index in range(len(call.prompts)):
            for choice in self._opening(index):
                yield event(self._chunk(choice))
        async for update in call:
            request = call.requests[update.index]
            if update.text or update.logprobs or (traced and update.events):
                choice = self._piece(
                    update.index, update.text, self._odds(update.index, update.logprobs)
                )
                chunk = self._chunk(choice)
                if traced:
                    chunk["inferlab"] = {"events": _events(update.events, request.start)}
                yield event(chunk)
            if update.done:
                _check(request)
                chunk = self._chunk(self._end(update.index, _REASONS[str(request.finish_reason)]))
                if traced and not usage:
                    chunk["inferlab"] = {"account": self._account(request)}
                yield event(chunk)
        if usage:
            chunk = self._frame(self.chunk_kind, []) | {"usage": _usage(call.requests)}
            if traced:
                chunk["inferlab"] = {"account": self._account(call.requests[0])}
            yield event(chunk)
        yield event(b"[DONE]")

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        frame = {"id": self._id, "object": kind, "created": self._created}
        return frame | {"model": self._llm.name, "choices": choices}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = self._frame(self.chunk_kind, [choice])
        return chunk | {"usage": None} if self._asked.include_usage else chunk

    def _account(self, request: Request) -> dict[str, Any]:
        """Return where the time and the bytes of an answer went.

        `rows` is how many rows shared a step of its weights, as a harmonic mean: the weights'
        bytes over it are this request's share.
        """
        done = request.completion()
        account: dict[str, Any] = {name: getattr(done, name) for name in _FROM_COMPLETION}
        first = {e.kind: e.time_s - request.start for e in reversed(request.events)}
        queued, shown = first.get("scheduled"), done.ttft_s
        account["queue_s"] = queued
        account["prefill_s"] = None if queued is None or shown is None else shown - queued
        share, achieved = done.weight_bytes_per_token, done.achieved_bytes_per_second
        account["rows"] = self._llm.model.streamed_bytes / share if share else None
        account["bandwidth"] = limit = self._bandwidth
        account["fraction_of_bandwidth"] = achieved / limit if achieved and limit else None
        return account

    def _token(self, token: int) -> bytes:
        tokenizer = self._llm.tokenizer
        return tokenizer.token_bytes(token) if tokenizer else b""

    # The shape of a choice

    def _choice(self, index: int, request: Request) -> dict[str, Any]:
        raise NotImplementedError

    def _opening(self, index: int) -> Sequence[dict[str, Any]]:
        return ()

    def _piece(self, index: int, text: str, odds: Any, reason: str | None = None) -> dict[str, Any]:
        raise NotImplementedError

    def _end(self, index: int, reason: str) -> dict[str, Any]:
        return self._piece(index, "", None, reason)

    def _odds(self, index: int, logprobs: Sequence[TokenLogprob]) -> Any:
        raise NotImplementedError


class TextReply(Reply):
    """Answers of `/v1/completions`."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def _choice(self, index: int, request: Request) -> dict[str, Any]:
        done = request.completion()
        reason = _REASONS[str(done.finish_reason)]
        return self._piece(index, done.text, self._odds(index, request.logprobs), reason)

    def _piece(self, index: int, text: str, odds: Any, reason: str | None = None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": odds, "finish_reason": reason}

    def _odds(self, index: int, logprobs: Sequence[TokenLogprob]) -> Any:
        def text(token: int) -> str:
            return self._token(token).decode(errors="replace")

        if not logprobs:
            return None
        tokens = [text(at.token_id) for at in logprobs]
        *offsets, self._told[index] = accumulate(map(len, tokens), initial=self._told[index])
        return {
            "tokens": tokens,
            "token_logprobs": [at.logprob for at in logprobs],
            "top_logprobs": [{text(i): odds for i, odds in at.top.items()} for at in logprobs],
            "text_offset": offsets,
        }


class ChatReply(Reply):
    """Answers of `/v1/chat/completions`."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _choice(self, index: int, request: Request) -> dict[str, Any]:
        done = request.completion()
        return {
            "index": index,
            "message": {"role": "assistant", "content": done.text, "refusal": None},
            "logprobs": self._odds(index, request.logprobs),
            "finish_reason": _REASONS[str(done.finish_reason)],
        }

    def _opening(self, index: int) -> Sequence[dict[str, Any]]:
        choice = self._piece(index, "", None)
        return [choice | {"delta": {"role": "assistant", "content": ""}}]

    def _piece(self, index: int, text: str, odds: Any, reason: str | None = None) -> dict[str, Any]:
        delta = {"content": text} if text else {}
        return {"index": index, "delta": delta, "logprobs": odds, "finish_reason": reason}

    def _odds(self, index: int, logprobs: Sequence[TokenLogprob]) -> Any:
        if not logprobs:
            return None
        most = self._asked.alternatives() or 0
        return {
            "content": [
                self._odd(at.token_id, at.logprob)
                | {"top_logprobs": [self._odd(*pair) for pair in list(at.top.items())[:most]]}
                for at in logprobs
            ],
            "refusal": None,
        }

    def _odd(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._token(token)
        return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}


def _check(request: Request) -> None:
    if request.finish_reason == "cancelled":
        raise ApiError(499, "the client has gone")
    if request.finish_reason == "error":
        raise ApiError(500, f"the model failed: {request.error}", code="engine_error")


def _events(events: Sequence[trace.Event], start: float) -> list[dict[str, Any]]:
    return [{"tokens": 0} | trace.event_dict(event, start) for event in events]


def _usage(requests: Sequence[Request]) -> dict[str, Any]:
    done = [request.completion() for request in requests]
    read, written = sum(c.prompt_tokens for c in done), sum(c.output_tokens for c in done)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": sum(c.cached_tokens for c in done)},
    }
