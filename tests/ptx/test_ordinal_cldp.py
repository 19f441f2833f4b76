# SPDX-License-Identifier: Apache-2.0
"""CUDA C++'s kernel of ordinal CLDP, whose PTX is executed, against the CPU's: every bit."""

import numpy as np
import pytest

from ldpkernels import _native
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.spans import integer_span, span_table
from ldpkernels.laws.ordinal_cldp_thresholds import integer_laws, weight_laws
from tests.test_ordinal_cldp_bits import IDS, LAWS, integers

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("law", LAWS, ids=IDS)
def test_integers(law, device_key, cuda):
    alpha, m, mechanism = law
    v = integers(777, m, 5)
    laws = integer_laws(alpha, m, mechanism)
    for first, n in ((0, 777), (8, 1), (2**35 - 8, 100)):
        found, expected = np.full(n, 77), np.full(n, 78)
        spans = integer_span(v.ctypes.data, expected.ctypes.data, n)
        spans["first"] = first
        _native.launch("ordinal_cldp", "values", spans, laws, device_key.uint32(), "", 1)
        spans["out"] = found.ctypes.data
        cuda.launch("ordinal_cldp", "values", spans, laws, device_key.uint32())
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_many_tensors_of_every_dtype(rounding, device_key, cuda):
    """More spans than a launch holds, narrow and wide laws among them; some are empty."""
    rng, kinds = np.random.default_rng(0), list(DTYPES.values())
    weights, dtypes, alphas = [], [], []
    for i in range(60):
        kind = kinds[i % 4]
        x = rng.normal(0, 0.6, i * 7 % 50)
        x[:3] = [np.nan, np.inf, -1e-9][: min(3, len(x))]
        if kind.name == "bfloat16":
            weights.append((x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))
        else:
            weights.append(x.astype(kind.name))
        dtypes.append(kind)
        alphas.append([0.5, 1e-3, 1e-11][i % 3])
    laws = weight_laws(alphas, 1.0, 4, dtypes, "exponential", rounding)
    copies = [w.copy() for w in weights]
    sizes = [w.size for w in weights]
    for tensors, run in (
        (weights, lambda spans: _native.launch("ordinal_cldp", "values", spans, laws, device_key.uint32(), "", 1)),
        (copies, lambda spans: cuda.launch("ordinal_cldp", "values", spans, laws, device_key.uint32())),
    ):
        run(span_table([w.ctypes.data for w in tensors], [0] * len(sizes), sizes, dtypes))
    for a, b in zip(weights, copies, strict=True):
        assert a.tobytes() == b.tobytes()
