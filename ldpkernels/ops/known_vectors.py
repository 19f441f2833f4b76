# SPDX-License-Identifier: Apache-2.0
"""The known questions of whole vectors, ranges, sums of reports and keys; questions.py says what a question is."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from ldpkernels import _native, launch
from ldpkernels.common import capabilities, keys
from ldpkernels.common.arrays import Bytes, Floats, Spans
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.common.keys import Key
from ldpkernels.inputs.spans import first_elements, span_table
from ldpkernels.launch.proved import Subject, register
from ldpkernels.laws.noise_table import gaussian_table, wide_gaussian_table
from ldpkernels.ops.questions import CIPHERS, KEYS, SIZES, bytes_of, placed

LONG = 65_536 + 77  # a second stretch, or chunk, that ends inside a piece
LATER = 2**33 + 40  # blocks that have numbers of more than 32 bits
STREAM = 3
# Elements whose draws leave something open, by cipher and by the shift of their table: an edge of the table, where the
# number stays or rises; with a shift also 32 digits more, an event and a division by two that fails, or a third event.
NOISE_KEYS = {"philox": keys.key(5), "chacha20": Key((1, 2, 3, 4))}
OPEN = {
    ("philox", 0): (267_185, 2_328_568, 4_629_349, 5_691_098),
    ("chacha20", 0): (773_513, 4_063_333, 648_938, 1_381_007),
    ("philox", 16): (128_786, 6795, 4_018_380, 3_284_823, 15_395, 30_210, 5_977_811),
    ("chacha20", 16): (48, 71_563, 128_044, 134_154),
}
SHIFTS = (0, 16)  # of the tables of noise: none, and the most


def _there(device: str) -> torch.device | None:
    """Where a call has its whole vectors: None is the host."""
    return None if device == "cpu" else torch.device(device)


def _on_host(device: str) -> bool:
    """Whether the host's kernels are asked, and not Triton's in its interpreter."""
    return device == "cpu" and capabilities.forced() not in ("cuda", "triton")


def _table(x: Sequence[torch.Tensor], dtypes: Sequence[str], outs: Sequence[torch.Tensor] | None = None) -> Spans:
    places = [out.data_ptr() for out in outs] if outs else [0] * len(x)
    return span_table([t.data_ptr() for t in x], places, [t.numel() for t in x], [DTYPES[d] for d in dtypes])


def _normals(sizes: Sequence[int]) -> list[Floats]:
    return [np.random.default_rng(n).normal(0.0, 2.0, n) for n in sizes]


def _float(x: float) -> Bytes:
    return np.frombuffer(struct.pack("<d", x), np.uint8)


def _of_norm(subject: Subject, device: str) -> list[Bytes]:
    sizes, kinds = (LONG, *SIZES[1:]), [subject.dtype] * 4
    x = placed(_normals(sizes), kinds, device)
    return [_float(launch.norm(_table(x, kinds), _there(device)))]


def _of_integers(subject: Subject, device: str) -> list[Bytes]:
    """Weights that a draw just rounds up or does not, what is not a number or too large, and any others."""
    key, kinds, answers = None if subject.cipher == "none" else KEYS[subject.cipher], [subject.dtype] * 4, []
    words = 16 if subject.cipher == "chacha20" else 4  # of a block
    for scale in (4096.0, 12345.678):
        numbers = _normals(SIZES)
        for x, first in zip(numbers, first_elements(SIZES), strict=True):
            x[::11] = np.resize([np.nan, np.inf, -np.inf, 1e9, -1e9, -0.0, 2.0**31 / scale], x[::11].size)
            if key is not None:
                blocks = -(-(first + x.size) // words)
                draws = _native.keystream(key.uint32(), STREAM, 0, blocks, "scalar")[first : first + x.size]
                x[1::3] = ((2.0**32 - draws) / 2.0**32 / scale)[1::3]
                x[2::3] = np.nextafter((2.0**32 - draws) / 2.0**32 / scale, 0.0)[2::3]
        there = placed(numbers, kinds, device)
        outs = [torch.zeros(n, dtype=torch.int32, device=device) for n in SIZES]
        squares = launch.quantise(_table(there, kinds, outs), scale, key, STREAM, _there(device))
        answers += [np.frombuffer(squares.to_bytes(16, "little", signed=True), np.uint8), *map(bytes_of, outs)]
    return answers


def _of_noise(subject: Subject, device: str) -> list[Bytes]:
    """Tiles of ordinary draws, and draws that leave something open."""
    shift, key = int(subject.output.split()[1]), NOISE_KEYS[subject.cipher]
    open_ = OPEN.get((subject.cipher, shift), ())
    table = wide_gaussian_table(shift) if shift else gaussian_table(3.3)
    sizes = (SIZES[0], SIZES[2], *(8 for _ in open_))
    modular = subject.dtype == "uint32"
    kind = torch.int32 if modular else getattr(torch, subject.dtype)
    x = [torch.arange(-3, n - 3, dtype=torch.int32, device=device) for n in sizes]
    outs = [torch.zeros(n, dtype=kind, device=device) for n in sizes]
    spans = _table(x, ["float64" if subject.dtype == "float64" else "float32"] * len(sizes), outs)
    spans["first"][2:] = [element // 8 * 8 for element in open_]
    launch.add_noise(spans, table, key, bits=31 if modular else 0, unit=0.123, device=_there(device))
    return [bytes_of(out) for out in outs]


def _of_rotation(subject: Subject, device: str) -> list[Bytes]:
    """A pass of rows and one of columns; minus zero, too."""
    x = torch.from_numpy(np.random.default_rng(3).standard_normal(1 << 13).astype(np.float32)).to(device)
    x[17] = -0.0
    back = x.clone()
    launch.rotate(x, KEYS[subject.cipher])
    launch.rotate(back, KEYS[subject.cipher], inverse=True)
    return [bytes_of(x), bytes_of(back)]


def _of_vectors(subject: Subject, device: str) -> list[Bytes]:
    questions = {"norm": _of_norm, "integers": _of_integers, "noise": _of_noise, "rotation": _of_rotation}
    return questions[subject.output.split()[0]](subject, device)


def _of_normals(subject: Subject, device: str) -> list[Bytes]:
    """The product of a vector with its normals, or the normals moved along it."""
    key, kinds = KEYS[subject.cipher], [subject.dtype] * 4
    product = subject.output == "product"
    x = placed(_normals((LONG if product else SIZES[0], *SIZES[1:])), kinds, device)
    outs = [torch.zeros_like(t, dtype=torch.float64 if t.element_size() == 8 else torch.float32) for t in x]
    spans = _table(x, kinds, outs)
    spans["first"] += LATER
    if product:
        return [_float(launch.normal_product(spans, key, 1, _there(device)))]
    launch.moved_normals(spans, key, 1, 0.0123, 4.56, _there(device))
    return [bytes_of(out) for out in outs]


def _of_summary(subject: Subject, device: str) -> list[Bytes]:
    sizes = (LONG, *SIZES[1:], 40, 1)
    numbers, kinds = _normals(sizes), [subject.dtype] * len(sizes)
    for x in numbers[:4]:
        x[3:40:5], x[4:19:4], x[5], x[10] = np.nan, np.inf, -np.inf, -0.0
    numbers[4][:] = np.where(np.arange(40) % 2, 0.0, -0.0)
    there = placed(numbers, kinds, device)
    found = launch.summaries(_table(there, kinds), _where(device))
    packed = [struct.pack("<4dq", s.min, s.max, s.sum, s.sum_squares, s.finite) for s in found]
    return [np.frombuffer(b"".join(packed), np.uint8)]


def _of_quantiles(subject: Subject, device: str) -> list[Bytes]:
    """Of two layers, with weights that are equal and that neighbour each other; beside fp64, all take 64 bits."""
    numbers, kinds = _normals(SIZES), [subject.dtype] * 4
    numbers[0][40:900], numbers[1][:30], numbers[1][30:60], numbers[2][3:9] = 0.25, -0.0, 0.0, np.nan
    if subject.output == "64 bits":
        numbers, kinds = [*numbers, np.linspace(-1.0, 1.0, 33)], [*kinds, "float64"]
    layers = np.arange(len(numbers)) % 2
    x = placed(numbers, kinds, device)
    kept = [t.cpu().double().numpy() for t in x]
    finite = np.array([sum(int(np.isfinite(n).sum()) for n in kept[layer::2]) for layer in (0, 1)])
    ends = np.array([0.01, 0.99])
    return [launch.quantiles(_table(x, kinds), layers, finite, ends, _where(device)).view(np.uint8).ravel()]


def _of_tally(subject: Subject, device: str) -> list[Bytes]:
    """More reports than are added at once; words and the bytes that are left, and bytes alone."""
    size, answers = 2053, []
    for lead in (0, 1):
        reports = np.random.default_rng(lead).integers(0, 256, (17, lead + size), dtype=np.uint8)
        arrays = [np.ascontiguousarray(row[lead:]) for row in reports]
        if not _on_host(device):
            kind: Literal["bits", "bytes"] = "bits" if subject.output == "bits" else "bytes"
            tally = launch.tally(kind, size, torch.device(device))
            tally.add([torch.from_numpy(row).to(device)[lead:] for row in reports])
            sums = tally.sums()
        elif subject.output == "bits":
            planes = _native.Tally(size, _native.isas()[0])
            planes.add(arrays, 1)
            sums = planes.planes()
        else:
            sums = np.zeros(size, np.uint32)
            _native.add_bytes(sums, arrays, 1)
        answers.append(np.ascontiguousarray(sums).view(np.uint8).ravel())
    return answers


def _of_keys(subject: Subject, device: str) -> list[Bytes]:
    """Keys one after the other, from a number where the lower half is full."""
    numbers, key = [2**32 - 1, 2**32, 2**32 + 1], KEYS["chacha20"]
    if _on_host(device):
        found = [_native.keystream(key.uint32(), 0, n, 1, "scalar")[:8].tobytes() for n in numbers]
        return [np.frombuffer(b"".join([*found, struct.pack("<q", numbers[-1] + 1)]), np.uint8)]
    state = torch.cat([key.tensor(), torch.tensor(numbers[:1])]).to(device)
    given = [launch.next_key(state, state.device.type) for _ in numbers]
    return [bytes_of(torch.cat([*given, state[4:]]))]


def _where(device: str) -> torch.device | None:
    """Where ranges have their weights: None is the host."""
    return None if _on_host(device) else torch.device(device)


def _subjects(kernel: str, outputs: Sequence[str], dtypes: Sequence[str], ciphers: Sequence[str]) -> list[Subject]:
    return [Subject(kernel, o, d, c) for o in outputs for c in ciphers for d in dtypes]


_FORMATS, _NARROW = tuple(DTYPES), tuple(name for name in DTYPES if name != "float64")
_NOISE = [f"noise {shift}" for shift in SHIFTS]
register(
    "vectors",
    _of_vectors,
    [
        *_subjects("vectors", ["norm"], _FORMATS, ["none"]),
        *_subjects("vectors", ["integers"], _FORMATS, ["none", *CIPHERS]),
        *_subjects("vectors", _NOISE, ["uint32", "float32", "float64"], CIPHERS),
        *_subjects("vectors", ["rotation"], ["float32"], CIPHERS),
    ],
)
register("normals", _of_normals, _subjects("normals", ["product", "moved"], _FORMATS, CIPHERS))
register("summary", _of_summary, _subjects("summary", ["finite"], _FORMATS, ["none"]))
register(
    "quantiles",
    _of_quantiles,
    [
        *_subjects("quantiles", ["32 bits"], _NARROW, ["none"]),
        *_subjects("quantiles", ["64 bits"], _FORMATS, ["none"]),
    ],
)
register("tally", _of_tally, _subjects("tally", ["bits", "bytes"], ["uint8"], ["none"]))
register("next_key", _of_keys, _subjects("next_key", ["keys"], ["int64"], ["chacha20"]))
