# SPDX-License-Identifier: Apache-2.0
# The cells' integers are those of the fractions, in ranges of every size.
import random
from fractions import Fraction

import pytest

from ldpkernels.dtypes import DTYPES
from ldpkernels.laws import hybrid, piecewise_cells
from ldpkernels.laws.piecewise_circle import best_circle, circles_at
from ldpkernels.laws.two_point import checked_range
from tests import cells_fractions


def outcome(work, *arguments):
    try:
        return work(*arguments)
    except OverflowError as error:
        return str(error)


def ranges(rng, count):
    """Of ordinary sizes, of all sizes, and with zeros."""
    for i in range(count):
        scale = 10 ** rng.uniform(-4, 1) if i % 3 else 2.0 ** rng.uniform(-130, 120)
        c = 0.0 if i % 11 == 0 else rng.gauss(0, scale)
        yield c, 0.0 if i % 13 == 0 else abs(rng.gauss(0, scale)) * (1 if i % 5 else 1e-6)


@pytest.mark.parametrize("mixed", [False, True], ids=["piecewise", "hybrid"])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("eps", [0.7, 4.0])
def test_integers_are_the_fractions(eps, name, mixed):
    seen = 0
    for c, r in ranges(random.Random(f"{eps} {name} {mixed}"), 150):
        try:
            center, radius = checked_range(c, r, DTYPES[name])
        except OverflowError:
            continue
        arguments = center, radius, DTYPES[name]
        found = outcome(piecewise_cells.value_cells, *arguments, circles_at(eps, mixed))
        expected = outcome(
            cells_fractions.value_cells, *arguments, lambda cells: best_circle(eps, cells, mixed=mixed)
        )
        assert found == expected
        if mixed and not isinstance(found, str):
            assert hybrid._coin(found, radius, eps) == cells_fractions.coin_of(found, radius, eps)
        seen += isinstance(found, tuple) and isinstance(found.lowest, Fraction)
    assert seen > 40
