# SPDX-License-Identifier: Apache-2.0
"""What a client releases, without a framework: the choice by law, and reports packed for a secure sum."""

import numpy as np
import pytest

import ldpkernels
from ldpkernels import CentralGaussian, DistributedGaussian, KOfD, PrivUnitG, ProjectedCode, TwoPoint, VectorGaussian
from ldpkernels.accounting import Ledger, ShuffledEvent
from ldpkernels.laws.registry import KINDS
from ldpkernels.releases.budget import spent
from ldpkernels.releases.choice import released
from ldpkernels.releases.packing import Packing, aggregate_of
from ldpkernels.releases.release import Asked, EachWeight
from ldpkernels.releases.written import LAWS, law_of

SHARES = DistributedGaussian(31, 0.3, clients=4, grid_norm=500.0, stddev=80.0, bits=16, invited=6)
VECTORS = [VectorGaussian(1.5, 31), PrivUnitG(3.0, 31), KOfD(3.0, 31, 1.0, 0.1), ProjectedCode(3.0, 31)]
LIKE = {"w": np.full((7, 3), 1.0, np.float32), "s": np.array(-1.0, np.float32), "v": np.ones(9)}
SIZES = [21, 1, 9]


@pytest.mark.parametrize("law", [*VECTORS, SHARES, CentralGaussian(1.0, 31), *(kind(1.0) for kind in KINDS)], ids=str)
def test_the_law_that_is_given_is_the_law_that_is_charged(law):
    how = {"central": law} if isinstance(law, CentralGaussian) else {"law": law}
    release = released(**how, threshold=5 if law is SHARES else None)
    event, times = release.event(SIZES)
    assert event == (law.executed if isinstance(law, KINDS) else law).event
    assert times == (31 if isinstance(law, KINDS) else 1)
    if not isinstance(law, KINDS):
        with pytest.raises(ValueError, match="have 30 numbers, and the law is of 31"):
            release.event([21, 9])


@pytest.mark.parametrize("law", VECTORS, ids=str)
def test_a_law_has_the_bits_of_its_settings(law):
    """`perturb_vector` with exactly the law's numbers; a code is of two bytes."""
    asked, key = Asked(run=1, round=2, client=3), ldpkernels.key(5)
    release = released(law=law)
    report = release.report(LIKE, asked, key)
    total = release.total(LIKE, asked)
    total.add(release.labelled(report, 3))
    mean = np.concatenate([array.ravel() for array in total.mean().values()])
    if isinstance(law, ProjectedCode):
        assert len(report) == 2
        other = release.total(LIKE, Asked(run=1, round=3, client=3))  # the key is of the round
        other.add(release.labelled(report, 3))
        assert not np.array_equal(mean, np.concatenate([array.ravel() for array in other.mean().values()]))
        return
    if isinstance(law, VectorGaussian):
        settings = {"mechanism": "gaussian", "norm": law.norm, "sigma": law.sigma}
    else:
        settings = {"eps": law.eps, "mechanism": law.name, "norm": law.norm, "bound": getattr(law, "bound", None)}
    sent = ldpkernels.perturb_vector(LIKE, **settings, generator=key)
    assert np.array_equal(mean.astype(np.float32), np.concatenate([a.ravel() for a in sent.values()]).astype("<f4"))


def test_codes_add_up_to_the_mean_of_the_updates():
    law = ProjectedCode(8.0, 31, norm=6.0, bits=6)
    release, asked = released(law=law), Asked(run=1, round=2)
    total = release.total(LIKE, asked)
    for client in range(4000):
        report = release.report(LIKE, Asked(run=1, round=2, client=client), ldpkernels.key(client))
        total.add(release.labelled(report, client))
    assert np.abs(total.mean()["v"] - 1).max() < 0.3
    total.add(b"", b"12345678", bytes(10), bytes(8) + b"\xff")
    assert (total.clients, total.skipped) == (4000, 4)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({}, ValueError, "pass eps, or a law"),
        ({"law": TwoPoint(1.0), "eps": 1.0}, ValueError, "without eps"),
        ({"law": TwoPoint(1.0), "central": CentralGaussian(1.0, 3)}, ValueError, "law, or central"),
        ({"law": CentralGaussian(1.0, 3)}, TypeError, "pass central="),
        ({"central": TwoPoint(1.0)}, TypeError, "pass a CentralGaussian"),
        ({"central": CentralGaussian(1.0, 3), "threshold": 2}, ValueError, "sees every update"),
        ({"law": SHARES}, ValueError, "law and threshold"),
        ({"law": VectorGaussian(1.0, 3), "threshold": 2}, ValueError, "add integers"),
        ({"law": ldpkernels.AdaptiveClipping(1.0, 100)}, TypeError, "not one that a client releases"),
        ({"eps": 1.0, "mechanism": "projected-code"}, ValueError, "law=ProjectedCode"),
        ({"eps": 1.0, "threshold": 2, "colluders": 2}, ValueError, "colluders=2"),
        ({"eps": 1.0, "roster": {}}, ValueError, "pass threshold"),
    ],
)
def test_settings_that_are_none(settings, error, words):
    with pytest.raises(error, match=words):
        released(**settings)


