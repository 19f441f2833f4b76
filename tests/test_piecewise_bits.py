# SPDX-License-Identifier: Apache-2.0
# Cells and values: the same bits on every instruction set as from the reference, and from any place in the stream.
import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native
from tests.cells import BITS, DTYPES, MECHANISMS, cells_of, run
from tests.test_perturb_bits import weights

OUTPUTS = ["values", "cells", "turns"]
LENGTHS = [*range(36), 71]


def law(mechanism, dtype, output, c=0.1, r=0.7, eps=0.8):
    return cells_of(mechanism, c, r, eps, dtype, "values" if output == "values" else "report")


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_length(mechanism, dtype, output, key):
    the_law = law(mechanism, dtype, output)
    for n in LENGTHS:
        x = weights(n, dtype, n)
        expected = run(mechanism, output, x, the_law, key, "reference")
        for isa in _native.isas():
            assert np.array_equal(run(mechanism, output, x, the_law, key, isa), expected), (isa, n)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("c", "r", "eps"), [(1.0, 0.001, 4.0), (0.0, 1.0, 10.0), (-2.5, 0.0, 1.0), (3.0, 1e-30, 0.7), (0.3, 0.7, 20.0)]
)
def test_every_kind_of_law(mechanism, dtype, c, r, eps, key):
    """Wide and narrow ranges, few cells and many, an eps that 32 bits can hardly hold, and the seams of the circle."""
    with np.errstate(all="ignore"):
        x = (c + r * np.linspace(-1.1, 1.1, 500)).astype(dtype)
    for output in ("values", "cells"):
        the_law = law(mechanism, dtype, output, c, r, eps)
        expected = run(mechanism, output, x, the_law, key, "reference")
        for isa in _native.isas():
            assert np.array_equal(run(mechanism, output, x, the_law, key, isa), expected), isa


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_any_place_in_the_stream_and_any_number_of_threads(mechanism, key, isa):
    n = 2**17 + 5
    x = weights(n, np.float32)
    the_law = law(mechanism, np.float32, "cells")
    whole = run(mechanism, "cells", x, the_law, key, isa)
    assert np.array_equal(run(mechanism, "cells", x, the_law, key, isa, threads=3), whole)
    for first in (8, 1016, 2**16 + 1024, n // 8 * 8):
        part = run(mechanism, "cells", x[first:], the_law, key, isa, first=first)
        assert np.array_equal(part, whole[first:])
    far = run(mechanism, "cells", x[:40], the_law, key, isa, first=2**35 - 16)
    assert np.array_equal(far, run(mechanism, "cells", x[:40], the_law, key, "reference", first=2**35 - 16))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_16_bit_pattern_has_bounded_values(mechanism, dtype):
    x = np.arange(2**16, dtype=np.uint16)
    x = x.view(dtype) if dtype.itemsize == 2 else x.astype(BITS[dtype.itemsize]) << (8 * dtype.itemsize - 16)
    x = x.view(dtype)
    outputs = MECHANISMS[mechanism](1.0).outputs(0.1, 0.7, dtype)
    for isa in _native.isas():
        with ldpkernels.backend(isa):
            out = ldpkernels.perturb_(x.copy(), 0.1, 0.7, 1.0, mechanism=mechanism, generator=ldpkernels.key(5))
        assert np.isin(out.astype(np.float64), outputs).all()
