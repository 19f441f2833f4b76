# SPDX-License-Identifier: Apache-2.0
"""Networks and datasets of the user's own: named on a command line, or handed to a driver."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import nn
from torch.utils import data as torch_data

from ldpkernels.common.arguments import is_name
from ldpkernels.federated.data import Dataset
from ldpkernels.federated.parties import Model

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MOST = torch.finfo(torch.float32).max


def function_of(text: str) -> Callable[[], object]:
    """The function with a name, if it can be called without arguments."""
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} is not the name of a function, package.module:function (letters, digits, _ and dots), and no "
            "folder is called so"
        )
    module, _, name = text.partition(":")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"{text!r}: {error}: is its folder on PYTHONPATH?") from error
    except Exception as error:  # whatever the user's own code raises
        raise ValueError(f"{text!r}: importing {module!r} fails: {type(error).__name__}: {error}") from error
    try:
        found = getattr(imported, name)
    except AttributeError as error:  # a module's own __getattr__ may have more to say
        raise ValueError(f"{text!r}: module {module!r} has no {name!r} ({error})") from error
    if not callable(found):
        raise ValueError(f"{text!r} is a {type(found).__name__}: name a function that takes no arguments")
    return cast("Callable[[], object]", found)


def _built(text: str, what: str) -> object:
    """What the function of a name gives."""
    build = function_of(text)
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        raise ValueError(f"{text!r} must {what} without arguments: {error}") from error
    except ValueError:  # some functions in C do not tell their arguments
        pass
    try:
        return build()
    except Exception as error:  # whatever the user's own code raises
        raise ValueError(f"{text!r} fails: {type(error).__name__}: {error}") from error


def network(text: str, seed: int) -> nn.Module:
    """The network that the named function builds, with the initial weights of a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = _built(text, "build a network")
    if not isinstance(made, nn.Module):
        raise ValueError(f"{text!r} gave a {type(made).__name__}: it must give a torch.nn.Module")
    return made


def models(names: Sequence[str], count: int, seed: int) -> list[Model] | None:
    """Models for so many parties, dealt to them in turn, that the named functions build; None if none is a name.

    Each is built with torch's generator at a seed of its own. A model that draws from elsewhere needs a seed of its own
    too, or a resumed run would be a different one.
    """
    if not any(map(is_name, names)):
        return None
    if not all(map(is_name, names)):
        raise ValueError(
            f"models {', '.join(names)}: some are functions of your own and some are kinds: name functions for all, "
            "or kinds for all"
        )
    made = []
    for i in range(count):
        text = names[i % len(names)]
        with torch.random.fork_rng():
            torch.manual_seed(seed + i)
            model = _built(text, "build a model")
        if not all(callable(getattr(model, name, None)) for name in ("fit", "predict")):
            raise ValueError(f"{text!r} gave a {type(model).__name__}: a model has fit(x, y) and predict(x)")
        made.append(cast("Model", model))
    return made


