# SPDX-License-Identifier: Apache-2.0
"""The datasets of the papers, from the files that torchvision leaves on disk, dealt to clients."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ldpkernels.common.arrays import Array, Bytes
from ldpkernels.common.optional import require


@dataclass(frozen=True)
class Dataset:
    """Images as fp32 [N, channels, height, width], normalised by public constants, and labels as int64 [N].

    `span` is the least and the greatest number that an example may have. It is what everybody knows of such images, and
    not taken from these examples. None means unknown.
    """

    name: str
    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    classes: int
    span: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.span is None:
            return
        try:
            low, high = map(float, self.span)
        except (TypeError, ValueError):
            raise ValueError(f"span={self.span!r} must be two numbers, the least and the greatest") from None
        if not (-1e30 <= low < high <= 1e30 and high - low >= 1e-30):  # what networks scale by, in fp32
            raise ValueError(f"span={self.span!r} must be two numbers from -1e30 to 1e30, the lower first")
        object.__setattr__(self, "span", (low, high))


def load(name: str, root: str | Path | None = None) -> Dataset:
    """Read one of the papers' datasets.

    Args:
        name: "digits" (from scikit-learn, no file needed), "mnist", "fashion-mnist" or "cifar10".
        root: The folder that torchvision was given as `root`: it holds MNIST/raw, FashionMNIST/raw,
            cifar-10-batches-py (or the binary version, cifar-10-batches-bin).

    >>> digits = load("digits")
    >>> tuple(digits.train_x.shape), tuple(digits.test_x.shape), digits.classes
    ((1617, 1, 8, 8), (180, 1, 8, 8), 10)
    """
    if name not in _READERS:
        raise ValueError(f"dataset={name!r} must be one of {', '.join(NAMES)}")
    if name == "digits":
        if root is not None:
            raise ValueError(
                f"dataset 'digits' comes with scikit-learn, not from {str(root)!r}: name the dataset that it holds"
            )
        return _digits()
    if root is None:
        raise ValueError(f"dataset {name!r} is read from disk: give the folder that holds it (--data DIR)")
    if not Path(root).is_dir():
        raise FileNotFoundError(f"the data folder {str(root)!r} does not exist")
    return _READERS[name](Path(root))


def deal(
    labels: torch.Tensor, clients: int, seed: int, *, skew: float | None = None, uneven: float | None = None
) -> list[torch.Tensor]:
    """Which examples each client holds: as many for each, at random; a remainder is left out.

    `skew` is the concentration of a Dirichlet distribution over the classes, drawn once for each client: .1 gives most
    clients one or two classes, 100 is nearly even. None ignores labels. `uneven` is that of one Dirichlet distribution
    over the clients: .5 gives some a hundred times what others have, and everyone at least one example.

    >>> [len(part) for part in deal(torch.arange(10) % 2, clients=3, seed=0)]
    [3, 3, 3]
    >>> sum(len(part) for part in deal(torch.arange(10) % 2, clients=3, seed=0, uneven=0.5))
    10
    """
    size = len(labels) // clients if clients > 0 else 0
    if size < 1:
        raise ValueError(f"clients={clients} must be from 1 to {len(labels)}, the number of training examples")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    for name, value in (("skew", skew), ("uneven", uneven)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value} must be above 0 and finite, or None for an even deal")
    sizes = [size] * clients if uneven is None else _sizes(len(labels), clients, uneven, seed)
    if skew is None:
        return list(order[: sum(sizes)].split(sizes))
    pools = {int(c): order[labels[order] == c].tolist() for c in labels.unique()}
    draws = np.random.default_rng(seed).dirichlet([skew] * len(pools), clients)
    parts = []
    for weights, size in zip(torch.tensor(draws), sizes, strict=True):
        part = []
        for _ in range(size):
            left = torch.tensor([float(bool(pool)) for pool in pools.values()], dtype=torch.float64)
            chances = (weights + 1e-12) * left  # a class that has run out is drawn no more
            chosen = int(torch.multinomial(chances, 1, generator=generator))
            part.append(list(pools.values())[chosen].pop())
        parts.append(torch.tensor(part))
    return parts


def _sizes(examples: int, clients: int, concentration: float, seed: int) -> list[int]:
    """How many examples each client gets: one, and its share of the others."""
    shares = np.random.default_rng([seed, 1]).dirichlet([concentration] * clients)
    ends = np.floor(np.concatenate([[0.0], np.cumsum(shares)]) * (examples - clients) + 1e-9).astype(int)
    ends[-1] = examples - clients
    return [1 + int(more) for more in np.diff(ends)]


def _digits() -> Dataset:
    images, labels = require("sklearn.datasets", "federated", "dataset 'digits'").load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32)[order].reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)[order]
    return Dataset("digits", x[180:], y[180:], x[:180], y[:180], 10, (0.0, 1.0))


def _idx(folder: Path, name: str) -> Bytes:
    """An IDX file, gzipped or not: two zero bytes, the type (8: bytes), the number of axes, their sizes, the bytes."""
    plain, zipped = folder / name, folder / f"{name}.gz"
    if plain.is_file():
        raw = plain.read_bytes()
    elif zipped.is_file():
        try:
            raw = gzip.decompress(zipped.read_bytes())
        except (EOFError, OSError, zlib.error) as wrong:
            raise ValueError(f"{zipped} is not a gzip file, or is cut off ({wrong}): fetch it again") from None
    else:
        raise FileNotFoundError(f"neither {plain} nor {zipped.name} exists: torchvision's download puts them there")
    axes = raw[3] if len(raw) > 3 else 0
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", axes, 4)) if len(raw) >= 4 + 4 * axes else ()
    if raw[:3] != b"\0\0\x08" or len(raw) != 4 + 4 * axes + math.prod(shape):
        raise ValueError(f"{plain.name} in {folder} is not an IDX file of bytes, or is cut off: fetch it again")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _idx_dataset(name: str, folder: str, mean: float, deviation: float) -> Callable[[Path], Dataset]:
    def normalised(x: torch.Tensor) -> torch.Tensor:
        return (x / 255 - mean) / deviation

    def read(root: Path) -> Dataset:
        raw = root / folder / "raw"
        parts: list[torch.Tensor] = []
        for split in ("train", "t10k"):
            pictures, labels = _idx(raw, f"{split}-images-idx3-ubyte"), f"{split}-labels-idx1-ubyte"
            y = _labels(_idx(raw, labels), raw / labels)
            if pictures.ndim != 3 or len(pictures) != len(y) or not pictures.size:
                raise ValueError(
                    f"{raw} holds {split} pictures of shape {pictures.shape} for {len(y)} labels: fetch both again"
                )
            x = torch.tensor(pictures, dtype=torch.float32).unsqueeze(1)
            parts += [normalised(x), y]
        return Dataset(name, parts[0], parts[1], parts[2], parts[3], 10, _span(normalised))

    return read


def _span(normalised: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, float]:
    """What becomes of the least and the greatest of all pixels, 0 and 255, by the operations that pixels undergo."""
    ends = normalised(torch.tensor([0.0, 255.0]).reshape(-1, 1, 1, 1))
    return float(ends.min()), float(ends.max())


def _labels(found: Array, path: Path) -> torch.Tensor:
    """The labels as int64; a ValueError where they are not those of ten classes."""
    if found.ndim != 1 or (found < 0).any() or (found > 9).any():
        raise ValueError(f"{path} holds labels outside the classes 0 to 9: fetch it again")
    return torch.tensor(found).long()


class _ArraysOnly(pickle._Unpickler):
    """CIFAR-10's own format is a pickle, which may run any code: this one builds NumPy arrays and nothing else.

    It is pickle's in Python, whose memory follows the file's: the one in C takes gigabytes for a number in nine bytes.
    """

    def find_class(self, module: str, name: str) -> object:
        if (module.replace("numpy._core", "numpy.core"), name) in {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }:
            return super().find_class(module.replace("numpy.core", "numpy._core") if _NEW else module, name)
        raise pickle.UnpicklingError(
            f"a CIFAR-10 batch holds arrays, not {module}.{name}: the file is not the original"
        )


_NEW = int(np.__version__.split(".")[0]) >= 2


def _cifar_batch(root: Path, name: str) -> tuple[Bytes, Array]:
    pickled, binary = root / "cifar-10-batches-py" / name, root / "cifar-10-batches-bin" / f"{name}.bin"
    if pickled.is_file():
        try:
            batch = _ArraysOnly(io.BytesIO(pickled.read_bytes()), encoding="bytes").load()
            data, labels = batch[b"data"], np.asarray(batch[b"labels"])
            if data.dtype != np.uint8 or data.shape != (len(labels), 3072) or labels.dtype.kind not in "iu":
                raise TypeError(f"data of shape {data.shape} and labels of {labels.dtype}")
        except pickle.UnpicklingError:
            raise
        except Exception as wrong:  # a damaged pickle may fail in any way
            raise ValueError(f"{pickled} is not a batch of CIFAR-10 ({wrong}): fetch it again") from None
        return data, labels
    if not binary.is_file():
        raise FileNotFoundError(f"neither {pickled} nor {binary} exists: torchvision's download puts the first there")
    records = np.fromfile(binary, np.uint8)
    if records.size % 3073:
        raise ValueError(f"{binary} is not made of records of 3073 bytes: fetch it again")
    records = records.reshape(-1, 3073)
    return records[:, 1:], records[:, 0]


def _cifar10(root: Path) -> Dataset:
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).reshape(3, 1, 1)
    deviation = torch.tensor([0.2470, 0.2435, 0.2616]).reshape(3, 1, 1)

    def normalised(x: torch.Tensor) -> torch.Tensor:
        return (x / 255 - mean) / deviation

    parts: list[torch.Tensor] = []
    for names in ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]):
        batches = [_cifar_batch(root, name) for name in names]
        x = torch.tensor(np.concatenate([b[0] for b in batches])).reshape(-1, 3, 32, 32).float()
        labels = np.concatenate([b[1] for b in batches])
        parts += [normalised(x), _labels(labels, root / names[0])]
    return Dataset("cifar10", parts[0], parts[1], parts[2], parts[3], 10, _span(normalised))


_READERS: dict[str, Callable[[Path], Dataset]] = {
    "digits": lambda root: _digits(),
    "mnist": _idx_dataset("mnist", "MNIST", 0.1307, 0.3081),
    "fashion-mnist": _idx_dataset("fashion-mnist", "FashionMNIST", 0.2860, 0.3530),
    "cifar10": _cifar10,
}
NAMES = tuple(_READERS)
