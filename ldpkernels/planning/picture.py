# SPDX-License-Identifier: Apache-2.0
"""Error over epsilon, for each candidate of each trust."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ldpkernels.common import plot
from ldpkernels.planning.plan import planned
from ldpkernels.planning.setting import Setting, Trust

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS: dict[Trust, str] = {
    "local": "#c0392b",
    "shuffled": "#e08e45",
    "secure-aggregation": "#1f6f8b",
    "central": "#5d4e8c",
}
MARKERS = "osD^v*Px<>hpdX"
SPAN = 4  # doublings of epsilon on either side
Curves = dict[tuple[Trust, str], list[tuple[float, float]]]


def curves(settings: Sequence[Setting], told: Callable[[str], object] = lambda _: None) -> Curves:
    """The noise to the signal of every candidate at totals around the settings' own: (epsilon, value) in its order."""
    found: Curves = {}
    for setting in settings:
        for doubling in range(-SPAN, SPAN + 1):
            epsilon = setting.epsilon * 2.0**doubling
            told(f"{setting.trust}, epsilon = {epsilon:g}")
            for one in planned(replace(setting, epsilon=epsilon)):
                found.setdefault((setting.trust, one.name), []).append((epsilon, one.noise_to_signal))
    return found


def draw(found: Curves, setting: Setting) -> Figure:
    """Logarithms on both axes."""
    figure, (axis,) = plot.new_figure(1, 1, 6.4, 6.4)
    names = sorted({name for _, name in found})
    for (trust, name), points in found.items():
        axis.plot(
            *zip(*points, strict=True),
            color=COLORS[trust],
            marker=MARKERS[names.index(name) % len(MARKERS)],
            ms=4.5,
            lw=1.3,
            label=f"{trust}: {name}",
        )
    values = [value for points in found.values() for _, value in points]
    axis.axvline(setting.epsilon, color="#bbbbbb", lw=1, label="the total that was asked for")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_ylim(min(values, default=0.5) / 2, max(values, default=2.0) * 2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel(f"total epsilon of a client (delta = {setting.delta:g})")
    axis.set_ylabel("error of a round's mean over an update's norm")
    axis.set_title(
        f"{setting.rounds:,} rounds, {setting.clients:,} clients, {setting.weights:,} weights", loc="left", fontsize=10
    )
    figure.legend(fontsize=9, frameon=False, loc="outside lower center", ncols=2)
    return figure