def test_a_trainers_upload_runs_exactly_a_law():
    torch = pytest.importorskip("torch")
    from ldpkernels.trainers import Upload

    model, key = torch.nn.Linear(3, 1), ldpkernels.key(1)
    for law, given in ((VectorGaussian(0.5, 4), {}), (TwoPoint(3.0), {"R": 0.1})):
        upload = Upload(**given, law=law, generator=key)
        upload.start(model)
        found = upload.finish(model)
        zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        if given:
            expected = ldpkernels.report(zeros, 0.0, 0.1, 3.0, generator=key)
            assert found.to_bytes() == expected.to_bytes()
        else:
            expected = ldpkernels.perturb_vector(zeros, mechanism="gaussian", norm=1.0, sigma=0.5, generator=key)
            assert all(torch.equal(found[name], expected[name]) for name in zeros)
    with pytest.raises(ValueError, match=r"have 4 numbers, and the law is of 5"):
        Upload(law=VectorGaussian(0.5, 5)).start(model)
    for wrong in ({"law": TwoPoint(1.0)}, {"law": VectorGaussian(0.5, 4), "R": 0.1}, {"law": ProjectedCode(1.0, 4)}):
        with pytest.raises(ValueError, match=r"R=|updates yourself"):
            Upload(**wrong)


def test_a_trainers_upload_spends_before_training_and_stops_at_its_budget(tmp_path):
    torch = pytest.importorskip("torch")
    from ldpkernels.trainers import Upload

    model, path = torch.nn.Linear(3, 1), tmp_path / "client.ledger"
    budget = ldpkernels.accounting.composed_epsilon([(TwoPoint(1.0).event, 2 * 4)], 1e-5)
    for _ in range(2):  # each is a run of its own
        upload = Upload(R=0.1, eps=1.0, ledger=path, budget=budget)
        upload.start(model, first=False)  # another process of the same training
        upload.start(model)
        with Ledger(path, epsilon=budget) as ledger:
            before = len(ledger.history)
        assert upload.failed().nbytes == 2
    assert before == 2
    upload = Upload(R=0.1, eps=1.0, ledger=path, budget=budget)
    with pytest.raises(ldpkernels.accounting.BudgetExceeded):
        upload.start(model)
    with pytest.raises(RuntimeError, match="before start"):
        upload.finish(model)
    with pytest.raises(ValueError, match="ledger and budget go together"):
        Upload(R=0.1, eps=1.0, ledger=path)


def test_a_ledger_of_sums_says_what_one_upload_is_worth(caplog):
    """The sum's epsilon is of the honest clients in it; beside it stands that of the report alone."""
    release = released(1.0, threshold=51)
    event, times = release.event(SIZES)
    assert (event, times) == (ShuffledEvent(TwoPoint(1.0).effective_eps, 50), 31)
    ledger = Ledger(None, epsilon=10.0)
    with caplog.at_level("INFO", "ldpkernels.releases"):
        epsilon = spent(ledger, release, SIZES, "")
    alone = ldpkernels.accounting.composed_epsilon([(TwoPoint(1.0).event, 31)], 1e-5)
    assert 0 < epsilon < alone / 2
    assert "against whoever sees the sums of a server that follows the protocol" in caplog.text
    assert f"upload alone is worth {alone:.2f}"[:-1] in caplog.text
    spent(Ledger(None, epsilon=100.0), released(1.0), SIZES, "")
    with pytest.raises(ldpkernels.accounting.BudgetExceeded, match="past the budget of 1"):
        spent(ledger, release, SIZES, "", limit=1.0)
    assert len(ledger.history) == 1


def test_a_law_of_weights_is_its_eps_and_its_name():
    for kind in KINDS:
        assert released(law=kind(2.0)) == released(2.0, kind.name)
        assert released(law=kind(2.0), threshold=5) == released(2.0, kind.name, threshold=5)


def test_laws_are_written_down():
    for law in (*VECTORS, SHARES, CentralGaussian(1.0, 31), *(kind(1.0) for kind in KINDS)):
        assert law_of({"kind": type(law).__name__, **vars(law)}) == law
    size = {"dimension": 31, "clients": 4, "rounds": 2}
    assert law_of({"kind": "DistributedGaussian", "eps": 8.0, "delta": 1e-5, **size}).epsilon(1e-5, 2) <= 8.0
    with pytest.raises(ValueError, match="must be one of TwoPoint"):
        law_of({"kind": "Laplace"})
    with pytest.raises(ValueError, match="a VectorGaussian is written with sigma, dimension, norm, or with eps"):
        law_of({"kind": "VectorGaussian", "epsilon": 8.0})
    assert len(LAWS) == 11


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise"])
@pytest.mark.parametrize("clients", [2, 3, 10, 100, 1000])
def test_packed_sums_are_counts(mechanism, clients):
    """As many equal reports as the base is made for, modulo 2^32: no digit overflows into the next."""
    release = EachWeight(1.0, mechanism)
    packing = Packing.of(release, clients)
    assert packing.base**packing.digits <= 2**32 < packing.base ** (packing.digits + 1)
    report = release.reported(LIKE, (0.0, 0.1), ldpkernels.key(3))
    sums = (packing.packed(report) * clients).astype(np.uint32)
    counts = packing.counts(sums, clients, 31)
    expected = ldpkernels.Aggregate(release.expected(LIKE, (0.0, 0.1)))
    expected.add(*[report] * clients)
    assert aggregate_of(release.expected(LIKE, (0.0, 0.1)), counts, clients).to_bytes() == expected.to_bytes()
    full = np.full_like(sums, 2**32 - 1)
    for wrong in (full, sums[:-1]):
        with pytest.raises(ValueError, match="secure sum"):
            packing.counts(wrong, clients, 31)


def test_more_clients_than_the_modulus_has_room_for():
    Packing.of(EachWeight(1.0, "piecewise"), 2**24)
    with pytest.raises(ValueError, match="select fewer"):
        Packing.of(EachWeight(1.0, "piecewise"), 2**25)
