"""What a client may ask: OpenAI's request bodies, checked field by field.

A field of OpenAI's that is not implemented is refused by name if it would change the answer, so
that nobody takes an answer for what it is not. So is a field that nobody knows: it may be a slip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError, from_json

from inferlab.engine.llm import LLM
from inferlab.engine.sampling import MAX_LOGPROBS, SamplingParams
from inferlab.errors import InferlabError, unknown

MAX_STOPS = 16
#: Fields of OpenAI's that change no token of an answer.
HARMLESS = (
    *("metadata", "parallel_tool_calls", "prediction", "prompt_cache_key"),
    *("prompt_cache_retention", "safety_identifier", "service_tier", "store", "user"),
)
#: Fields of OpenAI's that are not implemented, with the values besides null that ask for nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
#: The same for a message: clients send an answer back with all that came in it.
MESSAGE_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "refusal": ("",),
    "tool_calls": ([],),
}


class ApiError(Exception):
    """An answer that is an error: OpenAI's error object and its HTTP status."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def headers(self) -> dict[str, str]:
        """Headers that belong to the status."""
        return {
            401: {"WWW-Authenticate": "Bearer"},
            429: {"Retry-After": "1"},
        }.get(self.status, {})

    def body(self) -> dict[str, Any]:
        """Return the error object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        made = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": made}


def _prompts(value: Any) -> Any:
    """Take a text, token ids, or a list of either, for a list of prompts."""
    bare = isinstance(value, str) or (isinstance(value, list) and value and type(value[0]) is int)
    prompts = [value] if bare else value
    good = isinstance(prompts, list) and all(
        isinstance(p, str) or (isinstance(p, list) and all(type(i) is int for i in p))
        for p in prompts
    )
    if not good or not prompts:
        raise PydanticCustomError("prompt", "must be a text, token ids, or a list of these")
    return prompts


def _parts(value: Any) -> Any:
    """Take a message's text for a list of one part."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("content", "must be a text or a list of text parts")
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    def check_extras(
        self, neutral: Mapping[str, tuple[Any, ...]] | None = None, prefix: str = ""
    ) -> None:
        """Raise ApiError for a field that is not known, or asks for what is not implemented."""
        neutral = neutral or {}
        for name, value in (self.model_extra or {}).items():
            field, calm = prefix + name, neutral.get(name)
            if calm is None and name not in HARMLESS:
                known = (prefix + other for other in (*type(self).model_fields, *neutral))
                raise ApiError(400, str(unknown("field", field, known)), param=field)
            if value is None or calm is None or any(_same(value, one) for one in calm):
                continue
            only = f" (except {calm[0]!r})" if calm else ""
            raise ApiError(
                400, f"{field} is not implemented{only}", param=field, code="unsupported_parameter"
            )


class StreamOptions(_Strict):
    """OpenAI's `stream_options`. Obfuscation would pad a stream; there is none."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Asked(_Strict):
    """What both kinds of request have in common. A null counts as left out."""

    subject: ClassVar[str]
    """The field that holds the prompt."""
    default_tokens: ClassVar[int | None] = None
    """How long an answer may be if nobody says it; None for as long as there is room."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=0)
    max_completion_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]] | None,
        Field(max_length=MAX_STOPS),
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    trace: bool | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk about the tokens used."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check(self) -> None:
        """Raise ApiError for what no single field's type can tell."""
        self.check_extras(NEUTRAL)
        if self.stream_options:
            self.stream_options.check_extras(prefix="stream_options.")
            if not self.stream:
                raise ApiError(400, "stream_options goes with stream", param="stream_options")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise ApiError(400, "max_tokens is max_completion_tokens' old name", param="max_tokens")

    def prompts(self, llm: LLM) -> list[list[int]]:
        """Return the token ids of each prompt. Raises InferlabError."""
        raise NotImplementedError

    def params(self, most: int) -> SamplingParams:
        """Return how to sample, where one request may have `most` tokens. Raises ApiError."""
        field = "max_completion_tokens" if self.max_tokens is None else "max_tokens"
        wanted = getattr(self, field)
        if wanted is None:
            wanted = min(most, self.default_tokens or most)
        if wanted > most:
            raise ApiError(400, f"{field} must be at most {most}, not {wanted}", param=field)
        names = ("top_p", "top_k", "min_p", "seed", "ignore_eos")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            max_new_tokens=wanted,
            stop=tuple(self.stop or ()),
            logprobs=self.alternatives(),
            **given,
        )

    def alternatives(self) -> int | None:
        """Return how many likely tokens to tell beside each token; None for no probabilities."""
        raise NotImplementedError


