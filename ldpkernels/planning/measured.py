# SPDX-License-Identifier: Apache-2.0
"""What models learnt under so much noise: measured.json, which benchmarks/budget/ratios.py makes of the results."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources


@dataclass(frozen=True)
class Measured:
    """One task's test accuracy at each noise to signal of all rounds together.

    Attributes:
        task: What was learnt.
        clean: The accuracy without noise.
        points: (ratio, accuracy, lowest and highest mean of a mechanism), the ratios rising.
    """

    task: str
    clean: float
    points: tuple[tuple[float, float, float, float], ...]

    def at(self, ratio: float) -> float | None:
        """The accuracy between the nearest ratios that were measured, in their logarithms; None beyond the last.

        >>> one = Measured("a task", 0.9, ((0.1, 0.9, 0.9, 0.9), (10.0, 0.5, 0.4, 0.6)))
        >>> round(one.at(1.0), 3), one.at(0.01), one.at(20.0)
        (0.7, 0.9, None)
        """
        if ratio <= self.points[0][0]:
            return self.points[0][1]
        for (low, first, *_), (high, second, *_) in zip(self.points, self.points[1:], strict=False):
            if ratio <= high:
                return first + (second - first) * math.log(ratio / low) / math.log(high / low)
        return None


@lru_cache(maxsize=1)
def tasks() -> tuple[Measured, ...]:
    """All tasks that were measured."""
    text = resources.files("ldpkernels.planning").joinpath("measured.json").read_text()
    return tuple(
        Measured(one["task"], one["clean"], tuple(tuple(point) for point in one["points"]))
        for one in json.loads(text)["tasks"]
    )


def said(ratio: float) -> str:
    """What was measured at such a ratio, in a sentence."""
    words = []
    for one in tasks():
        accuracy = one.at(ratio)
        reached = f"{accuracy:.0%}" if accuracy is not None else f"no more than {one.points[-1][1]:.0%}"
        words.append(f"{reached} ({one.clean:.0%} without noise) on {one.task}")
    return f"Under as much noise, after five rounds, a softmax regression reached {' and '.join(words)}."
