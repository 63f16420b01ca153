"""A checkpoint on disk, of either kind: its config, its tokenizer, its weights on a device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from inferlab.errors import InferlabError, unknown
from inferlab.kernels import backends
from inferlab.kernels.quantised import BLOCK, Quantised, from_blocks, quantise
from inferlab.model import config, gguf_tokenizer, tokenizer
from inferlab.model.config import ModelConfig
from inferlab.model.gguf import GGUF, Format, widen
from inferlab.model.safetensors import Safetensors
from inferlab.model.sharding import ALL, Group, ShardedTransformer, Share, shares
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
    _shared: tuple[Share, Group] | None = field(default=None, repr=False)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer. Its end tokens are those of every source together."""
        if self._tokenizer is None:
            raise InferlabError(f"{self.path} has no tokenizer.json: it works on token ids only")
        return self._tokenizer

    def shared(self, group: Group) -> Checkpoint:
        """Return what this rank of a group holds: `load` then reads that alone.

        Raises InferlabError, naming the field, if so many ranks can't share the model.
        """
        return replace(self, _shared=(shares(self.config, group.size)[group.rank], group))

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
        simd = torch.device(device).type == "cpu" and backends.has_numba()

        def tensor(part: str, layer: int | None = None) -> Tensor:
            return self._read(part, layer).to(device, dtype)

        def matrix(part: str, layer: int | None = None) -> Matrix:
            stored = self._quantised(part, layer, quantize)
            if stored is None:
                return tensor(part, layer)
            return stored.in_groups() if simd else stored.to(device)

        def layer(index: int) -> Layer:
            parts: dict[str, Any] = {
                part: (matrix if len(shape) == 2 else tensor)(part, index)
                for part, shape in layer_shapes(self.config).items()
            }
            return Layer(**parts)

        embedding = matrix("embedding")
        layers = [layer(index) for index in range(self.config.layers)]
        head = embedding if self.config.tied else matrix("head")
        model = self._transformer(Weights(embedding, layers, tensor("norm"), head))
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
        entry, form = self.file.entry(name), self.file.entry(name).format
        self._check(name, part, entry.shape)
        rows, columns = self._cut(part, form.width)
        if columns != ALL:
            columns = slice(*(at // form.width * form.size for at in (columns.start, columns.stop)))
        blocks = self.file.blocks(name)[rows, columns]
        return form, unpermute(blocks, self._permuted_heads(part))

    def _transformer(self, weights: Weights) -> Transformer:
        if self._shared is None:
            return Transformer(self.config, weights)
        return ShardedTransformer(self.config, weights, *self._shared)

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
        self._cut(part, BLOCK)
        return quantise(self._read(part, layer), wanted)

    def _read(self, part: str, layer: int | None = None) -> Tensor:
        """Return a tensor in memory of its own, its shape checked, its rows in our order."""
        name, vector = self.name(part, layer), len(self._shape(part)) == 1
        rows, columns = self._cut(part)
        if isinstance(self.file, GGUF):
            entry = self.file.entry(name)
            self._check(name, part, entry.shape)
            wide = widen(self.file.blocks(name)[rows], entry.format)[:, columns]
            ours = unpermute(wide[0] if vector else wide, self._permuted_heads(part))
            return torch.from_numpy(ours).contiguous()
        whole = self.file.tensor(name)
        self._check(name, part, tuple(whole.shape))
        # Until it is cloned it is the mapped file.
        return whole[columns].clone() if vector else whole[rows, columns].clone()

    def _cut(self, part: str, block: int = 1) -> tuple[slice, slice]:
        """Return the rows and columns to read of a part, whose columns come in whole blocks.

        A vector is one row.
        """
        if self._shared is None:
            return ALL, ALL
        share, group = self._shared
        rows, columns = share.cut(part, self.config.head_dim)
        if columns != ALL and (columns.start % block or columns.stop % block):
            raise InferlabError(
                f"{self.path}: {group.size} ranks would cut the columns of {part!r} inside a block"
                f' of {block} weights: take fewer ranks, or quantize="none"'
            )
        return rows, columns

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
        own = self._shared[0].config(self.config) if self._shared else self.config
        return {"q": own.heads, "k": own.kv_heads}.get(part.split("_")[0], 0)


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
