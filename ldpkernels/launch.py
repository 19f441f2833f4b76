# SPDX-License-Identifier: Apache-2.0
"""The only dispatch: from checked tables to the kernels of the chosen backend. It imports no torch.

A backend has one function here for every shape of work: weights (`run`), rows (`clipped_sums`), ballots
(`majority_vote`), whole vectors on a grid (`quantise`, `add_noise`, `rotate`). Kernels go by the names of their
registries: csrc/mechanisms/registry.h, ldpkernels/triton/registry.py, ldpkernels/reference/registry.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ldpkernels import _native, capabilities
from ldpkernels.arrays import AnyArray, Array, Floats, Integers, Laws, Spans, Words
from ldpkernels.dtypes import Dtype
from ldpkernels.gpu import capturing
from ldpkernels.inputs.plain import Plain, note_write
from ldpkernels.inputs.spans import span_table
from ldpkernels.keys import Key, torch_key

if TYPE_CHECKING:
    import torch

    from ldpkernels.laws.clipped_noise import Noise
    from ldpkernels.laws.noise_table import NoiseTable

AnyKey: TypeAlias = "Key | torch.Tensor"
Launch: TypeAlias = "Callable[[str, str, Spans, Laws, AnyKey, torch.Tensor | None], None]"

SMALL = 1 << 17  # elements below which a thread costs more than it saves
SMALL_CLDP = 1 << 14


def run(
    kernel: str, output: str, spans: Spans, laws: Laws, key: AnyKey, device: str, out: torch.Tensor | None = None
) -> None:
    """Run one kernel over all spans: weights of a type of device, under the law of each.

    `out` is the tensor into which the spans' `out` point; None where they point into arrays, or weights are written.
    """
    name = capabilities.chosen(kernel, device, _index(key))
    if name in _LAUNCHES:
        _LAUNCHES[name](kernel, output, spans, laws, key, out)
    else:
        small = SMALL_CLDP if kernel == "ordinal_cldp" else SMALL
        _native.launch(kernel, output, spans, laws, _words(key), name, threads_for(int(spans["numel"].sum()), small))


def run_plain(kernel: str, plain: Plain, laws: Laws, key: bytes, isa: str) -> None:
    """Overwrite plain weights by one kernel of an instruction set, with one law for each tensor or one for all."""
    _native.launch(kernel, "values", plain.spans, laws, key, isa, threads_for(plain.numel))
    if plain.is_torch:
        note_write(plain.values)


def report_plain(kernel: str, output: str, plain: Plain, laws: Laws, key: bytes, isa: str) -> None:
    """Report plain weights to their spans' `out`, likewise."""
    _native.launch(kernel, output, plain.spans, laws, key, isa, threads_for(plain.numel))


def _run_cuda(kernel: str, output: str, spans: Spans, laws: Laws, key: AnyKey, out: torch.Tensor | None) -> None:
    tensor = _tensor(key)
    module, stream = _cuda_on(tensor.device)
    module.launch(kernel, output, spans, laws, tensor.data_ptr(), 2 * tensor.numel(), tensor.device.index, stream)


def _cuda_on(device: torch.device) -> tuple[ModuleType, int]:
    """The module of CUDA C++, and a device's current stream."""
    import torch

    from ldpkernels import _cuda

    return _cuda, torch.cuda.current_stream(device).cuda_stream


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
    if name == "triton":
        from ldpkernels.triton import clipped_noise

        return clipped_noise.clipped_sums(_tensors(x), _tensors(sums), limits, noise, divisor, _tensor(key))
    spans = span_table(_addresses(x), _addresses(sums), [_size(s) for s in sums], dtypes)
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

    module, stream = _cuda_on(key.device)
    norms = torch.empty((rows, len(limits)), dtype=torch.float64, device=key.device)
    size = module.clipped_workspace(spans, rows, len(limits))
    workspace = torch.empty(size, dtype=torch.float64, device=key.device)
    module.clipped_sums(
        spans, np.array(limits, np.float64), rows, noise.stddev, divisor, noise.unit, noise.grid_std,
        key.data_ptr(), 2 * key.numel(), norms.data_ptr(), workspace.data_ptr(),
        key.device.index, stream,
    )  # fmt: skip
    return norms


