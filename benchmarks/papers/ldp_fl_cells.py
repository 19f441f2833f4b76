# SPDX-License-Identifier: Apache-2.0
"""The cells of LDP-FL's tables by what they ran, and the paper's figures beside them."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.papers.common import Cell
from benchmarks.papers.ldp_fl_setting import Setting

# The paper's figures, whichever way its uploads are read: those of its text (and figure 5), and those of Table 1. For
# CIFAR-10 at eps = 10 it has both, and they differ.
HEADLINES = {("mnist", 1.0): 0.9624, ("fashion-mnist", 4.0): 0.8626, ("cifar10", 10.0): 0.6146}
TABLE_1 = {
    ("mnist", 5.0, "fixed"): 0.9634,
    ("mnist", 5.0, "adaptive"): 0.9606,
    ("mnist", 10.0, "fixed"): 0.9639,
    ("mnist", 10.0, "adaptive"): 0.9611,
    ("fashion-mnist", 5.0, "fixed"): 0.8595,
    ("fashion-mnist", 5.0, "adaptive"): 0.8754,
    ("fashion-mnist", 10.0, "fixed"): 0.8610,
    ("fashion-mnist", 10.0, "adaptive"): 0.8757,
    ("cifar10", 5.0, "fixed"): 0.1354,
    ("cifar10", 5.0, "adaptive"): 0.5889,
    ("cifar10", 10.0, "fixed"): 0.1428,
    ("cifar10", 10.0, "adaptive"): 0.6037,
}
OTHERS = "other "  # what the cells of other methods are called (ldp_fl_others)
NETWORK_NAMES = {
    "small-vgg-normalised": "small VGG",
    "wide-cnn": "wide",
    "wide-cnn-mirrored": "wide, mirrored images",
}
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
Kept = dict[Setting, list[Cell]]  # of a setting with seed 0, one cell for each seed that was run


def kept_of(cells: dict[str, Cell]) -> Kept:
    """The cells by what they ran, in the order of their seeds."""
    kept: Kept = {}
    own = {name: cell for name, cell in cells.items() if not name.startswith(OTHERS)}
    for name, cell in sorted(own.items(), key=lambda pair: pair[1]["seed"]):
        kept.setdefault(replace(Setting.of(name), seed=0), []).append(cell)
    return kept


def finals(kept: Kept, s: Setting) -> list[float]:
    """The accuracy after the last round, of each seed."""
    return [cell["accuracy"][-1] for cell in kept.get(replace(s, seed=0), [])]
