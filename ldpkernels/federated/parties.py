# SPDX-License-Identifier: Apache-2.0
"""The models that Han and Xue's parties train on their own data, of as many types as there are parties.

A model is anything with `fit(x, y)` and `predict(x)` on NumPy arrays, with x as fp32 [N, features]: any classifier of
scikit-learn, and `Network` for one of torch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import nn

from ldpkernels.common.arrays import Array
from ldpkernels.common.keys import Key
from ldpkernels.common.optional import require
from ldpkernels.federated.generators import generator_of

TABULAR = ("logistic", "forest", "svm", "tree", "network")
IMAGES = ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5")
WIDE = tuple(f"{kind}-wide" for kind in IMAGES)
KINDS = (*TABULAR, *IMAGES, *WIDE)
TWO_CLASSES = ("logistic", "svm")  # scikit-learn trains these on examples of two classes or more alone
# Channels of 3x3 convolutions, each with ReLU and a halving max-pool, and the width of a hidden layer, 0 for none.
_CNN = {
    "cnn-1": ((16,), 64),
    "cnn-2": ((8, 16), 0),
    "cnn-3": ((16, 32), 64),
    "cnn-4": ((12, 24), 128),
    "cnn-5": ((8, 16, 32), 64),
}
# Twice the channels and twice the hidden layer.
_CNN |= {f"{kind}-wide": (tuple(2 * c for c in channels), 2 * hidden) for kind, (channels, hidden) in _CNN.items()}


class Model(Protocol):
    """What a party's model has to offer."""

    def fit(self, x: Array, y: Array) -> object:
        """Learn from examples [N, features] and labels [N]."""

    def predict(self, x: Array) -> Array:
        """The labels [N] of examples."""


class Network:
    """A torch network as a `Model`, trained by Adam on the cross-entropy of shuffled batches, where the module is."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...], key: Key, *, epochs: int = 3, batch: int = 128):
        self.module, self.shape, self.key, self.epochs, self.batch = module, shape, key, epochs, batch
        self.device = next(module.parameters()).device

    def fit(self, x: Array, y: Array) -> Network:
        """Train from the weights as they are."""
        inputs, labels = self._tensor(x), torch.as_tensor(np.asarray(y)).long().to(self.device)
        optimizer = torch.optim.Adam(self.module.parameters(), lr=1e-3)
        coins = generator_of(self.key)
        self.module.train()
        for _ in range(self.epochs):
            for part in torch.randperm(len(labels), generator=coins).split(self.batch):
                part = part.to(self.device)
                optimizer.zero_grad()
                nn.functional.cross_entropy(self.module(inputs[part]), labels[part]).backward()
                optimizer.step()
        return self

    @torch.no_grad()
    def predict(self, x: Array) -> Array:
        """The class with the largest output."""
        self.module.eval()
        parts = [self.module(part).argmax(1) for part in self._tensor(x).split(1024)]
        return torch.cat(parts).cpu().numpy()

    def _tensor(self, x: Array) -> torch.Tensor:
        return torch.as_tensor(np.asarray(x, np.float32)).reshape(-1, *self.shape).to(self.device)


@contextlib.contextmanager
def threads_of_torch() -> Iterator[None]:
    """A context in which NumPy and scikit-learn use as many threads as torch: results may depend on the number."""
    try:
        limits = require("threadpoolctl", "federated", "scikit-learn").threadpool_limits
    except ImportError:  # it comes with scikit-learn
        yield
        return
    with limits(torch.get_num_threads()):
        yield


def build(
    kind: str, shape: tuple[int, ...], classes: int, key: Key, *, epochs: int = 3, device: torch.device | None = None
) -> Model:
    """A model of a kind, before `fit`; the key decides initial weights and every other choice.

    Networks are put on the device, if there is one; scikit-learn's models stay in the host's memory.

    >>> import ldpkernels
    >>> build("tree", (4,), 2, ldpkernels.key(0)).fit(np.eye(4), [0, 0, 1, 1]).predict(np.eye(4)).tolist()
    [0, 0, 1, 1]
    """
    if kind not in KINDS:
        raise ValueError(f"model={kind!r} must be one of {', '.join(KINDS)}")
    if kind in _CNN or kind == "network":
        module = _cnn(kind, shape, classes, key) if kind in _CNN else dense(shape, classes, key)
        return Network(module.to(device), shape, key, epochs=epochs)
    require("sklearn", "federated", f"model {kind!r}")
    from sklearn import ensemble, linear_model, svm, tree

    seed = key.words[0] % 2**32
    if kind == "logistic":
        return linear_model.LogisticRegression(max_iter=200)  # type: ignore[no-any-return]
    if kind == "forest":
        return ensemble.RandomForestClassifier(100, max_depth=12, random_state=seed)  # type: ignore[no-any-return]
    if kind == "svm":
        return svm.SVC(gamma=1 / math.prod(shape))  # type: ignore[no-any-return]
    return tree.DecisionTreeClassifier(max_depth=8, random_state=seed)  # type: ignore[no-any-return]


def dense(shape: tuple[int, ...], classes: int, key: Key) -> nn.Module:
    """The network of four layers, which is the global model for features."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.words[0])
        return nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16),
            nn.ReLU(), nn.Linear(16, classes),
        )  # fmt: skip