def clipped_sums_on_cpu(
    spans: Spans, rows: int, limits: Sequence[float], noise: Noise, divisor: float, key: Words, isa: str
) -> Floats:
    """The same on one instruction set, from a table."""
    columns = int(spans["numel"].sum())
    if len(spans) == 1 and 0 < columns <= _native.NARROW:
        norms = np.empty((rows, 1))
        law = (limits[0], noise.stddev, divisor, noise.unit, noise.grid_std)
        _native.narrow_sums(spans, rows, norms, *law, key, isa, threads_for(4 * columns * rows))
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
    plain: Plain, rows: int, out: Array, limit: float, noise: Noise, divisor: float, key: bytes, isa: str
) -> None:
    """Write the noised sum of one plain matrix's clipped rows to `out`: the same in one pass, without their norms."""
    spans = span_table([int(plain.spans["data"][0])], [out.ctypes.data], [out.size], plain.dtypes)
    law = (limit, noise.stddev, divisor, noise.unit, noise.grid_std)
    _native.narrow_sums(spans, rows, None, *law, key, isa, threads_for(4 * plain.numel))


def norms_of(squares: Floats, columns: int) -> Floats:
    """Norms of whole rows, or of each matrix's, from the sums of squares of each matrix's; in their memory."""
    if columns == 1 and squares.shape[1] > 1:
        total = np.zeros((len(squares), 1))
        for column in squares.T:  # in this order, on every backend
            total[:, 0] += column
        squares = total
    return np.sqrt(squares, out=squares)


def empty(size: int, kind: type[np.generic], device: torch.device | None) -> AnyArray:
    """Room for numbers on a device; None is the host, and an array. Tensors have int32 for uint32."""
    if device is None:
        return np.empty(size, kind)
    import torch

    kinds = {np.float64: torch.float64, np.float32: torch.float32, np.int32: torch.int32, np.uint32: torch.int32}
    return torch.empty(size, dtype=kinds[kind], device=device)


def copied(array: Array, device: torch.device | None) -> AnyArray:
    """An array on a device; None is the host, where it is."""
    if device is None:
        return array
    import torch

    return torch.from_numpy(array).to(device)


def norm(spans: Spans, device: torch.device | None = None) -> float:
    """The Euclidean norm of weights, over all spans, in fp64. Those of a device are there; None is the host."""
    name, device = _of_vectors(device)
    if name == "triton" and device is not None:
        if capturing(device):
            raise RuntimeError("the host waits for a vector's norm, which no CUDA graph does: call this outside of it")
        return float(_on_triton().norm(spans, device))
    if name == "reference":
        return float(norms_of(_twin().squares(spans, 1), 1)[0, 0])
    squares = _native.clipped_squares(spans, 1, name, threads_for(int(spans["numel"].sum())))
    return float(norms_of(squares, 1)[0, 0])


def quantise(spans: Spans, scale: float, key: Key | None, stream: int = 0, device: torch.device | None = None) -> int:
    """Weights times `scale`, as int32 to each span's `out`; the exact sum of all their squares.

    They are cut towards zero, or with a key rounded at random by its keystream `stream`.
    """
    name, device = _of_vectors(device)
    if name == "triton" and device is not None:
        words_there = None if key is None else torch_key(key, device)
        return int(_on_triton().quantise(spans, scale, words_there, stream, device))
    if name == "reference":
        return int(_twin().quantise(spans, scale, None if key is None else key.uint32(), stream))
    words = np.empty(0, np.uint32) if key is None else key.uint32()
    low, high = _native.lattice_quantise(spans, scale, words, stream, name, threads_for(int(spans["numel"].sum())))
    return low + (high << 32)


