"""Folders as a hub has them: a config, random weights and a tokenizer of bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from torch import Tensor

from inferlab.model import config as configs
from inferlab.model.checkpoint import OF_LAYER, OF_MODEL, layer_shapes, model_shapes
from inferlab.model.tokenizer import BYTE_OF


def write(
    folder: Path, fields: Mapping[str, object], *, seed: int, spread: float, template: str = ""
) -> None:
    """Write a model with the config `fields`, its weights drawn `spread` wide.

    With a chat `template` come its two special tokens, <|im_start|> and <|im_end|>.
    """
    config = configs.from_fields(fields)
    generator = torch.Generator().manual_seed(seed)

    def draw(part: str, shape: tuple[int, ...]) -> Tensor:
        return spread * torch.randn(shape, generator=generator) + ("norm" in part)

    tensors = {
        f"model.layers.{layer}.{OF_LAYER[part][0]}": draw(part, shape)
        for layer in range(config.layers)
        for part, shape in layer_shapes(config).items()
    }
    for part, shape in model_shapes(config).items():
        if part != "head" or not config.tied:
            tensors[OF_MODEL[part][0]] = draw(part, shape)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields))

    alphabet = sorted(BYTE_OF, key=BYTE_OF.get)
    vocabulary = {character: token for token, character in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if template:
        tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    tokenizer.save(str(folder / "tokenizer.json"))
