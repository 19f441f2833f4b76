# SPDX-License-Identifier: Apache-2.0
"""LdpMod and LdpFedAvg together, in one process: what leaves a client, and what a server makes of it."""

import re
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

import ldpkernels
from ldpkernels.accounting import Ledger, composed_epsilon
from ldpkernels.flower import CheckpointError, LdpFedAvg, LdpMod, NoReportsError, numpy_client, records
from ldpkernels.releases.vectors import ClippedUpdate
from ldpkernels.updates.following import LONGER
from ldpkernels.wire.envelope import encode
from tests.flower.grid import LocalGrid

NODES = list(range(101, 141))
SETTINGS = [
    ("two-point", {}, {"R": 0.1}),
    ("piecewise", {}, {"R": 0.1}),
    ("hybrid", {}, {"R": 0.1}),
    ("privunitg", {"norm": 0.5}, {}),
    ("k-of-d", {"norm": 0.5, "bound": 0.1}, {}),
    ("gaussian", {"norm": 0.5, "delta": 1e-6}, {}),
]
SIZE = 34  # weights of START
CENTRAL = ldpkernels.CentralGaussian(0.3, SIZE, norm=0.5, clients=40)
LAWS = [
    ldpkernels.TwoPoint(12.0),
    ldpkernels.Piecewise(12.0),
    ldpkernels.Hybrid(12.0),
    ldpkernels.PrivUnitG(60.0, SIZE, 0.5),
    ldpkernels.KOfD(60.0, SIZE, 0.5, 0.1),
    ldpkernels.VectorGaussian(0.2, SIZE, 0.5),
]
START = {"a.weight": np.full((6, 5), 2.0, np.float32), "a.scale": np.array(1.5, np.float32), "b": np.zeros(3)}
STEP = 0.05  # what training adds to every weight


def app_of(mod, *, step=STEP, metrics=None):
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message, context):
        (arrays,) = message.content.array_records.values()
        trained = {name: np.asarray(array.numpy() + step, array.numpy().dtype) for name, array in arrays.items()}
        content = RecordDict({"arrays": records.record_of(trained), "metrics": MetricRecord(metrics or {"loss": 0.25})})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.25, "num-examples": 7})}), reply_to=message)

    return app


def keyed(message, context):
    return ldpkernels.key(context.node_id).fold_in(message.content["ldp"]["round"])


def started(strategy, grid, rounds=1, **options):
    try:
        return strategy.start(grid, records.record_of(START), num_rounds=rounds, timeout=1, **options)
    except NoReportsError as error:
        return error.result


def moved(result):
    """By how much every weight moved."""
    return np.concatenate([(array.numpy() - START[name]).ravel() for name, array in result.arrays.items()])


@pytest.mark.parametrize(("mechanism", "both", "server"), SETTINGS)
def test_the_mean_of_the_updates_moves_the_model(mechanism, both, server):
    """40 clients at eps = 12 a weight, or 60 a vector: the mean is off by some deviations of the mechanism."""
    eps = 12.0 if "R" in server else 60.0
    mod = LdpMod(eps, mechanism, generator=keyed, **both)
    result = started(LdpFedAvg(eps, mechanism, **both, **server), LocalGrid(app_of(mod), NODES))
    (metrics,) = result.train_metrics_clientapp.values()
    assert dict(metrics) == {"reports": 40, "skipped": 0, "failures": 0, "silent": 0}
    after = {name: array.numpy() for name, array in result.arrays.items()}
    assert {n: (a.shape, a.dtype) for n, a in after.items()} == {n: (a.shape, a.dtype) for n, a in START.items()}
    moved = np.concatenate([(after[name] - START[name]).ravel() for name in START])
    assert abs(moved.mean() - STEP) < 0.01
    assert np.abs(moved - STEP).max() < 0.1
    assert np.abs(moved).max() > 0


FEW = NODES[:10]
FOLLOWED = {  # laws of 34 weights and the number that says whether an update was within the norm: 0.15 at first
    "law": {
        "law": ldpkernels.DistributedGaussian(
            SIZE + 1, 0.15 * LONGER, clients=8, grid_norm=500.0, stddev=130.0, bits=20, invited=10
        ),
        "threshold": 9,
        "adaptive": True,
    },
    "central": {"central": ldpkernels.CentralGaussian(0.003, SIZE + 1, 0.15 * LONGER, clients=10), "adaptive": True},
}


