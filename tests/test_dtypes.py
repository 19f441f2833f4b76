# SPDX-License-Identifier: Apache-2.0
# Exact rounding, against NumPy's and ml_dtypes' own formats.
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldpkernels.common.dtypes import DTYPES, compute_dtype

NUMPY = {"float32": np.float32, "float64": np.float64, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
UINT = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def every_number(name):
    with np.errstate(invalid="ignore"):  # signalling NaNs
        x = np.arange(2**16, dtype=np.uint16).view(NUMPY[name]).astype(np.float64)
    return sorted(set(x[np.isfinite(x)].tolist()))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_every_16_bit_number(name):
    dtype, numbers = DTYPES[name], every_number(name)
    assert dtype.largest == numbers[-1]
    for low, high in zip(numbers[:-1:7], numbers[1::7], strict=True):
        low, high = Fraction(low), Fraction(high)
        between = (2 * low + high) / 3
        assert dtype.floor(low) == dtype.ceil(low) == low
        assert (dtype.floor(between), dtype.ceil(between)) == (low, high)
        assert dtype.holds(low)
        assert not dtype.holds(between)
    for x in numbers:
        assert dtype.bits(x) == int(np.array(x).astype(NUMPY[name]).view(np.uint16)) & (0x7FFF if x == 0 else 0xFFFF)


@pytest.mark.parametrize("name", ["float32", "float64"])
@given(x=st.floats(allow_nan=False, allow_infinity=False), share=st.fractions(0, 1))
def test_floor_ceil_and_bits(name, x, share):
    dtype, kind = DTYPES[name], NUMPY[name]
    with np.errstate(all="ignore"):
        low = kind(x)
        high = np.nextafter(low, kind(np.inf))
    if not np.isfinite(low) or not np.isfinite(high):
        return
    assert dtype.bits(float(low)) == int(np.array(low).view(UINT[dtype.itemsize]))
    between = Fraction(float(low)) * (1 - share) + Fraction(float(high)) * share
    assert dtype.floor(between) == (Fraction(float(low)) if share < 1 else Fraction(float(high)))
    assert dtype.ceil(between) == (Fraction(float(high)) if share > 0 else Fraction(float(low)))
    assert dtype.holds(between) == (share in (0, 1))


@given(x=st.floats(-3.4e38, 3.4e38))
def test_nearest_is_numpys(x):
    assert DTYPES["float32"].nearest(x) == float(np.float32(x))
    assert DTYPES["float64"].nearest(x) == x


def test_largest_numbers_and_what_is_compared_in_what():
    assert float(DTYPES["float32"].largest) == np.finfo(np.float32).max
    assert float(DTYPES["float64"].largest) == np.finfo(np.float64).max
    assert not DTYPES["float16"].holds(Fraction(65536))
    assert [compute_dtype(DTYPES[n]).name for n in ("float32", "bfloat16", "float16", "float64")] == [
        *["float32"] * 3,
        "float64",
    ]
