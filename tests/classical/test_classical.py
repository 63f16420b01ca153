"""Our bare inference answers as scikit-learn and torch do, picture by picture."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from inferlab.classical import digits, forest, lenet, linear
from inferlab.theory import classical

sys.path.insert(0, str(Path(__file__).parent))
make_digits = pytest.importorskip("make_digits", reason="scikit-learn is not installed")

X, Y = digits.pictures()


def test_the_pictures_are_the_last_of_the_data_set():
    _, _, x, y = make_digits.split()
    assert np.array_equal(X, x)
    assert np.array_equal(Y, y)


def test_logistic_regression_is_scikit_learns():
    model = make_digits.logistic()
    weights, bias = digits.linear("logistic")
    assert np.allclose(weights, model.coef_, atol=2e-3)
    model.coef_, model.intercept_ = weights, bias
    ours = linear.logistic_regression(weights, bias, X)
    assert np.allclose(ours, model.predict_proba(X), atol=1e-5)
    assert np.allclose(ours.sum(-1), 1, atol=1e-5)


def test_the_linear_svm_is_scikit_learns():
    model = make_digits.svm()
    weights, bias = digits.linear("svm")
    model.coef_, model.intercept_ = weights, bias
    assert np.array_equal(linear.linear_svm(weights, bias, X), model.predict(X))


def test_the_forest_is_scikit_learns():
    model = make_digits.forest()
    table = make_digits.table(model)
    trees = digits.forest()
    for name, array in zip(forest.Forest._fields, trees, strict=True):
        assert np.array_equal(array, table[f"forest.{name}"]), name
    assert len(trees.roots) == 100
    ours = [forest.predict(trees, picture) for picture in X[:120]]
    assert [answer for answer, _ in ours] == model.predict(X[:120]).tolist()
    paths = model.decision_path(X[:120])[0]
    # A path holds each tree's nodes, the leaf among them.
    assert [steps for _, steps in ours] == (np.asarray(paths.sum(1)).ravel() - 100).tolist()


def test_lenet_is_torchs():
    parameters = digits.lenet()
    assert {n: p.size for n, p in parameters.items()}["fc1.weight"] == 120 * 400
    assert sum(p.size for p in parameters.values()) == 61_706
    theirs = make_digits.LeNet()
    theirs.load_state_dict({n: torch.from_numpy(p) for n, p in parameters.items()})
    with torch.inference_mode():
        right = theirs(make_digits.enlarged(X)).numpy()
    ours = np.stack([lenet.logits(parameters, digits.enlarged(p)) for p in X[:40]])
    assert np.allclose(ours, right[:40], atol=1e-4)


def test_they_know_their_digits():
    weights = digits.lenet()
    given = [lenet.logits(weights, digits.enlarged(p)).argmax() for p in X]
    assert np.mean(given == Y) > 0.85
    assert np.mean(linear.linear_svm(*digits.linear("svm"), X) == Y) > 0.85


def test_a_convolution_is_counted_place_by_place():
    """Multiply-accumulates counted one by one, from the shapes of the layers."""
    costs = classical.lenet5()
    macs = {"conv1": 0, "conv2": 0}
    for name, inputs, outputs, side in (("conv1", 1, 6, 28), ("conv2", 6, 16, 10)):
        for _ in range(side * side):
            macs[name] += inputs * outputs * 25
    assert costs["conv1"].flops == 2 * macs["conv1"] == 235_200
    assert costs["conv2"].flops == 2 * macs["conv2"] == 480_000
    assert sum(part.bytes for part in costs.values()) == 4 * 61_706
