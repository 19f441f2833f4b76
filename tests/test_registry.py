# SPDX-License-Identifier: Apache-2.0
"""The registry of csrc/mechanisms: what the native modules offer, and what they refuse."""

from typing import get_args

import numpy as np
import pytest

from ldpkernels import _native
from ldpkernels.laws.registry import KINDS, MECHANISMS, MechanismName
from ldpkernels.reference.registry import KERNELS

OUTPUTS = {
    **{k.kernel: ("values", "bits", "thresholds") for k in KINDS if k.reported == "bits"},
    "piecewise": ("values", "cells", "turns"),
    "hybrid": ("values", "cells"),
    "ordinal_cldp": ("values",),
}
KEY = np.zeros(2, np.uint32)


def launch(mechanism, output, law, laws=1, spans=None):
    spans = np.zeros(1, _native.SPAN) if spans is None else spans
    _native.launch(mechanism, output, spans, np.zeros(laws, _native.LAWS[law]), KEY, "", 1)


def test_the_registries_agree():
    assert get_args(MechanismName) == tuple(MECHANISMS) == tuple(kind.name for kind in KINDS)
    assert {kind.kernel for kind in KINDS} | {"ordinal_cldp"} == KERNELS.keys() == _native.LAWS.keys()


def test_every_mechanism_has_a_law_of_8_byte_fields():
    assert _native.LAWS.keys() == OUTPUTS.keys()
    for dtype in (_native.SPAN, *_native.LAWS.values()):
        assert dtype.itemsize == sum(dtype[name].itemsize for name in dtype.names)
        assert all(dtype[name].itemsize % 8 == 0 for name in dtype.names)


def test_every_output_is_there_and_no_other():
    every = sorted({output for outputs in OUTPUTS.values() for output in outputs})
    for mechanism, outputs in OUTPUTS.items():
        for output in every:
            if output in outputs:
                launch(mechanism, output, mechanism)
            else:
                with pytest.raises(ValueError, match=f"no kernel for '{mechanism}' and '{output}': there are "):
                    launch(mechanism, output, mechanism)
    with pytest.raises(
        ValueError, match=r"'two-point' and 'values': there are two_point values, .*ordinal_cldp values"
    ):
        launch("two-point", "values", "two_point")


def test_tables_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="laws have the dtype"):
        launch("two_point", "values", "hybrid")
    with pytest.raises(ValueError, match="spans have the dtype"):
        launch("two_point", "values", "two_point", spans=np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="spans are a table in one piece"):
        launch("two_point", "values", "two_point", 2, np.zeros(4, _native.SPAN)[::2])
    with pytest.raises(ValueError, match="one law for each span"):
        launch("two_point", "values", "two_point", laws=2)


def test_the_cuda_module_offers_what_it_runs():
    """All mechanisms; and not the turns of a circle, which are for looking at."""
    cuda = pytest.importorskip("ldpkernels._cuda")
    assert _native.LAWS.keys() == cuda.MECHANISMS
    laws = np.zeros(1, _native.LAWS["piecewise"])
    with pytest.raises(ValueError, match="no kernel for 'piecewise' and 'turns': there are two_point values, "):
        cuda.launch("piecewise", "turns", np.zeros(1, _native.SPAN), laws, 0, 2, 0, 0)
