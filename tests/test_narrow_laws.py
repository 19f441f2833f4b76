# SPDX-License-Identifier: Apache-2.0
"""Ranges narrower than the format's spacing: at most one number of fp32 lies between the thresholds' ends.

A weight's z is then at both ends at once, and docs/mechanisms/two_point.md says which of them it has. Random laws, and
the weights that lie there: NaN, which stands for the center, is the commonest.
"""

import ml_dtypes
import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native
from ldpkernels.common.dtypes import dtype_named
from ldpkernels.inputs.spans import span_table
from tests.kernels import law_of, run

KEY = ldpkernels.key(0)
NAMES = ["float32", "float64", "bfloat16", "float16"]


def narrow_laws(name, count, seed):
    """Laws of random ranges far narrower than the format's spacing, and weights at and near their centers.

    The center, a number of fp32, lies anywhere between the two outputs, which are neighbours in the format.
    """
    rng = np.random.default_rng(seed)
    dtype = np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
    while count:
        c = float(np.float32(rng.normal() * 10.0 ** rng.integers(-6, 2)))
        spacing = max(abs(float(dtype.type(c) - np.nextafter(dtype.type(c), dtype.type(0)))), 1e-30)
        r, eps = spacing * 2.0 ** rng.uniform(-34, 0), float(rng.choice([0.1, 1.0, 4.0, 10.0]))
        for output in ("values", "report"):
            try:
                law = law_of(c, r, eps, dtype, output)[:7]
            except (ValueError, OverflowError):
                continue
            near = [np.nan, np.inf, -np.inf, c, c + r, c - r, c + spacing, c - spacing, c + 2 * spacing, 0.0]
            with np.errstate(over="ignore"):
                yield law, np.array(near).astype(dtype)
        count -= 1


def meets(law):
    """Whether the ends differ and at most one number of fp32 lies between them: it is at both."""
    lo, hi = np.float32(law[3]), np.float32(law[4])
    at_least = lo if int(lo) >= law[3] else np.nextafter(lo, np.float32(np.inf))
    at_most = hi if int(hi) <= law[4] else np.nextafter(hi, np.float32(-np.inf))
    return law[3] < law[4] and at_least >= at_most


@pytest.mark.parametrize("name", NAMES)
def test_every_instruction_set_has_the_reference(name):
    met = 0
    for law, x in narrow_laws(name, 1000, seed=11):
        expected = run("thresholds", x, law, KEY, "reference")
        for isa in _native.isas():
            assert np.array_equal(run("thresholds", x, law, KEY, isa), expected), (isa, law)
        assert ((expected >= 2**31 + law[3]) & (expected <= 2**31 + law[4])).all()
        met += meets(law)
    assert met > 50 or name in ("float32", "float64"), met  # there the center is the middle of the outputs


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_cuda_has_the_scalar_kernels(name, cuda):
    """All laws in one call."""
    cases = list(narrow_laws(name, 200, seed=12))
    outs = [np.zeros(len(x), np.int64) for _, x in cases]
    places = [[a.ctypes.data for a in some] for some in ([x for _, x in cases], outs)]
    spans = span_table(*places, [len(x) for _, x in cases], [dtype_named(x.dtype) for _, x in cases])
    laws = np.array([law for law, _ in cases], _native.LAWS["two_point"])
    cuda.launch("two_point", "thresholds", spans, laws, KEY.uint32())
    for (law, x), out in zip(cases, outs, strict=True):
        assert np.array_equal(out, run("thresholds", x, law, KEY, "scalar")), law


@pytest.mark.parametrize("isa", _native.isas())
def test_the_upper_end_comes_first(isa):
    """fp32 has no number strictly between 2^30 and 2^30 + 128: whatever z, it is at both ends, or beyond."""
    law = (0.0, 1.0, 0.0, 2**30 + 40, 2**30 + 60)
    z = np.array([2**30 - 64, 2**30, 2**30 + 128, 2**30 + 256], np.float32)
    lo, hi = law[3:]
    assert (run("thresholds", z, law, KEY, isa) - 2**31).tolist() == [lo, hi, hi, hi]
    assert (run("thresholds", z.astype(np.float64), law, KEY, isa) - 2**31).tolist() == [lo, lo, hi, hi]
