# SPDX-License-Identifier: Apache-2.0
"""Reports as integers through Flower's SecAgg+: the counts are those in the clear, and what a dropout costs."""

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

import ldpkernels
from ldpkernels.accounting import Ledger, shuffle_epsilon
from ldpkernels.flower import LdpFedAvg, LdpMod, SecureSum, records
from ldpkernels.flower.integers import Packing, aggregate_of
from ldpkernels.releases.release import EachWeight
from tests.flower.grid import LocalGrid
from tests.flower.test_rounds import NODES, START, STEP, app_of, keyed, started

FEW = NODES[:6]


def secure_app(**options):
    mod = LdpMod(
        options.pop("eps", 1.0), options.pop("mechanism", "two-point"), secure=True, generator=keyed, **options
    )
    app = ClientApp(mods=[secaggplus_mod, mod])
    app.train()(_train)
    return app


def _train(message, context):
    (arrays,) = message.content.array_records.values()
    trained = {name: np.asarray(array.numpy() + STEP, array.numpy().dtype) for name, array in arrays.items()}
    content = RecordDict(
        {"arrays": records.record_of(trained), "metrics": MetricRecord({"loss": 0.25, "accuracy": 0.5})}
    )
    return Message(content, reply_to=message)


def in_the_clear(nodes, eps=1.0, mechanism="two-point", R=0.1):
    update = {name: np.asarray((value + STEP).astype(value.dtype) - value) for name, value in START.items()}
    keys = [ldpkernels.key(node).fold_in(1) for node in nodes]
    reports = [ldpkernels.report(update, 0.0, R, eps, mechanism=mechanism, generator=key) for key in keys]
    mean = ldpkernels.aggregate(reports)
    return {name: (START[name] + mean[name]).astype(START[name].dtype) for name in START}


def equal(result, expected):
    return all(np.array_equal(array.numpy(), expected[name]) for name, array in result.arrays.items())


def masked_stage(message):
    return Key.SOURCE_LIST in message.content.config_records.get(RECORD_KEY_CONFIGS, {})


def shares_stage(message):
    return any(name.isdigit() for name in message.content.config_records.get(RECORD_KEY_CONFIGS, {}))


def unmask_stage(message):
    return Key.ACTIVE_NODE_ID_LIST in message.content.config_records.get(RECORD_KEY_CONFIGS, {})


def setup_stage(message):
    return Key.SAMPLE_NUMBER in message.content.config_records.get(RECORD_KEY_CONFIGS, {})


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise", "hybrid"])
def test_the_mean_has_the_bits_of_reports_in_the_clear(mechanism):
    grid = LocalGrid(secure_app(mechanism=mechanism, eps=2.0), FEW)
    result = started(LdpFedAvg(2.0, mechanism, R=0.1, secure=SecureSum()), grid)
    assert dict(result.train_metrics_clientapp[1]) == {"reports": 6, "skipped": 0, "failures": 0, "silent": 0}
    assert equal(result, in_the_clear(FEW, 2.0, mechanism))


def test_what_the_server_receives_is_masked():
    """No reply of a client holds its report: not as bytes, and not as the integers before the mask."""
    grid = LocalGrid(secure_app(metrics=["accuracy"]), FEW)
    started(LdpFedAvg(1.0, R=0.1, secure=SecureSum()), grid)
    packing = Packing.of(EachWeight(1.0, "two-point"), len(FEW))
    seen = 0
    for reply in grid.received:
        assert not any(record for record in reply.content.array_records.values())
        configs = reply.content.config_records[RECORD_KEY_CONFIGS]
        assert dict(reply.content.config_records.get("fitres.metrics", {"accuracy": 0.5})) == {"accuracy": 0.5}
        if Key.MASKED_PARAMETERS not in configs:
            continue
        seen += 1
        update = {name: np.asarray((value + STEP).astype(value.dtype) - value) for name, value in START.items()}
        key = ldpkernels.key(reply.metadata.src_node_id).fold_in(1)
        plain = packing.packed(ldpkernels.report(update, 0.0, 0.1, 1.0, generator=key)) + packing.bound
        weight, masked = (bytes_to_ndarray(data) for data in configs[Key.MASKED_PARAMETERS])
        assert masked.shape == plain.shape
        assert not (masked == plain).any()
        assert weight != 2 * packing.bound
    assert seen == len(FEW)


