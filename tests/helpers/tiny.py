"""Models that need no download: a config of two small layers, and a tokenizer of bytes."""

from __future__ import annotations

from inferlab.model import config as configs
from inferlab.model.config import ModelConfig

EOS, EOT = 256, 257
FIELDS = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 258,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def config(**fields) -> ModelConfig:
    """Return what `FIELDS` with these `fields` describe."""
    return configs.from_fields(FIELDS | fields)


class ByteTokenizer:
    """Ids 0 to 255 are bytes; two special tokens follow. Stands in for `model.Tokenizer`.

    `answer` is what a chat's prompt ends with.
    """

    eos_ids = frozenset({EOS})
    strips_first_space = False
    has_chat_template = True

    def __init__(self, answer: bytes = b"a:") -> None:
        self.answer = answer

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def chat(self, messages, system=None) -> list[int]:
        ids = [*(system or "").encode()]
        for message in messages:
            ids += [*f"{message['role'][0]}:{message['content']}".encode(), EOT]
        return [*ids, *self.answer]
