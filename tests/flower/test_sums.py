# SPDX-License-Identifier: Apache-2.0
"""Shares of noise by a secure sum in Flower: the mean, the ledger, and who is lost or lies at which stage."""

import dataclasses

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

import ldpkernels
from ldpkernels.accounting import Ledger, ShuffledEvent, composed_epsilon
from ldpkernels.flower import LdpFedAvg, LdpMod, sums
from ldpkernels.laws.registry import mechanism_named
from ldpkernels.releases.summed import SummedReports
from ldpkernels.secure_sums import new_identity
from tests.flower.grid import LocalGrid
from tests.flower.test_attacks import context_of, raises
from tests.flower.test_rounds import NODES, SIZE, START, STEP, app_of, keyed, started

FEW = NODES[:6]
LAW = ldpkernels.DistributedGaussian(SIZE, 0.3, clients=4, grid_norm=500.0, stddev=80.0, bits=16, invited=6)
BUDGET = LAW.epsilon(1e-5, 2) * 1.01  # of two rounds, and not of three
TERMS = {"law": LAW, "threshold": 5}


def moved(result):
    """By how much the weights moved on average: its deviation is .005 a round, and a sum under masks is off by 2."""
    return weights(result).mean() - np.concatenate([a.ravel() for a in START.values()]).mean()


def weights(result):
    return np.concatenate([array.numpy().ravel() for array in result.arrays.values()])


def stage_of(message):
    return message.content.config_records[sums.SUM]["stage"]


def test_the_mean_of_the_updates_moves_the_model(tmp_path):
    mod = LdpMod(**TERMS, ledger=str(tmp_path / "{partition-id}.ledger"), budget=BUDGET)
    grid = LocalGrid(app_of(mod), FEW)
    result = started(LdpFedAvg(**TERMS), grid, rounds=2)
    for metrics in result.train_metrics_clientapp.values():
        assert {k: v for k, v in metrics.items() if k != "ldp-epsilon"} == {
            "reports": 6, "skipped": 0, "failures": 0, "silent": 0,
        }  # fmt: skip
    assert abs(moved(result) - 2 * STEP) < 0.04
    with Ledger(tmp_path / "0.ledger", epsilon=BUDGET) as ledger:
        assert len(ledger.history) == 2
        assert ledger.history[-1] <= BUDGET
    third = started(LdpFedAvg(**TERMS), LocalGrid(app_of(mod), FEW))
    assert third.train_metrics_clientapp[1]["reports"] == 0  # the budget is spent: nobody uploads


@pytest.mark.parametrize("stage", sums.STAGES)
def test_a_client_that_is_lost_at_any_stage(stage):
    grid = LocalGrid(app_of(LdpMod(**TERMS)), FEW)
    grid.dropped = lambda message: message.metadata.dst_node_id == FEW[1] and stage_of(message) == stage
    result = started(LdpFedAvg(**TERMS), grid)
    reports = 6 if stage in (sums.AGREED, sums.DISCLOSED) else 5
    assert result.train_metrics_clientapp[1]["reports"] == reports
    assert abs(moved(result) - STEP) < 0.03


def test_below_the_threshold_the_round_is_lost_and_spent(tmp_path):
    mod = LdpMod(**TERMS, ledger=str(tmp_path / "{partition-id}.ledger"), budget=BUDGET)
    grid = LocalGrid(app_of(mod), FEW)
    grid.dropped = lambda message: message.metadata.dst_node_id in FEW[:2] and stage_of(message) == sums.AGREED
    strategy = LdpFedAvg(**TERMS)
    result = started(strategy, grid)
    assert result.train_metrics_clientapp[1]["reports"] == 0
    assert "the threshold is 5" in " ".join(strategy.reasons)
    assert moved(result) == 0
    with Ledger(tmp_path / "5.ledger", epsilon=BUDGET) as ledger:
        assert len(ledger.history) == 1


