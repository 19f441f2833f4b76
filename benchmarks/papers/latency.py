# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's parameter shuffling (Algorithm 3) as a discrete-event simulation: what the cloud sees, and can link.

Every weight of every client travels alone and is delayed by U(0, T). The paper takes it that the cloud cannot tell who
sent what. It can, to the degree that clients differ in speed and do not wait for each other exactly; `linkage` measures
it. Nothing here is a privacy guarantee: random delays are no shuffler, whatever the measure says of one attack.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ldpkernels import key as key_of
from ldpkernels.common.arrays import Floats, Integers
from ldpkernels.common.keys import Key


@dataclass(frozen=True)
class Timing:
    """One client's times of a round, in seconds.

    Args:
        computing: Local computing, t_LC, as the client predicts it.
        sending: Communication, t_C, as predicted.
        late: By how much the truth exceeds the two predictions: nobody can wait for what nobody foresaw.
    """

    computing: float
    sending: float
    late: float = 0.0

    def __post_init__(self) -> None:
        if not (self.computing >= 0 and self.sending >= 0 and self.computing + self.sending + self.late >= 0):
            raise ValueError(f"{self} has a time below 0")


@dataclass(frozen=True)
class Arrivals:
    """The events of a round in the order in which they reach the cloud.

    `time` and `position` are what the cloud sees of each weight (its value apart); `client` is the truth.
    """

    time: Floats
    position: Integers
    client: Integers

    @property
    def duration(self) -> float:
        """When the last weight arrives."""
        return float(self.time[-1])


def agreed_latency(proposals: Sequence[float]) -> float:
    """T: the median of what the clients propose, which no single client can move far.

    >>> agreed_latency([2.0, 3.0, 1e9])
    3.0
    """
    if not proposals or not all(math.isfinite(t) and t >= 0 for t in proposals):
        raise ValueError(f"proposals={list(proposals)!r} must be one finite time of at least 0 from each client")
    return float(statistics.median(proposals))


def waits(timings: Sequence[Timing]) -> list[float]:
    """T_W of each client: what it waits for the slowest, by everybody's predictions.

    >>> waits([Timing(1.0, 0.5), Timing(3.0, 0.5)])
    [2.0, 0.0]
    """
    slowest = max(t.computing + t.sending for t in timings)
    return [slowest - (t.computing + t.sending) for t in timings]


def simulate(timings: Sequence[Timing], weights: int, T: float, key: Key, *, wait: bool = True) -> Arrivals:
    """A round: client i sends weight j at its t_LC + T_W + U(0, T), and it arrives t_C later.

    Args:
        timings: One for each client.
        weights: How many weights a model has.
        T: The agreed latency; 0 sends a model at once.
        key: Where the delays come from. (No secret depends on them but who sent what.)
        wait: Whether fast clients wait for the slowest.

    >>> import ldpkernels
    >>> seen = simulate([Timing(1.0, 0.0), Timing(5.0, 0.0)], weights=3, T=1.0, key=ldpkernels.key(0), wait=False)
    >>> seen.client.tolist()
    [0, 0, 0, 1, 1, 1]
    """
    if not timings or weights < 1 or not T >= 0:
        raise ValueError(
            f"{len(timings)} clients, weights={weights}, T={T}: at least one client and weight, and T >= 0"
        )
    start = np.array([t.computing + t.sending + t.late for t in timings])
    if wait:
        start = start + np.array(waits(timings))
    delays = np.random.Generator(np.random.Philox(key=key.words[0])).uniform(0, T, (len(timings), weights))
    time = (start[:, None] + delays).ravel()
    order = np.argsort(time, kind="stable")
    client, position = np.divmod(order, weights)
    return Arrivals(time[order], position, client)


def linkage(seen: Arrivals) -> float:
    """How often the cloud pairs two weights of one client: of every position with position 0, by rank of arrival.

    Clients differ in when they start, so an early weight at one position belongs with an early one at another; pairing
    the k-th arrivals is the likeliest matching for delays that are alike for all. Guessing is right once in as many
    times as there are clients.

    >>> import ldpkernels
    >>> timings = [Timing(float(i), 0.0) for i in range(50)]
    >>> linkage(simulate(timings, weights=20, T=0.0, key=ldpkernels.key(0), wait=False))
    1.0
    """
    by_position = np.argsort(seen.position, kind="stable")  # within a position, still in order of arrival
    clients = seen.client[by_position].reshape(-1, len(np.unique(seen.client)))
    if len(clients) < 2:
        raise ValueError("linkage needs at least two positions")
    return float((clients[1:] == clients[0]).mean())


def typical_timings(clients: int, key: Key, *, spread: float = 0.5, error: float = 0.05) -> list[Timing]:
    """Clients of different speed: 60 s of computing and 2 s of sending in the median, log-normal with this spread.

    `error` is the standard deviation of the relative error of the predictions.
    """
    random = np.random.Generator(np.random.Philox(key=key.words[0]))
    computing = 60 * np.exp(spread * random.standard_normal(clients))
    sending = 2 * np.exp(spread * random.standard_normal(clients))
    off = np.maximum(error * random.standard_normal(clients), -0.9)
    return [Timing(float(a), float(b), float(e * (a + b))) for a, b, e in zip(computing, sending, off, strict=True)]


def report(clients: int, weights: int, T: float, key: Key) -> list[dict[str, float | str | None]]:
    """What delays and waiting change, for typical clients: a row for each way of sending."""
    timings = typical_timings(clients, key.fold_in(0))
    exact = [Timing(t.computing, t.sending) for t in timings]
    ways = (
        ("whole models, no delay", timings, 0.0, False),
        ("delays, nobody waits", timings, T, False),
        ("delays, all wait by their predictions", timings, T, True),
        ("delays, all wait, predictions exact", exact, T, True),
    )
    rows: list[dict[str, float | str | None]] = []
    for i, (name, each, latency, wait) in enumerate(ways):
        seen = simulate(each, weights, latency, key.fold_in(i + 1), wait=wait)
        rows.append({"sending": name, "T": latency, "linked": linkage(seen), "duration": seen.duration})
    return rows


def main() -> None:
    """Print the table of docs/federated/ldp_fl.md: `python -m benchmarks.papers.latency`."""
    from benchmarks.results import table

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--weights", type=int, default=21_840, help="of a model (default: that of MNIST)")
    parser.add_argument("--latency", type=float, default=60.0, metavar="T", help="the longest delay, in seconds")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = report(args.clients, args.weights, args.latency, key_of(args.seed))
    found = [[row["sending"], f"{row['linked']:.2%}", f"{row['duration']:.0f} s"] for row in rows]
    print(table(["sending", "linked", "duration"], [*found, ["a guess", f"{1 / args.clients:.2%}", ""]]))


if __name__ == "__main__":
    main()
