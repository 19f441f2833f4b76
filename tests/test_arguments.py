# SPDX-License-Identifier: Apache-2.0
# A number that is none, or past all floating-point numbers, is refused by the name of its argument, before any write.
import numpy as np
import pytest
import torch

import ldpkernels as ldp

PAST = 10**400
VOTES = np.zeros((3, 4), np.int64)
CALLS = {
    "C": lambda x, bad: ldp.perturb_(x, bad, 1.0, 1.0),
    "R": lambda x, bad: ldp.perturb_(x, 0.0, bad, 1.0),
    "eps": lambda x, bad: ldp.perturb_(x, 0.0, 1.0, bad),
    "eps of piecewise": lambda x, bad: ldp.perturb_(x, 0.0, 1.0, bad, mechanism="piecewise"),
    "eps of hybrid": lambda x, bad: ldp.perturb_(x, 0.0, 1.0, bad, mechanism="hybrid"),
    "eps of sign": lambda x, bad: ldp.perturb_(x, 0.0, 1.0, bad, mechanism="sign"),
    "eps of report": lambda x, bad: ldp.report(x, 0.0, 1.0, bad),
    "eps of two_point_threshold": lambda x, bad: ldp.two_point_threshold(x, 0.0, 1.0, bad),
    "alpha": lambda x, bad: ldp.cldp_(x, bad, 1.0, 2),
    "c": lambda x, bad: ldp.cldp_(x, 0.1, bad, 2),
    "rho": lambda x, bad: ldp.cldp_(x, 0.1, 1.0, bad),
    "C of clipped_noised_sum": lambda x, bad: ldp.clipped_noised_sum(x.reshape(2, 2), bad, 1.0),
    "sigma": lambda x, bad: ldp.clipped_noised_sum(x.reshape(2, 2), 1.0, bad),
    "batch_size": lambda x, bad: ldp.clipped_noised_mean(x.reshape(2, 2), 1.0, 1.0, batch_size=bad),
    "eps of perturb_vector": lambda x, bad: ldp.perturb_vector(x, bad, norm=1.0),
    "norm": lambda x, bad: ldp.perturb_vector(x, 1.0, norm=bad),
    "bound": lambda x, bad: ldp.perturb_vector(x, 1.0, norm=1.0, mechanism="k-of-d", bound=bad),
    "growth": lambda x, bad: ldp.ranges([x], previous=(0.0, 1.0), growth=bad),
    "clients": lambda x, bad: ldp.ranges([x], eps=1.0, clients=bad),
    "quantile": lambda x, bad: ldp.ranges([x], method="quantile", quantile=bad),
    "previous": lambda x, bad: ldp.ranges([x], previous=(0.0, bad), growth=1.5),
    "sigma of noisy_vote": lambda x, bad: ldp.noisy_vote(VOTES, 2, sigma=bad),
    "sigma of vote_epsilon": lambda x, bad: ldp.vote_epsilon(3, bad),
    "M": lambda x, bad: ldp.cldp_sample(x.to(torch.int64) if isinstance(x, torch.Tensor) else x.astype(int), 1.0, bad),
}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("bad", [PAST, -PAST, "1", 1j], ids=["past", "below", "text", "complex"])
def test_what_is_no_number_is_refused_by_name(name, library, bad):
    x = np.zeros(4, np.float32) if library == "numpy" else torch.zeros(4)
    with pytest.raises((ValueError, TypeError), match=rf"^{name.split()[0]}\b"):
        CALLS[name](x, bad)
    assert not x.any(), "written before the check"


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1.5, True])
@pytest.mark.parametrize("name", ["rho", "M"])
def test_integers_are_integers(name, bad):
    with pytest.raises(ValueError, match=rf"^{name}={bad} must be an integer"):
        CALLS[name](np.zeros(4, np.float32), bad)


def test_a_flag_is_no_eps():
    with pytest.raises(TypeError, match="eps=True must be a number"):
        ldp.perturb_(np.zeros(4), 0.0, 1.0, True)
