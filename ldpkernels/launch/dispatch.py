# SPDX-License-Identifier: Apache-2.0
"""Weights (`run`), rows (`clipped_sums`) and a device's own keys, and what launches of other shapes share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ldpkernels import _native
from ldpkernels.common import capabilities
from ldpkernels.common.arrays import AnyArray, Array, Floats, Integers, Laws, Spans, Words
from ldpkernels.common.dtypes import Dtype
from ldpkernels.common.gpu import call_cuda
from ldpkernels.common.keys import Key
from ldpkernels.inputs.flat import address, empty, norms_of
from ldpkernels.inputs.memory import Located, note_write, write_back
from ldpkernels.inputs.spans import span_table
from ldpkernels.launch import proved

if TYPE_CHECKING:
    import torch

    from ldpkernels.laws.clipped_noise import Noise

AnyKey: TypeAlias = "Key | bytes | torch.Tensor"
Launch: TypeAlias = "Callable[[str, str, Spans, Laws, AnyKey, torch.Tensor | None], None]"

SMALL = 1 << 17  # elements below which a thread costs more than it saves
SMALL_CLDP = 1 << 14


def overwrite(kernel: str, weights: Located, laws: Laws, key: AnyKey) -> None:
    """Overwrite weights by one kernel, with one law for each tensor or one for all: all of them, or none."""
    device = "cpu" if weights.device is None else weights.device.type
    run(kernel, "values", weights.spans, laws, key, device, numel=weights.numel)
    if weights.flat is not weights.values:
        write_back(weights.values, weights.flat)
    if weights.device is not None:
        note_write(weights.values)


def report(
    kernel: str, output: str, weights: Located, laws: Laws, key: AnyKey, size: int, offsets: Sequence[int] | Integers
) -> AnyArray:
    """The report of weights, of so many bytes and each tensor's from its offset on; a tensor where they are tensors."""
    payload = empty(size, np.uint8, weights.device)
    weights.spans["out"] = np.asarray(offsets, np.int64) + address(payload)
    out = None if isinstance(payload, np.ndarray) else payload
    device = "cpu" if weights.device is None else weights.device.type
    run(kernel, output, weights.spans, laws, key, device, out, numel=weights.numel)
    return payload


def run(
    kernel: str,
    output: str,
    spans: Spans,
    laws: Laws,
    key: AnyKey,
    device: str,
    out: torch.Tensor | None = None,
    numel: int | None = None,
) -> None:
    """Run one kernel over all spans: weights of a type of device, under the law of each, or one law of all.

    `out` is the tensor into which the spans' `out` point; None where they point into arrays, or weights are written.
    """
    name = capabilities.chosen(kernel, device, None if device == "cpu" else _index(key))
    if name in ("cuda", "triton"):
        there = _tensor(key)
        name = proved.of_spans(name, kernel, output, spans, there.numel(), there.device)
    if name in _LAUNCHES:
        laws = laws if len(laws) == len(spans) else np.repeat(laws, len(spans))
        _LAUNCHES[name](kernel, output, spans, laws, key, out)
        return
    small = SMALL_CLDP if kernel == "ordinal_cldp" else SMALL
    work = int(spans["numel"].sum()) if numel is None else numel
    words = key if isinstance(key, bytes) else _words(key)  # bytes are made in half of the time
    _native.launch(kernel, output, spans, laws, words, name, threads_for(work, small))


def _run_cuda(kernel: str, output: str, spans: Spans, laws: Laws, key: AnyKey, out: torch.Tensor | None) -> None:
    tensor = _tensor(key)
    call_cuda("launch", tensor.device, kernel, output, spans, laws, tensor.data_ptr(), 2 * tensor.numel())


def _run_triton(kernel: str, output: str, spans: Spans, laws: Laws, key: AnyKey, out: torch.Tensor | None) -> None:
    from ldpkernels.triton import registry

    registry.launch(kernel, output, spans, laws, _tensor(key), out)


def _run_reference(kernel: str, output: str, spans: Spans, laws: Laws, key: AnyKey, out: torch.Tensor | None) -> None:
    from ldpkernels.reference import registry

    registry.launch(kernel, output, spans, laws, _words(key))


_LAUNCHES: dict[str, Launch] = {"cuda": _run_cuda, "triton": _run_triton, "reference": _run_reference}


def clipped_sums(
    x: Sequence[AnyArray],
    sums: Sequence[AnyArray],
    dtypes: Sequence[Dtype],
    limits: Sequence[float],
    noise: Noise,
    divisor: float,
    key: AnyKey,
    device: str,
) -> AnyArray:
    """Write the noised sum of each matrix's clipped rows to `sums`; the rows' norms, [rows, 1] or [rows, matrices].

    All matrices are contiguous and have as many rows; there is one limit for all of a row, or one for each matrix.
    """
    name, rows = capabilities.chosen("clipped_noise", device, _index(key)), len(x[0])
    if name in ("cuda", "triton"):
        single = len(sums) == 1 and math.prod(sums[0].shape) == 1  # numbers have kernels of their own
        kinds, kind = [d.name for d in dtypes], ("discrete" if noise.unit else "gaussian") + " of numbers" * single
        there = _tensor(key)
        cipher = proved.CIPHERS.get(there.numel(), "none")
        name = proved.proved(name, "clipped_noise", kind, kinds, cipher, there.device)
    if name == "triton":
        from ldpkernels.triton import clipped_noise

        return clipped_noise.clipped_sums(tensors(x), tensors(sums), limits, noise, divisor, _tensor(key))
    spans = span_table([address(t) for t in x], [address(s) for s in sums], [math.prod(s.shape) for s in sums], dtypes)
    if name == "cuda":
        return _clipped_sums_cuda(spans, rows, limits, noise, divisor, _tensor(key))
    if name == "reference":
        from ldpkernels.reference import clipped_noise as twin

        return twin.clipped_sums(spans, rows, limits, noise, divisor, _words(key))
    return clipped_sums_on_cpu(spans, rows, limits, noise, divisor, _words(key), name)


