# SPDX-License-Identifier: Apache-2.0
"""Networks and datasets of the user's own: named on a command line, or handed to a driver."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence, Sized
from typing import cast

import torch
from torch import nn
from torch.utils import data as torch_data

from ldpkernels.federated.data import Dataset
from ldpkernels.federated.parties import Model

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_name(text: str | None) -> bool:
    """Whether it is the name of a function, "package.module:function".

    >>> is_name("torchvision.models:resnet18"), is_name("C:\\\\data"), is_name("data/mnist")
    (True, False, False)
    """
    return text is not None and _NAME.fullmatch(text) is not None


def function_of(text: str) -> Callable[[], object]:
    """The function of a name."""
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{text!r}: {error}: is its folder on PYTHONPATH?") from error
    except AttributeError:
        raise ValueError(f"{text!r}: module {module!r} has no {name!r}") from None
    if not callable(found):
        raise ValueError(f"{text!r} is a {type(found).__name__}: name a function that takes no arguments")
    return cast("Callable[[], object]", found)


def network(text: str, seed: int) -> nn.Module:
    """The network that the function of a name builds, with the initial weights of a seed."""
    build = function_of(text)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            made = build()
        except TypeError as error:
            raise ValueError(f"{text!r} must build a network without arguments: {error}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"{text!r} gave a {type(made).__name__}: it must give a torch.nn.Module")
    return made


def models(names: Sequence[str], count: int, seed: int) -> list[Model] | None:
    """So many models for parties, dealt to them in turn, that functions of these names build; None if none is a name.

    Each is built with torch's generator at a seed of its own. A model that draws elsewhere needs a seed of its own too:
    else a run that is resumed is another one.
    """
    if not any(map(is_name, names)):
        return None
    if not all(map(is_name, names)):
        raise ValueError(f"models {', '.join(names)}: name functions of your own for all of them, or kinds for all")
    made = []
    for i in range(count):
        text = names[i % len(names)]
        with torch.random.fork_rng():
            torch.manual_seed(seed + i)
            try:
                model = function_of(text)()
            except TypeError as error:
                raise ValueError(f"{text!r} must build a model without arguments: {error}") from error
        if not all(callable(getattr(model, name, None)) for name in ("fit", "predict")):
            raise ValueError(f"{text!r} gave a {type(model).__name__}: a model has fit(x, y) and predict(x)")
        made.append(cast("Model", model))
    return made


def named(text: str) -> Dataset:
    """The dataset that the function of a name gives."""
    try:
        made = function_of(text)()
    except TypeError as error:
        raise ValueError(f"{text!r} must give a dataset without arguments: {error}") from error
    return dataset(made, text)


def dataset(made: object, name: str = "your data") -> Dataset:
    """A dataset from what users have.

    Args:
        made: Four tensors (training examples and labels, test examples and labels), two `torch.utils.data.Dataset`s
            (training, test) of pairs, or a `Dataset` already. Examples are floating-point [N, ...], labels whole [N].
        name: What it is called.

    >>> x, y = torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> from torch.utils.data import TensorDataset
    >>> dataset((TensorDataset(x, y), TensorDataset(x[:2], y[:2]))).classes
    3
    """
    if isinstance(made, Dataset):
        return made
    parts = tuple(made) if isinstance(made, (tuple, list)) else ()
    if len(parts) == 2 and all(isinstance(part, torch_data.Dataset) for part in parts):
        parts = (*_tensors(parts[0], name), *_tensors(parts[1], name))
    if len(parts) != 4 or not all(isinstance(part, torch.Tensor) for part in parts):
        raise ValueError(
            f"dataset {name!r} must be four tensors (training examples and labels, test examples and labels) or two "
            f"torch Datasets (training, test), not {_kinds(made)}"
        )
    train_x, train_y, test_x, test_y = parts
    for x, y, part in ((train_x, train_y, "training"), (test_x, test_y, "test")):
        if y.dim() != 1 or len(x) != len(y) or not len(y):
            raise ValueError(f"{part} examples of {name!r} have shape {tuple(x.shape)}, labels {tuple(y.shape)}")
        if not x.is_floating_point() or not torch.isfinite(x).all():
            raise ValueError(f"{part} examples of {name!r} must be finite floating-point numbers, not {x.dtype}")
        if y.is_floating_point() or y.is_complex() or int(y.min()) < 0:
            raise ValueError(f"{part} labels of {name!r} must be whole numbers from 0, not {y.dtype}")
    if train_x.shape[1:] != test_x.shape[1:]:
        raise ValueError(f"{name!r}: training and test examples have shapes {train_x.shape[1:]} and {test_x.shape[1:]}")
    classes = 1 + max(int(train_y.max()), int(test_y.max()))
    return Dataset(name, train_x.float(), train_y.long(), test_x.float(), test_y.long(), classes)


def _tensors(pairs: torch_data.Dataset[tuple[torch.Tensor, int]], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All the examples and labels of a map-style dataset."""
    if not isinstance(pairs, Sized):
        raise ValueError(f"dataset {name!r} has no length: clients need examples that are numbered")
    try:
        items = [pairs[i] for i in range(len(pairs))]
        return torch.stack([torch.as_tensor(x) for x, _ in items]), torch.tensor([int(y) for _, y in items])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"dataset {name!r} does not give pairs of a tensor of one shape and a label ({error}): give it a transform"
        ) from error


def _kinds(made: object) -> str:
    if isinstance(made, (tuple, list)):
        return f"{len(made)} of {', '.join(sorted({type(part).__name__ for part in made}))}"
    return f"a {type(made).__name__}"
