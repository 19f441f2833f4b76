# SPDX-License-Identifier: Apache-2.0
"""Whole vectors: on a grid (`quantise`, `add_noise`), rotated, and by their normals."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from ldpkernels import _native
from ldpkernels.common import capabilities
from ldpkernels.common.arrays import AnyArray, Array, Floats, Spans
from ldpkernels.common.dtypes import FLOAT64
from ldpkernels.common.gpu import capturing
from ldpkernels.common.keys import Key, key_on
from ldpkernels.inputs.flat import norms_of
from ldpkernels.launch import proved
from ldpkernels.launch.dispatch import SMALL, tensors, threads_for

if TYPE_CHECKING:
    import torch

    from ldpkernels.laws.noise_table import NoiseTable


def norm(spans: Spans, device: torch.device | None = None) -> float:
    """The Euclidean norm of weights, over all spans, in fp64. Those of a device are there; None is the host."""
    name, device = _of_vectors(device)
    if name == "triton" and device is not None:
        if capturing(device):
            raise RuntimeError("the host waits for a vector's norm, which no CUDA graph does: call this outside of it")
        proved.of_spans(name, "vectors", "norm", spans, 0, device)
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
        proved.of_spans(name, "vectors", "integers", spans, 0 if key is None else len(key.words), device)
        words_there = None if key is None else key_on(key, device)
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
        kinds = ["uint32"] if bits else ["float64" if d == FLOAT64.code else "float32" for d in spans["dtype"]]
        _prove(f"noise {table.shift}", kinds, key, device)
        _on_triton().add_noise(spans, table, key_on(key, device), bits, unit, device)
        return
    if name == "reference":
        _twin().add_noise(spans, table, key.uint32(), bits, unit)
        return
    numbers = (table.high, table.low, table.guide, table.shift, key.uint32(), bits, unit)
    _native.lattice_noise(spans, *numbers, name, threads_for(int(spans["numel"].sum())))


def normal_product(spans: Spans, key: Key, stream: int, device: torch.device | None = None) -> float:
    """The sum of products of weights with the normals of their elements, of keystream `stream`."""
    name, device = _of_vectors(device, "normals")
    if name == "triton" and device is not None:
        proved.of_spans(name, "normals", "product", spans, len(key.words), device)
        return float(_privunitg_on_triton().normal_product(spans, key_on(key, device), stream, device))
    if name == "reference":
        return float(_twin().normal_product(spans, key.uint32(), stream))
    return _native.normal_product(spans, key.uint32(), stream, name, threads_for(int(spans["numel"].sum())))


def moved_normals(
    spans: Spans, key: Key, stream: int, along: float, factor: float, device: torch.device | None = None
) -> None:
    """(g + along x) factor for weights x and the same normals g, to each span's `out`: fp64 for fp64, else fp32."""
    name, device = _of_vectors(device, "normals")
    if name == "triton" and device is not None:
        proved.of_spans(name, "normals", "moved", spans, len(key.words), device)
        _privunitg_on_triton().moved_normals(spans, key_on(key, device), stream, along, factor, device)
        return
    if name == "reference":
        _twin().moved_normals(spans, key.uint32(), stream, along, factor)
        return
    threads = threads_for(int(spans["numel"].sum()))
    _native.moved_normals(spans, key.uint32(), stream, along, factor, name, threads)


def rotate(x: AnyArray, key: Key, *, inverse: bool = False) -> None:
    """The Walsh-Hadamard transform with signs from a key, of a power of two of fp32 numbers, in place."""
    name, device = _of_vectors(None if isinstance(x, np.ndarray) or x.device.type == "cpu" else x.device)
    if name == "triton" and device is not None:
        _prove("rotation", ["float32"], key, device)
        _on_triton().rotate(tensors([x])[0], key_on(key, device), inverse)
        return
    numbers = x if isinstance(x, np.ndarray) else x.detach().numpy()
    if name == "reference":
        _twin().rotate(numbers, key.uint32(), inverse)
        return
    _native.rotate(numbers, key.uint32(), inverse, name, threads_for(numbers.size, 2 * SMALL))


def reflect(x: Floats, normals: Floats, *, back: bool = False) -> None:
    """Reflections of k (k + 1) / 2 - 1 normals, one after another, of k fp64 numbers in place; `back` undoes them.

    k is small, and this is work of the host alone.
    """
    if capabilities.forced() == "reference":
        _twin().reflect(x, normals, back)
        return
    _native.reflect(x, normals, back, capabilities.host_isa())


def add_masks(numbers: Array, keys: Sequence[Key], minus: list[bool], stream: int, first: int) -> None:
    """The keystreams of keys added to an array of uint16 or uint32 in place, or subtracted; work of the host alone."""
    if capabilities.forced() == "reference":
        _twin().add_masks(numbers, [key.uint32() for key in keys], minus, stream, first)
        return
    words, threads = [key.little_endian() for key in keys], threads_for(numbers.size * len(keys))
    _native.add_masks(numbers, words, minus, stream, first, capabilities.host_isa(), threads)


def copied(array: Array, device: torch.device | None) -> AnyArray:
    """An array on a device; None is the host, where it is."""
    if device is None:
        return array
    import torch

    return torch.from_numpy(array).to(device)


def _of_vectors(device: torch.device | None, kernel: str = "vectors") -> tuple[str, torch.device | None]:
    """The backend for a whole vector on a device, None for the host; Triton's interpreter wants the host's, too."""
    name = capabilities.chosen(kernel, device.type if device is not None else "cpu")
    if name == "triton" and device is None:
        import torch

        device = torch.device("cpu")
    return name, device


def _prove(output: str, dtypes: Sequence[str], key: Key, device: torch.device) -> None:
    """Have a device's kernel of keyed vectors answer what is known."""
    proved.proved("triton", "vectors", output, dtypes, proved.CIPHERS.get(len(key.words), "none"), device)


def _on_triton() -> ModuleType:
    """Triton's kernels of whole vectors."""
    from ldpkernels.triton import lattice

    return lattice


def _privunitg_on_triton() -> ModuleType:
    """Triton's kernels of PrivUnitG."""
    from ldpkernels.triton import privunitg

    return privunitg


def _twin() -> ModuleType:
    """The reference of whole vectors."""
    from ldpkernels.reference import lattice

    return lattice
