# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious twin of the sign kernel, written from docs/mechanisms/sign.md and from nothing else."""

from __future__ import annotations

from functools import partial

import numpy as np

from ldpkernels.common.arrays import Array, Integers
from ldpkernels.reference.two_point import one_bit


def thresholds(x: Array, law: np.void) -> Integers:
    """One of three integers for each weight; a NaN is on neither side."""
    center = x.dtype.type(law["center"])
    k: Integers = law["at"] + np.where(x > center, law["above"], np.where(x < center, law["below"], 0))
    return k


sign = partial(one_bit, thresholds)
