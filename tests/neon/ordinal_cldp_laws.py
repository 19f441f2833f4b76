# SPDX-License-Identifier: Apache-2.0
"""Writes the laws of ordinal CLDP under which tests/neon compares, one csrc OrdinalCldpLaw after another: FILE."""

import sys
from itertools import product
from pathlib import Path

import numpy as np

from ldpkernels import _native
from ldpkernels.laws.ordinal_cldp_thresholds import law_row

# alpha, M, laplace's reach, integers a unit of weight.
BOXES = (
    (1e-3, 10**4, 2**40, 1e4),
    (0.05, 10**4, 2**40, 1e4),
    (1.0, 10**4, 2**40, 1e4),  # no low digits and no middle ones
    (6.0, 10**4, 2**40, 1e4),  # upper tables of 5 and 3 values: many attempts
    (1e-8, 10**4, 2**62, 1e4),  # exponential: the tables reach all of the box; laplace: low digits of another draw
    (3e-3, 9000, 9050, 9e3),  # laplace: most steps out of the box end at the reach
    (1e-13, 2**52, 2**62, 4e15),  # integers that no sum with 1.5 * 2^52 rounds
)


def main() -> None:
    """Every box, mechanism and rounding, to the file that is named."""
    rows = [
        law_row(alpha, m, mechanism, reach=reach, scale=scale, rounding=rounding)
        for (alpha, m, reach, scale), mechanism, rounding in product(
            BOXES, ("exponential", "laplace"), ("nearest", "stochastic")
        )
    ]
    Path(sys.argv[1]).write_bytes(np.array(rows, dtype=_native.LAWS["ordinal_cldp"]).tobytes())


if __name__ == "__main__":
    main()