@pytest.mark.parametrize("kind", FOLLOWED)
def test_a_norm_that_follows_the_clients_median(kind, tmp_path):
    """From half of the updates' length it grows to it, over a restart too; each round costs the law's event."""
    both, kept = FOLLOWED[kind], {"budget": 1e3, "ledger": tmp_path / "{partition-id}"} if kind == "law" else {}
    grid, norms = LocalGrid(app_of(LdpMod(**both, **kept, generator=keyed)), FEW), []
    for rounds in (4, 8):
        strategy = LdpFedAvg(**both, save=tmp_path / "state", resume=True)
        result = started(strategy, grid, rounds=rounds)
        norms.append(strategy.ranges[1])
    assert 0.17 < norms[0] < 0.27  # by a tenth in each round
    assert 0.22 < norms[1] < 0.38  # of 0.29
    assert {metrics["reports"] for metrics in result.train_metrics_clientapp.values()} == {10}
    assert 0.6 < moved(result).mean() / (8 * STEP) < 1
    if kind == "law":
        with Ledger(tmp_path / "0", epsilon=1e3) as ledger:
            assert ledger.epsilon == composed_epsilon([(both["law"].event, 8)], 1e-5)


@pytest.mark.parametrize("kind", FOLLOWED)
@pytest.mark.parametrize(("change", "words"), [
    ({"r": [0.0] * 3}, "norm = 0.0"), ({"r": [float("inf")] * 3}, "norm = inf"), ({"r": [1e31] * 3}, "norm = 1e\\+31"),
    ({"r": [0.1, 0.1, 0.2]}, "a round has one norm, and this one has 2"), ({"adaptive": False}, "adaptive=False"),
])  # fmt: skip
def test_a_norm_that_no_round_has_is_refused_before_anything_is_spent(kind, change, words, tmp_path):
    both = FOLLOWED[kind]
    mod = {"budget": 1e3, "ledger": tmp_path / "{partition-id}"} if kind == "law" else {}
    app = app_of(LdpMod(**both, **mod))

    def told(message, context):
        if records.TERMS in message.content:
            message.content[records.TERMS].update(change)
        return app(message, context)

    strategy = LdpFedAvg(**both)
    grid = LocalGrid(told, FEW)
    assert started(strategy, grid).train_metrics_clientapp[1]["reports"] == 0
    assert re.search(words, grid.received[-1].error.reason)
    assert not list(tmp_path.iterdir())


def test_only_noise_on_a_sum_has_such_a_norm():
    for settings in ({"eps": 4.0}, {"law": LAWS[-1]}, {"eps": 4.0, "threshold": 5}):
        with pytest.raises(ValueError, match="adaptive is for noise on a sum"):
            LdpMod(**settings, adaptive=True)
    with pytest.raises(ValueError, match="have 35 numbers, and the law is of 34"):
        started(LdpFedAvg(central=CENTRAL, adaptive=True), LocalGrid(app_of(LdpMod(central=CENTRAL)), NODES))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_exactly_the_law_is_what_runs(law, tmp_path):
    """Its mean moves the model, and the ledger has its event and no other."""
    R = {"R": 0.1} if isinstance(law, LAWS[0].__class__ | LAWS[1].__class__ | LAWS[2].__class__) else {}
    mod = LdpMod(law=law, generator=keyed, ledger=tmp_path / "{partition-id}.ledger", budget=1e6)
    result = started(LdpFedAvg(law=law, **R), LocalGrid(app_of(mod), NODES))
    (metrics,) = result.train_metrics_clientapp.values()
    assert metrics["reports"] == 40
    assert abs(moved(result).mean() - STEP) < 0.02
    event = law.executed.event if R else law.event
    assert metrics["ldp-epsilon"] == composed_epsilon([(event, SIZE if R else 1)], 1e-5)


def test_a_law_of_another_model_is_refused_by_both():
    law = ldpkernels.VectorGaussian(0.2, SIZE + 1, 0.5)
    with pytest.raises(ValueError, match="have 34 numbers, and the law is of 35"):
        started(LdpFedAvg(law=law), LocalGrid(app_of(LdpMod(law=law)), NODES[:2]))
    grid = LocalGrid(app_of(LdpMod(law=law)), NODES[:2])
    assert started(LdpFedAvg(law=LAWS[-1]), grid).train_metrics_clientapp[1]["failures"] == 2
    assert "dimension=34, and this client was set up with 35" in grid.received[0].error.reason


