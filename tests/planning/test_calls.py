# SPDX-License-Identifier: Apache-2.0
# Every call that a plan gives can be pasted, sends the bytes that it says, and has the error that it says.
import functools
import math
import re

import numpy as np
import pytest

import ldpkernels
from ldpkernels.planning import TRUSTS, Plan
from ldpkernels.planning.plan import ENTRIES
from tests.statistics import Z

D, N = 24, 40
RADIUS, NORM = 0.25, 1.0


def plan(epsilon=16.0, trust="local", **other) -> Plan:
    setting = {"rounds": 2, "clients": N, "weights": D, "radius": RADIUS, "norm": NORM, **other}
    return ldpkernels.plan(epsilon, trust=trust, **setting)


SETTINGS = [(0.3, 3), (16.0, 2), (60.0, 2), (300.0, 1)]
DEAR = {"shuffled": SETTINGS[1:3], "secure-aggregation": SETTINGS[1:2]}  # to calibrate, and every worker plans them
PLANS = [plan(epsilon, trust, rounds=rounds) for trust in TRUSTS for epsilon, rounds in DEAR.get(trust, SETTINGS)]
CANDIDATES = [one for found in PLANS for one in found]
IDS = [f"{one.setting.trust}, {one.name}, {one.setting.epsilon:g}" for one in CANDIDATES]


SHARES = ("distributed-gaussian", "skellam", "adaptive skellam")
KEY = ldpkernels.key(5)  # of a round
NAMES = {"round_key": KEY, "client": 17, "seed": 2**63 + 5, "norm": NORM}  # what calls leave to their reader


@functools.lru_cache
def law_of(call):
    """What `encode` or `report_code` is given; to calibrate it takes seconds."""
    return eval(call.partition("update, ")[2].rpartition(", ")[0], {"ldpkernels": ldpkernels, "norm": NORM})


def executed(call, key, **values):
    """What the call gives, with a key: the calls themselves draw from the operating system."""
    return eval(call[:-1] + ", generator=key)", {"ldpkernels": ldpkernels, "key": key, **NAMES, **values})


def test_every_entry_is_among_them():
    found = {(one.setting.trust, one.name) for one in CANDIDATES}
    assert found == {(trust, entry.name) for entry in ENTRIES for trust in entry.trusts if entry.name != "sign"}


@pytest.mark.parametrize("one", CANDIDATES, ids=IDS)
def test_a_call_runs_as_it_is(one):
    values = {"update": np.zeros(D, np.float32), "updates": np.zeros((N, D), np.float32)}
    out = eval(one.call, {"ldpkernels": ldpkernels, **NAMES, **values})
    if isinstance(out, ldpkernels.Report):
        if one.setting.trust == "secure-aggregation":  # an integer that holds the count, for each weight
            assert one.bytes == math.ceil(D * N.bit_length() / 8)
        else:
            assert one.bytes == out.nbytes
    elif one.name == "k-of-d":
        numbers = np.count_nonzero(out)
        assert one.bytes == math.ceil(numbers * (32 + 5) / 8)
    elif one.name in SHARES:
        bits = int(re.search(r"bits=(\d+)", one.call)[1])
        assert out.max() < 2**bits
        assert one.bytes == len(out) * bits // 8
    elif one.name == "projected-code":
        assert 0 <= out < 2 ** law_of(one.call).bits <= 256 ** (one.bytes - 8 * (one.setting.trust == "shuffled"))
    else:
        assert out.shape == (D + one.adaptive,)
        assert one.bytes == 4 * (D + one.adaptive)


def worst(one):
    """An update within radius and norm of which the error is largest."""
    if one.name in ("piecewise", "k-of-d"):
        return np.full(D, min(NORM / math.sqrt(D), RADIUS))
    return np.zeros(D)


def mean_of_a_round(one, x, key):
    if one.adaptive:
        return ldpkernels.updates.narrowed(released(one, np.tile(x, (N, 1)), NORM, key), NORM, one.law.norm)[0]
    keys = [key.fold_in(i) for i in range(N)]
    if one.name in SHARES:
        law = law_of(one.call)
        integers = [ldpkernels.updates.encode(x, law, KEY, generator=k) for k in keys]
        total = np.sum(np.array(integers, np.uint32), axis=0, dtype=np.uint32)
        return ldpkernels.updates.decode(total, law, KEY, clients=N)
    if one.setting.trust == "central":
        out = executed(one.call, key, updates=np.tile(x, (N, 1)))
        return out if one.law else out / N
    reports = [executed(one.call, k, update=x) for k in keys]
    return ldpkernels.aggregate(reports) if isinstance(reports[0], ldpkernels.Report) else np.mean(reports, axis=0)


ONCE = {  # the last plan of each mechanism of which rounds take no minutes
    one.name: one
    for one in CANDIDATES
    if one.setting.epsilon in (16, 60)
    and (one.setting.trust in ("local", "central") or one.name in SHARES)
    and one.name != "projected-code"
}


