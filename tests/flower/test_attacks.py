# SPDX-License-Identifier: Apache-2.0
"""A server that wants more than it was promised, and a training that fails: what leaves tells nothing of either."""

import importlib
import io
import logging
import math
import signal
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

import ldpkernels
from ldpkernels.accounting import Ledger
from ldpkernels.flower import LdpMod, records
from ldpkernels.releases.choice import released
from tests.flower.test_rounds import NODES, START, app_of, keyed

RANGES = (0.0, 0.1)


def message_of(kind="train", eps=1.0, upload="updates", start=START):
    terms = records.terms(released(eps, "two-point"), upload, 1, start, RANGES)
    message = Message(RecordDict({"arrays": records.record_of(start), "ldp": terms}), NODES[0], kind)
    message.metadata.__dict__["_message_id"] = "1"
    return message


def context_of(node=NODES[0], **node_config):
    return Context(1, node, {"partition-id": 0, **node_config}, RecordDict(), {})


def never(message, context):
    pytest.fail("the client trained")


@pytest.mark.parametrize("kind", ["evaluate", "query", "evaluate.deep", "query.labels"])
def test_only_train_messages_are_answered(kind):
    reply = LdpMod(1.0)(message_of(kind=kind), context_of(), never)
    assert reply.has_error()
    assert "train messages only" in reply.error.reason


@pytest.mark.parametrize("told", [(-1e308, 1e300), (0.0, 1.7e308), (1e39, 1.0), (0.0, math.inf), (math.nan, 1.0)])
def test_ranges_that_no_report_has_are_a_refusal(told):
    message = message_of()
    terms = message.content["ldp"]
    terms["c"], terms["r"] = ([value] * len(terms["arrays"]) for value in told)
    reply = LdpMod(1.0)(message, context_of(), never)
    assert reply.has_error()
    assert "C=" in reply.error.reason or "R=" in reply.error.reason


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
        ({"clients": 5}, "does not know"),
        ({"generator": 5}, "does not know"),
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
    assert "names, shapes and dtypes are fixed" in words
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
    start, asked = time.monotonic(), message_of()
    reply = LdpMod(1.0, answer_after=0.3)(asked, context_of(), raises)
    assert not reply.has_error()
    assert time.monotonic() - start >= 0.3
    # a message says when it was made, and so when a training had ended; its time to live says it too
    assert reply.metadata.created_at - asked.metadata.created_at >= 0.3
    assert reply.metadata.ttl <= asked.metadata.ttl - 0.3
    with pytest.raises(ValueError, match="answer_after"):
        LdpMod(1.0, answer_after=-1.0)


def test_an_alarm_of_a_training_that_failed_does_not_end_its_report():
    """An app that limits its training sets an alarm, and cancels it only where it succeeds."""
    rang = []

    def late(*_):
        rang.append(True)
        raise TimeoutError("training took too long")

    def fails(message, context):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        raise IndexError("Target 12 is out of bounds.")

    def dawdles(message, context):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        time.sleep(5.0)

    before = signal.signal(signal.SIGALRM, late)
    try:
        for app, rings in ((fails, 0), (dawdles, 1)):
            assert not LdpMod(1.0, answer_after=0.5)(message_of(), context_of(), app).has_error()
            assert len(rang) == rings
        signal.setitimer(signal.ITIMER_REAL, 60.0)  # one that was there before goes on
        LdpMod(1.0)(message_of(), context_of(), fails)
        assert 50.0 < signal.setitimer(signal.ITIMER_REAL, 0.0)[0] <= 60.0
    finally:
        signal.signal(signal.SIGALRM, before)


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


def header(shape, dtype="<f4"):
    """NumPy's format for an array of which nothing follows."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def zipped():
    file = io.BytesIO()
    np.savez(file, x=np.zeros(3))
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        zipped(),
        header((2**40,)),
        header((2**62, 2**62)),
        header((-1, 4)),
        header((3,), "|O"),
        header((3,)) + bytes(11),
        header((2**40,), "|V0"),
        b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16,
        b"\x93NUMPY\x09\x00" + bytes(20),
    ],
    ids=[
        "empty",
        "magic",
        "npz",
        "4 TiB",
        "overflow",
        "negative",
        "objects",
        "short",
        "nothing",
        "no header",
        "version",
    ],
)
def test_arrays_that_are_none_are_refused_before_training(data, tmp_path):
    """Nothing raises out of the mod, nothing is spent, and a header takes no memory by itself."""
    message = message_of()
    message.content["arrays"]["b"] = Array(dtype="float64", shape=(3,), stype="numpy.ndarray", data=data)
    reply = LdpMod(1.0, ledger=tmp_path / "spent.ledger", budget=1e6)(message, context_of(), never)
    assert "array 'b'" in reply.error.reason
    assert not (tmp_path / "spent.ledger").exists()


@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(1.5)])
def test_every_array_of_numpy_is_read(array):
    found = records.arrays_of(RecordDict({"arrays": records.record_of({"x": array})}), "the message")["x"]
    assert np.array_equal(found, array)
    assert (found.shape, found.dtype, found.flags.writeable) == (array.shape, array.dtype, True)


def test_flowers_own_secure_sum_opens_a_victim():
    """Why it is not used: one message gets shares of both secrets of a client. This fails when Flower mends it."""
    flowers = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    state = flowers.SecAggPlusState(nid=1, threshold=2)
    state.rd_seed_share_dict, state.sk1_share_dict = {1: b"seed 1", 2: b"seed 2"}, {1: b"key 1", 2: b"key 2"}
    asked = ConfigRecord({flowers.Key.ACTIVE_NODE_ID_LIST: [1, 2], flowers.Key.DEAD_NODE_ID_LIST: [2]})
    assert flowers._unmask(state, asked)[flowers.Key.SHARE_LIST] == [b"seed 1", b"seed 2", b"key 2"]