def named(text: str, span: tuple[float, float] | None = None) -> Dataset:
    """The dataset that the named function gives: the same at every call, if it draws from torch alone."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return dataset(_built(text, "give a dataset"), text, span)


def fingerprint(made: Dataset, network: nn.Module | None = None) -> str:
    """A digest of the examples, labels, and initial parameters and buffers that a run began with."""
    found = hashlib.blake2b(digest_size=8)
    tensors = [made.train_x, made.train_y, made.test_x, made.test_y]
    tensors += [] if network is None else network.state_dict().values()
    for tensor in tensors:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def dataset(made: object, name: str = "your data", span: tuple[float, float] | None = None) -> Dataset:
    """A dataset from what users have.

    Args:
        made: Four tensors or arrays (training examples and labels, test examples and labels), two
            `torch.utils.data.Dataset`s (training, test) of pairs, which are read once, transforms included, or a
            `Dataset`. Examples are floating-point [N, ...], or int64 for networks that embed tokens; labels are whole
            [N].
        name: What it is called.
        span: The least and the greatest number that an example may have, if everybody knows them, such as (0, 1) for
            some images. Han and Xue's sound generators of images need it. Never take it from the examples.

    >>> x, y = torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> from torch.utils.data import TensorDataset
    >>> dataset((TensorDataset(x, y), TensorDataset(x[:2], y[:2]))).classes
    3
    """
    if isinstance(made, Dataset):
        return _checked(made if span is None else replace(made, span=span))
    parts = tuple(made) if isinstance(made, (tuple, list)) else ()
    if len(parts) == 2 and all(isinstance(part, torch_data.Dataset) for part in parts):
        parts = (*_tensors(parts[0], f"training part of {name!r}"), *_tensors(parts[1], f"test part of {name!r}"))
    parts = tuple(torch.as_tensor(p) if isinstance(p, np.ndarray) and p.dtype.kind in "biuf" else p for p in parts)
    if len(parts) != 4 or not all(isinstance(part, torch.Tensor) for part in parts):
        raise ValueError(
            f"dataset {name!r} must be four tensors (training examples and labels, test examples and labels) or two "
            f"torch Datasets (training, test), not {_kinds(made)}"
        )
    train_x, train_y, test_x, test_y = parts
    return _checked(Dataset(name, train_x, train_y, test_x, test_y, 0, span))


def _checked(made: Dataset) -> Dataset:
    """The dataset in fp32 (or tokens) and int64, if it can be trained on; 0 classes are as many as the labels say."""
    name, parts = made.name, list[torch.Tensor]()
    if not all(isinstance(x, torch.Tensor) for x in (made.train_x, made.train_y, made.test_x, made.test_y)):
        raise ValueError(f"examples and labels of {name!r} must be tensors")
    for part, x, y in (("training", made.train_x, made.train_y), ("test", made.test_x, made.test_y)):
        parts += [_examples(x, y, f"{part} examples of {name!r}"), _labels(y, f"{part} labels of {name!r}")]
    train_x, train_y, test_x, test_y = parts
    if train_x.shape[1:] != test_x.shape[1:]:
        raise ValueError(f"{name!r}: training and test examples have shapes {train_x.shape[1:]} and {test_x.shape[1:]}")
    if train_x.dtype is not test_x.dtype:
        raise ValueError(
            f"{name!r}: training examples are {train_x.dtype}, test examples {test_x.dtype}: give both alike"
        )
    found = 1 + max(int(train_y.max()), int(test_y.max()))
    classes = made.classes or found
    if found > classes:
        raise ValueError(f"labels of {name!r} go up to {found - 1}, and it has classes={classes}: count from 0")
    return replace(made, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y, classes=classes)


def _examples(x: torch.Tensor, y: torch.Tensor, which: str) -> torch.Tensor:
    """Examples in fp32, or tokens as they are; one for each label."""
    if x.layout is not torch.strided or y.layout is not torch.strided:
        raise ValueError(f"{which} or their labels are sparse: give dense tensors, x.to_dense()")
    if y.dim() != 1 or not x.dim() or len(x) != len(y):
        raise ValueError(f"{which} have shape {tuple(x.shape)}, labels {tuple(y.shape)}: give one label for each")
    if not len(y):
        raise ValueError(f"{which}: it is empty: give one at least")
    if x.dim() < 2 or not x[0].numel():
        raise ValueError(f"{which} have shape {tuple(x.shape)}: give [N, features]; [N, 1] is one number for each")
    if x.dtype is torch.int64:  # tokens
        return x
    if not x.is_floating_point():
        raise ValueError(
            f"{which} are {x.dtype}, and must be floating-point numbers, or int64 tokens: convert them, bytes of "
            "images by x.float() / 255"
        )
    if not torch.isfinite(x).all():
        raise ValueError(f"{which} hold NaN or infinity: leave such examples out, or fill them in")
    moved = x.float()
    if moved is not x and not torch.isfinite(moved).all():
        raise ValueError(
            f"{which} hold numbers up to {float(x.abs().max()):g}, and fp32 ends at {_MOST:.3g}: scale them"
        )
    return moved


def _labels(y: torch.Tensor, which: str) -> torch.Tensor:
    """The labels in int64; a ValueError where they are no whole numbers from 0."""
    if y.is_floating_point() or y.is_complex():
        raise ValueError(f"{which} are {y.dtype}, and must be whole numbers from 0: convert them, y.long()")
    if int(y.min()) < 0:
        raise ValueError(
            f"{which} go down to {int(y.min())}, and must be whole numbers from 0: number the classes anew"
        )
    return y.long()


def _tensors(pairs: torch_data.Dataset[tuple[torch.Tensor, int]], which: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All the examples and labels of a map-style dataset."""
    if not isinstance(pairs, Sized):
        raise ValueError(f"the {which} has no length: use a dataset with a length and indices")
    if not len(pairs):
        raise ValueError(f"the {which} is empty: give one example at least")
    try:
        items = [pairs[i] for i in range(len(pairs))]
        x, labels = torch.stack([torch.as_tensor(x) for x, _ in items]), [y for _, y in items]
        whole = [int(y) for y in labels]
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"the {which} does not give pairs of a tensor of one shape and a label ({error}): give it a transform"
        ) from error
    for i, (label, number) in enumerate(zip(labels, whole, strict=True)):
        if label != number:
            raise ValueError(f"label {i} of the {which} is {label}: labels must be whole numbers from 0")
    return x, torch.tensor(whole)


def _kinds(made: object) -> str:
    if isinstance(made, (tuple, list)):
        return f"{len(made)} of {', '.join(sorted({type(part).__name__ for part in made}))}"
    return f"a {type(made).__name__}"
