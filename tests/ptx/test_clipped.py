# SPDX-License-Identifier: Apache-2.0
"""CUDA C++'s kernels of clipped sums, whose PTX is executed, against the CPU's: every bit of norms and sums."""

import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native, launch
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws import clipped_noise as _clipped

pytestmark = pytest.mark.exhaustive
KEYS = {"philox": ldpkernels.key(0x0123456789ABCDEF), "chacha20": ldpkernels.Key((2**64 - 1, 5, 0, 2**63))}
KINDS = list(DTYPES.values())


@pytest.fixture
def executed(cuda):
    """The norms of one call, which writes its sums to the spans' outputs, and nothing else."""

    def run(spans, rows, C, sigma, divisor, how, key):
        law = _clipped.noise_of(C, sigma, how[0], rows)
        limits = np.array(_clipped.bounds(C, how[1], len(spans)), np.float64)
        norms, words = np.full((rows, len(limits)), 1e300), key.uint32()
        numbers = law.stddev, divisor, law.unit, law.grid_std
        cuda.clipped_sums(spans, limits, rows, numbers, (words.ctypes.data, words.size), norms.ctypes.data)
        return norms

    return run


def matrix(shape, kind, seed):
    """Random rows in 16-byte aligned memory: some are zero, tiny or huge, some hold NaN or infinities."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if shape[0] > 8 and shape[1]:
        x[1], x[2], x[3] = x[1] * 1e-30, 0, x[3] * 1e4
        x[4, -1], x[5, 0], x[6] = np.nan, -np.inf, np.inf
    with np.errstate(over="ignore"):
        if kind.name == "bfloat16":
            return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return x.astype(kind.name)


def on_cpu(spans, rows, C, sigma, divisor, how, key):
    noise, limits = _clipped.noise_of(C, sigma, how[0], rows), _clipped.bounds(C, how[1], len(spans))
    return launch.clipped_sums_on_cpu(spans, rows, limits, noise, divisor, key.uint32(), _native.isas()[0])


def both(executed, x, kinds, C, sigma, divisor, how, key, first=0):
    """Bytes of norms and sums of the executed kernels and of the CPU's."""
    found = []
    for run in (executed, on_cpu):
        out = [np.full(m.shape[1], 77, np.float64 if m.itemsize == 8 else np.float32) for m in x]
        addresses = [o.ctypes.data for o in out]
        spans = span_table([m.ctypes.data for m in x], addresses, [m.shape[1] for m in x], kinds)
        spans["first"] += first
        norms = run(spans, len(x[0]), C, sigma, divisor, how, key)
        numbers = [np.where(np.isnan(a), np.nan, a) for a in (norms, *out)]  # the bits of a NaN may differ
        found.append([a.tobytes() for a in numbers])
    assert found[0] == found[1]


@pytest.mark.parametrize("cipher", KEYS)
@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_bits_are_the_cpus(executed, kind, noise, cipher):
    shapes = [(70, 1), (9, 4), (600, 17), (130, 300), (65, 1028), (40, 2051)]
    for i, shape in enumerate(shapes):
        both(executed, [matrix(shape, kind, i)], [kind], [2.5], 0.7, 3.0, (noise, "flat"), KEYS[cipher])


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("shape", [(4097, 5), (4096, 1), (9000, 1), (2, 70_001), (0, 9), (1, 0)])
def test_groups_of_rows_and_stretches(executed, shape, noise):
    sigma = 0.5 if shape[1] < 9000 else 0.0  # the noise of many columns takes long to execute
    both(executed, [matrix(shape, KINDS[0], 3)], [KINDS[0]], [1.5], sigma, 7.0, (noise, "flat"), KEYS["philox"])


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_single_numbers(executed, kind, noise):
    """Whole and partial pieces and groups; memory that vectors may not be read from."""
    for n in (0, 1, 63, 1024, 1025, 4097, 9000):
        x = matrix((n + 1, 1), kind, n)
        for rows in (x[:n], x[1:]):
            both(executed, [rows], [kind], [0.7], 0.3, 3.0, (noise, "flat"), KEYS["philox"])


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_few_rows_have_warps_for_other_columns(executed, kind, noise):
    """One, two, four and eight warps by rows, and a second round of eight; more columns than a thread block has."""
    wide = 16 // kind.itemsize * 32  # of a warp
    for rows, warps in ((1, 1), (64, 1), (65, 2), (128, 2), (129, 4), (257, 8), (513, 8)):
        columns = 8 // warps * wide + wide + 8  # a second thread block, of which only two warps have columns
        both(executed, [matrix((rows, columns), kind, rows)], [kind], [9.0], 0.0, 3.0, (noise, "flat"), KEYS["philox"])
        both(executed, [matrix((rows, columns + 3), kind, 1)], [kind], [9.0], 0.0, 3.0, (noise, "flat"), KEYS["philox"])


@pytest.mark.parametrize("clipping", ["flat", "per-layer"])
def test_a_model_of_more_tensors_than_a_launch_has(executed, clipping):
    kinds = [KINDS[i % 4] for i in range(101)]
    x = [matrix((20, i * 37 % 90), kind, i) for i, kind in enumerate(kinds)]
    both(executed, x, kinds, [9.0], 0.7, 20.0, ("gaussian", clipping), KEYS["philox"], first=2**35 - 64)
    both(executed, x, kinds, [9.0], 0.7, 20.0, ("gaussian", clipping), KEYS["chacha20"])
    limits = [1.0 + i for i in range(101)]
    both(executed, x, kinds, limits, 0.0, 20.0, ("discrete", "per-layer"), KEYS["philox"])


def test_unaligned_memory(executed):
    for kind in KINDS:
        for shape in ((3, 4), (9, 33), (67, 8), (257, 1)):
            x = matrix((shape[0] * shape[1] + 1, 1), kind, 5)[1:].reshape(shape)
            for noise in ("gaussian", "discrete"):
                both(executed, [x], [kind], [1.0], 0.1, 1.0, (noise, "flat"), KEYS["philox"])
