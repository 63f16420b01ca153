"""Pictures of handwritten digits, and models that were trained on others like them.

The pictures are the last 360 of the "Optical Recognition of Handwritten Digits" data set (Alpaydin
and Kaynak 1998, UCI, CC BY 4.0) as scikit-learn ships it. `tests/classical/make_digits.py` made the
file, with scikit-learn and torch.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from inferlab.classical.forest import Forest

LAYERS = ("conv1", "conv2", "fc1", "fc2", "fc3")


@cache
def _file() -> dict[str, NDArray[np.generic]]:
    path = resources.files("inferlab.classical").joinpath("digits.npz")
    with path.open("rb") as file, np.load(file) as arrays:
        return {name: arrays[name] for name in arrays.files}


def pictures() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return pictures [360, 64], 8 x 8 pixels from 0 to 16, and the digits they show [360]."""
    file = _file()
    return file["pictures"].astype(np.float32), file["digits"].astype(np.int64)


def linear(kind: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weights [10, 64] and bias [10] of "logistic" or "svm"."""
    file = _file()
    return file[f"{kind}.weight"].astype(np.float32), file[f"{kind}.bias"].astype(np.float32)


def forest() -> Forest:
    """Return the forest: 100 fully grown trees, scikit-learn's default."""
    file = _file()
    return Forest(*(file[f"forest.{name}"] for name in Forest._fields))  # type: ignore[arg-type]


def lenet() -> dict[str, NDArray[np.float32]]:
    """Return LeNet-5's parameters, as `lenet.logits` takes them."""
    file = _file()
    names = [f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")]
    return {name: file[f"lenet.{name}"].astype(np.float32) for name in names}


def enlarged(picture: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a picture [64] as LeNet-5 takes it: [32, 32], from 0 to 1."""
    return picture.reshape(8, 8).repeat(4, 0).repeat(4, 1) / np.float32(16)
