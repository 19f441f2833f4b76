# SPDX-License-Identifier: Apache-2.0
import pytest

import ldpkernels
from ldpkernels import _native

ISAS = _native.isas()


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
