# SPDX-License-Identifier: Apache-2.0
# The server's ranges from kernels on a device: the CPU's, to the bit.
import pytest

import ldpkernels

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("method", "by"),
    [("minmax", "module"), ("quantile", "module"), ("quantile", "model"), ("noise-subtracted", "tensor")],
)
def test_ranges_are_those_of_the_cpu(device, method, by):
    generator = torch.Generator().manual_seed(1)
    model = {
        "a.weight": torch.randn(70, 31, generator=generator),
        "a.bias": torch.randn(31, generator=generator).to(torch.bfloat16),
        "b.weight": torch.randn(9, 5, generator=generator, dtype=torch.float64).t(),
        "c.weight": torch.zeros(0, 3),
    }
    model["a.weight"][3, 4], model["a.weight"][5, 6] = torch.nan, torch.inf
    previous = {name: 1.0 for name in ("a", "b", "c", "", *model)}
    options = {"method": method, "by": by, "quantile": 0.9}
    if method == "noise-subtracted":
        options |= {"previous": (0.0, 1.0 if by == "model" else previous), "eps": 4.0, "clients": 10}
    expected = ldpkernels.ranges(model, **options)
    with ldpkernels.backend("triton"):
        assert ldpkernels.ranges({name: t.to(device) for name, t in model.items()}, **options) == expected
