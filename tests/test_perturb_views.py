# SPDX-License-Identifier: Apache-2.0
# Views of every kind: perturbed in the order of their elements, and nothing outside them is touched.
import pytest
import torch

import ldpkernels
from ldpkernels import perturb_
from tests.conftest import EPS, KEY, outputs, values


def test_inference_tensors_in_and_out_of_inference_mode():
    with torch.inference_mode():
        x, y = torch.zeros(100), torch.zeros(10, 10)
        perturb_([x, y.t()], 0.0, 1.0, EPS)
        assert values(y) == outputs(0.0, 1.0)
    for t in (torch.zeros(5), x, y.t()):
        wanted = perturb_(t.clone(), 0.5, 1.0, EPS, generator=KEY)
        assert torch.equal(perturb_(t, 0.5, 1.0, EPS, generator=KEY), wanted)
    normal = torch.zeros(3, requires_grad=True)
    perturb_([normal, x, y.t()], 0.5, 1.0, EPS)
    assert values(normal) | values(x) | values(y) == outputs(0.5, 1.0)
    assert not normal.is_inference()


def test_negated_and_conjugate_views():
    z = torch.zeros(50, dtype=torch.complex64)
    view = z.conj().imag
    assert view.is_neg()
    wanted = perturb_(torch.zeros(50), 0.3, 1.0, EPS, generator=KEY)
    assert perturb_(view, 0.3, 1.0, EPS, generator=KEY) is view
    assert torch.equal(view, wanted)
    assert torch.equal(z.imag, -wanted)
    assert not z.real.any()
    report = ldpkernels.report(view, 0.3, 1.0, EPS, generator=KEY)
    assert report.to_bytes() == ldpkernels.report(wanted, 0.3, 1.0, EPS, generator=KEY).to_bytes()
    assert torch.equal(
        ldpkernels.two_point_threshold(view, 0.3, 1.0, EPS), ldpkernels.two_point_threshold(wanted, 0.3, 1.0, EPS)
    )


def test_contiguous_negated_views():
    x = torch.linspace(-1, 1, 50)
    view, values = torch._neg_view(x), -x
    assert view.is_neg()
    assert view.is_contiguous()
    for function in (ldpkernels.two_point_threshold, lambda *a: ldpkernels.report(*a, generator=KEY).payload):
        assert torch.equal(function(view, 0.3, 1.0, EPS), function(values, 0.3, 1.0, EPS))
    assert ldpkernels.ranges(view) == ldpkernels.ranges(values)
    perturb_(view, 0.3, 1.0, EPS, generator=KEY)
    assert torch.equal(-x, perturb_(values, 0.3, 1.0, EPS, generator=KEY))


def test_tied_weights_of_a_state_dict_are_taken_once():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    model[1].weight = model[0].weight
    state = model.state_dict()
    one = ldpkernels.report(state, 0.0, 1.0, 1.0, generator=ldpkernels.key(1))
    assert one.layout.names == ("0.weight", "0.bias", "1.bias")
    ldpkernels.perturb_(state, 0.0, 1.0, 1.0)
    assert len(model[1].weight.unique()) == 2
    with pytest.raises(ValueError, match="share memory"):
        ldpkernels.perturb_({"a": state["0.weight"], "b": state["0.weight"][1:]}, 0.0, 1.0, 1.0)
