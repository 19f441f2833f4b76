# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious twin of the hybrid kernel, written from docs/mechanisms/hybrid.md and from nothing else."""

from __future__ import annotations

import numpy as np

from ldpkernels.common.arrays import Laws, Spans, Words
from ldpkernels.reference.piecewise import piecewise_cell, run_span


def hybrid(output: str, spans: Spans, laws: Laws, key: Words) -> None:
    """The kernel's interface: "values" or "cells" for every span, in memory."""
    for span, law in zip(spans, laws, strict=True):
        run_span(output, span, law, law["piecewise"], key, hybrid_cell)


def hybrid_cell(k: int, draw: int, law: np.void) -> int:
    """Piecewise for the first draws, the coin's two cells for the others."""
    circle, last = law["piecewise"], int(law["last_draw"])
    if draw <= last:
        return piecewise_cell(k, draw, circle)
    raised = (k - int(circle["k_lo"])) * 2 ** int(law["coin_shift"])
    upper = int(law["coin_lowest"]) + raised * int(law["coin_scale"]) // 2**32
    return int(law["upper_cell"]) if draw - last - 1 < upper else int(law["lower_cell"])
