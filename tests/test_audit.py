# SPDX-License-Identifier: Apache-2.0
"""The audit: it passes what keeps its word, and it catches what does not."""

import dataclasses
import itertools
import json
import math
import sys

import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import AdaptiveClipping, DistributedGaussian, DistributedSkellam, ProjectedCode
from ldpkernels.__main__ import main
from ldpkernels.audit import AuditFailure, audit_model, clopper_pearson, measure, updates, vector_game
from ldpkernels.calls.vector import vector_mechanism
from ldpkernels.commands import audit as commands
from ldpkernels.commands.audit import as_gaussian, cldp_cases, clipped_cases, library_cases, update_cases, vector_cases
from ldpkernels.laws.registry import MECHANISMS
from ldpkernels.laws.two_point import TwoPoint


def honest(x, n):
    return ldpkernels.perturb_(np.full(n, x, np.float32), 0.0, 1.0, 1.0, generator=ldpkernels.key(int(x) + 10))


def too_loud(x, n):
    """It says eps = 1 and runs 1.2."""
    return ldpkernels.perturb_(np.full(n, x, np.float32), 0.0, 1.0, 1.2, generator=ldpkernels.key(int(x) + 10))


def last_one_bare(x, n):
    """One weight in a hundred goes out as it is."""
    out = honest(x, n)
    out[::100] = x
    return out


def test_clopper_pearson_is_the_exact_interval():
    low, high = clopper_pearson(0, 1000, 1e-6)
    assert low == 0.0
    assert high == pytest.approx(1 - 1e-6 ** (1 / 1000), rel=1e-9)
    low, high = clopper_pearson(1000, 1000, 1e-6)
    assert low == pytest.approx(1e-6 ** (1 / 1000), rel=1e-9)
    assert high == 1.0
    from scipy.stats import binom

    low, high = clopper_pearson(37, 100, 1e-3)  # the tails beyond what was seen have probability alpha at the bounds
    assert binom.sf(36, 100, low) == pytest.approx(1e-3, rel=1e-6)
    assert binom.cdf(37, 100, high) == pytest.approx(1e-3, rel=1e-6)


def test_an_honest_mechanism_passes_and_the_bound_is_near():
    result = measure(honest, -1.0, 1.0, TwoPoint(1.0).effective_eps, name="honest").check()
    assert 0.93 < result.measured <= 1.0
    assert "at least" in str(result)


@pytest.mark.parametrize("broken", [too_loud, last_one_bare])
def test_a_broken_mechanism_is_caught(broken):
    result = measure(broken, -1.0, 1.0, 1.0, name=broken.__name__)
    assert not result.ok
    with pytest.raises(AuditFailure, match=f"{broken.__name__} leaks more than it claims: its epsilon is at least"):
        result.check()


