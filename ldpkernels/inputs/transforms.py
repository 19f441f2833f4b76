# SPDX-License-Identifier: Apache-2.0
"""Calls that torch transforms or records: rows of vmap would share their noise, and the host's work is not recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeGuard, TypeVar

from ldpkernels.common.keys import refuse_trace
from ldpkernels.common.optional import is_compiling, is_tensor
from ldpkernels.inputs.checks import PLAIN_KINDS

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
Result = TypeVar("Result")


def refuse_rows(function: str, values: Iterable[object]) -> None:
    """Refuse rows of torch.vmap: they are one call, and one call has one key."""
    torch = sys.modules.get("torch")
    if torch is None or is_compiling():
        return
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    for value in filter(torch._C._functorch.is_functorch_wrapped_tensor, tensors):
        from torch._C._functorch import get_unwrapped, is_batchedtensor

        inner: object = value
        while is_transformed(inner):
            if is_batchedtensor(inner):
                raise RuntimeError(
                    f"{function} under torch.vmap would give every row the same noise: call it outside of vmap, on all "
                    "rows at once or once a row"
                )
            inner = get_unwrapped(inner)


def is_seen_by_torch(values: Sequence[object]) -> bool:
    """Whether something of torch's stands between a call and its tensors' memory, which has to see an operation.

    That is a graph, a mode, a transform, a trace or a profiler, or a class of tensors by which torch traces.
    """
    import torch

    return (
        not PLAIN_KINDS.issuperset(map(type, values))
        or bool(torch._C._len_torch_dispatch_stack())
        or bool(torch._C._len_torch_function_stack())
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or bool(torch._C._autograd._profiler_enabled())
    )


def refuse_unread(function: str, values: Iterable[object]) -> None:
    """What reads numbers on the host needs tensors with numbers, and a call that no other numbers are put through."""
    held = [value for value in values if is_tensor(value)]
    if not held:
        return
    import torch

    recorder = sys.modules.get("torch.fx.experimental.proxy_tensor")
    if torch._C._get_tracing_state() is not None:
        refuse_trace()
    if recorder and recorder.get_proxy_mode() is not None:
        _refuse(function, "its result would be recorded as a constant")
    for value in held:
        if is_transformed(value) or torch._is_functional_tensor(value):
            _refuse(function, "a transform of torch.func keeps a tensor's numbers from it")
        if type(value).__name__ in ("FakeTensor", "FunctionalTensor"):
            _refuse(function, f"a {type(value).__name__} has no numbers")


def refuse_derivatives(function: str, values: Iterable[object]) -> None:
    """What is differentiated by torch.autograd backwards alone: torch takes other derivatives for zero, or fails."""
    for value in values:
        if is_tensor(value) and (is_tracked(value) or is_dual(value)):
            raise RuntimeError(
                f"{function} has a backward of torch.autograd only: do not use forward mode or torch.func"
            )


def is_tracked(value: torch.Tensor) -> bool:
    """Whether torch.func differentiates by a tensor."""
    from torch._C._functorch import is_gradtrackingtensor

    return is_gradtrackingtensor(value)


def is_dual(value: torch.Tensor) -> bool:
    """Whether forward-mode differentiation follows a tensor."""
    import torch

    return torch.autograd.forward_ad.unpack_dual(value).tangent is not None


def outside_of_graphs(function: Callable[P, Result]) -> Callable[P, Result]:
    """A function that works on the host: torch.compile breaks its graph there, and torch.export is refused."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        if not is_compiling():
            return function(*args, **kwargs)
        return break_graph(function.__name__, lambda: function(*args, **kwargs))

    return call


def break_graph(function: str, call: Callable[[], Result]) -> Result:
    """Break the graph that torch.compile is making, and call. Asked for here: it imports the compiler."""
    import torch

    if torch.compiler.is_exporting():
        _refuse(function, "what torch.export makes has no place for work on the host")
    disabled: Callable[[], Result] = torch.compiler.disable(
        call, reason=f"{function} works on the host: torch.ops.ldpkernels.*_report give a report's bits in a graph"
    )
    return disabled()


def is_transformed(value: object) -> TypeGuard[torch.Tensor]:
    """Whether a transform of torch.func stands between a tensor and its memory; in a graph, operations ask instead."""
    if is_compiling() or not is_tensor(value):
        return False
    from torch._C._functorch import is_functorch_wrapped_tensor

    return is_functorch_wrapped_tensor(value)


def _refuse(function: str, why: str) -> NoReturn:
    raise RuntimeError(f"{function} cannot be transformed or recorded, as {why}: call it outside")
