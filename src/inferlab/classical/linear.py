"""Logistic regression and the linear support vector machine: a dot product a class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def scores(weights: Floats, bias: Floats, x: Floats) -> Floats:
    """Return w.x + b for each class: weights [C, D], bias [C], x [D] or [N, D]; [C] or [N, C]."""
    return x @ weights.T + bias


def logistic_regression(weights: Floats, bias: Floats, x: Floats) -> Floats:
    """Return the probability of each class: a dot product each, then softmax (Cox 1958)."""
    made = scores(weights, bias, x)
    grown = np.exp(made - made.max(-1, keepdims=True))
    return grown / grown.sum(-1, keepdims=True)


def linear_svm(weights: Floats, bias: Floats, x: Floats) -> NDArray[np.intp]:
    """Return the class on whose side x lies furthest: one dot product each (Cortes 1995)."""
    return scores(weights, bias, x).argmax(-1)
