# SPDX-License-Identifier: Apache-2.0
"""The answers of `plan` that docs/explore.md shows: one for each position of its sliders. `make docs` calls this."""

from __future__ import annotations

import itertools
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ldpkernels.planning import TRUSTS, Setting
from ldpkernels.planning.plan import planned

# What the sliders stop at, from the left to the right.
AXES: dict[str, tuple[float, ...]] = {
    "epsilon": (0.5, 1, 2, 4, 8, 16),
    "clients": (100, 1_000, 10_000),
    "weights": (1_000, 30_000, 1_000_000),
    "rounds": (1, 10, 100),
}
NORM = 1.0


def answer(epsilon: float, clients: int, weights: int, rounds: int) -> list[dict[str, object]]:
    """The best call of each trust, in the order of trusts."""
    plans = [planned(Setting(epsilon, 1e-5, rounds, clients, weights, trust, norm=NORM)) for trust in TRUSTS]
    return [
        {
            "name": found[0].name,
            "run": float(f"{found[0].noise_to_signal_of_run:.4g}"),
            "bytes": found[0].bytes,
            "call": found[0].call,
            "verdict": found.verdict,
        }
        for found in plans
    ]


def answers(axes: dict[str, tuple[float, ...]]) -> dict[str, object]:
    """All answers, the last axis changing first."""
    with ProcessPoolExecutor() as workers:
        found = list(workers.map(answer, *zip(*itertools.product(*axes.values()), strict=True)))
    return {"axes": axes, "trusts": TRUSTS, "norm": NORM, "answers": found}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(answers(AXES), separators=(",", ":")))
