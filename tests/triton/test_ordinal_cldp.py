# SPDX-License-Identifier: Apache-2.0
# Ordinal CLDP in Triton: the bits of every backend, by the interpreter where there is no GPU.
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import ldpkernels  # noqa: E402
from ldpkernels import cldp_, cldp_sample, launch  # noqa: E402
from ldpkernels.inputs.spans import integer_span  # noqa: E402
from ldpkernels.laws.ordinal_cldp_thresholds import integer_laws  # noqa: E402

PHILOX, CHACHA = ldpkernels.key(0x0123456789ABCDEF), ldpkernels.Key((1, 2**64 - 1, 3, 2**63))
CASES = [
    (4.3e-7, 10**10, "exponential", PHILOX, 150),
    (4.3e-7, 10**10, "laplace", PHILOX, 65),
    (2e-18, 2**62 - 1, "exponential", PHILOX, 30),
    (1e-40, 2**62 - 1, "exponential", PHILOX, 30),
    (1.0, 5, "exponential", PHILOX, 64),
    (12.0, 3, "laplace", PHILOX, 10),
    (0.1, 0, "exponential", PHILOX, 9),
    (0.3, 64, "exponential", CHACHA, 6),
]


@pytest.mark.parametrize(("alpha", "m", "mechanism", "key", "n"), CASES)
def test_integers(device, alpha, m, mechanism, key, n):
    v = torch.from_numpy(np.random.default_rng(0).integers(-m, m, n, endpoint=True))
    v[::3], v[1::5] = m, -m
    expected = cldp_sample(v, alpha, m, mechanism=mechanism, generator=key)
    with ldpkernels.backend("triton"):
        found = cldp_sample(v.to(device), alpha, m, mechanism=mechanism, generator=key)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [*((dtype, "stochastic") for dtype in ("float32", "float64", "bfloat16")), ("float32", "nearest")],
)
def test_weights(device, dtype, rounding):
    torch.manual_seed(0)
    w = torch.randn(5, 9).to(getattr(torch, dtype))
    w[0, :5] = torch.tensor([np.nan, np.inf, -np.inf, 0.005, -0.015])
    rho, c = (2, 1.0) if dtype != "float64" else (16, 400.0)  # beyond 2^51 as well
    alphas = [10.0 ** (-1 - rho / 2), 50.0]
    expected = cldp_([w.clone(), w[:2].t().clone()], alphas, c, rho, rounding=rounding, generator=PHILOX)
    with ldpkernels.backend("triton"):
        found = cldp_([w.to(device), w[:2].t().clone().to(device)], alphas, c, rho, rounding=rounding, generator=PHILOX)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.cpu(), b)


@pytest.mark.parametrize(("key", "first"), [(PHILOX, 5), (CHACHA, 2**34 + 3)])
def test_elements_from_within_a_cipher_block(device, key, first):
    """As the parts of a tensor that several ranks hold begin anywhere in the stream."""
    v = torch.arange(-32, 31, dtype=torch.int64)
    found, expected, laws = torch.empty_like(v).to(device), torch.empty_like(v), integer_laws(0.3, 64, "exponential")
    there = v.to(device)
    for name, data, out in (("triton", there, found), ("scalar", v, expected)):
        spans = integer_span(data.data_ptr(), out.data_ptr(), v.numel())
        spans["first"] = first
        with ldpkernels.backend(name):
            launch.run("ordinal_cldp", "values", spans, laws, key.tensor(data.device), data.device.type, out)
    assert torch.equal(found.cpu(), expected)
