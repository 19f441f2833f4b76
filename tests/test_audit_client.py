# SPDX-License-Identifier: Apache-2.0
"""The audit of a whole client: a sound one passes, under many seeds, and each planted leak is named."""

import contextvars
import itertools
import json

import numpy as np
import pytest

import ldpkernels
from ldpkernels.__main__ import main
from ldpkernels.accounting import Ledger, PureEvent
from ldpkernels.audit import AuditFailure, audit_client
from ldpkernels.audit.measure import told_apart
from ldpkernels.releases.budget import Budget, rehearsed
from ldpkernels.releases.choice import released
from ldpkernels.releases.release import Asked

RUNS = 400
A, B = {"w": np.full((2, 5), -0.1, np.float32)}, {"w": np.full((2, 5), 0.1, np.float32)}
MORE = np.repeat(A["w"], 16, axis=0), np.repeat(B["w"], 16, axis=0)  # 160 weights
RANGES = (0.0, 0.1)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def noise(monkeypatch, fixed_keys):
    """The same in every test, whatever came before."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(0))


def reported(update, eps=1.0, **more):
    return ldpkernels.report(update, *RANGES, eps, **more)


def audit(client, a=A, b=B, runs=RUNS, **more):
    return audit_client(client, a, b, runs=runs, **more)


# Sound clients


def whole(mechanism, **settings):
    release = released(1.0, mechanism, norm=0.3, **settings)
    return lambda update: release.report(update, Asked(), None)


def with_laplace(update):
    """Ten numbers at eps = .1 each, and the length of a list at .5."""

    noised = update["w"] + RNG.laplace(scale=2.0, size=(2, 5))
    return {"w": noised, "seen": [None] * int(RNG.geometric(0.4))}


SOUND = {
    **{
        name: lambda update, name=name: reported(update, mechanism=name)
        for name in ("two-point", "piecewise", "hybrid")
    },
    "a large eps": lambda update: reported(update, eps=20.0),
    "two messages": lambda update: iter([reported(update), {"again": reported(update, eps=0.1).to_bytes()}]),
    "privunitg": whole("privunitg"),
    "k-of-d": whole("k-of-d", bound=0.15),
    "gaussian": whole("gaussian"),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("client", SOUND.values(), ids=SOUND)
def test_a_sound_client_passes(client, seed):
    found = audit(client, seed=seed).check()
    assert found.source == "its reports"
    assert all(result.measured <= result.claimed for result in found.results)


@pytest.mark.parametrize("seed", range(2))
def test_a_sound_client_without_reports_passes(seed):
    found = audit(with_laplace, eps=1.5, seed=seed).check()
    assert found.source == "declared"
    assert {result.name for result in found.results} >= {"w", "the form of the answers", "all numbers together"}


def test_outputs_of_a_mechanism_at_a_large_eps_are_not_taken_for_bare_numbers():
    """At eps = 12 none of them varies in so many runs."""
    found = audit(lambda update: ldpkernels.perturb_(update["w"].copy(), *RANGES, 12.0), eps=120.0)
    assert found.ok
    assert "400 runs can prove" in "".join(found.remarks)


def test_a_single_number_is_no_leak_where_its_epsilon_explains_it():
    """At eps = 16 one of 9 million varies: 800 runs are too few to see it, and enough for a claim of 3."""

    def client(update):
        return float(ldpkernels.perturb_(update["w"][0, :1].copy(), *RANGES, 16.0)[0])

    found = audit(client, eps=16.0)
    assert found.ok
    assert "unless it has an epsilon of its own" in str(found)
    assert "nothing random is in it" in audit(client, eps=3.0).findings[0]


def test_the_bounds_are_near_the_claims():
    found = audit(lambda update: reported(update), runs=2000)
    each = next(result for result in found.results if result.name.startswith("one number"))
    assert 0.75 < each.measured <= each.claimed <= 1.0  # .89 ± .02
    together = next(result for result in found.results if result.name == "all reports together")
    assert 2.0 < together.measured <= together.claimed  # 3.1 ± .13


def test_data_that_show_nothing_are_named():
    assert "nothing told the inputs apart" in str(audit(lambda update: reported(update), A, A))


# Leaks, of which the report beside them knows nothing


def fails(update):
    if update is B:
        raise ValueError("no label 7")
    return reported(update)


def fails_sometimes(update):
    if update is B and RNG.random() < 0.3:
        raise ValueError("no label 7")
    return reported(update)


def sends_a_loss(update):
    return {"report": reported(update), "loss": float(np.abs(update["w"] - 0.3).mean())}


def sends_a_loss_that_varies(update):
    return {"report": reported(update), "loss": float(np.abs(update["w"] - 0.3).mean() + RNG.normal(scale=0.1))}


def sends_longer_text(update):
    return {"report": reported(update), "log": "x" * (5 + (update is B))}


def sends_more_messages(update):
    yield reported(update)
    if update is B:
        yield "done"


def fails_after_a_message(update):
    yield reported(update)
    if update is B:
        raise MemoryError


def orders_by_data(update):
    both = {"a": 1, "report": reported(update)}
    return both if update is B else dict(reversed(both.items()))


def chooses_its_range(update):
    return ldpkernels.report(update, 0.0, float(update["w"].max()) + 0.2, 1.0)


def spreads(update):
    """The mean of what it sends says nothing, and how far it lies out does."""
    return {"report": reported(update), "noise": RNG.normal(scale=1 + (update is B), size=30)}


def is_sometimes_infinite(update):
    return {"report": reported(update), "norm": np.array([np.inf if update is B and RNG.random() < 0.5 else np.nan])}


BESIDE = {
    fails: "the form of the answers is always",
    fails_sometimes: "the form of the answers leaks",
    sends_a_loss: "loss is always 0.4",
    sends_a_loss_that_varies: "loss leaks",
    sends_longer_text: "log: text of 5 under the first input and always log: text of 6",
    sends_more_messages: "answer: 1 in a row under the first input and always answer: 2 in a row",
    fails_after_a_message: "1/error",
    orders_by_data: "the form of the answers is always",
    chooses_its_range: "the form of the answers is always",
    spreads: "noise leaks",
    is_sometimes_infinite: "norm leaks",
}


@pytest.mark.parametrize("client", BESIDE, ids=lambda client: client.__name__)
def test_what_tells_beside_a_report_is_named(client):
    found = audit(client)
    assert any(BESIDE[client] in sentence for sentence in found.leaks), found.leaks
    with pytest.raises(AuditFailure):
        found.check()


# Leaks in what is claimed to be private; the claims are beyond what so many runs could disprove


def test_a_tensor_that_is_not_perturbed_is_named():
    def client(update):
        return {"w": update["w"] + RNG.laplace(size=(2, 5)), "b": update["w"][0] * np.arange(5)}

    found = audit(client, eps=50.0)
    assert found.findings == [
        "4 of 5 numbers of b are never perturbed: each is always one number under the first input and always another "
        "under the second, in 400 runs each"
    ]
    leaks = {result.name for result in audit(client, eps=1.0).results if not result.ok}
    assert leaks == {"b", "all numbers together"}  # and a claim that is within reach is disproved


@pytest.mark.parametrize("noise", ["laplace", "two-point"])
def test_one_number_that_is_not_perturbed_is_named(noise):
    def client(update):
        noised = update["w"].ravel() + RNG.laplace(size=10) if noise == "laplace" else None
        sent = ldpkernels.perturb_(update["w"].ravel().copy(), *RANGES, 1.0) if noised is None else noised
        sent[3] = update["w"].ravel()[3]
        return sent

    assert audit(client, eps=50.0).findings[0].startswith("1 of 10 numbers of answer are never perturbed")


def test_a_seed_that_repeats_is_named():
    constant = audit(lambda update: reported(update, generator=ldpkernels.key(7)), *MORE)
    assert "the noise repeats" in constant.findings[0]
    seeds = np.random.default_rng(8)
    few = audit(lambda update: reported(update, generator=ldpkernels.key(int(seeds.integers(1 << 12)))), *MORE)
    assert "the noise repeats" in few.findings[0]
    assert audit(lambda update: reported(update), *MORE).ok


def test_a_seed_that_is_a_time_is_named():
    seconds = itertools.count()

    def client(update):
        return update["w"] + np.random.default_rng(next(seconds) // 20).laplace(scale=2.0, size=(2, 5))

    assert "as if its seed were a time" in audit(client, eps=50.0).findings[0]


def with_half_the_noise(update):
    """Its header says eps = 1, and its bits are of 2."""
    return ldpkernels.Report(reported(update).layout, reported(update, eps=2.0).bits)


def test_half_the_noise_is_caught():
    found = audit(with_half_the_noise)
    assert [result.name for result in found.results if not result.ok] == ["one number of answer"]

    def laplace(scale):
        return lambda update: float(update["w"].mean()) + RNG.laplace(scale=scale)

    assert not audit(laplace(0.1), eps=1.0, runs=2000).ok
    assert audit(laplace(0.2), eps=1.0, runs=2000).ok


def test_half_the_noise_of_a_whole_vector_is_caught():
    loud, said = (released(eps, "privunitg", norm=0.3) for eps in (6.0, 3.0))

    def client(update):
        report = loud.report(update, Asked(), None)
        return ldpkernels.wire.envelope.encode(said.header(10), ldpkernels.wire.envelope.decode(report, "vector")[1])

    assert [result.name for result in audit(client, runs=2000).results if not result.ok] == ["all reports together"]


# What is claimed


class Spending:
    """A client with a ledger, which may charge too little."""

    def __init__(self, path, eps):
        self.budget, self.eps = Budget(path, 100.0, 1e-6), eps

    def __call__(self, update):
        with self.budget.opened({}) as ledger:
            ledger.spend(PureEvent(self.eps), 10)
        return reported(update)


def test_the_claim_is_the_ledgers_and_nothing_real_is_spent(tmp_path):
    path = tmp_path / "spent.ledger"
    client = Spending(path, 1.0)
    client(A)
    found = audit(client).check()
    with Ledger(path, epsilon=100.0, delta=1e-6) as ledger:
        assert len(ledger.history) == 1
        assert (found.source, found.claimed, found.delta) == ("its ledger", ledger.epsilon, 1e-6)
    client(A)
    with Ledger(path, epsilon=100.0, delta=1e-6) as ledger:
        assert len(ledger.history) == 2


def test_an_account_below_the_reports_is_named(tmp_path):
    assert "its reports add up to epsilon = 10 at" in audit(Spending(tmp_path / "x.ledger", 0.5)).findings[0]
    assert "declared says 9" in audit(lambda update: reported(update), eps=9.0).findings[0]
    assert audit(lambda update: reported(update), eps=10.0).ok


def test_what_is_declared_beyond_the_reports_is_for_what_is_beside_them():
    def client(update):
        return reported(update), float(update["w"].mean()) + RNG.laplace(scale=0.1)

    assert audit(client, eps=12.0).ok
    assert not audit(client).ok


def test_rehearsed_ledgers_keep_their_budget_and_are_new_each_time(tmp_path):
    budget = Budget(tmp_path / "{site}", 1.0, 0.0)
    for _ in range(2):
        with rehearsed() as ledgers:
            for _ in range(2):
                with budget.opened({"site": "here"}) as ledger:
                    ledger.spend(PureEvent(0.5))
            with pytest.raises(ldpkernels.accounting.BudgetExceeded), budget.opened({"site": "here"}) as ledger:
                ledger.spend(PureEvent(0.5))
            assert [ledger.epsilon for ledger in ledgers.values()] == [1.0]
    assert list(tmp_path.iterdir()) == []


def test_what_outlives_a_rehearsal_has_no_ledger(tmp_path):
    """A task has the context of where it was begun: it must not go on spending from memory."""
    budget = Budget(tmp_path / "spent.ledger", 1.0, 0.0)
    with rehearsed():
        context = contextvars.copy_context()
    with pytest.raises(ldpkernels.accounting.LedgerError, match="a rehearsal that is over"):
        context.run(budget.opened({}).__enter__)


def raises(update):
    raise RuntimeError("no data set")


@pytest.mark.parametrize(
    ("client", "more", "words"),
    [
        (raises, {}, "fails under both inputs, so that there is nothing to audit: RuntimeError: no data set"),
        (lambda update: 1.0, {}, "the client's claim is unknown"),
        (reported, {"runs": 99}, "runs"),
        (reported, {"delta": 1.0}, "delta"),
        (reported, {"eps": -1.0}, "eps"),
    ],
)
def test_what_cannot_be_audited_is_refused(client, more, words):
    with pytest.raises(ValueError, match=words):
        audit(client, **more)


def test_columns_are_chosen_before_they_are_judged():
    draws = [
        {"noise": RNG.random((2, 500)), "it": np.array([np.zeros(500, bool), np.ones(500, bool)])} for _ in range(2)
    ]
    choose, judge = ({name: tuple(columns) for name, columns in half.items()} for half in draws)
    assert told_apart("x", 1.0, choose, judge).event == "it"
    with pytest.raises(ValueError, match="3 draws under one input and 4"):
        told_apart("x", 1.0, {"it": (np.zeros(3), np.zeros(4))}, {})
    with pytest.raises(ValueError, match="hold nothing that could tell"):
        told_apart("x", 1.0, {}, {})


# The command


MODULE = """
import numpy as np
import ldpkernels
def client(x):
    return {"report": ldpkernels.report(np.full(3, x), 0.0, 1.0, eps=1.0)}
