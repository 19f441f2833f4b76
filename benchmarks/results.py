# SPDX-License-Identifier: Apache-2.0
"""Measured rows and targets, and their tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", re.S)


Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One way of doing one task, before it is timed: `make` gives the call when its turn comes."""

    group: str
    row: str
    kind: str  # "ours", "peer" or "floor"
    make: Callable[[], Work]
    elements: float
    bytes: float
    backend: str = ""  # forced while it runs
    threads: int = 0  # of torch, while it runs; as they are
    memory: bool = False  # also the most that the process takes during a call


@dataclass
class Row:
    """One way of doing one task. `sweeps` has the least time of each sweep, in seconds; `peak` the bytes of memory that
    a call takes beyond its input, where that is measured."""

    group: str
    name: str
    kind: str  # "ours", "peer" or "floor"
    elements: float
    bytes: float
    sweeps: list[float] = field(default_factory=list)
    peak: float | None = None

    @property
    def seconds(self) -> float:
        return min(self.sweeps)

    @property
    def rate(self) -> float:
        return self.elements / self.seconds

    @property
    def bandwidth(self) -> float:
        return self.bytes / self.seconds


@dataclass(frozen=True)
class Target:
    """Something that a ratio should reach. `low` and `high` say how far it varied, and `note` how it was measured."""

    text: str
    goal: float
    ratio: float
    low: float
    high: float
    note: str = ""

    @property
    def verdict(self) -> str:
        return "met" if self.ratio >= self.goal else "missed"


def pretty(value: float, unit: str = "") -> str:
    """Three significant digits with an SI prefix.

    >>> pretty(3.832e9), pretty(29034, "B")
    ('3.83 G', '29 kB')
    """
    for power, prefix in zip(range(12, -12, -3), ("T", "G", "M", "k", "", "m", "µ", "n"), strict=True):
        factor = 10.0**power
        if value >= 0.9995 * factor:
            return f"{float(f'{value / factor:.3g}'):g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = True) -> str:
    """A Markdown table, aligned to be read as text too: the first column left, the others right if they are numbers."""
    lines = [list(header), *map(list, rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(header))]
    right = [numbers and i > 0 for i in range(len(header))]
    rule = ["-" * (width - 1) + (":" if r else "-") for width, r in zip(widths, right, strict=True)]
    lines.insert(1, rule)
    padded = [[c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)] for line in lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def filled(text: str, tables: dict[str, str]) -> str:
    """A page with new tables between its marks, each of which has a table, as each table has a mark."""
    marks = [name for _, name, _ in MARKED.findall(text)]
    if sorted(marks) != sorted(tables):
        raise ValueError(f"the page has marks for {sorted(marks)}, and there are tables for {sorted(tables)}")
    return MARKED.sub(lambda mark: f"{mark[1]}\n{tables[mark[2]]}\n\n{mark[3]}", text)


def group_tables(rows: Sequence[Row], peers: dict[str, Callable[[Row], bool]]) -> str:
    """A table for each group; a column of ratios for each of `peers`, the fastest row of the group that it accepts."""
    parts = []
    for group in dict.fromkeys(row.group for row in rows):
        members = [row for row in rows if row.group == group]
        columns = {name: [m for m in members if accepts(m)] for name, accepts in peers.items()}
        best = {name: max(found, key=lambda m: m.rate) for name, found in columns.items() if found}
        no_peak = all(m.peak is None for m in members)
        body = [
            [m.name, pretty(m.seconds, "s"), pretty(m.rate), pretty(m.bandwidth, "B"), spread(m)]
            + ([] if no_peak else ["" if m.peak is None else pretty(m.peak, "B")])
            + [f"{m.rate / other.rate:.3g}" for other in best.values()]
            for m in sorted(members, key=lambda m: -m.rate)
        ]
        memory = [] if no_peak else ["memory"]
        header = ["", "time", "elements/s", "bytes/s", "spread", *memory, *(f"× {name}" for name in best)]
        parts.append(f"### {group}\n\n{table(header, body)}")
    return "\n\n".join(parts)


def spread(row: Row) -> str:
    """How much slower the slowest sweep was than the fastest."""
    return f"{100 * (max(row.sweeps) / row.seconds - 1):.0f}%"


def target_table(targets: Sequence[Target]) -> str:
    body = [
        [t.text, f"{t.goal:g}", f"{t.ratio:.3g}", f"{t.low:.3g} to {t.high:.3g}", t.verdict, t.note] for t in targets
    ]
    return table(["target", "goal", "measured", "varied", "", ""], body)


def facts_table(facts: dict[str, str]) -> str:
    return table(["", "where and when"], [[name, value] for name, value in facts.items()], numbers=False)


def write_json(
    path: Path, facts: dict[str, str], rows: Sequence[Row], targets: Sequence[Target], **more: object
) -> None:
    content = {
        "machine": facts,
        "targets": [asdict(t) for t in targets],
        "rows": [asdict(row) for row in rows],
        **more,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