# What dropouts cost


def test_who_drops_out_before_uploading_is_left_out_of_the_sum(tmp_path):
    """The others' masks are opened: a mean of five, and the epsilon behind the sum is that of five clients."""
    grid = LocalGrid(
        secure_app(ledger=str(tmp_path / "{partition-id}.ledger"), budget=1e6),
        FEW,
        dropped=lambda message: message.metadata.dst_node_id == FEW[2] and masked_stage(message),
    )
    result = started(LdpFedAvg(1.0, R=0.1, secure=SecureSum()), grid)
    metrics = result.train_metrics_clientapp[1]
    assert (metrics["reports"], metrics["failures"]) == (5, 1)
    assert equal(result, in_the_clear([node for node in FEW if node != FEW[2]]))
    assert not (tmp_path / "2.ledger").exists()
    assert shuffle_epsilon(1.0, 5).epsilon > shuffle_epsilon(1.0, 6).epsilon


def test_who_drops_out_after_uploading_is_in_the_sum():
    grid = LocalGrid(
        secure_app(), FEW, dropped=lambda message: message.metadata.dst_node_id == FEW[2] and unmask_stage(message)
    )
    result = started(LdpFedAvg(1.0, R=0.1, secure=SecureSum()), grid)
    assert result.train_metrics_clientapp[1]["reports"] == 6
    assert equal(result, in_the_clear(FEW))


@pytest.mark.parametrize("stage", [setup_stage, shares_stage], ids=["keys", "shares"])
def test_who_drops_out_before_its_keys_are_shared_is_left_out(tmp_path, stage):
    """Flower's workflow by itself would lose the round, and what the others spent."""
    grid = LocalGrid(
        secure_app(ledger=str(tmp_path / "{partition-id}.ledger"), budget=1e6),
        FEW,
        dropped=lambda message: message.metadata.dst_node_id == FEW[1] and stage(message),
    )
    result = started(LdpFedAvg(1.0, R=0.1, secure=SecureSum()), grid)
    assert result.train_metrics_clientapp[1]["reports"] == 5
    assert equal(result, in_the_clear([node for node in FEW if node != FEW[1]]))
    assert len(list(tmp_path.iterdir())) == 5


def test_one_at_every_stage():
    stages = dict(zip(NODES[:4], (setup_stage, shares_stage, masked_stage, unmask_stage), strict=True))
    grid = LocalGrid(
        secure_app(),
        NODES[:12],
        dropped=lambda message: stages.get(message.metadata.dst_node_id, lambda _: False)(message),
    )
    result = started(LdpFedAvg(1.0, R=0.1, secure=SecureSum(threshold=0.5)), grid)
    assert result.train_metrics_clientapp[1]["reports"] == 9
    assert equal(result, in_the_clear(NODES[3:12]))


@pytest.mark.parametrize(
    ("stage", "who", "spent"), [(masked_stage, 3, 3), (unmask_stage, 3, 6)], ids=["before uploading", "at the end"]
)
def test_three_of_six_are_too_many(tmp_path, stage, who, spent):
    """Four are needed: the model stays, and whoever has uploaded has spent."""
    gone = FEW[:who]
    grid = LocalGrid(
        secure_app(ledger=str(tmp_path / "{partition-id}.ledger"), budget=1e6),
        FEW,
        dropped=lambda message: message.metadata.dst_node_id in gone and stage(message),
    )
    result = started(LdpFedAvg(1.0, R=0.1, secure=SecureSum()), grid)
    assert result.train_metrics_clientapp[1]["reports"] == 0
    assert equal(result, START)
    assert len(list(tmp_path.iterdir())) == spent
    for path in tmp_path.iterdir():
        with Ledger(path, epsilon=1e6) as ledger:
            assert len(ledger.history) == 1


# Lies, and the arithmetic