@pytest.mark.parametrize("one", ONCE.values(), ids=lambda one: f"{one.name}, {one.setting.epsilon:g}")
def test_the_expected_error_is_that_of_rounds(one):
    """Over so many rounds at the worst update, within six standard errors, which are half of it at most."""
    x, rounds = worst(one), 150 if one.name == "privunitg" else 60
    errors = [np.sum((mean_of_a_round(one, x, ldpkernels.key(i)) - x) ** 2) for i in range(rounds)]
    measured, standard_error = float(np.mean(errors)), float(np.std(errors) / math.sqrt(rounds))
    assert Z * standard_error < 0.5 * one.expected_error  # power
    # the vector laws' figures leave the update's own square in
    slack = float(x @ x) / N if one.name == "k-of-d" else 0.0
    assert one.expected_error - slack - Z * standard_error < measured < one.expected_error + Z * standard_error


def test_the_expected_error_is_that_of_codes():
    """Of single ones: those of the clients of a round are independent."""
    one = next(one for one in CANDIDATES if one.name == "projected-code")
    law, x, n = law_of(one.call), np.full(D, 1e-3), 300
    shared = [KEY.fold_in(client) for client in range(n)]
    codes = [
        executed(one.call.replace("(client)", f"({client})"), ldpkernels.key(client), update=x) for client in range(n)
    ]
    found = [ldpkernels.updates.mean_of_codes([code], law, [key]) for code, key in zip(codes, shared, strict=True)]
    errors = [np.sum((y - x) ** 2) / N for y in found]
    measured, standard_error = float(np.mean(errors)), float(np.std(errors) / math.sqrt(n))
    assert Z * standard_error < 0.15 * one.expected_error  # power
    assert abs(measured - one.expected_error) < Z * standard_error
    assert one.call.endswith("round_key.fold_in(client))")


@pytest.mark.parametrize("name", ["adaptive discrete", "adaptive skellam"])
def test_rounds_of_adaptive_clipping(name):
    """By the candidate's own words: means as near as it says under one law, and a norm that finds the median."""
    one = next(one for one in CANDIDATES if one.name == name and one.setting.epsilon == 16)
    norm, lengths = 0.05, np.linspace(0.5, 1.5, N)
    updates = lengths[:, None] * np.full((N, D), D**-0.5)
    assert f"narrowed({'it' if 'discrete' in name else 'that'}, norm, {one.law.norm!r})" in one.mean
    for round_ in range(40):
        vectors = released(one, updates, norm, ldpkernels.key(round_))
        mean, after = ldpkernels.updates.narrowed(vectors, norm, one.law.norm)
        clipped = (updates * np.minimum(1.0, norm / lengths)[:, None]).mean(0)
        assert np.sum((mean - clipped) ** 2) < 4 * one.expected_error * norm**2
        assert after <= norm * math.exp(0.2)
        norm = after
    assert 0.7 < norm < 1.4  # from a twentieth of it


def released(one, updates, norm, key):
    """The mean of what clients' vectors give in a round."""
    vectors = [ldpkernels.updates.widened(update, norm, one.law.norm) for update in updates]
    if one.setting.trust == "central":
        return one.law.released(sum(map(one.law.integers, vectors)), generator=key)
    integers = [ldpkernels.updates.encode(x, one.law, KEY, generator=key.fold_in(i)) for i, x in enumerate(vectors)]
    total = np.sum(np.array(integers, np.uint32), axis=0, dtype=np.uint32)
    return ldpkernels.updates.decode(total, one.law, KEY, clients=N)


@pytest.mark.parametrize("name", ["two-point", "piecewise", "hybrid"])
@pytest.mark.parametrize("eps", [0.01, 0.5, 1.0, 3.0, 6.0, 9.0])
def test_no_update_has_a_larger_error(name, eps):
    """Coordinates' squares may lie anywhere with their mean at most `spread`: the chord lies above the variance."""
    mechanism = ldpkernels.laws.registry.mechanism_named(name, eps)
    worst_, center = mechanism.report_variances(eps) or (mechanism.variance(0.0, 0.0, 1.0),) * 2
    t = np.linspace(0, 1, 2001)
    chord = center + max(0.0, worst_ - center) * t * t
    assert (mechanism.variance(t, 0.0, 1.0) <= chord * (1 + 2e-2)).all()


def test_parameters_have_five_digits():
    for one in CANDIDATES:
        if one.name in SHARES:  # calibrated by their own call
            continue
        assert re.search(rf"\b{re.escape(repr(one.parameter))}\b", one.call)
        assert float(f"{one.parameter:.4e}") == one.parameter


def test_order_and_verdict():
    for found in PLANS:
        errors = [one.expected_error for one in found]
        assert errors == sorted(errors)
        best, rounds = found[0], found.setting.rounds
        assert found.verdict.startswith(f"Use {best.name!r}: the noise of a round's mean is {best.noise_to_signal:.3g}")
        assert best.noise_to_signal_of_run == pytest.approx(math.sqrt(best.expected_error * rounds) / (NORM * rounds))


def test_the_sign_alone_is_left_out_for_its_bias():
    assert "biased" in plan().left_out["sign"]


def test_what_would_be_better():
    found = plan(4.0, rounds=10, clients=100, trust="local")[0].better()
    assert {text.split(":")[0] for text in found} == {
        "10 times the clients",
        "2 weights",
        "1 round",
        "trust='shuffled'",
        "trust='secure-aggregation'",
        "trust='central'",
    }
    again = plan(4.0, rounds=10, clients=1000, trust="local")[0]
    assert found["10 times the clients"] == pytest.approx(again.noise_to_signal)