def test_delta_forgives_what_it_should():
    def sometimes_bare(x, n):
        out = honest(x, n)
        out[: n // 1000] = x
        return np.random.default_rng(0).permutation(out)

    assert not measure(sometimes_bare, -1.0, 1.0, 1.0).ok
    assert measure(sometimes_bare, -1.0, 1.0, 1.0, delta=2e-3).ok


def test_continuous_outputs_are_told_apart_by_their_tails():
    rng = np.random.default_rng(1)
    laplace = measure(lambda x, n: x + rng.laplace(size=n), 0.0, 1.0, 1.0)
    assert 0.9 < laplace.measured <= 1.0
    assert not measure(lambda x, n: x + rng.laplace(scale=0.8, size=n), 0.0, 1.0, 1.0).ok


def test_bad_functions_are_refused():
    with pytest.raises(ValueError, match="5 outputs where n=10"):
        measure(lambda x, n: np.zeros(5), 0, 1, 1.0, n=10)
    with pytest.raises(ValueError, match="gave NaN"):
        measure(lambda x, n: np.full(n, np.nan), 0, 1, 1.0, n=10)
    with pytest.raises(ValueError, match="delta=1"):
        measure(honest, 0, 1, 1.0, delta=1)
    with pytest.raises(ValueError, match="claimed=-1"):
        measure(honest, 0, 1, -1)


@pytest.mark.parametrize("backend", [b for b in ldpkernels.backends() if b != "triton"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_every_mechanism_format_and_backend_keeps_its_claim(backend, dtype):
    n = 1 << (11 if backend == "reference" else 15)
    results = list(library_cases(dtype, backend, eps=1.0, n=n, seed=5))
    assert len(results) == 3 * (len(MECHANISMS) + 1)  # the two-point mechanism's values and its reports
    assert [r for r in results if not r.ok] == []
    assert max(r.measured for r in results) > 0.6  # it measures something


@pytest.mark.parametrize("backend", [b for b in ldpkernels.backends() if b != "triton"])
def test_ordinal_cldp_keeps_the_eps_that_its_metric_implies(backend):
    for dtype in ("float32", "float64", "bfloat16", "float16")[: 1 if backend == "reference" else 4]:
        (result,) = cldp_cases(dtype, backend, n=1 << (11 if backend == "reference" else 15), seed=5)
        assert result.ok
        assert (0.1 if backend == "reference" else 0.4) < result.measured <= result.claimed  # 2^11 samples see less


@pytest.mark.parametrize("eps", [1.0, 3.0])
def test_mechanisms_of_whole_vectors_keep_their_eps(eps):
    results = list(vector_cases(eps, n=1 << 12, seed=5))
    assert [r.name.split(",")[0] for r in results] == ["k-of-d", "privunitg", "gaussian"]
    assert all(r.measured <= r.claimed <= eps for r in results)
    assert all(r.measured > share * eps for r, share in zip(results, (0.5, 0.5, 0.15), strict=True))


def test_whole_updates_with_the_help_of_others_keep_their_eps():
    results = list(update_cases(1.0, n=1 << 11, seed=5))
    names = ["projected-code", "distributed-gaussian", "skellam", *["bits of adaptive clipping"] * 2]
    assert [r.name.split(",")[0] for r in results] == names
    assert all(r.ok and r.measured > 0.4 * r.claimed for r in results)


LESS = 2 / 3  # of the noise that a law says


@pytest.fixture
def keys():
    return (ldpkernels.key(3).fold_in(i) for i in itertools.count())


@pytest.mark.parametrize("kind", [DistributedGaussian, DistributedSkellam])
def test_shares_with_a_third_less_noise_are_caught(kind, keys):
    law = kind.calibrated(8.0, 1e-3, dimension=2, clients=2, bits=24)
    broken = updates.sums(dataclasses.replace(law, stddev=law.stddev * LESS), keys, ldpkernels.key(4))
    assert not as_gaussian(broken, law.stddev * math.sqrt(2) / law.l2, 1 << 11, "a third less").ok


@pytest.mark.parametrize("shares", [False, True])
def test_bits_with_a_third_less_noise_are_caught(shares, keys):
    law, broken = (AdaptiveClipping(1.0, clients=4, bit_stddev=spread) for spread in (5.0, 5.0 * LESS))
    assert not as_gaussian(updates.bits(broken, 20, keys, shares=shares), law.bit_multiplier / 20, 1 << 12, "bits").ok


def test_codes_with_a_third_more_eps_are_caught(keys):
    law, broken = (ProjectedCode(eps, 4, bits=3) for eps in (1.0, 4 / 3))
    draw = updates.codes(broken, keys, ldpkernels.key(4))
    assert not measure(draw, 1.0, -1.0, law.effective_eps, n=1 << 12).ok


def test_a_wrong_claim_of_a_whole_vector_is_seen():
    mechanism = vector_mechanism("privunitg", 3.0, 2, norm=1.0)
    keys = (ldpkernels.key(8).fold_in(i) for i in range(1 << 13))

    def draw(x, n):
        return [mechanism.sample(np.array([x, 0.0]), next(keys))[0] for _ in range(n)]

    assert not measure(draw, -1.0, 1.0, claimed=2.0, n=1 << 12).ok


def test_the_whole_vector_leaks_more_than_a_weight():
    games = vector_game((1, 16, 64), eps=0.2, n=1 << 14)
    measured = [g.measured for g in games]
    assert measured == sorted(measured)
    assert measured[0] < 0.2 < measured[1]
    assert all(g.measured <= g.accounted for g in games)


def test_a_users_model_passes():
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    before = [p.clone() for p in model.parameters()]
    ranges = {"0": 0.5, "2": 0.25}
    audit_model(model, 0.1, ranges, 1.0, n=1 << 10).check()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_planted_leak_in_a_users_model_is_named():
    model = {"a": np.zeros(20, np.float32), "b": np.zeros((3, 5))}

    def forgets_the_last(m):
        ldpkernels.perturb_({"a": m["a"], "b": m["b"].reshape(-1)[:-1]}, 0.0, 1.0, 1.0)
        return m

    audit = audit_model(model, 0.0, 1.0, 1.0, perturb=forgets_the_last, n=1 << 12)
    assert audit.constant == {"b": 1}
    with pytest.raises(AuditFailure, match="b: 1 weights are released as they are"):
        audit.check()


def test_the_command_fails_on_a_broken_mechanism(capsys, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "noise_of_mine.py").write_text(
        "import numpy as np\n"
        "def randomize(x, n):\n"
        "    rng = np.random.default_rng(int(x))\n"
        "    return np.where(rng.random(n) < 0.8, x, 1 - x)\n"
    )
    command = ["audit", "--function", "noise_of_mine:randomize", "--inputs", "0", "1"]
    assert main([*command, "--eps", "1.4", "--json", str(tmp_path / "ok.json")]) == 0
    assert json.loads((tmp_path / "ok.json").read_text())[0]["ok"]
    assert main([*command, "--eps", "1.2"]) == 1
    assert "noise_of_mine:randomize leaks more than it claims" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="write it as MODULE:NAME"):
        main(["audit", "--function", "noise_of_mine"])
    sys.modules.pop("noise_of_mine", None)


def test_clipped_sums_keep_their_word_and_less_noise_is_caught(monkeypatch):
    backend = ldpkernels.backends()[-2]
    honest = list(clipped_cases("float32", backend, 1.0, 1 << 17, 5))
    assert [r.name.split(", ")[1] for r in honest] == ["gaussian"] * 2 + ["discrete"] * 2
    assert all(r.ok and r.measured > 0.3 * r.claimed for r in honest)
    sums = ldpkernels.clipped_noised_sum
    monkeypatch.setattr(commands, "clipped_noised_sum", lambda x, C, sigma, **more: sums(x, C, sigma / 3, **more))
    assert not any(r.ok for r in clipped_cases("float32", backend, 1.0, 1 << 17, 5))


def test_the_command_prints_the_table_and_draws(capsys, tmp_path):
    picture = tmp_path / "audit.png"
    arguments = ["--n", "1024", "--backend", ldpkernels.backends()[-2], "--dtype", "float32", "--out", str(picture)]
    assert main(["audit", *arguments]) == 0
    out = capsys.readouterr().out
    assert "two-point perturb_, float32" in out
    assert "clipped sum, gaussian, float32" in out
    assert "skellam, a client or none" in out
    assert "no mechanism was seen to leak" in out
    assert picture.stat().st_size > 10_000
