# SPDX-License-Identifier: Apache-2.0
# Masks of secure sums: the keystreams of docs/rng.md, on every instruction set, and nothing of them in a sum.
import numpy as np
import pytest

import ldpkernels
from ldpkernels import Key, _native
from ldpkernels.updates.masks import add_masks

SECRET = Key((1, 2**64 - 1)), Key((5, 6, 7, 2**63)), Key((8, 9))
BEFORE = {np.uint16: 40_000, np.uint32: 3_000_000_000}  # so that sums wrap


def masked(dtype, n, keys=SECRET, signs=(1, -1, 1), **where):
    return add_masks(np.full(n, BEFORE[dtype], dtype), keys, signs, **where)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("first", [0, 3, 64, 2**34 - 8])
def test_masks_are_the_reference_on_every_isa(dtype, first, isa):
    """Tiles have 2048 or 1024 numbers, which AES's units add 512 bytes at a time where they begin with a block."""
    for n in (0, 1, 255, 256, 257, 2300):
        found = masked(dtype, n, first=first, stream=5)
        with ldpkernels.backend("reference"):
            assert np.array_equal(found, masked(dtype, n, first=first, stream=5))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_masks_are_keystreams_and_cancel(dtype, isa):
    n = 300_000  # several threads
    numbers = masked(dtype, n, SECRET[:1], [1])
    expected = _native.keystream(SECRET[0].uint32(), 0, 0, -(-n * numbers.itemsize // 16), isa).view(dtype)[:n]
    assert np.array_equal(numbers - dtype(BEFORE[dtype]), expected)
    assert np.array_equal(
        masked(dtype, n) + masked(dtype, n, signs=(-1, 1, -1)), np.full(n, 2 * BEFORE[dtype], np.uint64).astype(dtype)
    )
    assert (masked(dtype, n, (), ()) == BEFORE[dtype]).all()
    halves = np.concatenate([masked(dtype, n // 2), masked(dtype, n // 2, first=n // 2)])
    assert np.array_equal(halves, masked(dtype, n))


@pytest.mark.parametrize(
    ("numbers", "keys", "signs", "where", "message"),
    [
        (np.zeros(4, np.int32), SECRET, (1, 1, 1), {}, "uint16 or uint32, not int32"),
        ([1], SECRET, (1, 1, 1), {}, "not list"),
        (np.zeros(8, np.uint16)[::2], SECRET, (1, 1, 1), {}, "pass a copy"),
        (np.frombuffer(bytes(8), np.uint16), SECRET, (1, 1, 1), {}, "pass a copy"),
        (np.zeros(4, np.uint16), SECRET, (1, 1), {}, r"signs=\[1, 1\].*3 keys"),
        (np.zeros(4, np.uint16), SECRET, (1, 0, 1), {}, r"signs=\[1, 0, 1\]"),
        (np.zeros(4, np.uint16), [ldpkernels.key(1)], (1,), {}, "Philox"),
        (np.zeros(4, np.uint16), SECRET, (1, 1, 1), {"first": -1}, "first=-1"),
        (np.zeros(4, np.uint16), SECRET, (1, 1, 1), {"stream": 2**32}, "stream=4294967296"),
    ],
)
def test_bad_masks_are_refused_before_the_first_write(numbers, keys, signs, where, message):
    before = np.array(numbers)
    with pytest.raises((TypeError, ValueError), match=message):
        add_masks(numbers, keys, signs, **where)
    assert np.array_equal(before, numbers)
