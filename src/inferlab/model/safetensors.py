"""Read safetensors: one file, or several under an index, as one mapping of names to tensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inferlab.errors import InferlabError
from inferlab.model.config import read_json

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Safetensors:
    """The tensors of a model folder. Files are mapped; nothing is executed."""

    def __init__(self, folder: Path):
        self.path = folder
        index = folder / "model.safetensors.index.json"
        single = folder / "model.safetensors"
        if index.exists():
            listed = read_json(index).get("weight_map")
            if not isinstance(listed, dict) or not all(isinstance(f, str) for f in listed.values()):
                raise InferlabError(f"{index}: weight_map must name a file for each tensor")
            names = sorted(set(listed.values()))
            if any(Path(name).name != name for name in names):
                raise InferlabError(f"{index}: weight_map must name files of this folder")
        elif single.exists():
            names = [single.name]
        else:
            raise InferlabError(f"{folder} has no model.safetensors and no index of several")
        self._file_of = {}
        for name in names:
            try:
                file = safe_open(folder / name, framework="pt")
            except (OSError, SafetensorError) as error:
                raise InferlabError(f"{folder / name} cannot be read ({error})") from None
            self._file_of.update(dict.fromkeys(file.keys(), file))

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def tensor(self, name: str) -> Tensor:
        """Return a tensor as stored; a missing or non-float one is an error that names it."""
        if name not in self._file_of:
            raise InferlabError(f"{self.path}: tensor {name!r} is missing")
        try:
            tensor = self._file_of[name].get_tensor(name)
        except SafetensorError as error:
            raise InferlabError(f"{self.path}: tensor {name!r} cannot be read ({error})") from None
        if tensor.dtype not in FLOATS:
            raise InferlabError(f"{self.path}: tensor {name!r} has dtype {tensor.dtype}")
        return tensor
