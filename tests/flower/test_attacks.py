# SPDX-License-Identifier: Apache-2.0
"""A server that wants more than it was promised, clients that lie, and both when they die half-way."""

import logging
import math
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import ldpkernels
from ldpkernels.accounting import Ledger, composed_epsilon
from ldpkernels.flower import LdpFedAvg, LdpMod, records
from ldpkernels.laws.registry import mechanism_named
from ldpkernels.releases.choice import released
from ldpkernels.releases.release import Asked
from ldpkernels.wire.envelope import encode
from tests.flower.grid import LocalGrid
from tests.flower.test_rounds import NODES, START, app_of, keyed, started

RANGES = (0.0, 0.1)


def message_of(kind="train", eps=1.0, upload="updates"):
    terms = records.terms(released(eps, "two-point"), upload, 1, START, RANGES)
    message = Message(RecordDict({"arrays": records.record_of(START), "ldp": terms}), NODES[0], kind)
    message.metadata.__dict__["_message_id"] = "1"
    return message


def context_of(node=NODES[0], **node_config):
    return Context(1, node, {"partition-id": 0, **node_config}, RecordDict(), {})


def never(message, context):
    pytest.fail("the client trained")


# A server


@pytest.mark.parametrize("kind", ["evaluate", "query", "evaluate.deep", "query.labels"])
def test_only_train_messages_are_answered(kind):
    reply = LdpMod(1.0)(message_of(kind=kind), context_of(), never)
    assert reply.has_error()
    assert "train messages only" in reply.error.reason


def test_train_messages_with_a_name_are_answered():
    app = app_of(LdpMod(1.0))
    app.train("twice")(
        lambda message, context: Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)
    )
    assert not app(message_of(kind="train.twice"), context_of()).has_error()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"eps": 100.0}, "eps=100.0, and this client was set up with 1.0"),
        ({"eps": 1}, "eps=1"),
        ({"eps": True}, "eps=True"),
        ({"eps": math.nan}, "eps=nan"),
        ({"mechanism": "sign"}, "mechanism"),
        ({"mechanism": ""}, "mechanism"),
        ({"upload": "weights"}, "upload"),
        ({"round": 1.5}, "round"),
        ({"r": [math.inf] * 3}, "inf"),
        ({"r": [math.nan] * 3}, "nan"),
        ({"r": [-1.0] * 3}, "-1"),
        ({"r": [0.1]}, "one number for each"),
        ({"c": [1] * 3}, "one number for each"),
        ({"arrays": ["b", "a.weight", "a.scale"]}, "other arrays"),
        ({"clients": 5}, "knows nothing"),
        ({"generator": 5}, "knows nothing"),
    ],
)
def test_a_server_cannot_change_what_the_client_agreed_to(changed, words):
    message = message_of()
    message.content["ldp"] = ConfigRecord({**message.content["ldp"], **changed})
    reply = LdpMod(1.0)(message, context_of(), never)
    assert reply.has_error()
    assert words in reply.error.reason


def test_a_message_without_terms_or_with_two_models():
    plain = Message(RecordDict({"arrays": records.record_of(START)}), NODES[0], "train")
    assert "LdpFedAvg" in LdpMod(1.0)(plain, context_of(), never).error.reason
    two = message_of()
    two.content["more"] = records.record_of(START)
    assert "2 ArrayRecords" in LdpMod(1.0)(two, context_of(), never).error.reason
    empty = message_of()
    empty.content["arrays"] = ArrayRecord({})
    assert "no tensors" in LdpMod(1.0)(empty, context_of(), never).error.reason


@pytest.mark.parametrize("dtype", ["float16", "float128", "complex64", "int32", "bool", "<U3", "datetime64[s]"])
def test_arrays_of_every_kind_are_reported_or_refused(dtype):
    """fp16 is a weight; what is none is refused before training, by name."""
    array = np.zeros(5).astype(dtype)
    terms = ConfigRecord({**released(1.0, "two-point").terms, "upload": "updates", "round": 1})
    terms.update({"arrays": ["x"], "c": [0.0], "r": [0.1]})
    message = Message(RecordDict({"arrays": records.record_of({"x": array}), "ldp": terms}), NODES[0], "train")
    train = (
        never if dtype != "float16" else lambda m, c: Message(RecordDict({"arrays": m.content["arrays"]}), reply_to=m)
    )
    reply = LdpMod(1.0)(message, context_of(), train)
    assert reply.has_error() == (dtype != "float16")
    assert dtype == "float16" or "'x'" in reply.error.reason


def raises(message, context):
    raise ValueError("patient 4711 has no label")


def exits(message, context):
    raise SystemExit("patient 4711 has no label")


def panics(message, context):
    raise BaseException("patient 4711 has no label")  # as Rust's panics are, and cancelled tasks


