# SPDX-License-Identifier: Apache-2.0
"""Clients that lie: what is not a report of the round is left out and counted, and honest ones keep their bits."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

import ldpkernels
from ldpkernels.flower import LdpFedAvg, LdpMod, NoReportsError, records
from ldpkernels.releases.choice import released
from ldpkernels.releases.release import Asked
from ldpkernels.wire.envelope import encode
from tests.flower.grid import LocalGrid
from tests.flower.test_rounds import NODES, START, app_of, keyed, started


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
    with pytest.raises(NoReportsError, match="nobody answered") as stop:
        LdpFedAvg(1.0, R=0.1).start(grid, records.record_of(START), num_rounds=1, timeout=0.2)
    result = stop.value.result
    assert dict(result.train_metrics_clientapp[1]) == {"reports": 0, "skipped": 0, "failures": 0, "silent": 40}
    assert np.array_equal(result.arrays["b"].numpy(), START["b"])
