# SPDX-License-Identifier: Apache-2.0
# Views of every kind: perturbed in the order of their elements, and nothing outside them is touched.
import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import TwoPoint, perturb_
from tests.conftest import EPS, FLOATS, KEY, outputs, values


def views(dtype):
    """Views that PyTorch users have, each with the tensor under it."""
    base = torch.arange(240, dtype=torch.float64).sub(120).div(100).to(dtype).reshape(4, 5, 12)
    image = torch.arange(240, dtype=torch.float64).sub(120).div(100).to(dtype).reshape(2, 4, 5, 6)
    for view in (
        base[:, 1:4, ::3],
        base.transpose(0, 2),
        base[1],
        base[..., -1],
        base.flatten()[7:],
        base.as_strided((3, 4), (50, 7), 5),
        base[2, 3, 4],
        base.unfold(2, 3, 3),
        base[:0],
    ):
        yield base, view
    channels_last = image.to(memory_format=torch.channels_last)
    yield channels_last, channels_last
    yield image, image.permute(0, 2, 3, 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_views_are_perturbed_in_the_order_of_their_elements(dtype):
    for base, view in views(dtype):
        base.copy_(torch.arange(240).sub(120).div(100).reshape(base.shape))
        strides, before = view.stride(), base.clone()
        inside = torch.zeros_like(base, dtype=torch.bool).as_strided(view.shape, view.stride(), view.storage_offset())
        mask = inside._base if inside._base is not None else inside
        inside.fill_(True)
        wanted = perturb_(view.clone(memory_format=torch.contiguous_format), 0.0, 1.0, EPS, generator=KEY)
        assert perturb_(view, 0.0, 1.0, EPS, generator=KEY) is view
        assert torch.equal(view, wanted)
        assert view.stride() == strides
        assert torch.equal(base[~mask], before[~mask]), "something outside the view was touched"


def test_scalars_and_empty_tensors():
    x = torch.tensor(0.2)
    assert perturb_(x, 0.0, 1.0, EPS).item() in outputs(0.0, 1.0)
    a = np.array(0.2)
    assert float(perturb_(a, 0.0, 1.0, EPS)) in TwoPoint(EPS).outputs(0.0, 1.0)
    assert a.shape == ()
    for empty in (torch.empty(0), torch.empty(3, 0, 2), np.empty((0, 4))):
        assert perturb_(empty, 0.0, 1.0, EPS) is empty
    mixed = [torch.empty(0), torch.zeros(100), torch.empty(0, 7)]
    perturb_(mixed, 0.0, 1.0, EPS)
    assert values(mixed[1]) == outputs(0.0, 1.0)


def test_interleaved_views_share_no_element():
    x = torch.zeros(200)
    perturb_([x[::2], x[1::2]], [0.0, 5.0], 1.0, EPS)
    assert (values(x[::2]), values(x[1::2])) == (outputs(0.0, 1.0), outputs(5.0, 1.0))
    a = np.zeros((20, 20))
    perturb_({"left": a[:, :10], "right": a[:, 10:]}, 0.0, 1.0, EPS)
    assert set(a.ravel()) == set(TwoPoint(EPS).outputs(0.0, 1.0))


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
