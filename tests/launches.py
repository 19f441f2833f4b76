# SPDX-License-Identifier: Apache-2.0
"""Kernels of weights, launched by any backend on tensors of any format at any address: all bytes afterwards."""

import numpy as np
import torch

from ldpkernels import _native
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.reference import registry as reference

GUARD = 32  # bytes before a tensor and its output; those between tensors are as many at least
BITS = {"float32": np.uint32, "float64": np.uint64, "bfloat16": np.uint16, "float16": np.uint16}
EACH = {"values": 0, "bits": 1, "cells": 1, "turns": 8, "thresholds": 8}  # bytes of an output, for an element at most


def bits_of(x, dtype):
    """The bits of numbers in a format, by their upper half where NumPy does not have it."""
    with np.errstate(over="ignore", under="ignore"):
        if dtype == "bfloat16":
            return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return x.astype(dtype).view(BITS[dtype])


def launcher(backend, kernel, key):
    """What launches a mechanism's kernel under a key, on spans of which the outputs are in `out`."""

    def run(output, spans, laws, out):
        if backend == "triton":
            from ldpkernels.triton import registry

            registry.launch(kernel, output, spans, laws, key.tensor(out.device), None if output == "values" else out)
        elif backend == "reference":
            reference.launch(kernel, output, spans, laws, key.uint32())
        else:
            _native.launch(kernel, output, spans, laws, key.uint32(), backend, 1)

    return run


def written(launch, output, tensors, laws, first=0, device="cpu"):
    """All bytes of tensors and of outputs after a launch, with what lies around them.

    A tensor is the name of its format, its bits, and how many elements behind a multiple of 16 bytes it and its output
    begin. They follow each other in the stream from element `first` on.
    """
    rows, place, room = [], 0, 0
    for dtype, bits, shift in tensors:
        place, room = place + GUARD + shift * bits.itemsize, room + GUARD + shift * EACH[output]
        rows.append((place, room, bits.size, first, DTYPES[dtype].code))
        place, room = (place + bits.nbytes + 15) // 16 * 16, (room + EACH[output] * bits.size + 15) // 16 * 16
        first += -(-bits.size // 8) * 8
    memory = np.full(place + GUARD, 0xA5, np.uint8)
    for (start, *_), (_, bits, _) in zip(rows, tensors, strict=True):
        memory[start : start + bits.nbytes] = bits.view(np.uint8)
    data = torch.from_numpy(memory).clone().to(device)  # at a multiple of 16 bytes
    out = torch.full((room + GUARD,), 0x5A, dtype=torch.uint8, device=device)
    spans = np.array(rows, _native.SPAN)
    spans["data"] += data.data_ptr()
    spans["out"] += out.data_ptr()
    launch(output, spans, laws, out)
    return data.cpu().numpy().tobytes(), out.cpu().numpy().tobytes()


def same(backend, kernel, output, tensors, laws, key, first=0, device="cpu"):
    """The bytes are those of the scalar kernel; a backend may be a function that launches."""
    launch = backend if callable(backend) else launcher(backend, kernel, key)
    expected = written(launcher("scalar", kernel, key), output, tensors, laws, first)
    assert written(launch, output, tensors, laws, first, device) == expected
