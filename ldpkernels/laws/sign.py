# SPDX-License-Identifier: Apache-2.0
"""Randomised response on the side of the center that a weight lies on: a claim, and the integers that execute it.

It is the two-point mechanism of c + r * sign(w - c), and its proof is that mechanism's. The derivation is in
docs/mechanisms/sign.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ldpkernels.common.dtypes import Dtype, DtypeLike, compute_dtype, nearest
from ldpkernels.laws.two_point import Integers, TwoPoint, two_point_integers
from ldpkernels.laws.weightwise import DRAWS, Output, Record, Weights


@dataclass(frozen=True)
class Sign(TwoPoint):
    """Unbiased for c + r * sign(w - c), and not for w: it reports the side of a weight, and nothing else of its size.

    eps is between any two values of a weight, against the server.

    >>> mechanism = Sign(1.0)
    >>> 0.25 + mechanism.bias(0.25, c=0.0, r=1.0)
    1.0
    """

    name: ClassVar[str] = "sign"
    kernel: ClassVar[str] = "sign"

    @classmethod
    def report_variances(cls, eps: float) -> None:
        """None: the other mechanisms' variances are those of estimates of the weight, and this is no estimate of it."""

    def record(self, c: float, r: float, dtype: Dtype, output: Output) -> Record:
        """The fields of csrc's SignLaw: the two-point thresholds of the range's ends and of its center."""
        law = two_point_integers(c, r, self.eps, dtype, output)
        _, _, center, k_lo, k_hi, *bits = law.record
        steep, at = 2.0 ** compute_dtype(dtype).max_exponent, _threshold_at(law)
        return center, steep, at, k_lo - at, k_hi - at, *bits

    def variance(self, w: Weights, c: float, r: float, dtype: DtypeLike | None = None) -> Weights:
        """Variance of the output for a weight w (a number, an array or a tensor)."""
        return super().variance(c + r * side_of(w, c), c, r, dtype)

    def bias(self, w: Weights, c: float, r: float) -> Weights:
        """Expected output minus w: the distance from w to the end of the range on its side."""
        return c + r * side_of(w, c) - w


def side_of(w: Weights, c: float) -> Weights:
    """The sign of w - c."""
    if isinstance(w, (int, float)):
        return float(np.sign(w - c))
    return np.sign(w - c) if isinstance(w, (np.ndarray, np.generic)) else (w - c).sign()


def _threshold_at(law: Integers) -> int:
    """The k with which the outputs are the center on average, which is the law's `fallback`."""
    _, _, center, k_lo, k_hi, _, _ = law.record
    n, d = center.as_integer_ratio()
    above = 2 * n * law.denominator - d * (law.low + law.high)  # of the outputs' middle
    width = law.high - law.low
    return min(max(nearest(DRAWS * above, 2 * d * width), k_lo), k_hi) if width else 0
