# SPDX-License-Identifier: Apache-2.0
"""What a plan computes for hostile settings, counted: laws of a crowd, composed laws, and the points of both."""

import functools

import pytest

import ldpkernels
from ldpkernels.accounting import composition, gaussian, shuffle
from ldpkernels.accounting.losses import LossDistribution
from ldpkernels.planning import calibration, plan

SHUFFLED, CENTRAL = {"trust": "shuffled"}, {"trust": "central", "clients": 10**4}
SETTINGS = [
    SHUFFLED | {"clients": 323_281, "rounds": 42_067, "weights": 187_809, "epsilon": 42.0, "delta": 2.5e-7},
    SHUFFLED | {"clients": 10**7, "rounds": 10**5},
    SHUFFLED | {"clients": 10**9, "rounds": 10**5},
    SHUFFLED | {"clients": 10**12, "rounds": 1},
    CENTRAL | {"rounds": 1, "participation": 0.1},
    CENTRAL | {"rounds": 10**3, "participation": 1e-3},
    CENTRAL | {"rounds": 10**6, "participation": 0.1},
    CENTRAL | {"rounds": 10**9, "participation": 0.1},
    CENTRAL | {"rounds": 10, "participation": 1e-9, "epsilon": 1e-3},
]
# Twice as many and more, before searches asked for four digits where an answer is dear, and for no Renyi divergences.
MOST_COMPOSED, MOST_PAIRS, MOST_RENYI, MOST_POINTS = 22, 320, 5, 36_000_000


def counted(monkeypatch, owner, name, counts, size):
    """Count the calls of a function, and what is large in its answers."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def wrapped(*args, **options):
        found = inner(*args, **options)
        counts[name] = counts.get(name, 0) + 1
        counts["points"] = counts.get("points", 0) + size(found)
        return found

    monkeypatch.setattr(owner, name, wrapped)


@pytest.fixture
def counts(monkeypatch):
    for module in (calibration, plan, shuffle, gaussian, composition):
        for one in vars(module).values():
            if hasattr(one, "cache_clear"):
                one.cache_clear()
    found = {}
    counted(monkeypatch, shuffle, "count_pair", found, lambda pair: len(pair.masses))
    counted(monkeypatch, gaussian, "_rdp", found, len)
    counted(monkeypatch, LossDistribution, "self_compose", found, lambda law: len(law.masses))
    return found


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_few_laws_are_computed(counts, setting):
    setting = {"epsilon": 8.0, "weights": 1000, "norm": 1.0, **setting}
    found = ldpkernels.plan(setting.pop("epsilon"), **setting)
    assert found
    assert counts.get("self_compose", 0) <= MOST_COMPOSED
    assert counts.get("count_pair", 0) <= MOST_PAIRS
    assert counts.get("_rdp", 0) <= MOST_RENYI
    assert counts.get("points", 0) <= MOST_POINTS
