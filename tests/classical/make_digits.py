"""Train the models of `inferlab.classical` and write them with their test pictures.

    python tests/classical/make_digits.py

Needs scikit-learn and torch; takes a minute. The file is package data, so that chapter 01 runs
without scikit-learn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

TEST = 360
OUT = Path(__file__).parents[2] / "src" / "inferlab" / "classical" / "digits.npz"


def split():
    """Return training pictures and digits, then those to ask about."""
    data = load_digits()
    x, y = data.data.astype(np.float32), data.target
    return x[:-TEST], y[:-TEST], x[-TEST:], y[-TEST:]


def half(model):
    """Round a linear model's parameters to what the file holds, in place."""
    model.coef_ = model.coef_.astype(np.float16).astype(np.float32)
    model.intercept_ = model.intercept_.astype(np.float16).astype(np.float32)
    return model


def logistic():
    x, y, _, _ = split()
    return half(LogisticRegression(max_iter=5000, C=0.01).fit(x, y))


def svm():
    x, y, _, _ = split()
    return half(LinearSVC(C=0.0005, max_iter=20_000, random_state=0).fit(x, y))


def forest():
    x, y, _, _ = split()
    return RandomForestClassifier(random_state=0).fit(x, y)


class LeNet(torch.nn.Module):
    """LeNet-5 in torch, with the names of `inferlab.classical.lenet`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 6, 5), torch.nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = torch.nn.Linear(400, 120), torch.nn.Linear(120, 84)
        self.fc3 = torch.nn.Linear(84, 10)

    def forward(self, x):
        for conv in (self.conv1, self.conv2):
            x = torch.nn.functional.avg_pool2d(conv(x).tanh(), 2)
        x = self.fc2(self.fc1(x.flatten(1)).tanh()).tanh()
        return self.fc3(x)


def enlarged(x):
    """Return pictures [N, 64] as [N, 1, 32, 32]."""
    pictures = torch.from_numpy(x).view(-1, 1, 8, 8) / 16
    return pictures.repeat_interleave(4, 2).repeat_interleave(4, 3)


def lenet(epochs: int = 12):
    torch.manual_seed(0)
    x, y, _, _ = split()
    inputs, right = enlarged(x), torch.from_numpy(y)
    model = LeNet()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            loss = torch.nn.functional.cross_entropy(model(inputs[batch]), right[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def table(model):
    """Return the nodes of a forest in one table, as `inferlab.classical.forest.Forest` has them."""
    parts = {name: [] for name in ("roots", "feature", "threshold", "left", "right", "leaf")}
    offset = 0
    for tree in (estimator.tree_ for estimator in model.estimators_):
        parts["roots"].append([offset])
        inner = tree.children_left >= 0
        for name, children in (("left", tree.children_left), ("right", tree.children_right)):
            parts[name].append(np.where(inner, children + offset, -1))
        parts["feature"].append(np.where(inner, tree.feature, 0))
        parts["threshold"].append(np.where(inner, tree.threshold, 0))
        parts["leaf"].append(tree.value[:, 0].argmax(-1))
        offset += tree.node_count
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    kinds = {"feature": np.int16, "threshold": np.float32, "leaf": np.int16}
    return {f"forest.{n}": a.astype(kinds.get(n, np.int32)) for n, a in joined.items()}


def main() -> None:
    _, _, x, y = split()
    arrays = {"pictures": x.astype(np.uint8), "digits": y.astype(np.uint8)}
    for name, model in (("logistic", logistic()), ("svm", svm())):
        arrays[f"{name}.weight"] = model.coef_.astype(np.float16)
        arrays[f"{name}.bias"] = model.intercept_.astype(np.float16)
    arrays |= table(forest())
    for name, tensor in lenet().state_dict().items():
        arrays[f"lenet.{name}"] = tensor.numpy().astype(np.float16)
    np.savez_compressed(OUT, **arrays)
    print(OUT.name, f"{OUT.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