def _clipped_sums_cuda(
    spans: Spans, rows: int, limits: Sequence[float], noise: Noise, divisor: float, key: torch.Tensor
) -> torch.Tensor:
    """Nothing waits for the device or is copied to it."""
    import torch

    from ldpkernels import _cuda

    norms = torch.empty((rows, len(limits)), dtype=torch.float64, device=key.device)
    size = _cuda.clipped_workspace(spans, rows, len(limits))
    workspace = torch.empty(size, dtype=torch.float64, device=key.device)
    call_cuda(
        "clipped_sums", key.device, spans, np.array(limits, np.float64), rows, noise.stddev, divisor, noise.unit,
        noise.grid_std, key.data_ptr(), 2 * key.numel(), norms.data_ptr(), workspace.data_ptr(),
    )  # fmt: skip
    return norms


def clipped_sums_on_cpu(
    spans: Spans, rows: int, limits: Sequence[float], noise: Noise, divisor: float, key: Words, isa: str
) -> Floats:
    """Write the noised sums of clipped rows on one instruction set, from a table of matrices; the rows' norms."""
    columns = int(spans["numel"].sum())
    if len(spans) == 1 and 0 < columns <= _native.NARROW:
        norms = np.empty((rows, 1))
        law = (limits[0], noise.stddev, divisor, noise.unit, noise.grid_std)
        _native.narrow_sums(spans, rows, norms, *law, key, isa, _threads_for_narrow(columns, rows))
        return norms
    squares = _native.clipped_squares(spans, rows, isa, threads_for(columns * rows))
    norms = norms_of(squares, len(limits))
    threads = threads_for(columns * (rows + (64 if noise.grid_std else 4)))
    if len(limits) == 1:  # scales are made as they are wanted: memory costs more
        numbers, bound = norms, limits[0]
    else:
        numbers, bound = _native.clipped_scales(norms, np.array(limits, np.float64), isa, threads), 0.0
    arguments = (noise.stddev, divisor, noise.unit, noise.grid_std, key, isa)
    _native.clipped_sums(spans, numbers, bound, *arguments, threads)
    return norms


def narrow_sum(
    weights: Located, rows: int, out: Array, limit: float, noise: Noise, divisor: float, key: AnyKey, isa: str
) -> None:
    """Write the noised sum of one matrix's clipped rows to `out` in one pass, without their norms."""
    spans = span_table([int(weights.spans["data"][0])], [out.ctypes.data], [out.size], weights.dtypes)
    law = (limit, noise.stddev, divisor, noise.unit, noise.grid_std)
    _native.narrow_sums(spans, rows, None, *law, _words(key), isa, _threads_for_narrow(out.size, rows))


def _threads_for_narrow(columns: int, rows: int) -> int:
    """One thread clamps two million single numbers about as soon as four, three of whom have to wake."""
    return threads_for(rows // 8 if columns == 1 else 4 * columns * rows)


def threads_for(work: int, small: int | None = None) -> int:
    """No more threads than there is work for."""
    wanted = work // (small or SMALL)
    return min(capabilities.threads(), wanted) if wanted > 1 else 1


def _index(key: AnyKey) -> int | None:
    return None if isinstance(key, (Key, bytes)) else key.device.index


def _words(key: AnyKey) -> Words:
    if isinstance(key, bytes):
        return np.frombuffer(key, np.uint32)
    return key.uint32() if isinstance(key, Key) else key.numpy().view(np.uint32)


def _tensor(key: AnyKey) -> torch.Tensor:
    if isinstance(key, bytes):  # Triton's interpreter
        import torch

        return torch.frombuffer(bytearray(key), dtype=torch.int64)
    return key.tensor() if isinstance(key, Key) else key


def tensors(arrays: Sequence[AnyArray]) -> list[torch.Tensor]:
    """Arrays as tensors over their memory: Triton's interpreter takes no arrays."""
    import torch

    return [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arrays]


def next_key(state: torch.Tensor, device: str) -> torch.Tensor:
    """The key that a state of `ldpkernels.ops.keys` gives next, on its device; the state moves on by one."""
    name = capabilities.chosen("next_key", device, state.device.index)
    if proved.proved(name, "next_key", "keys", ["int64"], "chacha20", state.device) == "cuda":
        import torch

        key = torch.empty(4, dtype=torch.int64, device=state.device)
        call_cuda("next_key", state.device, state.data_ptr(), key.data_ptr())
        return key
    from ldpkernels.triton.next_key import next_key as on_triton

    return on_triton(state)
