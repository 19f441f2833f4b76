# SPDX-License-Identifier: Apache-2.0
"""How every picture of this package looks, and the one place that imports matplotlib."""

from __future__ import annotations

import os
from typing import Any


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes, drawn without a screen."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install 'ldpkernels[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained", dpi=130)
    axes = figure.subplots(rows, columns)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, lw=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def save(figure: Any, path: str) -> None:
    """Write the picture, with the folders that it needs."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    figure.savefig(path)
