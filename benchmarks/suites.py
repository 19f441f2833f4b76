# SPDX-License-Identifier: Apache-2.0
"""What `make bench` measures: a suite is a set of benchmarks with a table, a picture and targets of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks import suite_clipped, suite_family, suite_two_point, suite_vectors
from benchmarks.pairs import Pairs
from benchmarks.results import Case, Row

Accepts = Callable[[Row], bool]


@dataclass(frozen=True)
class Suite:
    """Cases that are reported together, and the ratios that are promised of them."""

    name: str
    title: str
    cases: Callable[[int], Iterable[Case]]  # by the weights of the large tensor
    targets: Callable[[Pairs, int], None]
    peers: dict[str, Accepts] = field(default_factory=dict)  # a column of ratios to the fastest accepted row of a group
    table_only: tuple[str, ...] = ()  # ends of groups that the picture leaves out


def named(*starts: str) -> dict[str, Accepts]:
    """Peers by how their rows' names begin."""
    return {start: lambda row, start=start: row.name.startswith(start) for start in starts}


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "two-point",
            "The two-point mechanism",
            suite_two_point.cases,
            suite_two_point.targets,
            peers=named("torch eager, bernoulli", "torch.compile", "mul_", "read"),
            table_only=("bf16", "fp64", "each"),
        ),
        Suite(
            "family",
            "Piecewise, hybrid, ordinal CLDP and whole vectors",
            suite_family.cases,
            suite_family.targets,
            peers=named("two-point", "torch eager", "OpenDP, discrete", "diffprivlib", "NumPy"),
            table_only=("end",),
        ),
        Suite(
            "vectors",
            "Whole updates",
            suite_vectors.cases,
            suite_vectors.targets,
            peers=named("torch eager", "NumPy", "perturb_", "copy"),
        ),
        Suite(
            "clipped",
            "Clipped and noised sums",
            suite_clipped.cases,
            suite_clipped.targets,
            peers=named("eager", "torch.compile", "Opacus", "floor"),
        ),
    )
}