def tampered(stage, change):
    """A grid in which the second client's answer at a stage is changed on the way."""

    def change_one(reply):
        record = reply.content.config_records.get(sums.SUM) if reply.has_content() else None
        if reply.metadata.src_node_id == FEW[1] and grid.stages.get(reply.metadata.reply_to_message_id) == stage:
            return change(reply, record)
        return [reply]

    grid = LocalGrid(app_of(LdpMod(**TERMS)), FEW, tampered=change_one)
    grid.stages, push = {}, grid.answer

    def answer(message):
        grid.stages[message.metadata.message_id] = stage_of(message)
        return push(message)

    grid.answer = answer
    return grid


def other(data=None, number=None, **more):
    def change(reply, record):
        said = {"number": record["number"] if number is None else number, "data": data(record["data"]), **more}
        return [Message(RecordDict({sums.SUM: ConfigRecord(said)}), metadata=reply.metadata)]

    return change


LIES = {
    "nonsense": other(lambda data: b"nonsense"),
    "nothing": other(lambda data: b""),
    "longer": other(lambda data: data + bytes(4)),
    "another's number": other(lambda data: data, number=FEW[0].to_bytes(8, "little")),
    "no number": other(lambda data: data, number=5),
    "no record": lambda reply, _: [Message(RecordDict({}), metadata=reply.metadata)],
    "an error": lambda reply, _: [Message(Error(code=1, reason="no"), metadata=reply.metadata)],
    "silence": lambda reply, _: [],
}


@pytest.mark.parametrize("stage", sums.STAGES)
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_one_liar_of_six_loses_itself_alone(stage, lie):
    strategy = LdpFedAvg(**TERMS)
    result = started(strategy, tampered(stage, lie))
    assert result.train_metrics_clientapp[1]["reports"] in (5, 6)
    assert abs(moved(result) - STEP) < 0.03
    if lie is not LIES["silence"] and stage not in (sums.AGREED,):
        assert strategy.reasons or result.train_metrics_clientapp[1]["reports"] == 6


def test_answers_that_come_twice_count_once():
    for stage in sums.STAGES:
        result = started(LdpFedAvg(**TERMS), tampered(stage, lambda reply, _: [reply, reply]))
        assert result.train_metrics_clientapp[1]["reports"] == 6
        assert abs(moved(result) - STEP) < 0.03


def test_a_training_that_fails_is_an_update_of_zero():
    grid = LocalGrid(app_of(LdpMod(**TERMS), step=0.0), FEW)
    app, failing = grid.app, LdpMod(**TERMS)
    grid.app = lambda message, context: (
        failing(message, context, raises) if context.node_id == FEW[0] else app(message, context)
    )
    result = started(LdpFedAvg(**TERMS), grid)
    assert result.train_metrics_clientapp[1]["reports"] == 6
    assert abs(moved(result)) < 0.03


def test_a_server_of_other_terms_is_refused_before_anything_is_spent(tmp_path):
    law = dataclasses.replace(LAW, stddev=90.0)
    for server in ({**TERMS, "law": law}, {**TERMS, "threshold": 6}):
        mod = LdpMod(**TERMS, ledger=str(tmp_path / "{partition-id}.ledger"), budget=BUDGET)
        strategy = LdpFedAvg(**server)
        assert started(strategy, LocalGrid(app_of(mod), FEW)).train_metrics_clientapp[1]["reports"] == 0
        assert "other terms" in " ".join(strategy.reasons)
    assert not list(tmp_path.iterdir())


def test_a_server_that_wants_reports_is_refused():
    grid = LocalGrid(app_of(LdpMod(**TERMS)), FEW)
    strategy = LdpFedAvg(4.0, R=0.1)
    assert started(strategy, grid).train_metrics_clientapp[1]["failures"] == 6
    grid = LocalGrid(app_of(LdpMod(4.0)), FEW)
    strategy = LdpFedAvg(**TERMS)
    assert started(strategy, grid).train_metrics_clientapp[1]["reports"] == 0
    assert strategy.reasons


