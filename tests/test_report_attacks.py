# SPDX-License-Identifier: Apache-2.0
# What strangers send to a server, and what it does: refuse or skip, by a reason.
import copy
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ldpkernels import Aggregate, Report, aggregate, expected, report
from ldpkernels.laws.registry import MECHANISMS
from ldpkernels.wire.counters import BitCounter, ByteCounter
from ldpkernels.wire.envelope import decode
from tests.uploads import MODEL, forged, same, signed, upload

STRANGERS = {
    "r of 'w' is 9.0, not 1.0": lambda: upload(R=[9.0, 1.0]).to_bytes(),
    "c of 'b' is 0.5, not 0.0": lambda: upload(C={"w": 0.0, "b": 0.5}).to_bytes(),
    "eps is 2.0, not 1.0": lambda: upload(eps=2.0).to_bytes(),
    "mechanism is 'piecewise', not 'two-point'": lambda: upload(mechanism="piecewise").to_bytes(),
    "shapes of 'w' is (5, 3), not (3, 5)": lambda: upload(model={**MODEL, "w": np.zeros((5, 3))}).to_bytes(),
    "dtypes of 'b' is 'float64', not 'float32'": lambda: upload(model={**MODEL, "b": np.zeros(2)}).to_bytes(),
    "names of 'b' is 'v', not 'b'": lambda: upload(model={"w": MODEL["w"], "v": MODEL["b"]}).to_bytes(),
    "names is ('w',), not ('w', 'b')": lambda: upload(model={"w": MODEL["w"]}).to_bytes(),
    "too few": lambda: b"",
    "truncated or altered": lambda: upload().to_bytes()[:-1],
    "something else": lambda: aggregate_of_one().to_bytes(),
    "past the last weight": lambda: forged(payload=b"\xff\xff\xff"),
    "promises 3": lambda: forged(payload=b"\0\0"),
}


def aggregate_of_one():
    total = Aggregate()
    total.add(upload())
    return total


@pytest.mark.parametrize("reason", STRANGERS)
def test_a_stranger_is_refused_or_skipped_and_the_round_goes_on(reason):
    expect, stranger, honest = expected(MODEL, 0.0, 1.0, 1.0), STRANGERS[reason](), [upload(i) for i in range(40)]
    wanted = aggregate(honest)
    total = Aggregate(expect)
    for at_first in (True, False):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            total.add(*honest[:3], stranger, *honest[3:])
        assert reason in str(error.value)
        assert total.clients == (0 if at_first else 40)
        if at_first:
            total.add(*honest)
    assert same(total.mean(), wanted)
    total = Aggregate(expect, on_bad="skip")
    total.add(stranger)
    total.add(*honest[:20], stranger, *[one.to_bytes() for one in honest[20:]], stranger)
    assert (total.clients, total.skipped, list(total.reasons.values())) == (40, 3, [3])
    assert reason in next(iter(total.reasons))
    assert same(total.mean(), wanted)
    sent = [stranger, *honest, stranger]
    assert same(aggregate(sent, expect, on_bad="skip"), wanted)
    with pytest.raises(ValueError, match=r"\w+ \w+ \w+"):
        aggregate(sent, expect)
    with pytest.raises(ValueError, match=r"nothing to average: add at least one report \(2 were skipped, as: "):
        aggregate([stranger, stranger], expect, on_bad="skip")


def test_reports_of_this_process_are_compared_too():
    total = Aggregate(expected(MODEL, 0.0, 1.0, 1.0), on_bad="skip")
    total.add(upload(), upload(eps=2.0))
    reason = "reports of different kinds cannot be added: eps is 2.0 in one and 1.0 in the others"
    assert (total.clients, total.reasons) == (1, {reason: 1})
    with pytest.raises(TypeError, match="cannot add a ndarray"):  # an error of the server's own
        total.add(np.zeros(3))


def test_reasons_are_bounded_whatever_is_sent():
    total = Aggregate(expected(MODEL, 0.0, 1.0, 1.0), on_bad="skip")
    for i in range(300):
        total.add(forged(names=["w" * (2 + i), "b"]), bytes([i % 256]) * 50)
    assert total.skipped == 600
    assert sum(total.reasons.values()) == 600
    assert len(total.reasons) <= 16
    assert max(map(len, total.reasons)) < 300


