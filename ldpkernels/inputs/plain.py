# SPDX-License-Identifier: Apache-2.0
"""What most calls hand in, read in one crossing to C++: tensors and arrays whose memory a kernel may take as it is.

Nothing is kept from one call to the next. csrc/plain.h looks at every tensor of every call, and at every attribute of
every module, as the other files of this folder do; where it has a doubt the answer is None, and they copy what is a
view, name what is wrong, or go through torch's dispatcher. It relies on a module's `_parameters`, `_buffers` and
`_modules` being the dictionaries of its own `__dict__`, as in every nn.Module.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ldpkernels import _native
from ldpkernels.arrays import AnyArray, Spans
from ldpkernels.dtypes import DTYPES, Dtype
from ldpkernels.inputs.containers import Numbers, per_tensor
from ldpkernels.inputs.modules import Buffers
from ldpkernels.inputs.remains import is_fully_sharded, usual_attributes
from ldpkernels.inputs.torch_functions import answers_rightly, torch_tensors
from ldpkernels.optional import is_compiling, refuse_old_torch

_CODES = {dtype.code: dtype for dtype in DTYPES.values()}


class Plain(NamedTuple):
    """Contiguous memory on the host, each tensor apart from the others and none empty."""

    values: Sequence[AnyArray]
    spans: Spans
    numel: int
    dtypes: tuple[Dtype, ...]  # one that all have, or one for each
    shapes: bytes  # nothing unless asked for
    is_torch: bool
    names: tuple[str, ...]  # of a module's parameters, if asked for

    def same(self, other: Plain) -> bool:
        """Whether these are the same objects, and lie where the others did in the same shapes and dtypes."""
        return (
            len(self.values) == len(other.values)
            and all(map(operator.is_, self.values, other.values))
            and self.shapes == other.shapes
            and self.spans.tobytes() == other.spans.tobytes()
        )


def plain(model: object, buffers: Buffers | None = None, *, shapes: bool = False, named: bool = False) -> Plain | None:
    """The tensors of an array, a tensor, a list or tuple of them, or a module that may leave; None where in doubt."""
    names: list[str] | None = [] if named else None
    if is_compiling() or buffers not in (None, "perturb", "keep"):
        return None
    kind = type(model)
    values: Sequence[AnyArray] = model if kind is list or kind is tuple else (model,)  # type: ignore[assignment]
    if not values:
        return None
    if type(values[0]) is np.ndarray:
        values = tuple(values)
        found = _native.plain_arrays(values, shapes)
        return found and _plain(values, *found, False)
    torch = sys.modules.get("torch")
    if torch is None or (reader := _reader()) is None or not _bare():
        return None
    if isinstance(model, torch.nn.Module):
        parameters: list[AnyArray] = []
        found = reader.module(model, buffers == "keep", shapes, parameters, names)
        values = parameters
    else:
        values = tuple(values)
        found = reader.tensors(values, shapes)
    return found and _plain(values, *found, True, tuple(names or ()))


def ranges_of(found: Plain, C: Numbers, R: Numbers) -> tuple[tuple[float, ...], tuple[float, ...], tuple[Dtype, ...]]:
    """One range and dtype for all tensors where they are alike, else one for each."""
    dtypes = found.dtypes
    if type(C) is float and type(R) is float and len(dtypes) == 1:
        return (C,), (R,), dtypes
    unnamed = [""] * len(found.values)
    c, r = per_tensor("C", C, unnamed), per_tensor("R", R, unnamed)
    return tuple(c), tuple(r), dtypes * (len(unnamed) // len(dtypes))


def _plain(
    values: Sequence[AnyArray],
    spans: Spans,
    numel: int,
    dtype: int,
    shapes: bytes,
    is_torch: bool,
    names: tuple[str, ...] = (),
) -> Plain:
    dtypes = (_CODES[dtype],) if dtype >= 0 else tuple(_CODES[code] for code in spans["dtype"].tolist())
    return Plain(values, spans, numel, dtypes, shapes, is_torch, names)


def _bare() -> bool:
    """Whether nothing stands between a call and memory that an operation would meet: a mode, a transform, a trace."""
    import torch

    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._profiler_enabled()
    )


@lru_cache(maxsize=1)
def _reader() -> _native.PlainTensors | None:
    """None where torch's tensors cannot be read."""
    import torch

    refuse_old_torch(torch.__version__)
    memory = torch_tensors()
    if memory is None:
        return None
    reader = _native.PlainTensors(
        memory,
        (torch.Tensor, torch.nn.Parameter),
        torch.nn.Module.get_extra_state,
        is_fully_sharded,
        set(usual_attributes()),
    )
    return reader if answers_rightly(reader) else None


def note_write(tensors: Sequence[AnyArray]) -> None:
    """Let autograd know, which saves tensors for later and would use them unaware. It skips those of inference."""
    import torch

    torch.autograd.graph.increment_version(tensors)  # type: ignore[arg-type]  # they are torch's
