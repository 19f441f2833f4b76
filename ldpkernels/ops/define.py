# SPDX-License-Identifier: Apache-2.0
"""How an operation of `torch.ops.ldpkernels` comes to be: schema, implementation, fake kernel, refusals.

Each operation is a function of its arguments, the key among them, which is a tensor on the tensors' own device: nothing
is hidden, nothing synchronises, and a CUDA graph replays with whatever key the tensor then holds. Library.define and
impl cost 7 microseconds a call, torch.library.custom_op 170.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from ldpkernels.common.keys import refuse_trace
from ldpkernels.common.optional import refuse_old_torch
from ldpkernels.inputs.memory import locate

Operation: TypeAlias = Callable[..., Any]

refuse_old_torch(torch.__version__)
library = torch.library.Library("ldpkernels", "FRAGMENT")


def define(schema: str, implementation: Operation, fake: Operation, *, keyed: bool = True) -> Operation:
    """Register an operation for CPU and CUDA tensors. Registering it again, after an import that failed, is the same.

    `keyed` operations draw from a key: under vmap all rows would draw the same, so they refuse it.
    """
    name = schema.partition("(")[0]
    if not _is_defined(name):
        library.define(schema)
    steps: list[tuple[str, Operation]] = [("CPU", implementation), ("CUDA", implementation)]
    steps.append(("Negative", torch.library.fallthrough_kernel))  # the implementations resolve such views
    steps.append(("Tracer", refuse_trace))
    if keyed:
        steps.append(("FuncTorchBatched", _refuse_vmap(name)))
    for key, function in steps:
        if not _is_implemented(name, key):
            library.impl(name, function, key)
    torch.library.register_fake(f"ldpkernels::{name}", fake, lib=library, allow_override=True)
    operation: Operation = getattr(torch.ops.ldpkernels, name)
    return operation


def define_source(schema: str, implementation: Operation, shape: tuple[int, ...]) -> Operation:
    """Register an operation that takes a device alone and whose calls all differ; its tensors are int64."""
    name = schema.partition("(")[0]
    if not _is_defined(name):
        library.define(schema, tags=(torch.Tag.nondeterministic_seeded,))
    if not _is_implemented(name, "CompositeExplicitAutograd"):
        library.impl(name, implementation, "CompositeExplicitAutograd")

    def fake(device: torch.device) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64, device=device)

    torch.library.register_fake(f"ldpkernels::{name}", fake, lib=library, allow_override=True)
    operation: Operation = getattr(torch.ops.ldpkernels, name)
    return operation


def _is_defined(name: str) -> bool:
    """Torch is asked, and no list of ours: an exception may come between a registration and its note."""
    try:
        torch._C._dispatch_find_schema_or_throw(f"ldpkernels::{name}", "")
    except RuntimeError:
        return False
    return True


def _is_implemented(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"ldpkernels::{name}", key))


def _refuse_vmap(name: str) -> Operation:
    def refuse(*_: object) -> None:
        raise RuntimeError(
            f"{name} under torch.vmap would give every row the same noise: call it on all rows at once, or once a row "
            "with a key of its own"
        )

    return refuse


def named(operation: str, tensors: Sequence[torch.Tensor], names: Sequence[str], *arguments: object) -> Any:
    """Call an operation on tensors. Its errors number them, so that where it fails the same check is asked by name."""
    if any(getattr(t, "is_meta", False) for t in tensors):  # one would turn the operation into its fake
        locate(tensors, names)
    try:
        with torch.no_grad():
            return getattr(torch.ops.ldpkernels, operation)(tensors, *arguments)
    except Exception:
        with contextlib.suppress(RuntimeError):  # of tensors that have no memory of their own, as under vmap
            locate(tensors, names)
        raise


def refuse_apart(key: torch.Tensor, device: torch.device) -> None:
    """The fakes ask too: torch takes a key on "meta" for a wish to run them, whatever the tensors hold."""
    if key.device != device:
        raise ValueError(f"the key is on {key.device} and the tensors are on {device}: move the key there")


def no_output(tensors: Sequence[torch.Tensor], key: torch.Tensor, *_: object) -> None:
    """The fake of an operation in place."""
    for tensor in tensors:
        refuse_apart(key, tensor.device)