def test_a_roster_has_its_clients_sign():
    identities = {number: new_identity() for number in range(6)}
    roster = {number: public for number, (_, public) in identities.items()}
    mods = {node: LdpMod(**TERMS, roster=roster, identity=(i, identities[i][0])) for i, node in enumerate(FEW)}
    assert repr(identities[0][0]) not in repr(mods[FEW[0]].member)
    apps = {node: app_of(mod) for node, mod in mods.items()}
    grid = LocalGrid(lambda message, context: apps[context.node_id](message, context), FEW)
    result = started(LdpFedAvg(**TERMS, roster=roster), grid)
    assert result.train_metrics_clientapp[1]["reports"] == 6
    assert abs(moved(result) - STEP) < 0.03
    apps[FEW[0]] = app_of(LdpMod(**TERMS, roster=roster, identity=(0, new_identity()[0])))
    assert started(LdpFedAvg(**TERMS, roster=roster), grid).train_metrics_clientapp[1]["reports"] == 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"law": LAW}, "law and threshold"),
        ({**TERMS, "eps": 4.0}, "without eps"),
        ({**TERMS, "norm": 1.0}, "without eps, norm"),
        ({"threshold": 5}, "pass eps, or a law"),
        ({"eps": 4.0, "roster": {}}, "roster is for secure sums"),
        ({}, "pass eps, or a law"),
        ({"law": LAW, "threshold": 4}, "threshold=5"),
        ({"law": LAW, "threshold": 5, "colluders": 2}, "threshold=6"),
    ],
)
@pytest.mark.parametrize("side", [LdpMod, LdpFedAvg])
def test_settings_are_checked_where_they_are_given(side, settings, words):
    with pytest.raises(ValueError, match=words):
        side(**settings)


@pytest.mark.parametrize("stage", sums.STAGES[1:])
def test_a_step_is_answered_once_whatever_the_context_says(stage):
    """Flower runs two messages of a run at once, each from a copy of the same context: the second is refused."""
    app, second = app_of(LdpMod(**TERMS)), []

    def twice(message, context):
        before = context.state
        if context.node_id == FEW[2] and stage_of(message) == stage:
            record = before.config_records[sums.SUM]
            context.state = RecordDict({sums.SUM: ConfigRecord(dict(record))})
            answer = app(message, context)
            context.state = RecordDict({sums.SUM: ConfigRecord(dict(record))})
            second.append(app(message, context))
            return answer
        return app(message, context)

    started(LdpFedAvg(**TERMS), LocalGrid(twice, FEW))
    (refused,) = second
    assert "is answered only once" in refused.error.reason


def test_a_step_that_can_not_be_claimed_is_refused(tmp_path):
    (tmp_path / "file").write_text("no folder")
    grid = LocalGrid(app_of(LdpMod(**TERMS, claims=tmp_path / "file")), FEW)
    assert started(LdpFedAvg(**TERMS), grid).train_metrics_clientapp[1]["reports"] == 0
    assert "can't claim its step" in grid.received[-1].error.reason


def test_claims_are_in_the_folder_that_was_named(tmp_path):
    started(LdpFedAvg(**TERMS), LocalGrid(app_of(LdpMod(**TERMS, claims=tmp_path / "claims")), FEW))
    assert len(list((tmp_path / "claims").iterdir())) == 4 * len(FEW)


REPORTS = {"threshold": 5, "eps": 2.0}


def in_the_clear(nodes, **settings):
    """The model after a round of reports that nobody added secretly."""
    grid = LocalGrid(app_of(LdpMod(2.0, generator=keyed, **settings)), nodes)
    return started(LdpFedAvg(2.0, R=0.1, **settings), grid)


def summed(nodes=FEW, dropped=None, **settings):
    """A round of reports by a secure sum: what it gave, its strategy and its grid."""
    grid = LocalGrid(app_of(LdpMod(**REPORTS, generator=keyed, **settings)), nodes, dropped=dropped)
    both = {name: value for name, value in settings.items() if name == "mechanism"}
    strategy = LdpFedAvg(**REPORTS, R=0.1, **both)
    return started(strategy, grid), strategy, grid


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise", "hybrid", "sign"])
def test_reports_by_a_secure_sum_have_the_bits_of_reports_in_the_clear(mechanism):
    result, _, grid = summed(mechanism=mechanism)
    assert result.train_metrics_clientapp[1]["reports"] == 6
    assert np.array_equal(weights(result), weights(in_the_clear(FEW, mechanism=mechanism)))
    sent = [reply.content for reply in grid.received]
    assert not any(content.array_records for content in sent)  # integers under masks, and no report


