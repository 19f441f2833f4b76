# SPDX-License-Identifier: Apache-2.0
"""A client's ledger in Flower: what ends a client, and what is spent when client or server die half-way."""

import multiprocessing
import os
import signal

import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from ldpkernels.accounting import Ledger, composed_epsilon
from ldpkernels.flower import LdpFedAvg, LdpMod, records
from ldpkernels.laws.registry import mechanism_named
from ldpkernels.releases.choice import released
from tests.flower.grid import LocalGrid
from tests.flower.test_attacks import context_of, message_of
from tests.flower.test_rounds import NODES, START, app_of, keyed, started


def spent(epsilon_per_round, rounds, weights):
    return composed_epsilon([(mechanism_named("two-point", epsilon_per_round).event, rounds * weights)], 1e-5, "exact")


def test_a_ledger_stops_the_client_and_says_how_much_was_spent(tmp_path):
    weights = sum(array.size for array in START.values())
    budget = spent(1.0, 3, weights) * 1.001
    mod = LdpMod(1.0, ledger=str(tmp_path / "{partition-id}.ledger"), budget=budget)
    grid = LocalGrid(app_of(mod), NODES[:4])
    result = started(LdpFedAvg(1.0, R=0.1), grid, rounds=5)
    metrics = result.train_metrics_clientapp
    assert [m["reports"] for m in metrics.values()] == [4, 4, 4, 0, 0]
    assert [m["failures"] for m in metrics.values()] == [0, 0, 0, 4, 4]
    for rounds in (1, 2, 3):
        assert metrics[rounds]["ldp-epsilon"] == pytest.approx(spent(1.0, rounds, weights), rel=1e-9)
    assert "past the budget" in grid.received[-1].error.reason
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{i}.ledger" for i in range(4)]
    with Ledger(tmp_path / "0.ledger", epsilon=budget) as ledger:
        assert len(ledger.history) == 3
    again = LocalGrid(app_of(mod), NODES[:4])  # another run, other nodes: the budget is the client's
    assert started(LdpFedAvg(1.0, R=0.1), again).train_metrics_clientapp[1]["reports"] == 0


def test_a_message_that_comes_twice_is_spent_twice_and_answered_with_other_bits(tmp_path):
    mod = LdpMod(1.0, ledger=tmp_path / "spent.ledger", budget=1e6)
    app = app_of(mod)
    first, second = (records.report_in(app(message_of(), context_of()).content) for _ in range(2))
    assert first != second
    with Ledger(tmp_path / "spent.ledger", epsilon=1e6) as ledger:
        assert len(ledger.history) == 2


def test_nothing_is_released_that_the_ledger_could_not_write(tmp_path, monkeypatch):
    mod = LdpMod(1.0, ledger=tmp_path / "spent.ledger", budget=1e6)

    def full(self, *_, **__):
        raise OSError("No space left on device")

    app = app_of(mod)
    assert not app(message_of(), context_of()).has_error()
    monkeypatch.setattr(Ledger, "spend", full)
    reply = app(message_of(), context_of())
    assert reply.error.reason == "this client's ledger cannot be used; its log says why"
    monkeypatch.undo()
    (tmp_path / "spent.ledger").write_text("nonsense\n")
    assert app(message_of(), context_of()).has_error()
    nowhere = LdpMod(1.0, ledger="{no-such-name}.ledger", budget=1e6)
    assert app_of(nowhere)(message_of(), context_of()).has_error()