def test_a_partial_aggregate_of_something_else_is_refused():
    expect = expected(MODEL, 0.0, 1.0, 1.0)
    assert Aggregate.from_bytes(aggregate_of_one().to_bytes(), expect).expect is expect
    with pytest.raises(ValueError, match="not what is expected: eps"):
        Aggregate.from_bytes(aggregate_of_one().to_bytes(), expected(MODEL, 0.0, 1.0, 2.0))
    total, other = Aggregate(expect, on_bad="skip"), Aggregate()
    other.add(upload(eps=2.0))
    with pytest.raises(ValueError, match=r"different kinds.*eps"):
        total.merge(other)
    with pytest.raises(TypeError, match="cannot merge a bytes"):
        total.merge(aggregate_of_one().to_bytes())
    second = Aggregate(expect, on_bad="skip")
    second.add(b"x", upload())
    total.merge(second)
    assert (total.clients, total.skipped) == (1, 1)


def test_arguments_that_would_not_protect_are_refused():
    with pytest.raises(ValueError, match="on_bad='skip' needs expect"):
        Aggregate(on_bad="skip")
    with pytest.raises(ValueError, match="must be 'raise' or 'skip'"):
        Aggregate(expected(MODEL, 0.0, 1.0, 1.0), on_bad="ignore")
    with pytest.raises(TypeError, match=r"expect is a dict: pass ldpkernels\.expected"):
        Aggregate(MODEL)
    with pytest.raises(ValueError, match=r"eps=0\.0"):
        expected(MODEL, 0.0, 1.0, 0.0)
    with pytest.raises(TypeError, match=r"dtype .* not supported"):
        expected({"w": np.zeros(3, np.int64)}, 0.0, 1.0, 1.0)


def test_the_mean_is_in_the_form_of_the_model_that_the_server_has():
    """Whoever reported, and by whatever library: also for a model that has no memory."""
    module = torch.nn.Linear(5, 3)
    arrays = {name: p.detach().numpy() for name, p in module.named_parameters()}
    with torch.device("meta"):
        ghost = torch.nn.Linear(5, 3)
    sent = [report(model, 0.0, 1.0, 1.0).to_bytes() for model in (arrays, module, dict(module.named_parameters()))]
    for model, kind in ((module, torch.Tensor), (ghost, torch.Tensor), (arrays, np.ndarray)):
        for order in (sent, sent[::-1]):
            mean = aggregate(order, expected(model, 0.0, 1.0, 1.0))
            assert {type(value) for value in mean.values()} == {kind}
            restored = Aggregate(expected(model, 0.0, 1.0, 1.0))
            restored.merge(partial_of(order))
            assert {type(value) for value in restored.mean().values()} == {kind}


def partial_of(uploads):
    total = Aggregate()
    total.add(*uploads)
    return Aggregate.from_bytes(total.to_bytes())


def test_buffers_and_half_precision_are_as_report_has_them():
    norm = torch.nn.BatchNorm1d(6)
    for buffers in ("perturb", "keep"):
        one = report(norm, 0.5, 1.0, 1.0, buffers=buffers)
        assert (
            aggregate([one], expected(norm, 0.5, 1.0, 1.0, buffers=buffers)).keys()
            == dict.fromkeys(one.layout.names).keys()
        )
    half = torch.nn.Linear(3, 2).half()
    aggregate([report(half, 0.1, 1.0, 1.0)], expected(torch.nn.Linear(3, 2), 0.1, 1.0, 1.0))
    low = expected(np.zeros(3), 0.0, 1.0, 0.3, mechanism="hybrid")
    assert aggregate([report(np.zeros(3), 0.0, 1.0, 0.3, mechanism="hybrid")], low).shape == (3,)


NUMPY_ONLY = """
import sys
sys.modules["torch"] = None  # any import of it fails
import numpy as np
import ldpkernels
one = bytes.fromhex(sys.argv[1])
assert type(ldpkernels.aggregate([one])["weight"]) is np.ndarray
model = {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
assert type(ldpkernels.aggregate([one], ldpkernels.expected(model, 0.0, 1.0, 1.0))["weight"]) is np.ndarray
"""


