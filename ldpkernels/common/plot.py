# SPDX-License-Identifier: Apache-2.0
"""How every picture of this package looks, and the one place that imports matplotlib."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ldpkernels.common.optional import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row after row, drawn without a screen."""
    figure: Figure = _figure_module().Figure(figsize=(width, height), layout="constrained", dpi=130)
    figure.subplots(rows, columns)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, lw=0.6)
        axis.set_axisbelow(True)
    return figure, figure.axes


def save(figure: Figure, path: str | Path) -> None:
    """Write the picture, with the folders that it needs: an SVG with its text as text, and no date or random names."""
    make_folder(Path(path).absolute().parent)
    fixed = {"svg.fonttype": "none", "svg.hashsalt": "ldpkernels"}
    with require("matplotlib", "plot", "a picture").rc_context(fixed):
        figure.savefig(path, metadata={"Date": None} if Path(path).suffix.lower() == ".svg" else None)


def make_folder(folder: Path) -> None:
    """Make the folder where there is none, and say so: a mistyped path shows at once."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        print(f"made the folder {folder}", file=sys.stderr)


def check_format(path: str | Path) -> None:
    """Whether `save` could write such a file: a ValueError names the formats, an ImportError what to install."""
    known = sorted(_figure_module().Figure().canvas.get_supported_filetypes())
    if Path(path).suffix[1:].lower() not in known:
        raise ValueError(f"{str(path)!r} is not a picture: end its name in one of {', '.join(known)}")


def _figure_module() -> ModuleType:
    return require("matplotlib.figure", "plot", "a picture")