@pytest.mark.parametrize("stage", sums.STAGES[:3])
def test_reports_of_who_is_lost_are_missing_and_no_others(stage):
    result, _, _ = summed(dropped=lambda m: m.metadata.dst_node_id == FEW[1] and stage_of(m) == stage)
    assert np.array_equal(weights(result), weights(in_the_clear([node for node in FEW if node != FEW[1]])))


def test_a_sum_of_reports_costs_less_than_a_report(tmp_path):
    """The ledger has the view of a sum among threshold less colluders; two views never share a ledger."""
    both = {"ledger": str(tmp_path / "{partition-id}.ledger"), "budget": 1e6}
    _, _, grid = summed(**both)
    with Ledger(tmp_path / "0.ledger", epsilon=1e6) as ledger:
        event = ShuffledEvent(mechanism_named("two-point", 2.0).effective_eps, 4)
        assert ledger.epsilon == composed_epsilon([(event, SIZE)], 1e-5)
        assert ledger.epsilon < composed_epsilon([(mechanism_named("two-point", 2.0).event, SIZE)], 1e-5)
    grid.app = app_of(LdpMod(2.0, **both))
    assert started(LdpFedAvg(2.0, R=0.1), grid).train_metrics_clientapp[1]["reports"] == 0
    assert "different views" in grid.received[-1].error.reason


def test_the_next_ranges_are_found_from_a_sum():
    strategy = LdpFedAvg(8.0, threshold=5, R=0.5, ranges="noise-subtracted", growth=1.5)
    started(strategy, LocalGrid(app_of(LdpMod(8.0, threshold=5, generator=keyed)), FEW), rounds=2)
    assert set(strategy.ranges[1]) == {"a", ""}


def test_a_sum_that_no_honest_clients_have_is_lost():
    """One client sends what is not a report: nobody can say who, and the model stays."""

    class Liar(SummedReports):
        def integers(self, update, asked, generator):
            return np.full_like(super().integers(update, asked, generator), 7**11)  # past every honest sum

    mods = {node: LdpMod(**REPORTS) for node in FEW}
    bad = mods[FEW[1]]
    bad.release = Liar(5, each=bad.release.each)
    bad.member = dataclasses.replace(bad.member, summed=bad.release)
    apps = {node: app_of(mod) for node, mod in mods.items()}
    strategy = LdpFedAvg(**REPORTS, R=0.1)
    result = started(strategy, LocalGrid(lambda m, c: apps[c.node_id](m, c), FEW))
    assert result.train_metrics_clientapp[1]["reports"] == 0
    assert "nobody can say which" in " ".join(strategy.reasons)
    assert not np.any(weights(result) - np.concatenate([a.ravel() for a in START.values()]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"version": 2}, "speaks version 2 of secure sums, and this client 1"),
        ({"version": None}, "install the same ldpkernels"),
        ({"round": 0}, "names no round"),
        ({"round": 2**70}, "not a number of a round"),
        ({"invited": 4}, "threshold"),
        ({"invited": 0}, "clients=0"),
        ({"invited": 2**39}, "select fewer"),
        ({"weights": 0}, "length"),
        ({"weights": 2**39}, "length"),
        ({"weights": -1}, "not a number of a round"),
        ({"invited": 6.0}, "not a number of a round"),
    ],
)
def test_a_first_message_that_no_server_of_this_version_sends(given, words):
    record = {"stage": sums.KEYS, "version": sums.VERSION, "round": 1, "invited": 6, "weights": SIZE, **given}
    record = ConfigRecord({name: value for name, value in record.items() if value is not None})
    reply = LdpMod(**REPORTS)(Message(RecordDict({sums.SUM: record}), NODES[0], "train"), context_of(), raises)
    assert words in reply.error.reason


def test_a_server_that_says_other_weights_than_it_sends_is_refused_before_training(tmp_path):
    mod = LdpMod(**REPORTS, ledger=str(tmp_path / "{partition-id}.ledger"), budget=1e6)
    grid, strategy = LocalGrid(app_of(mod), FEW), LdpFedAvg(**REPORTS, R=0.1)
    told = SummedReports.told
    strategy.release = type(
        "Other", (SummedReports,), {"told": lambda s, like, n: {**told(s, like, n), "weights": 40}}
    )(5, each=strategy.release.each)
    assert started(strategy, grid).train_metrics_clientapp[1]["reports"] == 0
    assert "have 34 numbers, and the law is of 40" in " ".join(strategy.reasons)
    assert not list(tmp_path.iterdir())


