"""A checkpoint on disk, of either kind: its config, its tokenizer, its weights on a device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from inferlab.errors import InferlabError, unknown
from inferlab.kernels.quantised import BLOCK, Quantised, from_blocks, quantise
from inferlab.model import config, gguf_tokenizer, tokenizer
from inferlab.model.config import ModelConfig
from inferlab.model.gguf import GGUF, Format
from inferlab.model.safetensors import Safetensors
from inferlab.model.tokenizer import Tokenizer
from inferlab.model.transformer import FLOATS, Layer, Matrix, Transformer, Weights

# Our field, its name in Hugging Face files, its name in GGUF files.
OF_MODEL = {
    "embedding": ("model.embed_tokens.weight", "token_embd.weight"),
    "norm": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
}
OF_LAYER = {
    "attn_norm": ("input_layernorm.weight", "attn_norm.weight"),
    "q": ("self_attn.q_proj.weight", "attn_q.weight"),
    "k": ("self_attn.k_proj.weight", "attn_k.weight"),
    "v": ("self_attn.v_proj.weight", "attn_v.weight"),
    "o": ("self_attn.o_proj.weight", "attn_output.weight"),
    "q_bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "k_bias": ("self_attn.k_proj.bias", "attn_k.bias"),
    "v_bias": ("self_attn.v_proj.bias", "attn_v.bias"),
    "o_bias": ("self_attn.o_proj.bias", "attn_output.bias"),
    "q_norm": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "k_norm": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "mlp_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
}

BLOCKS = {"Q8_0": "q8_0", "Q4_0": "q4_0", "Q4_1": "q4_1"}
"""Formats of a GGUF file that run as they are stored, and our names for them."""

QUANTIZE = {"q8": "q8_0", "q4": "q4_1"}
"""What the matrices of the layers become. Not q4_0: on SmolLM2's vocabulary table, q4_1 errs by
8.6 % (root mean square) at 20 bytes per 32 weights, q4_0 by 10.3 % at 18. Its sixteen steps span
a block from its least weight to its largest, and not as far again on the other side of zero.
"""


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint: nothing but its headers and its tokenizer has been read yet."""

    path: Path
    config: ModelConfig
    file: GGUF | Safetensors
    _tokenizer: Tokenizer | None = field(default=None, repr=False)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer. Its end tokens are those of every source together."""
        if self._tokenizer is None:
            raise InferlabError(f"{self.path} has no tokenizer.json: it works on token ids only")
        return self._tokenizer

    def load(
        self,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        quantize: str | None = None,
    ) -> Transformer:
        """Return the transformer on `device`; floats in `dtype`, norms and biases among them.

        `quantize` None keeps matrices that a GGUF file stores in blocks as they are; "none" widens
        them. "q8" and "q4" round the others while loading: q4 the layers alone, vocabulary tables
        go to 8 bits, as in SmolLM2's own file. A matrix whose columns fill no blocks stays float;
        `Transformer.formats` shows which.

        Raises InferlabError naming a tensor that is missing or of the wrong shape, or `quantize`
        if it is unknown or no matrix can follow it.
        """
        check_quantize(quantize)

        def tensor(part: str, layer: int | None = None) -> Tensor:
            return self._read(part, layer).to(device, dtype)

        def matrix(part: str, layer: int | None = None) -> Matrix:
            stored = self._quantised(part, layer, quantize)
            return tensor(part, layer) if stored is None else stored.to(device)

        def layer(index: int) -> Layer:
            parts: dict[str, Any] = {
                part: (matrix if len(shape) == 2 else tensor)(part, index)
                for part, shape in layer_shapes(self.config).items()
            }
            return Layer(**parts)

        embedding = matrix("embedding")
        layers = [layer(index) for index in range(self.config.layers)]
        head = embedding if self.config.tied else matrix("head")
        model = Transformer(self.config, Weights(embedding, layers, tensor("norm"), head))
        if quantize in QUANTIZE and model.formats.keys() <= set(FLOATS.values()):
            raise InferlabError(f"quantize {quantize}: no matrix has a multiple of {BLOCK} columns")
        return model

    def name(self, part: str, layer: int | None = None) -> str:
        """Return what this file calls a part of the model, such as "q" of layer 3, or "norm"."""
        is_gguf = isinstance(self.file, GGUF)
        if layer is None:
            return OF_MODEL[part][is_gguf]
        return ("blk.%d." if is_gguf else "model.layers.%d.") % layer + OF_LAYER[part][is_gguf]

    def stored(self, part: str, layer: int | None = None) -> tuple[Format, NDArray[Any]]:
        """Return a matrix of a GGUF file as its blocks, uint8 [out, bytes per row], unwidened.

        Rows of q and k come back in our order, so that widening gives what `load` gives.
        """
        if not isinstance(self.file, GGUF):
            raise InferlabError(f"{self.path} is not a GGUF file: it has no stored blocks")
        name = self.name(part, layer)
        entry = self.file.entry(name)
        self._check(name, part, entry.shape)
        return entry.format, unpermute(self.file.blocks(name), self._permuted_heads(part))

    def _quantised(self, part: str, layer: int | None, quantize: str | None) -> Quantised | None:
        """Return a matrix in the blocks that it has, or that `quantize` asks for; else None."""
        if quantize == "none":
            return None
        wanted = QUANTIZE[quantize] if quantize else None
        if layer is None and wanted:
            wanted = QUANTIZE["q8"]  # a vocabulary table
        if isinstance(self.file, GGUF):
            form = self.file.entry(self.name(part, layer)).format.name
            if form in BLOCKS and (form.startswith("Q4") or wanted in (None, "q8_0")):
                raw = torch.from_numpy(self.stored(part, layer)[1].copy())
                self.file.forget(self.name(part, layer))
                return from_blocks(raw, BLOCKS[form])
        if wanted is None or self._shape(part)[1] % BLOCK:
            return None
        return quantise(self._read(part, layer), wanted)

    def _read(self, part: str, layer: int | None = None) -> Tensor:
        """Return a tensor in memory of its own, its shape checked, its rows in our order."""
        name = self.name(part, layer)
        tensor = self.file.tensor(name)
        self._check(name, part, tuple(tensor.shape))
        if isinstance(tensor, Tensor):
            return tensor.clone()  # until here it was the mapped file
        return torch.from_numpy(unpermute(tensor, self._permuted_heads(part)))

    def _check(self, name: str, part: str, shape: tuple[int, ...]) -> None:
        expected = self._shape(part)
        if shape != expected:
            raise InferlabError(
                f"{self.path}: tensor {name!r} has shape {shape}; the config says {expected}"
            )

    def _shape(self, part: str) -> tuple[int, ...]:
        return (model_shapes(self.config) | layer_shapes(self.config))[part]

    def _permuted_heads(self, part: str) -> int:
        """Return how many heads of a tensor GGUF stores with interleaved pairs; 0 for none."""
        if not isinstance(self.file, GGUF) or self.config.family != "llama":
            return 0
        return {"q": self.config.heads, "k": self.config.kv_heads}.get(part.split("_")[0], 0)


def open(path: Path) -> Checkpoint:
    """Open a folder with `config.json` and safetensors, or a `.gguf` file."""
    file: GGUF | Safetensors
    if path.is_dir():
        c, file = config.from_folder(path), Safetensors(path)
        has_tokenizer = (path / "tokenizer.json").exists()
        tokens = tokenizer.from_folder(path) if has_tokenizer else None
    else:
        file = gguf = GGUF(path)
        c, tokens = config.from_gguf(gguf), gguf_tokenizer.from_gguf(gguf)
    if tokens is not None:
        c = replace(c, eos_ids=c.eos_ids | tokens.eos_ids)
        tokens.eos_ids = c.eos_ids
    return Checkpoint(path, c, file, tokens)


def check_quantize(quantize: str | None) -> None:
    """Raise InferlabError unless `Checkpoint.load` knows this way to quantise."""
    if quantize not in (None, "none", *QUANTIZE):
        raise unknown("quantize", str(quantize), (*QUANTIZE, "none"))


def model_shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the parts of a model outside its layers, with their shapes."""
    table = (c.vocab, c.hidden)
    return {"embedding": table, "norm": (c.hidden,), "head": table}


def layer_shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the parts that each layer of a model has, with their shapes."""
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (c.hidden,),
        "q": (q, c.hidden),
        "k": (kv, c.hidden),
        "v": (kv, c.hidden),
        "o": (c.hidden, q),
        "mlp_norm": (c.hidden,),
        "gate": (c.intermediate, c.hidden),
        "up": (c.intermediate, c.hidden),
        "down": (c.hidden, c.intermediate),
    }
    if c.qkv_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if c.o_bias:
        shapes |= {"o_bias": (c.hidden,)}
    if c.qk_norm:
        shapes |= {"q_norm": (c.head_dim,), "k_norm": (c.head_dim,)}
    return shapes


def unpermute(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Undo llama.cpp's order of the rows of q and k: pairs side by side in each head.

    There rows 2i and 2i + 1 of a head are a rotary pair, here rows i and i + D/2. Works on
    blocks as well as on floats, since whole rows move. `heads` 0 leaves everything as it is.
    """
    if heads == 0:
        return rows
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])  # [H, D/2, 2, ...]
    return pairs.swapaxes(1, 2).reshape(rows.shape)
