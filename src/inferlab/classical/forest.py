"""A random forest: trees of comparisons, each step waiting for the one before (Breiman 2001)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Forest(NamedTuple):
    """All trees in one table of nodes: `roots` says where each begins.

    A node compares x[feature] <= threshold and goes on at `left` or `right`; where `left` is
    negative it is a leaf and answers `leaf`, a class.
    """

    roots: NDArray[np.int32]
    feature: NDArray[np.int16]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    leaf: NDArray[np.int16]


def walk(forest: Forest, root: int, x: NDArray[np.floating]) -> tuple[int, int]:
    """Return the class that one tree gives x [D], and how many comparisons it took."""
    node, steps = root, 0
    while forest.left[node] >= 0:
        smaller = x[forest.feature[node]] <= forest.threshold[node]
        node = int(forest.left[node] if smaller else forest.right[node])
        steps += 1
    return int(forest.leaf[node]), steps


def predict(forest: Forest, x: NDArray[np.floating]) -> tuple[int, int]:
    """Return the class that most trees give x [D], and the comparisons of all of them.

    The lowest of classes with equally many votes, as scikit-learn has it for pure leaves.
    """
    votes = np.zeros(int(forest.leaf.max()) + 1, int)
    steps = 0
    for root in forest.roots:
        answer, taken = walk(forest, int(root), x)
        votes[answer] += 1
        steps += taken
    return int(votes.argmax()), steps
