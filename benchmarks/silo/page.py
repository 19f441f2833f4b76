# SPDX-License-Identifier: Apache-2.0
"""The table and the picture of what was measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import machine, results
from ldpkernels.common import plot

COLORS = ("#777777", "#5d4e8c", "#c0392b", "#e08e45", "#1f6f8b", "#2e8b57")


def write(folder: Path, dataset: str, found: list[dict[str, Any]]) -> str:
    """The files, and the text of the table."""
    ways, epsilons = list(dict.fromkeys(one["way"] for one in found)), sorted({one["epsilon"] for one in found})
    runs = [sum((one["way"], one["epsilon"]) == (way, e) for one in found) for way in ways for e in epsilons]
    seeds = " to ".join(str(n) for n in sorted({min(runs), max(runs)}))
    said = f"Mean and 95% interval of it over {seeds} seeds; in brackets the honest epsilon of a patient, delta = 1e-5."
    lines = [f"# Patients of eight silos: {dataset}\n", f"![accuracy over epsilon]({dataset}.svg)\n", f"{said}\n"]
    lines += ["| test accuracy, % | " + " | ".join(f"ε = {e:g}" for e in epsilons) + " | seconds | MB |"]
    lines += ["|---|" + "---|" * len(epsilons) + "---:|---:|"]
    for way in ways:
        rows = [one for one in found if one["way"] == way]
        cells = [_cell([one for one in rows if one["epsilon"] == e]) for e in epsilons]
        spent, most = (float(np.median([one[name] for one in rows])) for name in ("seconds", "megabytes"))
        lines.append(f"| {way} | " + " | ".join(cells) + f" | {spent:.0f} | {most:.0f} |")
    lines.append("\nSeconds of one core and the process's peak memory: medians of the runs.\n")
    lines.append(results.facts_table(machine.describe()))
    text = "\n".join(lines)
    (folder / f"{dataset}.md").write_text(text + "\n")
    picture(folder / dataset, dataset, found, ways, epsilons)
    return text


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half of its 95% interval."""
    if len(values) < 2:
        return float(np.mean(values)), math.nan
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return float(np.mean(values)), float(half)


def _cell(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    middle, half = interval([100 * one["accuracy"] for one in rows])
    honest = max(one["honest"] for one in rows)
    around = "" if math.isnan(half) else f" ± {half:.1f}"
    return f"{middle:.1f}{around} ({'∞' if math.isinf(honest) else f'{honest:.2f}'})"


def picture(path: Path, dataset: str, found: list[dict[str, Any]], ways: list[str], epsilons: list[float]) -> None:
    """Accuracy over the honest epsilon of a patient, as SVG and PNG."""
    figure, (axis,) = plot.new_figure(1, 1, 8.4, 4.4)
    for i, (way, color) in enumerate(zip(ways, COLORS, strict=False)):
        rows = [[one for one in found if (one["way"], one["epsilon"]) == (way, e)] for e in epsilons]
        rows = [some for some in rows if some]
        x = np.array([max(one["honest"] for one in some) for some in rows])
        y, half = np.array([interval([100 * one["accuracy"] for one in some]) for some in rows]).T
        if np.isinf(x).all():
            axis.axhline(y.mean(), color=color, ls=":", label=way)
            continue
        spread = 1.04 ** (i - 3)  # beside each other
        style = {"capsize": 3, "lw": 1.6, "marker": "o", "ms": 4, "ls": "--" if "hand" in way else "-"}
        axis.errorbar(x * spread, y, yerr=np.nan_to_num(half), label=way, color=color, **style)
    axis.set_xscale("log")
    ticks = [*epsilons, 30, 100]
    axis.set_xticks(ticks, [f"{e:g}" for e in ticks])
    axis.minorticks_off()
    axis.set_xlabel("honest ε of a patient over all rounds, δ = 1e-5")
    axis.set_ylabel("test accuracy, %")
    asked = ", ".join(f"{e:g}" for e in epsilons)
    title = f"{dataset}: eight silos, patients with one to eight records; asked for ε = {asked}"
    axis.set_title(title, loc="left", fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for end in (".svg", ".png"):
        plot.save(figure, path.with_suffix(end))