def test_codes_of_two_bytes():
    """The key of a client and round is made on both sides, and no message has it."""
    law = ldpkernels.ProjectedCode(60.0, SIZE, 0.3, bits=9)
    grid = LocalGrid(app_of(LdpMod(law=law, generator=keyed)), NODES)
    result = started(LdpFedAvg(law=law), grid, rounds=10)
    assert {len(records.report_in(reply.content)) for reply in grid.received} == {2}
    assert {m["reports"] for m in result.train_metrics_clientapp.values()} == {40}
    assert abs(moved(result).mean() - 10 * STEP) < 0.05


def test_a_trusted_server_adds_the_noise_and_keeps_the_ledger(tmp_path):
    """Clients send what they clipped; the noise is on the sum, and the run ends before the budget is passed."""
    budget = composed_epsilon([(CENTRAL.event, 3)], 1e-5) * 1.001
    options = {"central": CENTRAL, "ledger": tmp_path / "server.ledger", "budget": budget}
    grid = LocalGrid(app_of(LdpMod(central=CENTRAL)), NODES)
    strategy = LdpFedAvg(**options)
    result = started(strategy, grid, rounds=5)
    assert list(result.train_metrics_clientapp) == [1, 2, 3]
    assert len(grid.received) == 120  # nobody trained for a fourth
    assert result.train_metrics_clientapp[3]["ldp-epsilon"] == composed_epsilon([(CENTRAL.event, 3)], 1e-5)
    error = moved(result) - 3 * STEP
    assert abs(error.mean()) < 5 * 0.3 / 40 * np.sqrt(3 / SIZE)
    assert 0.35 < error.std() / (0.3 / 40 * np.sqrt(3)) < 2  # of 34 numbers: once in 5e9
    assert not started(LdpFedAvg(**options), grid).train_metrics_clientapp


def test_a_trusted_server_counts_nobody_beyond_the_norm():
    """A client that sends a longer vector is left out; one that trains further than the norm is clipped."""
    grid = LocalGrid(app_of(LdpMod(central=CENTRAL), step=1e6), NODES)
    result = started(LdpFedAvg(central=CENTRAL), grid)
    assert np.linalg.norm(moved(result)) < 0.5 + 5 * 0.3 / 40 * np.sqrt(SIZE)

    def tampered(reply):
        header = ClippedUpdate(CENTRAL).header(SIZE)
        lie = encode(header, np.full(SIZE, 0.2, "<f4").tobytes())
        reply.content["report"]["report"].data = lie
        return [reply] if reply.metadata.src_node_id == NODES[0] else []

    strategy = LdpFedAvg(central=CENTRAL)
    started(strategy, LocalGrid(app_of(LdpMod(central=CENTRAL)), NODES, tampered=tampered))
    assert strategy.reasons == {"a vector longer than an honest report can be": 1}


def test_a_round_of_fewer_than_at_least_is_dropped(tmp_path, caplog):
    """The model stays, the server's ledger too, and the log says how many came."""
    for how, server in (({"eps": 12.0}, {"R": 0.1}), ({"central": CENTRAL}, {})):
        grid = LocalGrid(app_of(LdpMod(**how)), NODES, dropped=lambda message: message.metadata.dst_node_id > 120)
        if "central" in how:
            server = {"ledger": tmp_path / "server.ledger", "budget": 100.0}
        result = started(LdpFedAvg(**how, **server, at_least=21), grid)
        assert result.train_metrics_clientapp[1]["reports"] == 20
        assert not moved(result).any()
        assert "20 reports, of at least 21: the model stays" in caplog.text
        assert moved(started(LdpFedAvg(**how, **server, at_least=20), grid)).any()
    with Ledger(tmp_path / "server.ledger", epsilon=100.0) as ledger:
        assert len(ledger.history) == 1