def errs(message, context):
    return Message(Error(code=2, reason="patient 4711 has no label"), reply_to=message)


def nothing(message, context):
    return None


def answering(**changed):
    def train(message, context):
        return Message(RecordDict({"arrays": records.record_of({**START, **changed})}), reply_to=message)

    return train


def empty(message, context):
    return Message(RecordDict({}), reply_to=message)


FAILURES = {
    "raises": raises,
    "exits": exits,
    "panics": panics,
    "errs": errs,
    "nothing": nothing,
    "empty": empty,
    "another dtype": answering(**{"a.weight": np.zeros((6, 5), np.float64)}),
    "another shape": answering(**{"a.weight": np.zeros((5, 6), np.float32)}),
    "one more": answering(more=np.zeros(1)),
    "diverged": answering(**{"a.weight": np.full((6, 5), np.nan, np.float32)}),
}


def form(reply):
    """All that a server sees of a reply but for the report's bits and the ledger's figure."""
    assert not reply.has_error()
    report = records.report_in(reply.content)
    layout = ldpkernels.Report.from_bytes(report).layout
    metrics = {name: sorted(record) for name, record in reply.content.metric_records.items()}
    return len(report), layout, metrics, list(reply.content), reply.metadata.message_type


@pytest.mark.parametrize("upload", ["updates", "weights"])
@pytest.mark.parametrize("train", FAILURES.values(), ids=FAILURES)
def test_a_training_that_fails_is_a_report_of_no_change(train, upload, tmp_path, caplog):
    """Its form is that of a training that went well, the round is spent, and the reason stays in the client's log."""
    settings = {"upload": upload, "metrics": ["loss"], "budget": 1e6}
    message = message_of(eps=30.0, upload=upload)
    well = LdpMod(30.0, ledger=tmp_path / "well.ledger", **settings)(message, context_of(), answering())
    with caplog.at_level(logging.ERROR, "ldpkernels.flower"):
        failed = LdpMod(30.0, ledger=tmp_path / "failed.ledger", **settings)(message, context_of(), train)
    assert form(failed) == form(well)
    sums = [ldpkernels.aggregate([records.report_in(reply.content)] * 2) for reply in (failed, well)]
    unchanged = {name: array if upload == "weights" else np.zeros_like(array) for name, array in START.items()}
    if train is not FAILURES["diverged"]:  # whose NaN is the center of the range, as in any report
        assert "patient 4711" in caplog.text or train not in (raises, exits, panics, errs)
        assert "report of no change" in caplog.text
        reported = LdpMod(30.0, upload=upload, generator=keyed)(message, context_of(), train)
        key = keyed(message, context_of())
        expected = ldpkernels.report(unchanged, *RANGES, 30.0, generator=key, buffers="perturb").to_bytes()
        assert records.report_in(reported.content) == expected
    assert sums[0].keys() == sums[1].keys()
    for name in ("well", "failed"):
        with Ledger(tmp_path / f"{name}.ledger", epsilon=1e6) as ledger:
            assert len(ledger.history) == 1


def test_a_label_is_not_read_from_which_heads_fail(tmp_path):
    """A server sends heads of varying width; training raises where a label does not fit. Nothing tells it so."""
    largest = 83

    def train(message, context):
        heads = message.content["arrays"]["w"].numpy()
        if largest >= heads.shape[1]:
            raise IndexError(f"target {largest} is out of bounds")
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    def asked(width, **settings):
        like = {"w": np.zeros((8, width), np.float32)}
        terms = records.terms(released(1.0, "two-point"), "updates", 1, like, RANGES)
        message = Message(RecordDict({"arrays": records.record_of(like), "ldp": terms}), NODES[0], "train")
        return LdpMod(1.0, **settings)(message, context_of(), train)

    for width in (32, 83, 84, 128):
        reply = asked(width, ledger=tmp_path / f"{width}.ledger", budget=1e6)
        assert not reply.has_error()
        with Ledger(tmp_path / f"{width}.ledger", epsilon=1e6) as kept:
            assert len(kept.history) == 1
    words = asked(83, ledger=tmp_path / "84.ledger", budget=1e6).error.reason  # one client's ledger has one layout
    assert "names, shapes and dtypes are pinned" in words
    with Ledger(tmp_path / "84.ledger", epsilon=1e6) as kept:
        assert len(kept.history) == 1
    pinned = {"like": {"w": np.zeros((8, 84), np.float32)}}
    assert not asked(84, **pinned).has_error()
    words = asked(83, **pinned).error.reason
    assert words == "array 'w' is float32 of shape (8, 83), and this client was set up for float32 of shape (8, 84)"


