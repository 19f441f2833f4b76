# SPDX-License-Identifier: Apache-2.0
"""How the papers' figures look: at most six panels, each of at most four lines, which marks tell apart too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

Points = Sequence[tuple[float, Sequence[float]]]  # over x, the accuracies of the seeds
Line = tuple[str, Points]
Crosses = tuple[str, Sequence[tuple[float, float]], str]  # label, the paper's accuracies over x, color


MARKS = "os^D"
PRINTED = "x+1"  # of the paper's figures; those of adaptive ranges have the second


@dataclass(frozen=True)
class Panel:
    """Accuracies over x: means of the seeds with one deviation, and the paper's figures as crosses.

    A value that leaves the axes has an arrow with its figure. `flat` goes on from a line's only run to the right, as
    nothing changes there.
    """

    title: str
    xlabel: str
    ylim: tuple[float, float]
    lines: Sequence[Line] = ()
    crosses: Sequence[Crosses] = ()
    log: bool = False
    ticks: Sequence[float] = ()
    level: tuple[float, str] | None = None  # of every x, in percent
    flat: bool = False
    legend: str | tuple[float, float] = "best"

    def draw(self, axis: Any) -> None:
        """Draw it."""
        assert len(self.lines) <= len(MARKS), self.title
        assert len(self.crosses) <= len(PRINTED), self.title
        axis.set(title=self.title, xlabel=self.xlabel, ylim=self.ylim, xscale="log" if self.log else "linear")
        for i, (label, points) in enumerate(self.lines):
            rows = [(x, 100 * fmean(v), 100 * stdev(v) if len(v) > 1 else 0.0) for x, v in sorted(points) if v]
            if not rows:
                continue
            plain = label.startswith("no noise")
            style: dict[str, Any] = {"color": "0.5", "ls": "--"} if plain else {"color": f"C{i}"}
            every = -(-len(rows) // 10)
            style |= {"marker": MARKS[i], "markevery": every, "errorevery": every}
            axis.errorbar(*zip(*rows, strict=True), label=label, ms=4, capsize=2, lw=1.2, **style)
            if self.flat and len(rows) == 1:
                axis.axhline(rows[0][1], color=style["color"], lw=0.8, ls=":")
            self.arrows(axis, [(x, y) for x, y, _ in rows], style["color"])
        for mark, (label, printed, color) in zip(PRINTED, self.crosses, strict=False):
            found = [(x, 100 * y) for x, y in printed]
            mark = PRINTED[1] if label.endswith("adaptive") else mark
            axis.plot(*zip(*found, strict=True), mark, color=color, label=label, zorder=5, ms=8)
            self.arrows(axis, found, color, "<" if "below" in label else "")
        if self.level is not None:
            axis.axhline(self.level[0], color="0", lw=0.9, ls=":", label=self.level[1])
        if self.ticks:
            axis.set_xticks(self.ticks, [f"{x:g}" for x in self.ticks])
            axis.minorticks_off()
        axis.set_ylabel("test accuracy (%)")
        axis.title.set_fontsize(10)
        axis.legend(framealpha=0.5, edgecolor="none", fontsize=8, loc=self.legend)

    def xs(self) -> set[float]:
        """Where something was run."""
        return {x for _, points in self.lines for x, values in points if values}

    def arrows(self, axis: Any, found: Sequence[tuple[float, float]], color: str, sign: str = "") -> None:
        """Say where a value is that lies below the axes."""
        low, high = self.ylim
        for x, y in found:
            if y < low:
                place = {"xy": (x, low), "xytext": (x, low + 0.14 * (high - low))}
                arrow = {"arrowstyle": "->", "color": color}
                axis.annotate(f"{sign}{y:.0f}", **place, arrowprops=arrow, color=color, ha="center", fontsize=8)
                axis.plot([x, x], [low, low + 0.18 * (high - low)], alpha=0)  # so that no legend lies on it


def save(panels: Sequence[Panel], path: Path) -> None:
    """The panels that have more than one x as one picture, PNG and SVG, of the path's stem; none of no such panel."""
    from ldpkernels.common import plot

    panels = [panel for panel in panels if panel.flat or len(panel.xs()) > 1]
    if not panels:
        return
    assert len(panels) <= 6, path
    rows = -(-len(panels) // 2)  # three columns could not be read on a phone
    figure, axes = plot.new_figure(rows, 2, width=8.0, height=3.4 * rows)
    for axis, panel in zip(axes, panels, strict=False):
        panel.draw(axis)
    for axis in axes[len(panels) :]:
        axis.remove()
    for suffix in (".png", ".svg"):
        plot.save(figure, path.with_suffix(suffix))
