"""Text to token ids and back, for checkpoints of either kind.

The `tokenizers` library does the work, from a `tokenizer.json` or built from GGUF metadata
(`gguf_tokenizer`). Decoding is done here, byte by byte: only bytes tell a character that is
still coming from one that is broken, which a stream must know.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inferlab.errors import InferlabError
from inferlab.model.config import read_json

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
Message = Mapping[str, Any]
_MARK = "\ufdd0"  # a code point that Unicode keeps for a program's own use, never in a text


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable stand-ins for the 256 bytes: character to byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(moved)}


BYTE_OF = _byte_alphabet()


@dataclass
class Tokenizer:
    """A tokenizer with its special tokens and its chat template.

    `adds_bos` says whether a plain prompt begins with BOS. `completes_bos` is the habit of
    GGUF runtimes: then a chat begins with BOS too, even if the template does not write it.
    `special` are the texts that templates may use: "bos_token", "eos_token" and the like.
    """

    backend: tokenizers.Tokenizer
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    adds_bos: bool = False
    completes_bos: bool = False
    template: str | None = None
    special: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` works."""
        return self.template is not None

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        """Return the ids of `text`; with `bos`, after one BOS if the model is trained so."""
        ids = self._encoding(text).ids
        return self._after_bos(ids) if bos else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens; broken bytes become U+FFFD."""
        stream = Detokenizer(self)
        return "".join(map(stream.push, ids)) + stream.flush()

    def render(self, messages: Sequence[Message], system: str | None = None) -> str:
        """Return the prompt that the chat template makes of messages with role and content."""
        if self.template is None:
            raise InferlabError("this model has no chat template: pass a plain prompt (--raw)")
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        try:
            return (
                _environment()
                .from_string(self.template)
                .render(messages=list(messages), add_generation_prompt=True, **self.special)
            )
        except Exception as error:  # a template is somebody else's program
            why = " ".join(str(error).split())
            raise InferlabError(f"the model's chat template fails: {why}") from None

    def chat(self, messages: Sequence[Message], system: str | None = None) -> list[int]:
        """Return the ids of the prompt that `render` makes.

        The template writes the special tokens, BOS among them, so none is added to it. One that
        a message spells out is plain text: typing `<|im_start|>` begins no turn.
        """
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        text = self.render([self._marked(message) for message in messages])
        ids = list(self._unmarked(text)) if _MARK in text else self._encoding(text).ids
        return self._after_bos(ids) if self.completes_bos else ids

    def _encoding(self, text: str) -> tokenizers.Encoding:
        try:
            return self.backend.encode(text, add_special_tokens=False)
        except TypeError:  # what the library says of half a surrogate pair
            raise InferlabError("prompt is not text in UTF-8") from None

    def _after_bos(self, ids: list[int]) -> list[int]:
        """Return `ids` after one BOS, if the model is trained so."""
        if not self.adds_bos or self.bos_id is None or ids[:1] == [self.bos_id]:
            return ids
        return [self.bos_id, *ids]

    def _marked(self, message: Message) -> Message:
        """Return a message with a mark inside each special token that its content spells."""
        content = message.get("content")
        if not isinstance(content, str):
            return message
        for token in self._special_ids:
            content = content.replace(token, token[:1] + _MARK + token[1:])
        return {**message, "content": content}

    def _unmarked(self, text: str) -> Iterator[int]:
        """Yield the ids of a text with marks, as if these were not there: they part no words."""
        encoding, done = self._encoding(text), 0
        special = set(self._special_ids.values())
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in special:
                yield from self._plain_ids(text[done:start])
                yield token
                done = end
        yield from self._plain_ids(text[done:])

    def _plain_ids(self, text: str) -> list[int]:
        return self._plain.encode(text.replace(_MARK, ""), add_special_tokens=False).ids

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for; none for a special or unknown token."""
        if token in self._added:
            return self._added[token]
        text = self.backend.id_to_token(token)
        if text is None:
            return b""
        if self._byte_level:
            return bytes(BYTE_OF[c] for c in text)
        if match := BYTE_TOKEN.fullmatch(text):
            return bytes.fromhex(match[1])
        return text.replace("▁", " ").encode()

    @cached_property
    def strips_first_space(self) -> bool:
        """Whether encoding put a space before the text, which decoding has to take away."""
        return "Strip" in self._decoders

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        added = self.backend.get_added_tokens_decoder()
        return {t.content: i for i, t in added.items() if t.special and len(t.content) > 1}

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The backend, but to it a special token is text like any other."""
        plain = tokenizers.Tokenizer.from_str(self.backend.to_str())
        plain.encode_special_tokens = True
        return plain

    @cached_property
    def _added(self) -> dict[int, bytes]:
        added = self.backend.get_added_tokens_decoder()
        return {i: b"" if t.special else t.content.encode() for i, t in added.items()}

    @cached_property
    def _byte_level(self) -> bool:
        return "ByteLevel" in self._decoders

    @cached_property
    def _decoders(self) -> set[str]:
        """Return the kinds of decoding steps; sentencepiece's or byte-level ones are known."""
        decoder = self.backend.decoder
        state = json.loads(decoder.__getstate__()) if decoder is not None else {}
        kinds = {step["type"] for step in state.get("decoders", [state]) if step}
        if "ByteLevel" not in kinds and not kinds & {"Replace", "Metaspace"}:
            raise InferlabError(f"tokenizer decoder {sorted(kinds)} is not implemented")
        return kinds


class Detokenizer:
    """Turns a stream of ids into pieces of text that join to `Tokenizer.decode` of them all.

    A character whose bytes are spread over several tokens is held back until it is whole.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.strips_first_space

    def push(self, token: int) -> str:
        """Return the text that this token completes; it may be empty."""
        data = self._tokenizer.token_bytes(token)
        if self._strip and data:
            data, self._strip = data.removeprefix(b" "), False
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return what a cut-off character leaves, once: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)


def from_folder(folder: Path) -> Tokenizer:
    """Read `tokenizer.json` and `tokenizer_config.json` of a folder."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise InferlabError(f"{path} is missing: a model folder needs its fast tokenizer")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise InferlabError(f"{path} is not a tokenizer ({error})") from None
    config_path = folder / "tokenizer_config.json"
    config = read_json(config_path) if config_path.exists() else {}
    special = {
        key: text
        for key in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (text := _token_text(config.get(key))) is not None
    }
    bos_id = backend.token_to_id(special["bos_token"]) if "bos_token" in special else None
    first = backend.encode("").ids[:1]  # what the post-processor writes before any text
    adds_bos = config.get("add_bos_token")
    eos = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return Tokenizer(
        backend,
        bos_id=bos_id,
        eos_ids=frozenset() if eos is None else frozenset([eos]),
        adds_bos=adds_bos if adds_bos is not None else bos_id is not None and first == [bos_id],
        template=_template(folder, config),
        special=special,
    )


def _token_text(value: Any) -> str | None:
    """Return the text of a special token, which configs hold bare or in an object."""
    return value.get("content") if isinstance(value, Mapping) else value


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the chat template: a file of its own, or in the config, alone or in a list."""
    if (path := folder / "chat_template.jinja").exists():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {t["name"]: t["template"] for t in template}.get("default")
    return template


def _environment() -> ImmutableSandboxedEnvironment:
    """Return the sandbox that chat templates are written for (transformers' conventions)."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