def test_the_bits_are_those_of_the_library():
    """What the server gets is `report`, of what training changed, by the key; and the mean is `aggregate`'s."""
    mod = LdpMod(2.0, generator=keyed)
    grid = LocalGrid(app_of(mod), NODES)
    result = started(LdpFedAvg(2.0, R=0.1), grid)
    update = {name: np.asarray((value + STEP).astype(value.dtype) - value) for name, value in START.items()}
    reports = {
        node: ldpkernels.report(update, 0.0, 0.1, 2.0, generator=ldpkernels.key(node).fold_in(1)) for node in NODES
    }
    sent = {reply.metadata.src_node_id: records.report_in(reply.content) for reply in grid.received}
    assert sent == {node: one.to_bytes() for node, one in reports.items()}
    mean = ldpkernels.aggregate(reports.values())
    for name, array in result.arrays.items():
        assert np.array_equal(array.numpy(), (START[name] + mean[name]).astype(START[name].dtype)), name


def test_nothing_leaves_but_the_report_and_what_is_allowed():
    mod = LdpMod(1.0, metrics=["accuracy"])
    grid = LocalGrid(app_of(mod, metrics={"loss": 0.5, "num-examples": 600, "accuracy": 0.75}), NODES[:2])
    started(LdpFedAvg(1.0, R=0.1), grid)
    for reply in grid.received:
        assert set(reply.content) == {"report", "metrics"}
        assert dict(reply.content["metrics"]) == {"accuracy": 0.75}
        assert list(reply.content["report"]) == ["report"]


def test_weights_instead_of_updates():
    mod = LdpMod(12.0, upload="weights", generator=keyed)
    strategy = LdpFedAvg(12.0, C={"a": 2.0, "b": 0.0}, R={"a": 1.0, "b": 0.5}, upload="weights")
    result = started(strategy, LocalGrid(app_of(mod), NODES))
    assert abs(result.arrays["a.weight"].numpy().mean() - 2.05) < 5 / np.sqrt(40 * 30)
    assert abs(result.arrays["b"].numpy().mean() - 0.05) < 5 * 0.5 / np.sqrt(40 * 3)


def test_the_next_ranges_are_found_from_the_mean():
    mod = LdpMod(8.0, generator=keyed)
    strategy = LdpFedAvg(8.0, R=0.5, ranges="noise-subtracted", growth=1.5)
    grid = LocalGrid(app_of(mod), NODES)
    started(strategy, grid, rounds=3)
    first, *_, last = (message.content["ldp"]["r"] for message in grid.sent)
    assert first == [0.5] * 3
    assert max(last) < 0.25
    C, R = strategy.ranges
    assert set(C) == set(R) == {"a", ""}


def test_statistics_stay_or_are_perturbed_as_both_sides_say():
    start = {**START, "n.running_mean": np.ones(4, np.float32), "n.num_batches_tracked": np.array(9)}
    arrays = records.record_of(start)
    with pytest.raises(ValueError, match="running_mean"):
        LdpFedAvg(1.0, R=0.1).start(LocalGrid(app_of(LdpMod(1.0)), NODES), arrays, num_rounds=1)
    with pytest.raises(ValueError, match=r"num_batches_tracked.*int64.*'keep'"):
        LdpFedAvg(1.0, R=0.1, buffers="perturb").start(LocalGrid(app_of(LdpMod(1.0)), NODES), arrays, num_rounds=1)
    grid = LocalGrid(app_of(LdpMod(1.0, buffers="keep")), NODES)
    result = LdpFedAvg(1.0, R=0.1, buffers="keep").start(grid, arrays, num_rounds=1)
    assert result.train_metrics_clientapp[1]["reports"] == 40
    for name in ("n.running_mean", "n.num_batches_tracked"):
        assert np.array_equal(result.arrays[name].numpy(), start[name])
    grid = LocalGrid(app_of(LdpMod(1.0)), NODES)  # which was not told to keep them
    with pytest.raises(NoReportsError, match="buffers='keep'"):
        LdpFedAvg(1.0, R=0.1, buffers="keep").start(grid, arrays, num_rounds=1, timeout=1)
    assert all("buffers='keep'" in reply.error.reason for reply in grid.received)