def test_too_few_nodes_for_the_threshold_are_asked_nothing(caplog):
    """Flower waits for as many nodes as the threshold; fewer are told nothing, and the round is lost at once."""
    strategy = LdpFedAvg(**TERMS)
    assert (strategy.min_train_nodes, strategy.min_available_nodes) == (5, 5)
    strategy = LdpFedAvg(**TERMS, min_train_nodes=2, min_available_nodes=2)
    grid = LocalGrid(app_of(LdpMod(**TERMS)), FEW[:4])
    result = started(strategy, grid)
    assert result.train_metrics_clientapp[1]["reports"] == 0
    assert not grid.sent
    assert "4 nodes were selected, and the threshold is 5" in caplog.text


def test_a_client_and_a_server_that_are_restarted(tmp_path):
    """Every message finds another process of the app; a server that died in a round asks for it anew, and who had
    uploaded spends again. No sum is of a mixture of both."""
    options = {"ledger": str(tmp_path / "{partition-id}.ledger"), "budget": 1e6, "claims": tmp_path / "claims"}
    options |= {"delta": 1e-3}  # at 1e-5 three rounds of so little noise have no epsilon
    grid = LocalGrid(lambda message, context: app_of(LdpMod(**TERMS, **options))(message, context), FEW)
    strategy = LdpFedAvg(**TERMS, save=tmp_path / "server", resume=True)
    assert started(strategy, grid).train_metrics_clientapp[1]["reports"] == 6

    class Died(Exception):
        pass

    def tampered(reply):
        if reply.has_content() and reply.metadata.src_node_id == FEW[5] and stage_of(grid.sent[-1]) == sums.MASKED:
            raise Died
        return [reply]

    grid.tampered = tampered
    with pytest.raises(Died):
        started(LdpFedAvg(**TERMS, save=tmp_path / "server", resume=True), grid, rounds=2)
    grid.tampered = lambda reply: [reply]
    again = started(LdpFedAvg(**TERMS, save=tmp_path / "server", resume=True), grid, rounds=2)
    assert [m["reports"] for m in again.train_metrics_clientapp.values()] == [6, 6]
    assert abs(moved(again) - 2 * STEP) < 0.04
    with Ledger(tmp_path / "5.ledger", epsilon=1e6, delta=1e-3) as ledger:
        assert len(ledger.history) == 3


def test_a_round_without_nodes_changes_nothing():
    strategy = LdpFedAvg(**TERMS, fraction_train=0.0)
    assert moved(started(strategy, LocalGrid(app_of(LdpMod(**TERMS)), FEW))) == 0


def test_what_an_app_does_to_its_message_and_context_is_not_seen():
    def train(message, context):
        message.content.pop(sums.SUM)
        context.state = RecordDict()
        raise ValueError("as if")

    good, bad = app_of(LdpMod(**TERMS), step=0.0), LdpMod(**TERMS)
    grid = LocalGrid(lambda m, c: bad(m, c, train) if c.node_id == FEW[0] else good(m, c), FEW)
    assert started(LdpFedAvg(**TERMS), grid).train_metrics_clientapp[1]["reports"] == 6


def test_a_message_out_of_turn_is_refused():
    mod, context = LdpMod(**TERMS), context_of()

    def asked(stage, **more):
        record = ConfigRecord({"stage": stage, "version": sums.VERSION, "round": 1, **more})
        message = Message(RecordDict({sums.SUM: record}), NODES[0], "train")
        return mod(message, context, raises)

    assert "not begun this round" in asked(sums.DISCLOSED, present=b"", consents=b"").error.reason
    assert not asked(sums.KEYS).has_error()
    assert "'begun'" in asked(sums.DISCLOSED, present=b"", consents=b"").error.reason
    assert "has no keys" in asked(sums.SHARES).error.reason
    assert "no secure sum" in asked("opened").error.reason
