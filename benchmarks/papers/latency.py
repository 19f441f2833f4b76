# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's parameter shuffling (Algorithm 3), simulated: `python -m benchmarks.papers.latency`.

Every weight of every client travels alone and is delayed by U(0, T). The paper takes it that the cloud cannot tell who
sent what. It can, to the degree that clients differ in speed and do not wait for each other exactly; `linked` measures
it. Nothing here is a privacy guarantee: random delays are no shuffler, whatever the measure says of one attack.
"""

from __future__ import annotations

import numpy as np

from benchmarks.results import table
from ldpkernels import key as key_of
from ldpkernels.common.arrays import Floats
from ldpkernels.common.keys import Key

CLIENTS, WEIGHTS, T = 100, 21_840, 60.0  # of MNIST's network, and the longest delay, in seconds
LATE = 0.05  # the deviation of the error of what clients predict, in parts of it


def random(key: Key) -> np.random.Generator:
    """Where times and delays come from. No secret depends on them but who sent what."""
    return np.random.Generator(np.random.Philox(key=key.words[0]))


def arrivals(predicted: Floats, late: Floats, T: float, key: Key, *, wait: bool, weights: int = WEIGHTS) -> Floats:
    """When each client's weights arrive [clients, weights].

    A client takes `predicted` to compute and send, and `late` more, for which nobody can wait. Where clients `wait`,
    each starts to send when the slowest would, by everybody's predictions (T_W of section 3.1).
    """
    start = np.full_like(predicted, predicted.max()) if wait else predicted
    return (start + late)[:, None] + random(key).uniform(0, T, (len(predicted), weights))


def linked(times: Floats) -> float:
    """How often the cloud pairs two weights of one client: of every position with position 0, by rank of arrival.

    Clients differ in when they start, so an early weight at one position belongs with an early one at another; pairing
    the k-th arrivals is the likeliest matching for delays that are alike for all. Guessing is right once in as many
    times as there are clients.
    """
    order = np.argsort(times, axis=0, kind="stable")
    return float((order[:, 1:] == order[:, :1]).mean())


def report(key: Key, clients: int = CLIENTS, weights: int = WEIGHTS) -> list[tuple[str, float, float]]:
    """What delays and waiting change: ways of sending, how much is linked, and when the last weight arrives.

    In the median a client computes for 60 s and sends for 2 s, log-normal with a deviation of .5.
    """
    draws = random(key.fold_in(0))
    predicted = sum(median * np.exp(0.5 * draws.standard_normal(clients)) for median in (60, 2))
    late = np.maximum(LATE * draws.standard_normal(clients), -0.9) * predicted
    ways = (
        ("whole models, no delay", late, 0.0, False),
        ("delays, nobody waits", late, T, False),
        ("delays, all wait by their predictions", late, T, True),
        ("delays, all wait, predictions exact", 0 * late, T, True),
    )
    rows = []
    for i, (name, error, longest, wait) in enumerate(ways):
        seen = arrivals(predicted, error, longest, key.fold_in(i + 1), wait=wait, weights=weights)
        rows.append((name, linked(seen), float(seen.max())))
    return rows


if __name__ == "__main__":
    found = [[name, f"{share:.2%}", f"{last:.0f} s"] for name, share, last in report(key_of(0))]
    print(table(["sending", "linked", "duration"], [*found, ["a guess", f"{1 / CLIENTS:.2%}", ""]]))
