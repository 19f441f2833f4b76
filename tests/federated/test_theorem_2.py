# SPDX-License-Identifier: Apache-2.0
"""Theorem 2's bound holds, solves the paper's equation, and has the paper's order."""

import math

import pytest
import torch

import ldpkernels
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