def test_a_client_that_has_torch_does_not_break_a_server_without():
    sent = report(torch.nn.Linear(3, 2), 0.0, 1.0, 1.0).to_bytes()
    command = [sys.executable, "-c", NUMPY_ONLY, sent.hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_counts_that_would_overflow_are_refused_and_nothing_changes(mechanism):
    bits = MECHANISMS[mechanism].reported == "bits"
    most = BitCounter.most_clients - 1 if bits else ByteCounter.most_clients
    one = upload(eps=2.0, mechanism=mechanism)
    total = Aggregate()
    total.add(one)
    zeros = bytes(one.layout.codec.sums_bytes(one.layout.sizes, most))
    huge = Aggregate.from_bytes(forged("aggregate", zeros, total.to_bytes(), clients=most))
    other = copy.deepcopy(huge)
    before = huge.to_bytes()
    with pytest.raises(ValueError, match="clients are more than an aggregate can count"):
        huge.merge(other)
    with pytest.raises(ValueError, match="clients are more than an aggregate can count"):
        huge.add(one, one)
    assert huge.to_bytes() == before
    assert math.isfinite(huge.mean()["w"].sum())
    if not bits:
        with pytest.raises(ValueError, match="more than an aggregate can count"):
            Aggregate.from_bytes(forged("aggregate", zeros, total.to_bytes(), clients=most + 1))


def test_bytes_that_their_owner_changes_are_not_the_reports():
    wanted = upload().to_bytes()
    for view in (lambda data: data, lambda data: memoryview(data).toreadonly()):
        data = bytearray(wanted)
        one = Report.from_bytes(view(data))
        data[:] = bytes(len(data))
        assert one.to_bytes() == wanted


def test_bytes_are_read_where_they_are():
    data = upload(model=np.zeros(100_000)).to_bytes()
    assert np.shares_memory(Report.from_bytes(data).bits, np.frombuffer(data, np.uint8))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_nothing_that_is_sent_stops_a_server_that_skips(data):
    total = Aggregate(expected(MODEL, 0.0, 1.0, 1.0), on_bad="skip")
    honest = upload().to_bytes()
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    )
    header, weights = decode(honest, "report")
    for field in data.draw(st.lists(st.sampled_from(sorted(header)), min_size=1, max_size=3, unique=True)):
        header[field] = data.draw(json_values)
    text = json.dumps({"kind": "report", **header}).encode()
    sent = signed(text, data.draw(st.just(weights) | st.binary(max_size=9)))
    total.add(sent, data.draw(st.binary(max_size=99)), honest)
    wanted = aggregate([honest])
    assert total.clients + total.skipped == 3
    assert total.clients > 1 or same(total.mean(), wanted)


@pytest.mark.parametrize("on_bad", ["raise", "skip"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_report_that_was_made_by_hand_is_looked_at_too(mechanism, on_bad):
    """Bytes of another type were counted and not added; bits past a tensor's end made sums that could not be read."""
    good = upload(mechanism=mechanism)
    size = good.layout.nbytes
    wrong = {
        "numbers of uint8": [
            good.bits.astype(np.int8),
            good.bits[None],
            good.bits[1:],
            None,
            "x",
            memoryview(good.bits),
        ],
        "contiguous": [np.repeat(good.bits, 2)[::2], torch.from_numpy(np.repeat(good.bits, 2))[::2]],
        "past the last weight": [np.full(size, 0xFF, np.uint8)] if mechanism in ("two-point", "sign") else [],
    }
    for reason, payloads in wrong.items():
        for payload in payloads:
            total = Aggregate(expected(MODEL, 0.0, 1.0, 1.0, mechanism=mechanism), on_bad=on_bad)
            if on_bad == "raise":
                with pytest.raises(ValueError, match=reason):
                    total.add(good, Report(good.layout, payload))
                assert total.clients == 0
                continue
            total.add(good, Report(good.layout, payload))
            assert (total.clients, total.skipped) == (1, 1)
            assert same(Aggregate.from_bytes(total.to_bytes()).mean(), total.mean())
