"""What inference costs without a transformer: a dot product, a forest, a small network.

Each is counted for one row at batch 1, weights in 4-byte floats, as `costs` counts a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from inferlab.theory.costs import Part


def dense(inputs: int, outputs: int, *, element: float = 4) -> Part:
    """Return the cost of f(W x + b): every weight and bias read once, 2 operations a weight."""
    return Part(2 * inputs * outputs, (inputs + 1) * outputs * element)


def logistic_regression(features: int, classes: int = 2, *, element: float = 4) -> Part:
    """Return one dot product of `features` for two classes, else one a class."""
    return dense(features, 1 if classes == 2 else classes, element=element)


def linear_svm(features: int, *, element: float = 4) -> Part:
    """Return the sign of one dot product: the same work as logistic regression."""
    return dense(features, 1, element=element)


def kernel_svm(features: int, support_vectors: int, *, element: float = 4) -> Part:
    """Return one kernel evaluation a support vector: their dot products at least."""
    return dense(features, support_vectors, element=element)


def forest_comparisons(trees: int, depth: int) -> int:
    """Return the comparisons of a forest, each waiting for the one before it in its tree."""
    return trees * depth


def convolution_parameters(inputs: int, outputs: int, kernel: int) -> int:
    """Return weights and biases of a square convolution over `inputs` channels."""
    return outputs * (inputs * kernel * kernel + 1)


def lenet5_parameters() -> Mapping[str, int]:
    """Return LeNet-5's parameters by layer, in the form usually taught (all maps connected)."""
    return MappingProxyType(
        {
            "conv1": convolution_parameters(1, 6, 5),
            "conv2": convolution_parameters(6, 16, 5),
            "fc1": (16 * 5 * 5 + 1) * 120,
            "fc2": (120 + 1) * 84,
            "fc3": (84 + 1) * 10,
        }
    )


def alexnet_parameters() -> Mapping[str, int]:
    """Return AlexNet's parameters by layer (Krizhevsky et al. 2012).

    Layers 2, 4 and 5 are split over two GPUs: each half sees half of the maps below it.
    """
    return MappingProxyType(
        {
            "conv1": convolution_parameters(3, 96, 11),
            "conv2": convolution_parameters(96 // 2, 256, 5),
            "conv3": convolution_parameters(256, 384, 3),
            "conv4": convolution_parameters(384 // 2, 384, 3),
            "conv5": convolution_parameters(384 // 2, 256, 3),
            "fc6": (256 * 6 * 6 + 1) * 4096,
            "fc7": (4096 + 1) * 4096,
            "fc8": (4096 + 1) * 1000,
        }
    )


def convolution(inputs: int, outputs: int, kernel: int, side: int, *, element: float = 4) -> Part:
    """Return a convolution's cost on a square output of `side`: its weights serve every place."""
    macs = outputs * inputs * kernel * kernel * side * side
    return Part(2 * macs, convolution_parameters(inputs, outputs, kernel) * element)


def lenet5() -> Mapping[str, Part]:
    """Return the cost of LeNet-5 on a picture of 32 x 32, layer by layer."""
    return MappingProxyType(
        {
            "conv1": convolution(1, 6, 5, 28),
            "conv2": convolution(6, 16, 5, 10),
            "fc1": dense(16 * 5 * 5, 120),
            "fc2": dense(120, 84),
            "fc3": dense(84, 10),
        }
    )


def random_forest(comparisons: float, node_bytes: float = 14) -> Part:
    """Return a walk's cost: a comparison a step, and the node that holds it.

    A node here is a feature (2 bytes), a threshold (4) and two addresses (4 each).
    """
    return Part(comparisons, comparisons * node_bytes)