def test_a_run_that_is_resumed_ends_with_the_same_bits(tmp_path):
    def strategy(**options):
        return LdpFedAvg(8.0, R=0.5, ranges="noise-subtracted", **options)

    whole = started(strategy(), LocalGrid(app_of(LdpMod(8.0, generator=keyed)), NODES), rounds=4)
    grid = LocalGrid(app_of(LdpMod(8.0, generator=keyed)), NODES)
    started(strategy(save=tmp_path), grid, rounds=2)
    with pytest.raises(RuntimeError, match="resume"):
        started(strategy(save=tmp_path), grid, rounds=4)
    with pytest.raises(RuntimeError, match=r"another run.*eps"):
        started(LdpFedAvg(9.0, R=0.5, ranges="noise-subtracted", save=tmp_path, resume=True), grid, rounds=4)
    rest = started(strategy(save=tmp_path, resume=True), grid, rounds=4)
    assert rest.train_metrics_clientapp == whole.train_metrics_clientapp
    for name, array in whole.arrays.items():
        assert np.array_equal(array.numpy(), rest.arrays[name].numpy())
    (tmp_path / "round.npz").write_bytes((tmp_path / "round.npz").read_bytes()[:-40])
    with pytest.raises(RuntimeError, match="damaged"):
        started(strategy(save=tmp_path, resume=True), grid, rounds=5)


