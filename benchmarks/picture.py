# SPDX-License-Identifier: Apache-2.0
"""The picture of a run: elements a second on a log axis, ours beside the peers and the floors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.results import Row, pretty
from benchmarks.suites import Suite
from ldpkernels.common import plot

COLORS = {"ours": "#1f6f8b", "peer": "#e08e45", "floor": "#b8bcc2"}
LABELS = {"ours": "ldpkernels", "peer": "others, the same work", "floor": "floors: the memory alone"}


def draw(path: Path, suite: Suite, facts: dict[str, str], rows: list[Row]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    groups = [g for g in dict.fromkeys(row.group for row in rows) if not g.endswith(suite.table_only)]
    if not groups:
        return
    members = {g: sorted((r for r in rows if r.group == g), key=lambda r: r.rate) for g in groups}
    heights = [len(members[g]) + 1.3 for g in groups]
    inches = 0.235 * sum(heights) + 1.5
    figure, panels = plt.subplots(
        len(groups),
        1,
        figsize=(9.5, inches),
        height_ratios=heights,
        sharex=True,
        layout="constrained",
        squeeze=False,
        dpi=150,
    )
    figure.get_layout_engine().set(rect=(0.005, 0, 0.99, 1 - 0.95 / inches), hspace=0.02)
    for axes, group in zip(panels[:, 0], groups, strict=True):
        bars(axes, group, members[group])
    drawn = [row.rate for group in groups for row in members[group]]
    axes = panels[-1, 0]
    axes.set_xlim(min(drawn) / 3, max(drawn) * 2.5)
    axes.xaxis.set_major_formatter(lambda value, _: pretty(value).strip())
    axes.set_xlabel("elements per second, log scale", fontsize=9)
    figure.text(
        0.01,
        1 - 0.1 / inches,
        f"{suite.title} on {'a GPU' if 'GPU' in facts else 'the CPU'}",
        va="top",
        fontsize=14,
        fontweight="bold",
    )
    where = f"{facts.get('GPU', facts['CPU'])}  ·  torch {facts['torch']}  ·  {facts['date']}"
    figure.text(0.01, 1 - 0.42 / inches, where, va="top", fontsize=8.5, color="#555555")
    handles = [Patch(color=COLORS[kind], label=LABELS[kind]) for kind in COLORS]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.0, 1 - 0.58 / inches),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        handlelength=1.2,
    )
    for suffix in (".png", ".svg"):
        plot.save(figure, path.with_suffix(suffix))
    plt.close(figure)


def bars(axes: Any, group: str, members: list[Row]) -> None:
    axes.barh(
        [row.name for row in members],
        [row.rate for row in members],
        color=[COLORS[row.kind] for row in members],
        height=0.74,
    )
    axes.set_xscale("log")
    axes.set_ylim(-0.6, len(members) - 0.4)
    axes.set_title(group, loc="left", fontsize=10, fontweight="bold", pad=4)
    axes.tick_params(axis="y", length=0, labelsize=8.5)
    axes.tick_params(axis="x", which="both", length=0, labelsize=8.5)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color("#999999")
    for position, row in enumerate(members):
        if math.isfinite(row.rate):
            axes.annotate(
                pretty(row.rate), (row.rate, position), (4, 0), textcoords="offset points", va="center", fontsize=8
            )
