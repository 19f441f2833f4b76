# SPDX-License-Identifier: Apache-2.0
"""The simulation of parameter shuffling, and what its attack finds."""

import math

import ldpkernels
from benchmarks.papers import latency
from benchmarks.papers.latency import Timing, linkage, simulate, waits


def spread(clients=40):
    return [Timing(10.0 + 3.0 * i, 1.0 + 0.1 * i) for i in range(clients)]


def test_the_response_times_are_the_papers():
    """With waiting, every weight arrives within T_S and T_S + T: the slowest client waits for nobody."""
    timings = spread()
    slowest = max(t.computing + t.sending for t in timings)
    seen = simulate(timings, 500, 30.0, ldpkernels.key(1))
    assert slowest <= seen.time.min() < seen.time.max() <= slowest + 30.0
    assert min(waits(timings)) == 0
    late = (seen.time - slowest) / 30.0  # uniform: its mean by the central limit
    assert abs(late.mean() - 0.5) < 6 * math.sqrt(1 / 12 / late.size)
    without = simulate(timings, 500, 30.0, ldpkernels.key(1), wait=False)
    assert without.time.max() <= seen.time.max() + 30.0


def test_linkage_from_certain_to_a_guess():
    timings, key = spread(), ldpkernels.key(2)
    assert linkage(simulate(timings, 300, 0.0, key, wait=False)) == 1.0
    slow = linkage(simulate(timings, 300, 30.0, key, wait=False))
    hidden = linkage(simulate(timings, 300, 30.0, key))
    chance, pairs = 1 / 40, 40 * 299
    assert abs(hidden - chance) < 6 * math.sqrt(chance / pairs) * math.sqrt(40)  # matches of one position are dependent
    assert slow > 2 * hidden
    wrong = [Timing(t.computing, t.sending, late=5.0 * i) for i, t in enumerate(timings)]
    assert linkage(simulate(wrong, 300, 30.0, key)) > 2 * hidden  # nobody can wait for what nobody foresaw


def test_one_client_cannot_move_the_agreed_latency_far():
    honest = [float(t) for t in range(10, 21)]
    assert latency.agreed_latency([*honest, 1e12]) <= 15.5
    assert latency.agreed_latency(honest) == 15.0


def test_the_report_goes_from_linked_to_hidden():
    rows = latency.report(50, 200, 60.0, ldpkernels.key(3))
    linked = [row["linked"] for row in rows]
    assert linked[0] == 1.0
    assert linked[0] > linked[1] > linked[2] > linked[3] > 0