def test_a_client_that_is_no_report_spoils_the_round_and_nobody_can_say_who():
    class Liar(LdpMod):
        def _upload(self, message, context, update, told, key, metrics):
            packing = Packing.of(EachWeight(1.0, "two-point"), told.clients)
            lie = np.full(-(-34 // packing.digits), packing.bound - 1)
            return records.secure_answer(message, lie, metrics), None

    def one_lies(message, context, call_next):
        kind = Liar if context.node_id == FEW[1] else LdpMod
        return kind(1.0, secure=True)(message, context, call_next)

    app = ClientApp(mods=[secaggplus_mod, one_lies])
    app.train()(_train)
    strategy = LdpFedAvg(1.0, R=0.1, secure=SecureSum())
    result = started(strategy, LocalGrid(app, FEW))
    assert result.train_metrics_clientapp[1]["skipped"] == 1
    assert equal(result, START)


def test_a_server_that_skips_secure_aggregation_gets_nothing():
    """secaggplus_mod has no stage for a plain round, and LdpMod(secure=True) refuses one by itself."""
    grid = LocalGrid(app_of(LdpMod(1.0, secure=True)), FEW)
    result = started(LdpFedAvg(1.0, R=0.1), grid)
    assert result.train_metrics_clientapp[1]["failures"] == 6
    assert all("no secure sum" in reply.error.reason for reply in grid.received)


@pytest.mark.parametrize("clients", [0, -1, -(2**40), 2**62, 1.5, None])
def test_a_server_cannot_have_a_client_pack_for_a_crowd_that_there_is_none_of(clients):
    terms = records.terms(EachWeight(1.0, "two-point"), "updates", 1, START, (0.0, 0.1))
    if clients is not None:
        terms["clients"] = clients
    message = Message(RecordDict({"arrays": records.record_of(START), "ldp": terms}), FEW[0], "train")
    context = Context(1, FEW[0], {}, RecordDict(), {})
    reply = LdpMod(1.0, secure=True)(message, context, lambda *_: pytest.fail("the client trained"))
    assert reply.has_error()


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise"])
@pytest.mark.parametrize("clients", [2, 3, 10, 100, 1000])
def test_packed_sums_are_counts(mechanism, clients):
    """As many equal reports as the base is made for, summed as SecAgg+ sums: no digit overflows into the next."""
    release = EachWeight(1.0, mechanism)
    packing = Packing.of(release, clients)
    assert 2 * clients * packing.bound < 2**32 <= 2 * clients * packing.bound * packing.base
    arrays = {"w": np.full((7, 3), 1.0, np.float32), "s": np.array(-1.0, np.float32), "v": np.ones(9)}
    report = release.reported(arrays, (0.0, 0.1), ldpkernels.key(3))
    sums = packing.packed(report) * clients
    counts = packing.counts(sums, clients, 31)
    expected = ldpkernels.Aggregate(release.expected(arrays, (0.0, 0.1)))
    expected.add(*[report] * clients)
    assert aggregate_of(release.expected(arrays, (0.0, 0.1)), counts, clients).to_bytes() == expected.to_bytes()
    for wrong in (sums + packing.bound, sums - packing.bound, sums[:-1]):
        with pytest.raises(ValueError, match="secure sum"):
            packing.counts(wrong, clients, 31)


def test_more_clients_than_the_modulus_has_room_for():
    Packing.of(EachWeight(1.0, "two-point"), 46_000)
    with pytest.raises(ValueError, match="46400 clients"):
        Packing.of(EachWeight(1.0, "two-point"), 46_400)


def test_flowers_masks_come_from_32_bits():
    """docs/integrations/flower.md says so: seeds whose words XOR to the same mask alike. Fails when Flower mends it."""
    first = bytes(range(32))
    second = (int.from_bytes(first[:4], "little") ^ int.from_bytes(first[4:8], "little")).to_bytes(4, "little")
    second += bytes(4) + first[8:]
    assert first != second
    for one, other in zip(pseudo_rand_gen(first, 2**32, [(50,)]), pseudo_rand_gen(second, 2**32, [(50,)]), strict=True):
        assert np.array_equal(one, other)