def _cnn(kind: str, shape: tuple[int, ...], classes: int, key: Key) -> nn.Module:
    channels, hidden = _CNN[kind]
    if len(shape) != 3 or min(shape[1:]) < 2 ** len(channels):
        least = 2 ** len(channels)
        raise ValueError(f"model {kind!r} is for images [channels, height, width] of {least} or more, not {shape}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.words[0])
        layers: list[nn.Module] = []
        before, height, width = shape
        for after in channels:
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            before, height, width = after, height // 2, width // 2
        features = before * height * width
        layers.append(nn.Flatten())
        if hidden:
            layers += [nn.Linear(features, hidden), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(hidden or features, classes))


def fit(model: Model, x: torch.Tensor, y: torch.Tensor, who: str) -> None:
    """Train a model, which may be a user's own; an error names whose it is."""
    with _told_of(who, "fit"):
        model.fit(_array(x), y.numpy())


def predicted(model: Model, x: torch.Tensor, classes: int, who: str) -> Array:
    """A model's labels, one class for each example. Another shape is refused: it would be counted wrongly."""
    with _told_of(who, "predict"):
        found: object = model.predict(_array(x))
        labels: Array = found.detach().cpu().numpy() if isinstance(found, torch.Tensor) else np.asarray(found)
    if labels.shape != (len(x),):
        raise ValueError(
            f"{who}: predict gave shape {labels.shape} for {len(x)} examples: it must give a label for each, "
            f"[{len(x)}], such as scores.argmax(1)"
        )
    if labels.dtype.kind not in "biuf" or (labels.dtype.kind == "f" and not (labels == np.rint(labels)).all()):
        raise ValueError(f"{who}: predict gave {labels.dtype} that are not labels: it must give whole numbers from 0")
    if len(x) and (labels.min() < 0 or labels.max() >= classes):
        found = f"{labels.min()} to {labels.max()}"
        raise ValueError(f"{who}: predict gave labels from {found}, and the classes are 0 to {classes - 1}")
    return labels.astype(np.int64)


@contextlib.contextmanager
def _told_of(who: str, method: str) -> Iterator[None]:
    """A context in which errors of a model, which may be a user's own, name whose it is."""
    try:
        yield
    except Exception as error:
        kind = ValueError if isinstance(error, ValueError) else RuntimeError
        raise kind(f"{who}: {method} failed: {type(error).__name__}: {error}") from error


def _array(x: torch.Tensor) -> Array:
    flat: Array = x.flatten(1).numpy()
    return flat
