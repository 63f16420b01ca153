"""Build a tokenizer from the vocabulary inside a GGUF file.

Two kinds are in use: byte-level BPE ("gpt2"), whose pre-tokenizer the file names, and
sentencepiece BPE ("llama"), whose merges follow from the scores of the pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from inferlab.errors import InferlabError, unknown
from inferlab.model.config import ids
from inferlab.model.gguf import GGUF
from inferlab.model.tokenizer import Tokenizer

CONTROL, USER_DEFINED = 3, 4

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{DIGITS}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3, QWEN2 = WORDS.replace("{DIGITS}", "{1,3}"), WORDS.replace("{DIGITS}", "")

# Expressions that split the text one after the other, by the name in `tokenizer.ggml.pre`.
PRE_TOKENIZERS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "llama3": [LLAMA3],
    "llama-v3": [LLAMA3],
    "qwen2": [QWEN2],
    "deepseek-r1-qwen": [QWEN2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
}


def from_gguf(gguf: GGUF) -> Tokenizer:
    """Return the tokenizer that the metadata of a GGUF file describes."""
    meta = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in gguf.metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    tokens = _listed(meta, "tokens", str)
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    kind = str(meta.get("model"))
    if kind not in builders:
        raise unknown("tokenizer.ggml.model", kind, builders)
    backend = builders[kind](meta, tokens)
    types = _listed(meta, "token_type", int, len(tokens)) if "token_type" in meta else []
    backend.add_tokens(
        [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(tokens, types, strict=False)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )

    named = {
        name: token_id
        for name in ("bos", "eos", "unknown", "padding", "eot", "eom")
        for token_id in ids(meta.get(f"{name}_token_id"), f"tokenizer.ggml.{name}_token_id")
    }
    if any(i >= len(tokens) for i in named.values()):
        raise InferlabError(f"{gguf.path}: a special token id is outside the vocabulary: {named}")
    renamed = {"unknown": "unk", "padding": "pad"}
    default = kind == "llama" or meta.get("pre") in ("llama-bpe", "llama3", "llama-v3")
    return Tokenizer(
        backend,
        bos_id=named.get("bos"),
        eos_ids=frozenset(named[end] for end in ("eos", "eot", "eom") if end in named),
        adds_bos=bool(meta.get("add_bos_token", default)),
        completes_bos=True,
        template=gguf.metadata.get("tokenizer.chat_template"),
        special={f"{renamed.get(name, name)}_token": tokens[i] for name, i in named.items()},
    )


def _byte_level(meta: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    pre = str(meta.get("pre", "default"))
    if pre not in PRE_TOKENIZERS:
        raise unknown("tokenizer.ggml.pre", pre, PRE_TOKENIZERS)
    merges = [tuple(merge.split(" ", 1)) for merge in _listed(meta, "merges", str)]
    backend = _bpe(
        {token: i for i, token in enumerate(tokens)},
        merges,
        ignore_merges=PRE_TOKENIZERS[pre] == [LLAMA3],
    )
    splits = [pre_tokenizers.Split(Regex(e), "isolated") for e in PRE_TOKENIZERS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    if PRE_TOKENIZERS[pre] == [QWEN2]:
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(meta: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    scores = _listed(meta, "scores", float, len(tokens))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = _bpe(
        vocabulary,
        list(_merges(vocabulary, scores)),
        fuse_unk=True,
        byte_fallback=True,
        unk_token=tokens[int(meta.get("unknown_token_id", 0))],
    )
    prefix = bool(meta.get("add_space_prefix", True))
    steps = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _merges(vocabulary: Mapping[str, int], scores: list[float]) -> Iterator[tuple[str, str]]:
    """Yield the merges of a sentencepiece BPE: every way to make a piece, best scores first."""
    for piece in sorted(vocabulary, key=lambda piece: -scores[vocabulary[piece]]):
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        yield from (pair for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary)


def _bpe(vocabulary: Mapping[str, int], merges: list[Any], **options: Any) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=dict(vocabulary), merges=merges, **options))
    except Exception as error:  # the library raises bare Exception
        raise InferlabError(f"tokenizer.ggml.merges do not fit the vocabulary ({error})") from None


def _listed(meta: Mapping[str, Any], key: str, kind: type, length: int | None = None) -> list[Any]:
    """Return the list under `key`, which must hold values of one type, `length` of them."""
    value = meta.get(key)
    if not isinstance(value, list) or not value or not isinstance(value[0], kind):
        raise InferlabError(f"tokenizer.ggml.{key} must be a list of {kind.__name__} values")
    if length is not None and len(value) != length:
        raise InferlabError(f"tokenizer.ggml.{key} has {len(value)} values for {length} tokens")
    return value