def leaky(x):
    return {**client(x), "loss": x}
rng = np.random.default_rng(0)
def seeded(x):
    return x + rng.laplace(scale=20.0, size=5)
def data():
    return -1.0, 1.0
pair, one = (-1.0, 1.0), [-1.0]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"client_of_mine_{tmp_path.name.replace('-', '_')}"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


def test_the_command(module, capsys, tmp_path):
    def run(*arguments):
        return main(["audit", "--runs", "200", *(a.replace("mine", module) for a in arguments)])

    picture, figures = tmp_path / "audit.png", tmp_path / "audit.json"
    assert run("--client", "mine:client", "--data", "mine:data", "--out", str(picture), "--json", str(figures)) == 0
    assert picture.stat().st_size > 10_000
    found = json.loads(figures.read_text())
    assert found["ok"]
    assert (round(found["claimed"], 3), found["source"], found["runs"]) == (3.0, "its reports", 200)
    assert "duration of a run, which is in no epsilon" in capsys.readouterr().out
    assert run("--client", "mine:leaky", "--data", "mine:pair") == 1
    assert "FAILED: loss is always -1.0 under the first input" in capsys.readouterr().out
    assert run("--client", "mine:seeded", "--data", "mine:pair", "--eps", "1") == 1
    assert "FAILED: two new processes gave the same 100 values of answer" in capsys.readouterr().out
    for arguments, words in (
        (["--client", "mine:client"], "--client needs --data"),
        (["--data", "mine:data"], "--data is for --client"),
        (["--client", "mine:pair", "--data", "mine:pair"], "that is a tuple, give a function"),
        (["--client", "mine:client", "--data", "mine:one"], "that is a list, give a pair"),
        (["--client", "mine:client", "--data", "mine:client"], "--data mine:client: TypeError"),
        (["--client", "mine:nobody", "--data", "mine:pair"], "no attribute 'nobody'"),
    ):
        with pytest.raises(SystemExit, match=words.replace("mine", module)):
            run(*arguments)
