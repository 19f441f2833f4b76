# SPDX-License-Identifier: Apache-2.0
"""What no epsilon excuses: a part without randomness that differs, noise that repeats.

A bound from n runs proves an epsilon of log(n) or so, and clients often claim more. These findings do not depend on it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ldpkernels.audit.measure import clopper_pearson
from ldpkernels.audit.observed import Field
from ldpkernels.audit.runs import Draws

WORDS = ("the first input", "the second")


def certain(fields: Mapping[str, Draws], epsilon: float, delta: float, alpha: float) -> tuple[list[str], list[str]]:
    """Parts that are always the same under one input and always another thing under the other.

    One number may be so by chance where much is claimed: a randomised response lies with probability
    1 / (1 + e^epsilon). Those that may are the second list.
    """
    leaks: list[str] = []
    doubts: list[str] = []
    for path, draws in fields.items():
        first, second = ([f for f in runs if f] for runs in draws)
        runs = len(draws[0])
        if len(first) < runs or len(second) < runs:
            continue  # it was not always there, which the form says
        where = f"under {WORDS[0]} and always {{}} under {WORDS[1]}, in {runs} runs each"
        if first[0].is_array and first[0].numbers.size > 1:
            if count := _bare(first, second):
                leaks.append(
                    f"{count} of {first[0].numbers.size} numbers of {path} are never perturbed: each is always one "
                    "number " + where.format("another")
                )
            continue
        a, b = ({f.digest for f in one} for one in (first, second))
        if len(a) == len(b) == 1 and a != b:
            x, y = _differing(first[0].text, second[0].text)
            words = f"{path} is always {x} {where.format(y)}"
            by_chance = 2 * runs * math.log1p((delta - 1) / (1 + math.exp(min(epsilon, 700.0))))
            if first[0].numbers.size == 1 and by_chance > math.log(alpha):
                doubts.append(f"{words}: it is a leak, unless it has an epsilon of its own that explains it")
            else:
                leaks.append(f"{words}: nothing random is in it")
    return leaks, doubts


def _bare(first: Sequence[Field], second: Sequence[Field]) -> int:
    """Numbers that never vary under either input, differ, and are none that the others take.

    The outputs of a mechanism with few of them, at a large eps, may never vary either: but they are others' outputs.
    """
    if len({f.numbers.size for f in (*first, *second)}) > 1:
        return 0
    a, b = (np.array([f.numbers for f in runs]) for runs in (first, second))
    fixed = (a == a[0]).all(axis=0) & (b == b[0]).all(axis=0) & (a[0] != b[0])
    if not fixed.any():
        return 0
    taken = Counter(a[0].tolist()) + Counter(b[0].tolist())
    others = set(np.unique(np.concatenate([a[:, ~fixed].ravel(), b[:, ~fixed].ravel()])).tolist())
    alone = [taken[x] == 1 and x not in others for x in (*a[0].tolist(), *b[0].tolist())]
    return int(np.count_nonzero(fixed & np.array(alone).reshape(2, -1).any(axis=0)))


def repeated(reports: Draws, fields: Mapping[str, Draws], alpha: float) -> Iterator[str]:
    """Noise that comes again: oftener than the mechanism's law allows, or in runs that follow each other.

    Args:
        reports: All reports of a run as one field.
        fields: What may not come again soon after.
        alpha: The probability that one of these sentences is wrong.
    """
    runs = len(reports[0])
    everything = [f for draws in reports for f in draws if f]
    bits = min((f.bits for f in everything), default=0.0)
    repeats = len(everything) - len({f.digest for f in everything})
    if repeats and 2 * math.log2(len(everything)) - bits < math.log2(alpha):
        yield (
            f"{repeats} of {2 * runs} runs gave reports that another run had given, which fresh noise does once in "
            f"2^{bits - 2 * math.log2(len(everything)):.0f} such audits: the noise repeats"
        )
        return
    for path, (draws, words) in itertools.product(fields, enumerate(WORDS)):
        found = fields[path][draws]
        if any(f is None or f.numbers.size < 2 for f in found):
            continue
        digests = [f.digest for f in found if f]
        pairs = runs // 2
        near = sum(digests[2 * i] == digests[2 * i + 1] for i in range(pairs))
        far = sum(digests[i] == digests[i + pairs] for i in range(pairs))
        share = alpha / (4 * len(fields))
        if clopper_pearson(near, pairs, share)[0] > clopper_pearson(far, pairs, share)[1]:
            yield (
                f"of {pairs} pairs of runs that follow each other under {words}, {near} gave the same {path}, and of "
                f"pairs far apart {far}: the noise repeats, as if its seed were a time"
            )


def _differing(first: str, second: str) -> tuple[str, str]:
    """Of two forms, the parts in which they differ."""
    a, b = first.split("; "), second.split("; ")
    only = "; ".join(x for x in a if x not in b), "; ".join(x for x in b if x not in a)
    return only[0] or "less", only[1] or "less"