def add_noise(
    spans: Spans,
    table: NoiseTable,
    key: Key,
    *,
    bits: int = 0,
    unit: float = 1.0,
    device: torch.device | None = None,
) -> None:
    """The spans' int32 and noise from a table, to their `out`: modulo 2^bits as uint32, or as numbers times `unit`."""
    name, device = _of_vectors(device)
    if name == "triton" and device is not None:
        _on_triton().add_noise(spans, table, torch_key(key, device), bits, unit, device)
        return
    if name == "reference":
        _twin().add_noise(spans, table, key.uint32(), bits, unit)
        return
    numbers = (table.high, table.low, table.guide, table.shift, key.uint32(), bits, unit)
    _native.lattice_noise(spans, *numbers, name, threads_for(int(spans["numel"].sum())))


def normal_product(spans: Spans, key: Key, stream: int) -> float:
    """The sum of products of weights in host memory with the normals of their elements, of keystream `stream`."""
    name = capabilities.chosen("normals", "cpu")
    if name == "reference":
        return float(_twin().normal_product(spans, key.uint32(), stream))
    return _native.normal_product(spans, key.uint32(), stream, name, threads_for(int(spans["numel"].sum())))


def moved_normals(spans: Spans, key: Key, stream: int, along: float, factor: float) -> None:
    """(g + along x) factor for weights x and the same normals g, to each span's `out`: fp64 for fp64, else fp32."""
    name = capabilities.chosen("normals", "cpu")
    if name == "reference":
        _twin().moved_normals(spans, key.uint32(), stream, along, factor)
        return
    threads = threads_for(int(spans["numel"].sum()))
    _native.moved_normals(spans, key.uint32(), stream, along, factor, name, threads)


def rotate(x: AnyArray, key: Key, *, inverse: bool = False) -> None:
    """The Walsh-Hadamard transform with signs from a key, of a power of two of fp32 numbers, in place."""
    name, device = _of_vectors(None if isinstance(x, np.ndarray) or x.device.type == "cpu" else x.device)
    if name == "triton" and device is not None:
        _on_triton().rotate(_tensors([x])[0], torch_key(key, device), inverse)
        return
    numbers = x if isinstance(x, np.ndarray) else x.detach().numpy()
    if name == "reference":
        _twin().rotate(numbers, key.uint32(), inverse)
        return
    _native.rotate(numbers, key.uint32(), inverse, name, threads_for(numbers.size, 2 * SMALL))


def _of_vectors(device: torch.device | None) -> tuple[str, torch.device | None]:
    """The backend for a whole vector on a device, None for the host; Triton's interpreter wants the host's, too."""
    name = capabilities.chosen("vectors", device.type if device is not None else "cpu")
    if name == "triton" and device is None:
        import torch

        device = torch.device("cpu")
    return name, device


def reflect(x: Floats, normals: Floats, *, back: bool = False) -> None:
    """Reflections of k (k + 1) / 2 - 1 normals, one after another, of k fp64 numbers in place; `back` undoes them.

    k is small, and this is work of the host alone.
    """
    if capabilities.forced() == "reference":
        _twin().reflect(x, normals, back)
        return
    _native.reflect(x, normals, back, capabilities.host_isa())


def _on_triton() -> ModuleType:
    """Triton's kernels of whole vectors."""
    from ldpkernels.triton import lattice

    return lattice


def _twin() -> ModuleType:
    """The reference of whole vectors."""
    from ldpkernels.reference import lattice

    return lattice


def majority_vote(votes: AnyArray, classes: int, device: str) -> tuple[AnyArray, AnyArray] | None:
    """Labels and keeps of contiguous votes [parties, samples]; None where a vote is none of the classes."""
    name = capabilities.chosen("votes", device)
    if name == "triton":
        from ldpkernels.triton import votes as kernels

        return kernels.majority_vote(_tensors([votes])[0], classes)
    ballots = votes if isinstance(votes, np.ndarray) else votes.numpy()
    if name == "reference":
        from ldpkernels.reference import votes as twin

        known = bool(((ballots >= 0) & (ballots < classes)).all())
        return twin.majority_vote(ballots, classes) if known else None
    labels, keep = np.empty(ballots.shape[1], ballots.dtype), np.empty(ballots.shape[1], np.bool_)
    counted = _native.majority_vote(ballots, classes, labels, keep, name, threads_for(ballots.size, 1 << 20))
    return (labels, keep) if counted else None


