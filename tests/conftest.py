# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import ldpkernels
from ldpkernels import _native

ISAS = _native.isas()
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
EPS = 0.8
KEY = ldpkernels.key(11)


def outputs(c, r, dtype=torch.float32):
    """The two values that perturb_ at EPS writes."""
    return set(ldpkernels.TwoPoint(EPS).outputs(c, r, dtype))


def values(tensor):
    """The numbers in a tensor."""
    return set(tensor.detach().double().flatten().tolist())


@pytest.fixture(params=ISAS)
def isa(request):
    """Every instruction set of this machine, in turn, as the forced backend."""
    with ldpkernels.backend(request.param):
        yield request.param


@pytest.fixture(params=["philox", "chacha20"])
def key(request):
    """A fixed key of each cipher."""
    words = {"philox": (0x0123456789ABCDEF,), "chacha20": (1, 2**64 - 1, 0xA5A5A5A55A5A5A5A, 2**63)}
    return ldpkernels.Key(words[request.param])
