# SPDX-License-Identifier: Apache-2.0
"""The simulation of parameter shuffling, and what its attack finds."""

import math

import numpy as np

import ldpkernels
from benchmarks.papers.latency import arrivals, linked, report

PREDICTED, NEVER = 11.0 + 3.1 * np.arange(40), np.zeros(40)


def test_the_response_times_are_the_papers():
    """With waiting, every weight arrives within T_S and T_S + T: the slowest client waits for nobody."""
    slowest = PREDICTED.max()
    seen = arrivals(PREDICTED, NEVER, 30.0, ldpkernels.key(1), wait=True, weights=500)
    assert slowest <= seen.min() < seen.max() <= slowest + 30.0
    late = (seen - slowest) / 30.0  # uniform: its mean by the central limit
    assert abs(late.mean() - 0.5) < 6 * math.sqrt(1 / 12 / late.size)
    without = arrivals(PREDICTED, NEVER, 30.0, ldpkernels.key(1), wait=False, weights=500)
    assert np.abs(seen - without - (slowest - PREDICTED)[:, None]).max() < 1e-9


def test_linkage_from_certain_to_a_guess():
    def share(late, T, wait):
        return linked(arrivals(PREDICTED, late, T, ldpkernels.key(2), wait=wait, weights=300))

    assert share(NEVER, 0.0, False) == 1.0
    hidden, chance, pairs = share(NEVER, 30.0, True), 1 / 40, 40 * 299
    assert abs(hidden - chance) < 6 * math.sqrt(chance / pairs) * math.sqrt(40)  # matches of one position are dependent
    assert share(NEVER, 30.0, False) > 2 * hidden
    assert share(5.0 * np.arange(40), 30.0, True) > 2 * hidden  # nobody can wait for what nobody foresaw


def test_the_report_goes_from_linked_to_hidden():
    shares = [share for _, share, _ in report(ldpkernels.key(3), 50, 200)]
    assert shares[0] == 1.0
    assert shares[0] > shares[1] > shares[2] > shares[3] > 0