def test_evaluation_is_the_servers():
    with pytest.raises(ValueError, match="evaluate_fn"):
        LdpFedAvg(1.0, R=0.1, fraction_evaluate=0.5)
    seen = []
    started(
        LdpFedAvg(1.0, R=0.1),
        LocalGrid(app_of(LdpMod(1.0)), NODES),
        rounds=2,
        train_config=ConfigRecord({"lr": 0.1}),
        evaluate_fn=lambda round_, arrays: seen.append(round_),
    )
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LdpMod(0.0), "eps"),
        (lambda: LdpMod(1.0, "laplace"), "mechanism"),
        (lambda: LdpMod(1.0, "gaussian"), "norm"),
        (lambda: LdpMod(1.0, "gaussian", norm=1.0, delta=0.0), "delta"),
        (lambda: LdpMod(1.0, "projected-code", norm=1.0), "law=ProjectedCode"),
        (lambda: LdpMod(1.0, "privunitg"), "norm"),
        (lambda: LdpMod(1.0, norm=1.0), "norm"),
        (lambda: LdpMod(1.0, upload="gradients"), "upload"),
        (lambda: LdpMod(1.0, ledger="spent.ledger"), "budget"),
        (lambda: LdpMod(1.0, ledger="spent.ledger", budget=-1.0), "epsilon"),
        (lambda: LdpMod(1.0, buffers="send"), "buffers"),
        (lambda: LdpMod(1.0, "privunitg", norm=1.0, threshold=5), "add integers"),
        (lambda: LdpMod(1.0, identity=(1, bytes(32))), "identity"),
        (lambda: LdpMod(central=CENTRAL, ledger="spent.ledger", budget=1.0), "give it to LdpFedAvg"),
        (lambda: LdpFedAvg(1.0, R=0.1, ledger="spent.ledger", budget=1.0), "is for central"),
        (lambda: LdpFedAvg(1.0, R=0.1, at_least=0), "at_least"),
        (lambda: LdpFedAvg(1.0), "R is missing"),
        (lambda: LdpFedAvg(1.0, "privunitg", norm=1.0, R=0.1), "leave out"),
        (lambda: LdpFedAvg(1.0, R=-1.0), "R = -1.0"),
        (lambda: LdpFedAvg(1.0, R={"a": -1.0}), "R = -1.0"),
        (lambda: LdpFedAvg(1.0, R=0.1, ranges="widest"), "ranges = 'widest' is unknown: choose one of minmax"),
        (lambda: LdpFedAvg(1.0, R=0.1, growth=1.5), "ranges"),
        (lambda: LdpFedAvg(1.0, R=0.1, server_optimizer="adam"), "must make an optimizer of a list of tensors"),
        (lambda: LdpFedAvg(1.0, R=0.1, resume=True), "save"),
    ],
)
def test_settings_are_checked_where_they_are_given(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()


def test_ranges_of_no_array_are_refused_before_anyone_trains():
    grid = LocalGrid(app_of(LdpMod(1.0)), NODES)
    with pytest.raises(ValueError, match="'c'"):
        started(LdpFedAvg(1.0, C=0.0, R={"a": 0.1, "b": 0.1, "c": 0.1}), grid)
    with pytest.raises(ValueError, match="previous has no range for layer 'a'"):  # by module, of ranges by array
        started(LdpFedAvg(1.0, R={name: 0.1 for name in START}, ranges="noise-subtracted"), grid)
    assert not grid.sent


def test_a_run_without_a_report_fails_with_what_clients_answered(caplog):
    grid = LocalGrid(app_of(LdpMod(3.0)), NODES[:3])
    with pytest.raises(NoReportsError, match=r"no round of 2 had a report.*was set up with 3") as stop:
        LdpFedAvg(4.0, R=0.1).start(grid, records.record_of(START), num_rounds=2, timeout=1)
    assert not moved(stop.value.result).any()
    assert "this client was set up with 3.0" in caplog.text


def test_a_run_says_what_flowers_own_strategies_say(caplog):
    with caplog.at_level("INFO", "flwr"):
        evaluated = MetricRecord({"accuracy": 0.5})
        grid = LocalGrid(app_of(LdpMod(4.0)), NODES[:3])
        started(LdpFedAvg(4.0, R=0.1), grid, rounds=2, evaluate_fn=lambda round_, arrays: evaluated)
    for words in ("[ROUND 2/2]", "Initial global evaluation", "{'accuracy': 0.5}", "{'reports': 3, 'skipped': 0"):
        assert words in caplog.text
    assert "num-examples" not in caplog.text


def sgd(tensors):
    return torch.optim.SGD(tensors, lr=1.0, momentum=0.5)


@pytest.mark.parametrize("upload", ["updates", "weights"])
def test_a_servers_optimizer_takes_the_mean_for_its_gradient(upload):
    """SGD of rate 1 without momentum moves to the mean, as without an optimizer; with momentum steps add up."""
    how = {"R": 0.1} if upload == "updates" else {"C": 1.0, "R": 3.0}

    def run(rounds, **options):
        strategy = LdpFedAvg(12.0, upload=upload, **how, **options)
        return moved(started(strategy, LocalGrid(app_of(LdpMod(12.0, upload=upload, generator=keyed)), NODES), rounds))

    plain = run(1)
    assert np.allclose(run(1, server_optimizer=partial(torch.optim.SGD, lr=1.0)), plain, atol=1e-6)
    assert np.allclose(run(1, server_optimizer=partial(torch.optim.SGD, lr=0.5)), plain / 2, atol=1e-6)
    if upload == "updates":  # whose second mean does not depend on the model
        second = run(2) - plain
        assert np.allclose(run(2, server_optimizer=sgd), plain + second + 0.5 * plain, atol=1e-5)


def test_a_servers_momentum_outlives_it(tmp_path):
    def strategy(**options):
        return LdpFedAvg(12.0, R=0.1, server_optimizer=sgd, **options)

    grid = LocalGrid(app_of(LdpMod(12.0, generator=keyed)), NODES[:5])
    whole = started(strategy(), grid, rounds=3)
    started(strategy(save=tmp_path), grid, rounds=2)
    resumed = started(strategy(save=tmp_path, resume=True), grid, rounds=3)
    assert np.array_equal(moved(resumed), moved(whole))
    with pytest.raises(CheckpointError, match="server_optimizer"):
        started(LdpFedAvg(12.0, R=0.1, save=tmp_path, resume=True), grid, rounds=4)


class Older(NumPyClient):
    def fit(self, parameters, config):
        return [np.asarray(one + config["step"], one.dtype) for one in parameters], 7, {"loss": 0.25}


def test_an_app_of_the_older_interface_reports_what_it_trained():
    """By the mod between; without it nothing is trained, and the client's log has the cure."""
    found = []
    for app in (
        ClientApp(lambda context: Older().to_client(), mods=[LdpMod(12.0, metrics=["loss"]), numpy_client]),
        app_of(LdpMod(12.0, metrics=["loss"])),
    ):
        grid = LocalGrid(app, NODES)
        result = started(LdpFedAvg(12.0, R=0.1), grid, train_config=ConfigRecord({"step": STEP}))
        found.append(moved(result))
        assert {reply.content["metrics"]["loss"] for reply in grid.received} == {0.25}
    assert all(abs(one.mean() - STEP) < 0.02 for one in found)


def test_an_app_of_the_older_interface_without_its_mod_is_told_the_cure(caplog):
    grid = LocalGrid(ClientApp(lambda context: Older().to_client(), mods=[LdpMod(12.0)]), NODES[:2])
    started(LdpFedAvg(12.0, R=0.1), grid, train_config=ConfigRecord({"step": STEP}))
    assert "mods=[LdpMod(...), ldpkernels.flower.numpy_client]" in caplog.text
