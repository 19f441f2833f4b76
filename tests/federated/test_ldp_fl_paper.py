# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's paper: Theorem 2's bound holds, solves its equation and has its order; its shuffling is simulated."""

import math

import numpy as np
import pytest
import torch

import ldpkernels
from benchmarks.papers.latency import arrivals, linked, report
from benchmarks.papers.theorem_2 import mean_error_bound


@pytest.mark.parametrize("beta", [0.3, 0.05, 1e-6])
@pytest.mark.parametrize("clients", [1, 100, 10**6])
@pytest.mark.parametrize("eps", [0.01, 1.0, 30.0])
def test_it_solves_equation_9(eps, clients, beta):
    found, r, e = mean_error_bound(eps, 0.3, clients, beta), 0.3, math.exp(eps)
    below = 2 * r**2 * ((e + 1) / (e - 1)) ** 2 + 4 * found * r * e / (3 * (e - 1))
    assert 2 * math.exp(-clients * found**2 / below) == pytest.approx(beta, rel=1e-9)


@pytest.mark.parametrize(("eps", "clients"), [(0.3, 50), (1.0, 100), (4.0, 20)])
def test_no_more_means_pass_it_than_beta(eps, clients):
    """20,000 weights with one fixed key: the inequality leaves so much room that no false alarm is to be had."""
    d, r, beta = 20_000, 0.075, 0.05
    weights = torch.linspace(-r, r, d)
    total = torch.zeros(d, dtype=torch.float64)
    for i in range(clients):
        sent = weights.clone()
        ldpkernels.perturb_(sent, 0.0, r, eps, generator=ldpkernels.key(i))
        total += sent.double()
    off = (total / clients - weights.double()).abs()
    passed = float((off > mean_error_bound(eps, r, clients, beta)).double().mean())
    assert passed <= beta
    assert float((off > mean_error_bound(eps, r, clients, beta) / 4).double().mean()) > beta  # and it is no idle bound
    assert float(off.max()) < mean_error_bound(eps, r, clients, beta / d)


def test_it_has_the_papers_order_where_clients_are_many():
    for eps, clients in ((0.01, 10**9), (0.1, 10**8)):
        order = math.sqrt(math.log(2 / 0.05)) / (eps * math.sqrt(clients))
        assert mean_error_bound(eps, 1.0, clients, 0.05) == pytest.approx(math.sqrt(8) * order, rel=1e-2)


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