def summaries(spans: Spans, device: torch.device | None) -> Sequence[_native.Summary]:
    """Extremes, sums and the count of every span's finite weights, in one pass; `device` is None for arrays."""
    if device is not None and capabilities.chosen("summary", device.type) == "triton":
        from ldpkernels.triton import summary

        return summary.summarize(spans, device)
    return _native.summarize(spans, capabilities.host_isa(), threads_for(int(spans["numel"].sum())))


def quantiles(spans: Spans, layers: Integers, finite: Integers, q: Floats, device: torch.device | None) -> Floats:
    """The quantiles q of the finite weights of each layer, [layers, len(q)]; `layers` has the layer of each span."""
    if device is not None and capabilities.chosen("quantiles", device.type) == "triton":
        from ldpkernels.triton import quantiles as kernels

        return kernels.quantiles(spans, layers, finite, q, device)

    def select(ranks: Integers) -> Floats:
        parts = [spans[layers == layer] for layer in range(len(ranks))]
        sizes = [int(part["numel"].sum()) for part in parts]
        rows = zip(parts, ranks.tolist(), sizes, strict=True)
        return np.array([_native.order_statistics(part, row, threads_for(size, 1 << 20)) for part, row, size in rows])

    return interpolated(finite, q, select)


def interpolated(finite: Integers, q: Floats, select: Callable[[Integers], Floats]) -> Floats:
    """The quantiles q, from 0 to 1, of each layer's finite weights, as np.quantile gives them: [layers, len(q)].

    `finite` is how many a layer has, 1 or more; `select` gives those of ranks, [layers, ranks]: the smallest has 0.
    """
    places = (finite[:, None] - 1) * q[None, :]
    below = np.floor(places).astype(np.int64)
    above = np.minimum(below + 1, finite[:, None] - 1)
    ranks = np.stack([below, above], -1)
    ends = select(ranks.reshape(len(finite), -1)).reshape(ranks.shape)
    shares = places - below
    return np.array([[np.quantile(e, s) for e, s in zip(*row, strict=True)] for row in zip(ends, shares, strict=True)])


def next_key(state: torch.Tensor, device: str) -> torch.Tensor:
    """The key that a state of `ldpkernels.ops.keys` gives next, on its device; the state moves on by one."""
    if capabilities.chosen("next_key", device, state.device.index) == "cuda":
        import torch

        module, stream = _cuda_on(state.device)
        key = torch.empty(4, dtype=torch.int64, device=state.device)
        module.next_key(state.data_ptr(), key.data_ptr(), state.device.index, stream)
        return key
    from ldpkernels.triton.next_key import next_key as on_triton

    return on_triton(state)


def threads_for(work: int, small: int | None = None) -> int:
    """No more threads than there is work for."""
    wanted = work // (small or SMALL)
    return min(capabilities.threads(), wanted) if wanted > 1 else 1


def _index(key: AnyKey) -> int | None:
    return None if isinstance(key, Key) else key.device.index


def _words(key: AnyKey) -> Words:
    return key.uint32() if isinstance(key, Key) else key.numpy().view(np.uint32)


def _tensor(key: AnyKey) -> torch.Tensor:
    return key.tensor() if isinstance(key, Key) else key


def _tensors(arrays: Sequence[AnyArray]) -> list[torch.Tensor]:
    """The same memory as tensors: Triton's interpreter takes no arrays."""
    import torch

    return [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arrays]


def _addresses(arrays: Sequence[AnyArray]) -> list[int]:
    return [a.ctypes.data if isinstance(a, np.ndarray) else a.data_ptr() for a in arrays]


def _size(array: AnyArray) -> int:
    return int(array.size if isinstance(array, np.ndarray) else array.numel())