class AskedText(Asked):
    """The body of `/v1/completions`."""

    subject: ClassVar[str] = "prompt"
    default_tokens: ClassVar[int | None] = 16

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts)]
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    def check(self) -> None:
        """Raise ApiError for what no single field's type can tell."""
        super().check()
        if self.trace and len(self.prompt) > 1:
            raise ApiError(400, "trace goes with a single prompt", param="trace")

    def prompts(self, llm: LLM) -> list[list[int]]:
        """Return the token ids of each prompt; a text is taken as `LLM.generate` takes it."""
        return [llm.request(prompt, SamplingParams()).prompt_ids for prompt in self.prompt]

    def alternatives(self) -> int | None:
        """Return `logprobs`."""
        return self.logprobs


class Part(_Strict):
    """A part of a message: text is all there is here."""

    type: Literal["text"]
    text: str


class Message(_Strict):
    """One turn. `developer` is what OpenAI now calls `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[Part], BeforeValidator(_parts)]


class AskedChat(Asked):
    """The body of `/v1/chat/completions`."""

    subject: ClassVar[str] = "messages"

    messages: list[Message] = Field(min_length=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    def check(self) -> None:
        """Raise ApiError for what no single field's type can tell."""
        super().check()
        for index, message in enumerate(self.messages):
            prefix = f"messages[{index}]."
            message.check_extras(MESSAGE_NEUTRAL, prefix)
            for place, part in enumerate(message.content):
                part.check_extras(prefix=f"{prefix}content[{place}].")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs goes with logprobs", param="top_logprobs")

    def prompts(self, llm: LLM) -> list[list[int]]:
        """Return the ids of the chat template's text, which writes its own special tokens."""
        if llm.tokenizer is None or not llm.tokenizer.has_chat_template:
            raise InferlabError(f"{llm.name} has no chat template: use /v1/completions")
        turns = [
            {
                "role": "system" if message.role == "developer" else message.role,
                "content": "".join(part.text for part in message.content),
            }
            for message in self.messages
        ]
        return [llm.tokenizer.chat(turns)]

    def alternatives(self) -> int | None:
        """Return `top_logprobs` if there are to be any."""
        return (self.top_logprobs or 0) if self.logprobs else None


AnyAsked = TypeVar("AnyAsked", bound=Asked)


def parse(kind: type[AnyAsked], body: bytes) -> AnyAsked:
    """Return the request that a body makes; raises ApiError with the field that is wrong."""
    try:
        asked = kind.model_validate_json(body)
        from_json(body, allow_inf_nan=False)  # nor in a field that is not used
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise _api_error(first["type"], first["loc"], first["msg"]) from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    asked.check()
    return asked


def _api_error(kind: str, path: tuple[int | str, ...], message: str) -> ApiError:
    if kind == "json_invalid":
        return ApiError(400, f"the body is not JSON: {message.removeprefix('Invalid JSON: ')}")
    text = message.replace("Input should", "must")
    if not path:
        return ApiError(400, "the body must be a JSON object")
    param = str(path[0])
    for step in path[1:]:
        param += f"[{step}]" if isinstance(step, int) else f".{step}"
    if kind == "missing":
        return ApiError(400, f"{param} is missing", param=param)
    return ApiError(400, f"{param} {text[:1].lower()}{text[1:]}", param=param)


def _same(value: Any, one: Any) -> bool:
    """Whether two values are equal in JSON, where 1 is not true."""
    return value == one and isinstance(value, bool) == isinstance(one, bool)
