# SPDX-License-Identifier: Apache-2.0
"""What `make bench` measures: a suite is a set of benchmarks with a table, a picture and targets of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks import pairs, pairs_family, test_clipped_noise, test_vectors
from benchmarks.results import Row, Target

Accepts = Callable[[Row], bool]


@dataclass(frozen=True)
class Suite:
    """Benchmarks that are reported together. Their extra_info names row, kind, elements and bytes."""

    name: str
    title: str
    files: tuple[str, ...]  # in this folder
    peers: dict[str, Accepts] = field(default_factory=dict)  # a column of ratios to the fastest accepted row of a group
    targets: Callable[[int, float], list[Target]] = lambda elements, patience: []
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
            ("test_two_point.py",),
            peers=named("torch eager, bernoulli", "torch.compile", "mul_", "read"),
            targets=pairs.targets,
            table_only=("bf16", "fp64", "each"),
        ),
        Suite(
            "family",
            "Piecewise, hybrid, ordinal CLDP and whole vectors",
            ("test_piecewise.py", "test_ordinal_cldp.py"),
            peers=named("two-point", "torch eager", "OpenDP, discrete", "diffprivlib", "NumPy"),
            targets=pairs_family.targets,
            table_only=("end",),
        ),
        Suite(
            "vectors",
            "Whole updates",
            ("test_vectors.py",),
            peers=named("torch eager", "NumPy", "perturb_", "copy"),
            targets=test_vectors.targets,
        ),
        Suite(
            "clipped",
            "Clipped and noised sums",
            ("test_clipped_noise.py",),
            peers=named("eager", "torch.compile", "Opacus", "floor"),
            targets=test_clipped_noise.targets,
        ),
    )
}
