# SPDX-License-Identifier: Apache-2.0
# The cells of values in ranges of every size: what they must satisfy, in exact rationals. That laws stay as they are.
import hashlib
import math
import random
from fractions import Fraction

import pytest

from ldpkernels import Hybrid, Piecewise
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.laws.registry import KINDS, law_table
from ldpkernels.laws.two_point import checked_range
from tests.laws import within_exp
from tests.test_piecewise_law import bias_bound, exact_mean_and_variance


def ranges(rng, count):
    """Of ordinary sizes, of all sizes, and with zeros."""
    for i in range(count):
        scale = 10 ** rng.uniform(-4, 1) if i % 3 else 2.0 ** rng.uniform(-130, 120)
        c = 0.0 if i % 11 == 0 else rng.gauss(0, scale)
        yield c, 0.0 if i % 13 == 0 else abs(rng.gauss(0, scale)) * (1 if i % 5 else 1e-6)


@pytest.mark.parametrize("kind", [Piecewise, Hybrid])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("eps", [0.7, 4.0])
def test_cells_of_any_range_are_private_unbiased_and_numbers_of_the_dtype(eps, name, kind):
    """Both ends of the range decode to themselves on average, and the center; no turn leaves the circle."""
    seen, dtype = 0, DTYPES[name]
    for c, r in ranges(random.Random(f"{eps} {name} {kind.name}"), 60):
        try:
            center, radius = checked_range(c, r, dtype)
            cells = kind(eps).cells(c, r, dtype, "values")
        except OverflowError:
            continue
        assert within_exp(cells.ratio(), eps)
        assert 0 <= cells.origin + cells.k_lo <= cells.origin + cells.k_hi <= cells.circle.turn
        last = cells.circle.cells - 1
        assert all(dtype.holds(cells.lowest + cells.step * y) for y in (0, 1, last // 2, last))
        if cells.step:
            slack = bias_bound(cells) + radius * Fraction(1, 2**20)
            for turn, w in ((cells.k_lo, center - radius), (0, center), (cells.k_hi, center + radius)):
                assert abs(exact_mean_and_variance(cells, cells.origin + turn)[0] - w) <= slack, (c, r)
        else:
            assert (cells.lowest, radius) == (center, 0)
        seen += 1
    assert seen > 20


def test_laws_are_what_they_were():
    """A report is decoded by its law: another law for a range would be another version of the format."""
    rng, digest = random.Random(7), hashlib.sha256()
    for i in range(1000):
        mechanism, dtype, unit = (
            KINDS[i % 4](rng.choice([0.7, 4.0])),
            rng.choice(list(DTYPES.values())),
            rng.randint(-30, 0),
        )
        c, r = (math.ldexp(rng.randint(0, 2**24), unit + rng.randint(-9, 9)) for _ in range(2))
        for output in ("values", "report"):
            try:
                digest.update(law_table(mechanism, [c], [r], [dtype], output).tobytes())
            except OverflowError as error:
                digest.update(str(error).encode())
    assert digest.hexdigest() == "a1ad1c7aff847f82fdce167a09875c80c345dc1fc53791dcdfd4226b757a6a7f"