@pytest.mark.parametrize(
    ("like", "words"),
    [
        ({"a.weight": START["a.weight"]}, "too many or missing"),
        (dict(reversed(START.items())), "another order"),
        (
            {**START, "b": START["b"].astype(np.float32)},
            "float64 of shape (3,), and this client was set up for float32",
        ),
    ],
)
def test_what_the_owner_pinned_is_all_that_is_reported(like, words, tmp_path):
    mod = LdpMod(1.0, like=like, ledger=tmp_path / "spent.ledger", budget=1e6)
    assert words in mod(message_of(), context_of(), never).error.reason
    with Ledger(tmp_path / "spent.ledger", epsilon=1e6) as ledger:
        assert not ledger.history


def test_a_key_of_another_kind_is_refused_before_anything_is_spent(tmp_path):
    mod = LdpMod(1.0, generator=lambda message, context: 7, ledger=tmp_path / "spent.ledger", budget=1e6)
    assert "return an ldpkernels.key" in mod(message_of(), context_of(), never).error.reason
    assert not (tmp_path / "spent.ledger").exists()


def test_no_answer_leaves_before_its_time():
    start = time.monotonic()
    assert not LdpMod(1.0, answer_after=0.3)(message_of(), context_of(), raises).has_error()
    assert time.monotonic() - start >= 0.3
    with pytest.raises(ValueError, match="answer_after"):
        LdpMod(1.0, answer_after=-1.0)


def test_an_app_that_trains_in_place_is_compared_with_what_it_received():
    """The mod keeps its own copy: an app may change the record that it was given."""

    def train(message, context):
        for name, array in message.content["arrays"].items():
            message.content["arrays"][name] = Array(np.asarray(array.numpy() + 0.05, array.numpy().dtype))
        return Message(message.content, reply_to=message)

    mod = LdpMod(16.0, generator=keyed)
    reply = mod(message_of(eps=16.0), context_of(), train)
    values = ldpkernels.aggregate([records.report_in(reply.content)])["a.weight"]
    assert values.mean() > 0.02  # of an update of .05 in [-.1, .1]; of none it would be 0 +- .02


# A ledger


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


# Clients


def reply_with(reply, data, **changed):
    array = Array(**{"dtype": "uint8", "shape": (len(data),), "stype": records.STYPE, "data": data, **changed})
    return Message(RecordDict({"report": ArrayRecord({"report": array})}), metadata=reply.metadata)


def other_report(**changed):
    settings = {"C": 0.0, "R": 0.1, "eps": 1.0, **changed}
    return ldpkernels.report(settings.pop("model", START), **settings).to_bytes()