def train_and_die(path, when):
    mod = LdpMod(1.0, ledger=path, budget=1e6)
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message, context):
        if when == "training":
            os.kill(os.getpid(), signal.SIGKILL)
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    if when == "spent":
        spend = Ledger.spend

        def dying(self, *arguments, **options):
            spend(self, *arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        Ledger.spend = dying
    app(message_of(), context_of())


@pytest.mark.parametrize("when", ["training", "spent"])
def test_a_client_that_dies_has_spent_its_round(tmp_path, when):
    """Killed while it trains, its silence may tell; killed between ledger and reply, it may have released a report."""
    path = tmp_path / "spent.ledger"
    process = multiprocessing.get_context("spawn").Process(target=train_and_die, args=(path, when))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    app = app_of(LdpMod(1.0, ledger=path, budget=1e6))
    assert not app(message_of(), context_of()).has_error()
    with Ledger(path, epsilon=1e6) as ledger:
        assert len(ledger.history) == 2


def test_gaussian_updates_spend_a_gaussian_event(tmp_path):
    """A ledger composes them as what they are, which is less than their eps added up."""
    both = {"norm": 0.5, "delta": 1e-6}
    mod = LdpMod(2.0, "gaussian", ledger=tmp_path / "{partition-id}.ledger", budget=100.0, generator=keyed, **both)
    started(LdpFedAvg(2.0, "gaussian", **both), LocalGrid(app_of(mod), NODES[:2]), rounds=4)
    with Ledger(tmp_path / "0.ledger", epsilon=100.0, delta=1e-6) as ledger:
        event = released(2.0, "gaussian", **both).event([34])[0]
        assert ledger.epsilon == composed_epsilon([(event, 4)], 1e-6)
        assert 2.0 < ledger.epsilon < 8.0


def test_a_server_of_another_delta_is_refused():
    mod = LdpMod(2.0, "gaussian", norm=0.5, delta=1e-6)
    result = started(LdpFedAvg(2.0, "gaussian", norm=0.5, delta=1e-5), LocalGrid(app_of(mod), NODES[:2]))
    assert result.train_metrics_clientapp[1]["failures"] == 2


def test_a_server_that_dies_in_a_round_asks_for_it_anew(tmp_path):
    """The clients that had answered spend again, and their ledgers say so; the model is that of one round."""

    class Died(Exception):
        pass

    def tampered(reply):
        if reply.metadata.src_node_id == NODES[2]:
            raise Died
        return [reply]

    mod = LdpMod(1.0, ledger=str(tmp_path / "{partition-id}.ledger"), budget=1e6, generator=keyed)
    options = {"R": 0.1, "save": tmp_path / "server"}
    started(LdpFedAvg(1.0, **options), LocalGrid(app_of(mod), NODES[:4]))
    with pytest.raises(Died):
        started(LdpFedAvg(1.0, resume=True, **options), LocalGrid(app_of(mod), NODES[:4], tampered=tampered), rounds=2)
    result = started(LdpFedAvg(1.0, resume=True, **options), LocalGrid(app_of(mod), NODES[:4]), rounds=2)
    assert list(result.train_metrics_clientapp) == [1, 2]
    rounds = []
    for i in range(4):
        with Ledger(tmp_path / f"{i}.ledger", epsilon=1e6) as ledger:
            rounds.append(len(ledger.history))
    assert rounds[2] == 3
    assert set(rounds) <= {2, 3}


def test_a_server_cannot_choose_the_ledger(tmp_path, caplog):
    """Nodes' numbers are the server's to give; a ledger that is begun is in the log."""
    with pytest.raises(ValueError, match=r"the server gives nodes their numbers.*name the ledger by \{partition-id\}"):
        LdpMod(1.0, ledger=tmp_path / "{node-id}.ledger", budget=10.0)
    mod = LdpMod(1.0, ledger=tmp_path / "{partition-id}.ledger", budget=1e6)
    for node in NODES[:2]:
        assert not app_of(mod)(message_of(), context_of(node)).has_error()
    assert [record.getMessage() for record in caplog.records if "new budget" in record.getMessage()] == [
        f"a new ledger is begun, and with it a new budget: {tmp_path}/0.ledger"
    ]
    with Ledger(tmp_path / "0.ledger", epsilon=1e6) as ledger:
        assert len(ledger.history) == 2
