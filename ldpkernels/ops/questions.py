# SPDX-License-Identifier: Apache-2.0
"""The small known questions that kernels of a GPU answer before they are used: launch/proved.py asks them.

A question is a call of one of this package's launches, with inputs, a key and laws that are always the same. It is
asked of two devices, and its answers are the bytes of everything that was written. Here are those of weights, rows and
votes; known_vectors.py has the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ldpkernels import _native, launch
from ldpkernels.common.arrays import Bytes, Floats, Integers, Laws
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.common.keys import Key
from ldpkernels.inputs.spans import first_elements, integer_span, span_table
from ldpkernels.launch.proved import Subject, register
from ldpkernels.laws import clipped_noise
from ldpkernels.laws.ordinal_cldp_thresholds import Rounding, integer_laws, weight_laws
from ldpkernels.laws.registry import MECHANISMS, law_table
from ldpkernels.laws.weightwise import Output

C, R, EPS = 0.25, 1.5, 4.0
# Odd, of whole tiles and of none; every second tensor begins at an address that no vector of 16 bytes does. Of a long
# one the first STEP weights, as many as a warp takes at once, are special or tie, and all others are ordinary: tiles
# with and without ties have paths of their own.
SIZES = (2065, 3201, 77, 75)
STEP = 1024
ROOM = 3328  # elements of an output
KEYS = {
    "philox": Key((0x0123456789ABCDEF,)),
    "chacha20": Key((1, 2**64 - 1, 0xA5A5A5A55A5A5A5A, 2**63)),
    "none": Key((0,)),
}
CIPHERS = ("philox", "chacha20")
# Elements of ordinal CLDP whose first draw does not decide whether low digits are given up, which is one in 30,000: of
# weights, of integers, and of integers whose low digits take a draw of their own.
OPEN = {"philox": (5384, 138_018, 4695), "chacha20": (47_938, 36_261, 15_573)}
_MECHANISMS = {kind.kernel: kind for kind in MECHANISMS.values()}
THRESHOLDS = MECHANISMS["two-point"].kernel  # whose thresholds are an output


def _of_mechanism(kernel: str) -> Iterator[Subject]:
    outputs = ("values", _MECHANISMS[kernel].reported, *(("thresholds",) if kernel == THRESHOLDS else ()))
    for output in outputs:
        for dtype in DTYPES:
            for cipher in ("philox",) if output == "thresholds" else CIPHERS:
                yield Subject(kernel, output, dtype, cipher)


def _of_weights(subject: Subject, device: str) -> list[Bytes]:
    """Tensors of one call: weights whose thresholds tie with their draws as nearly as the dtype allows, and weights of
    two laws that do."""
    dtype, key = DTYPES[subject.dtype], KEYS[subject.cipher]
    law_output: Output = "values" if subject.output == "values" else "report"
    if subject.kernel == "ordinal_cldp":
        kinds: tuple[Rounding, ...] = ("nearest", "stochastic", "nearest", "stochastic")
        laws = np.concatenate([weight_laws([1e-3], 1.0, 4, [dtype], "exponential", kind) for kind in kinds])
    else:
        laws = law_table(_MECHANISMS[subject.kernel](EPS), [C] * 4, [R] * 4, [dtype] * 4, law_output)
    firsts = first_elements(SIZES)
    numbers = [_weights(laws[:1], draws_of(key, first, n)) for first, n in zip(firsts, SIZES, strict=True)]
    if subject.kernel in _MECHANISMS and _MECHANISMS[subject.kernel].reported == "bits":
        laws = laws.copy()
        for i in (2, 3):
            numbers[i] = _tied(laws[i : i + 1], draws_of(key, firsts[i], SIZES[i]), above=i == 3)
    x = placed(numbers, [subject.dtype] * 4, device)
    width = {"values": 0, "thresholds": 8}.get(subject.output, 1)
    room = torch.zeros(4 * ROOM * max(width, 1), dtype=torch.uint8, device=device)
    outs = [room.data_ptr() + i * ROOM * width for i in range(4)] if width else [0] * 4
    spans = span_table([t.data_ptr() for t in x], outs, SIZES, [dtype] * 4)
    if subject.kernel == "ordinal_cldp":
        spans["first"][3] = OPEN[subject.cipher][0] // 8 * 8
    words = key.tensor(device)
    launch.run(subject.kernel, subject.output, spans, laws, words, torch.device(device).type, room if width else None)
    return [bytes_of(t) for t in (*x, room)]


def _of_integers(subject: Subject, device: str) -> list[Bytes]:
    bound = 10**10
    v = torch.arange(SIZES[0], dtype=torch.int64) * (2 * bound // SIZES[0]) - bound
    v[:5] = torch.tensor([bound, -bound, 0, 1, -1])
    v[8:16], v[16:24] = bound + 1, -bound - 1  # of every place in a cipher block
    v, words, answers = v.to(device), KEYS[subject.cipher].tensor(device), []
    laws = integer_laws(4.3e-7, bound, "laplace"), integer_laws(1e-11, bound, "exponential")
    for law, first in zip(laws, OPEN[subject.cipher][1:], strict=True):
        out = torch.zeros_like(v)
        spans = integer_span(v.data_ptr(), out.data_ptr(), v.numel())
        spans["first"] = first // 8 * 8
        launch.run("ordinal_cldp", "values", spans, law, words, v.device.type, out)
        answers += [bytes_of(v), bytes_of(out)]
    return answers


def _of_cldp(subject: Subject, device: str) -> list[Bytes]:
    return (_of_integers if subject.dtype == "int64" else _of_weights)(subject, device)


def _of_rows(subject: Subject, device: str) -> list[Bytes]:
    """Rows of two matrices that are clipped together or by themselves, one of which has few columns, in two blocks of
    rows and in one, read by vectors and not; or single numbers, of a group and of a part of one, and where no vector
    begins. An infinity; norms that need no clipping."""
    dtype, answers = DTYPES[subject.dtype], []
    drawn, _, single = subject.output.partition(" of ")
    kind, wide = getattr(torch, subject.dtype), torch.float64 if dtype.itemsize == 8 else torch.float32
    matrices = (67, (136, 3), [3.0]), (60, (133, 3), [3.0, 0.5])
    cases = ((4099, (1,), [3.0]), (75, (1,), [3.0])) if single else matrices
    for rows, widths, limits in cases:
        numbers = np.random.default_rng(1).normal(size=(rows, sum(widths))) * np.linspace(0.01, 2.0, rows)[:, None]
        numbers[6, 0] = np.inf
        parts = np.split(numbers, np.cumsum(widths)[:-1], axis=1)
        x = [torch.from_numpy(np.ascontiguousarray(n)).to(kind).to(device) for n in parts]
        if rows == 75:
            x = [torch.cat([t[:1], t])[1:] for t in x]
        sums = [torch.zeros(n, dtype=wide, device=device) for n in widths]
        noise = clipped_noise.noise_of(limits, 0.7, drawn, rows)
        words = KEYS[subject.cipher].tensor(device)
        norms = launch.clipped_sums(x, sums, [dtype] * len(x), limits, noise, 1.0, words, torch.device(device).type)
        answers += [bytes_of(torch.as_tensor(t)) for t in (*sums, norms)]
    return answers


def _of_votes(subject: Subject, device: str) -> list[Bytes]:
    """Samples with a majority, with as many votes for two classes, and with no two votes alike."""
    votes = np.random.default_rng(2).integers(0, 10, (9, SIZES[1]))
    votes[:, :9] = np.where(np.arange(9)[:, None] <= np.arange(9)[None, :], 3, votes[:, :9])
    there = torch.from_numpy(votes).to(getattr(torch, subject.dtype)).to(device)
    return [bytes_of(torch.as_tensor(t)) for t in launch.majority_vote(there, 10, there.device.type) or ()]


for _kernel in _MECHANISMS:
    register(_kernel, _of_weights, _of_mechanism(_kernel))
register(
    "ordinal_cldp", _of_cldp, (Subject("ordinal_cldp", "values", d, c) for c in CIPHERS for d in (*DTYPES, "int64"))
)
_NOISES = [(noise + of, c) for noise in ("gaussian", "discrete") for of in ("", " of numbers") for c in CIPHERS]
register("clipped_noise", _of_rows, (Subject("clipped_noise", noise, d, c) for noise, c in _NOISES for d in DTYPES))
register("votes", _of_votes, (Subject("votes", "labels", d, "none") for d in ("uint8", "int32", "int64")))


def placed(numbers: Sequence[Floats], dtypes: Sequence[str], device: str) -> list[torch.Tensor]:
    """Numbers as tensors on a device, of which every second begins at an address that no vector of 16 bytes does."""
    with np.errstate(over="ignore"):
        pairs = zip(numbers, dtypes, strict=True)
        x = [torch.from_numpy(n).to(getattr(torch, dtype)).to(device) for n, dtype in pairs]
    return [torch.cat([t[:1], t])[1:] if i % 2 else t for i, t in enumerate(x)]


def draws_of(key: Key, first: int, n: int) -> Integers:
    """The 32-bit draws of elements from `first` on, as docs/rng.md has them, less 2^31."""
    per_block = 8 if len(key.words) == 1 else 32
    block, skip = divmod(first, per_block)
    halves = []
    for stream in (0, 1):
        words = _native.keystream(key.uint32(), stream, block, (skip + n + per_block - 1) // per_block, "scalar")
        halves.append(words.astype("<u4").view("<i2")[skip : skip + n].astype(np.int64))
    return halves[0] * 2**16 + (halves[1] & 0xFFFF)


def _special() -> Floats:
    """What is not a number, the ends of the range and beyond them, and its center."""
    ends = np.array([C - R, C + R, C])
    beside = [np.nextafter(ends.astype(np.float32), np.float32(to)).astype(np.float64) for to in (-np.inf, np.inf)]
    return np.concatenate([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -3e38, 0.999, -1.0], ends, *beside])


def _weights(laws: Laws, draws: Integers) -> Floats:
    """Weights whose integers are their draws, or one more, as nearly as a format allows, and what is special; then
    ordinary ones."""
    law = laws["piecewise"] if "piecewise" in (laws.dtype.names or ()) else laws
    if "slope" in (law.dtype.names or ()):
        x = law["center"][0] + (draws + np.arange(draws.size) % 2) / law["slope"][0]
    else:
        x = C + R * np.linspace(-1.1, 1.1, draws.size)
    x[::5] = np.resize(_special(), x[::5].size)
    x[STEP:] = C + R * np.random.default_rng(x.size).uniform(-1.1, 1.1, x[STEP:].size)
    return np.asarray(x, np.float64)


def _tied(law: Laws, draws: Integers, above: bool) -> Floats:
    """Make a law of two thresholds, and weights for it: the least of the draws is its lower threshold and the largest
    one below its upper, or `above` the other way around, so that either threshold off by one changes a decision."""
    lowest, highest = int(draws.argmin()), int(draws.argmax())
    k_lo, k_hi = int(draws[lowest]) + above, int(draws[highest]) + (not above)
    if "slope" in (law.dtype.names or ()):
        ties = {"center": 0.0, "slope": 2.0**100, "fallback": 0.0, "k_lo": k_lo, "k_hi": k_hi}
    else:
        ties = {"center": 0.0, "at": 0, "below": k_lo, "above": k_hi}
    for name, value in ties.items():
        law[name] = value
    x = np.where(np.arange(draws.size) % 3 == 0, 1.0, -1.0)
    x[lowest], x[highest] = -1.0, 1.0
    return x


def bytes_of(t: torch.Tensor) -> Bytes:
    """A tensor's memory."""
    return np.asarray(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