LIES = {
    "nonsense": lambda reply: [reply_with(reply, b"nonsense")],
    "nothing": lambda reply: [reply_with(reply, b"")],
    "another eps": lambda reply: [reply_with(reply, other_report(eps=8.0))],
    "another range": lambda reply: [reply_with(reply, other_report(R=1e6))],
    "another model": lambda reply: [reply_with(reply, other_report(model={"w": np.zeros(3)}))],
    "numpy bytes": lambda reply: [reply_with(reply, other_report(), stype="numpy.ndarray")],
    "weights in the clear": lambda reply: [
        Message(RecordDict({"arrays": records.record_of(START)}), metadata=reply.metadata)
    ],
    "no record": lambda reply: [Message(RecordDict({}), metadata=reply.metadata)],
    "two records": lambda reply: [
        Message(RecordDict({**reply.content, "more": reply.content["report"]}), metadata=reply.metadata)
    ],
    "twice": lambda reply: [reply, reply],
    "five times": lambda reply: [reply] * 5,
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_left_out_and_counted(lie):
    liar = NODES[3]

    def tampered(reply):
        return LIES[lie](reply) if reply.metadata.src_node_id == liar else [reply]

    strategy = LdpFedAvg(1.0, R=0.1)
    grid = LocalGrid(app_of(LdpMod(1.0, generator=keyed)), NODES, tampered=tampered)
    result = started(strategy, grid)
    metrics = result.train_metrics_clientapp[1]
    repeated = {"twice": 1, "five times": 4}.get(lie, 0)
    assert metrics["reports"] == (40 if repeated else 39)
    assert metrics["skipped"] == strategy.skipped == sum(strategy.reasons.values()) == (repeated or 1)
    honest = [node for node in NODES if node != liar or repeated]
    update = {name: np.asarray((value + 0.05).astype(value.dtype) - value) for name, value in START.items()}
    reports = [ldpkernels.report(update, 0.0, 0.1, 1.0, generator=ldpkernels.key(node).fold_in(1)) for node in honest]
    mean = ldpkernels.aggregate(reports)
    for name, array in result.arrays.items():
        assert np.array_equal(array.numpy(), (START[name] + mean[name]).astype(START[name].dtype)), name


def test_a_vector_that_is_too_long_is_left_out():
    mechanism, norm = "privunitg", 0.5
    release = released(8.0, mechanism, norm=norm)
    arrays = {name: array.astype(np.float32) for name, array in START.items()}

    def tampered(reply):
        data = records.report_in(reply.content)
        total = release.total(arrays, Asked())
        total.add(data)
        flat = np.concatenate([part.ravel() for part in total.mean().values()]).astype("<f4")
        lies = [flat * 100, np.full_like(flat, np.nan), np.full_like(flat, np.inf), flat[:-1]]
        node = reply.metadata.src_node_id - NODES[0]
        return [reply_with(reply, encode(release.header(flat.size), lies[node].tobytes()))] if node < 4 else [reply]

    mod = LdpMod(8.0, mechanism, norm=norm, generator=keyed)
    strategy = LdpFedAvg(8.0, mechanism, norm=norm)
    result = strategy.start(LocalGrid(app_of(mod), NODES, tampered=tampered), records.record_of(arrays), num_rounds=1)
    assert result.train_metrics_clientapp[1]["reports"] == 36
    assert strategy.reasons == {
        "a vector longer than an honest report can be": 3,
        "144 bytes are no 34 numbers": 1,
    } or (strategy.skipped == 4)


def test_gaussian_updates_spend_a_gaussian_event(tmp_path):
    """A ledger composes them as what they are, which is less than their eps added up."""
    both = {"norm": 0.5, "delta": 1e-6}
    mod = LdpMod(2.0, "gaussian", ledger=tmp_path / "{node-id}.ledger", budget=100.0, generator=keyed, **both)
    started(LdpFedAvg(2.0, "gaussian", **both), LocalGrid(app_of(mod), NODES[:2]), rounds=4)
    with Ledger(tmp_path / f"{NODES[0]}.ledger", epsilon=100.0, delta=1e-6) as ledger:
        event = released(2.0, "gaussian", **both).event([34])[0]
        assert ledger.epsilon == composed_epsilon([(event, 4)], 1e-6)
        assert 2.0 < ledger.epsilon < 8.0


def test_a_server_of_another_delta_is_refused():
    mod = LdpMod(2.0, "gaussian", norm=0.5, delta=1e-6)
    result = started(LdpFedAvg(2.0, "gaussian", norm=0.5, delta=1e-5), LocalGrid(app_of(mod), NODES[:2]))
    assert result.train_metrics_clientapp[1]["failures"] == 2


def test_any_bits_of_a_vector_are_read_or_skipped():
    """Random words are every kind of number: signalling NaNs, infinities, subnormal ones."""
    release = released(4.0, "privunitg", norm=1.0)
    total = release.total({"w": np.zeros((3, 4), np.float32)}, Asked())
    words = np.random.default_rng(3).integers(0, 2**32, (2000, 12), dtype=np.uint32)
    words[:1000] |= 0x7F800000  # infinite, or no number
    total.add(*(encode(release.header(12), row.tobytes()) for row in words))
    assert total.clients + total.skipped == 2000
    assert total.skipped >= 1000


@pytest.mark.parametrize(("mechanism", "bound"), [("privunitg", None), ("k-of-d", 0.05), ("gaussian", None)])
def test_no_honest_vector_is_too_long(mechanism, bound):
    """300 reports of the longest update there is, against a bound that refuses one in e^60."""
    release = released(4.0, mechanism, norm=0.5, bound=bound)
    update = {"w": np.full(100, 0.05, np.float32)}
    total = release.total(update, Asked())
    total.add(*(release.report(update, Asked(), ldpkernels.key(i)) for i in range(300)))
    assert (total.clients, total.skipped) == (300, 0)


@pytest.mark.parametrize("claim", [math.inf, math.nan, -1.0, 5, [1.0, 2.0]])
def test_a_claim_of_what_was_spent_is_a_number_or_nothing(claim):
    def tampered(reply):
        reply.content["metrics"] = MetricRecord({"ldp-epsilon": claim})
        return [reply]

    result = started(LdpFedAvg(1.0, R=0.1), LocalGrid(app_of(LdpMod(1.0)), NODES, tampered=tampered))
    assert "ldp-epsilon" not in result.train_metrics_clientapp[1]


def test_a_round_without_a_report_leaves_the_model():
    grid = LocalGrid(app_of(LdpMod(1.0)), NODES, dropped=lambda message: True)
    result = LdpFedAvg(1.0, R=0.1).start(grid, records.record_of(START), num_rounds=1, timeout=0.2)
    assert dict(result.train_metrics_clientapp[1]) == {"reports": 0, "skipped": 0, "failures": 0, "silent": 40}
    assert np.array_equal(result.arrays["b"].numpy(), START["b"])


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
