# SPDX-License-Identifier: Apache-2.0
"""What a call reads and writes: its tensors, whatever their shapes, strides, places and dtypes, and nothing else.

Views lie in a buffer of bytes, anywhere and across each other. Where no two elements share a byte, the call writes what
the reference writes to contiguous copies, and no other byte; strides that no slice and no transposition makes it may
refuse. Where elements do share bytes, it raises and writes nothing.
"""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

import ldpkernels

BYTES = 1 << 16  # more than the largest of the slices below takes
DTYPES = st.sampled_from([np.dtype(d) for d in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)])
KEYS = st.sampled_from([ldpkernels.key(7), ldpkernels.Key((1, 2**64 - 1, 3, 2**63))])
MECHANISMS = st.sampled_from(["two-point", "piecewise", "hybrid", "ordinal-cldp"])
SHAPES = st.lists(st.integers(0, 6), max_size=3)
SEEDS = st.integers(0, 9)


@st.composite
def sliced(draw, flips=True, aligned=False):
    """(dtype, shape, strides in bytes, offset): every so many elements of a block, its axes in any order."""
    dtype, shape = draw(DTYPES), draw(SHAPES)
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3, *([-1, -2] if flips else [])])) for _ in shape]
    block, strides = dtype.itemsize, []
    for n, step in zip(shape, steps, strict=True):
        strides.append(block * step)
        block *= max(1, n * abs(step))
    low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n and s < 0)
    place = draw(st.integers(0, 300)) * (dtype.itemsize if aligned else 1)
    order = draw(st.permutations(range(len(shape))))
    return dtype, tuple(shape[i] for i in order), tuple(strides[i] for i in order), place - low


@st.composite
def strided(draw, least=-9):
    """The same with any strides of whole elements: most of them overlap themselves."""
    dtype, shape = draw(DTYPES), tuple(draw(SHAPES))
    strides = tuple(draw(st.integers(least, 12)) * dtype.itemsize for _ in shape)
    low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n and s < 0)
    return dtype, shape, strides, draw(st.integers(0, 60)) * dtype.itemsize - low


def taken(view):
    """The bytes of each element, one after another."""
    dtype, shape, strides, offset = view
    index = np.indices(shape).reshape(len(shape), math.prod(shape))
    return (offset + np.array(strides, np.int64) @ index)[:, None] + np.arange(dtype.itemsize)


def call(mechanism, tensors, key):
    if mechanism == "ordinal-cldp":
        return ldpkernels.cldp_(tensors, 0.5, 1.0, 2, generator=key)
    return ldpkernels.perturb_(tensors, 0.25, 0.5, 1.0, mechanism=mechanism, generator=key)


def buffer(seed):
    data = np.random.default_rng(seed).integers(0, 256, BYTES, dtype=np.uint8)
    data[::7] = 0x3F  # so that many numbers are of a size that ranges have
    return data


def check(mechanism, found, data, chosen, key, may_refuse=False):
    """Call it on the views `found` of `data`."""
    before, places = data.copy(), [taken(view).reshape(-1) for view in chosen]
    everything = np.concatenate(places)
    if len(np.unique(everything)) < len(everything):
        event("overlapping")
        with pytest.raises(ValueError, match=r"overlap|share"):
            call(mechanism, found, key)
        assert np.array_equal(data, before)
        return
    copies = [before[p].view(v[0]).reshape(v[1]) for p, v in zip(places, chosen, strict=True)]
    with ldpkernels.backend("reference"):
        call(mechanism, copies, key)
    expected = before.copy()
    for p, values in zip(places, copies, strict=True):
        expected[p] = values.reshape(-1).view(np.uint8)
    refused = False
    try:
        assert call(mechanism, found, key) is found
    except ValueError as error:
        if not (may_refuse and "overlaps itself" in str(error)):
            raise
        refused = True
    event("refused" if refused else "perturbed")
    assert np.array_equal(data, before if refused else expected)


def arrays(data, chosen):
    return [np.ndarray(shape, dtype, data, offset, strides) for dtype, shape, strides, offset in chosen]


def tensors(data, chosen):
    found, storage = [], torch.from_numpy(data)
    for dtype, shape, strides, offset in chosen:
        size = dtype.itemsize
        whole = storage.view(getattr(torch, dtype.name))
        found.append(whole.as_strided(shape, [s // size for s in strides], offset // size))
    return found


VIEWS = {  # how they are made, which, how many at most, and whether a call may refuse them
    "slices of arrays at any address": (arrays, sliced(), 3, False),
    "slices of tensors": (tensors, sliced(flips=False, aligned=True), 3, False),
    "any strides of arrays": (arrays, strided(), 2, True),
    "any strides of tensors": (tensors, strided(least=0), 2, True),
}


@pytest.mark.parametrize("kind", VIEWS)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data(), MECHANISMS, KEYS, SEEDS)
def test_views_are_written_and_nothing_else(kind, drawn, mechanism, key, seed):
    make, views, most, may_refuse = VIEWS[kind]
    chosen, data = drawn.draw(st.lists(views, min_size=1, max_size=most)), buffer(seed)
    check(mechanism, make(data, chosen), data, chosen, key, may_refuse)


@pytest.mark.parametrize(("shape", "strides"), [((2,), (-1,)), ((3,), (-3,)), ((2, 2), (9, 6))])
def test_elements_that_share_some_of_their_bytes_are_refused(shape, strides):
    found = np.ndarray(shape, np.float32, buffer(0), 64, strides)
    with pytest.raises(ValueError, match="overlaps itself"):
        ldpkernels.perturb_(found, 0.25, 0.5, 1.0, generator=ldpkernels.key(7))
