# SPDX-License-Identifier: Apache-2.0
# What was done to a server, and what it does now: threads, uploads of strangers, headers that promise too much.
import copy
import json
import math
import pickle
import struct
import subprocess
import sys
import threading
import tracemalloc
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ldpkernels
from ldpkernels import Aggregate, Report, aggregate, expected, report
from ldpkernels.laws.registry import MECHANISMS
from ldpkernels.wire import reader
from ldpkernels.wire.codec import MOST_BIT_CLIENTS, MOST_CLIENTS
from ldpkernels.wire.envelope import decode, encode
from ldpkernels.wire.layout import Layout

MODEL = {"w": np.linspace(-1, 1, 15).reshape(3, 5), "b": np.zeros(2, np.float32)}


def upload(client=0, model=MODEL, C=0.0, R=1.0, eps=1.0, **options):
    return report(model, C, R, eps, generator=ldpkernels.key(client), **options)


def same(one, other):
    return list(one) == list(other) and all(np.array_equal(value, other[name]) for name, value in one.items())


def near(one, other):
    """But for the last rounding, which depends on the number of clients."""
    return all(np.allclose(value, other[name], rtol=0, atol=1e-6) for name, value in one.items())


def at_once(*calls):
    """All calls in threads of their own, started together; the first exception, if there is one."""
    barrier, errors = threading.Barrier(len(calls)), []

    def run(call):
        barrier.wait()
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    if errors:
        raise errors[0]


def add_often(total, one):
    for _ in range(50):
        total.add(one)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_threads_that_add_lose_nothing(mechanism):
    model = {"w": np.zeros(3000)}
    sent = [upload(i, model, eps=2.0, mechanism=mechanism) for i in range(4)]
    wanted = aggregate(sent * 50)
    for _ in range(5):
        total = Aggregate()
        at_once(*[partial(add_often, total, one) for one in sent])
        assert total.clients == 200
        assert same(total.mean(), wanted)


def test_everything_else_while_threads_add():
    one, total, found = upload(), Aggregate(), []
    total.add(one)
    wanted = total.mean()

    def read():
        for _ in range(40):
            for other in (Aggregate.from_bytes(total.to_bytes()), copy.deepcopy(total)):
                found.append(near(other.mean(), wanted))
            found.append(near(total.mean(), wanted))
            assert "15 weights" in repr(total) or "17 weights" in repr(total)

    at_once(*[lambda: [total.add(one, one.to_bytes()) for _ in range(100)]] * 3, read)
    assert (total.clients, len(found), all(found)) == (601, 120, True)


def test_two_aggregates_that_merge_each_other_do_not_wait_for_ever():
    one, other = Aggregate(), Aggregate()
    one.add(upload(0))
    other.add(upload(1))
    at_once(*[lambda: [one.merge(other) for _ in range(15)], lambda: [other.merge(one) for _ in range(15)]] * 2)
    fibonacci = {one.clients, other.clients}
    assert max(fibonacci) > 30  # some order of 60 additions
    assert math.isfinite(one.mean()["w"].sum())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_copies_and_pickles_share_nothing(copied, mechanism):
    expect = expected(MODEL, 0.0, 1.0, 1.0, mechanism=mechanism)
    total = Aggregate(expect, on_bad="skip")
    assert copied(total).clients == 0
    total.add(upload(0, mechanism=mechanism), b"nonsense")
    other = copied(total)
    assert (other.expect, other.skipped, other.reasons) == (expect, 1, total.reasons)
    assert repr(other) == repr(total)
    other.add(upload(1, mechanism=mechanism), b"more")
    assert (other.clients, other.skipped, total.clients, total.skipped) == (2, 2, 1, 1)
    assert same(total.mean(), aggregate([upload(0, mechanism=mechanism)]))
    assert same(other.mean(), aggregate([upload(i, mechanism=mechanism) for i in range(2)]))
    one = copied(upload(mechanism=mechanism))
    assert one.to_bytes() == upload(mechanism=mechanism).to_bytes()


def forged(kind=None, payload=None, data=None, **changes):
    """An upload with another header, or other weights, whose digest fits."""
    header, weights = decode(data or upload().to_bytes(), kind or "report")
    return encode({"kind": kind or "report", **header, **changes}, weights if payload is None else payload)


def peak(call):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"\w+ \w+ \w+") as error:
            call()
        assert type(error.value) is ValueError
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("clients", [1, 2**30, 2**54 - 1, 2**62 - 1])
@pytest.mark.parametrize("shapes", [[[200_000_000]], [[2**59]], [[2**20, 2**20]]])
def test_a_short_aggregate_that_promises_much_takes_no_memory(mechanism, clients, shapes):
    total = Aggregate()
    total.add(upload(model={"w": np.zeros(8)}, eps=2.0, mechanism=mechanism))
    for payload in (b"", bytes(100)):
        data = forged("aggregate", payload, total.to_bytes(), shapes=shapes, clients=clients)
        assert peak(lambda data=data: Aggregate.from_bytes(data)) < 100_000


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_laws_are_not_worked_out_for_weights_that_are_not_there(mechanism, monkeypatch):
    monkeypatch.setattr(Layout, "check_law", lambda self: pytest.fail("a law for nothing"))
    tensors = 5000
    many = dict(names=[str(i) for i in range(tensors)], shapes=[[9]] * tensors, dtypes=["float32"] * tensors)
    ranges = dict(c=[float(i) for i in range(tensors)], r=[1.0 + i for i in range(tensors)])
    with pytest.raises(ValueError, match="promises"):
        Report.from_bytes(forged(data=upload(mechanism=mechanism, eps=2.0).to_bytes(), **many, **ranges))


def test_what_differs_is_known_before_laws_and_weights():
    data = forged(shapes=[[3, 5], [2**50]], payload=bytes(3))
    total = Aggregate(expected(MODEL, 0.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="not what is expected: shapes of 'b'"):
        total.add(data)


@pytest.mark.parametrize(
    "text",
    [
        b'{"kind":"report","names":[' + b"[]," * 30_000 + b"[]]}",
        b'{"kind":"report","names":' + b"[" * 50_000,
        b'{"kind":"report","shapes":[[' + b"9" * 4000 + b"]]}",
        b'{"kind":"report",' + b",".join(b'"%d":0' % i for i in range(20_000)) + b"}",
    ],
    ids=lambda text: text[16:40].decode(),
)
def test_a_long_header_is_not_parsed_where_a_short_one_is_expected(text, monkeypatch):
    body = struct.pack("<4sBxxxI", b"LDPK", 2, len(text)) + text
    data = body + ldpkernels._native.crc32c(body).to_bytes(4, "little")
    with pytest.raises(ValueError, match=r"\w+ \w+ \w+"):
        Report.from_bytes(data)
    total = Aggregate(expected(MODEL, 0.0, 1.0, 1.0), on_bad="skip")
    if len(text) > 10_000:
        monkeypatch.setattr(reader, "header_in", lambda *_: pytest.fail("the header was parsed"))
    total.add(data)
    assert total.skipped == 1


def test_a_field_that_stands_twice_and_numbers_that_are_none():
    header, weights = decode(upload().to_bytes(), "report")
    text = json.dumps({"kind": "report", **header})
    for wrong in ('{"eps":9.0,' + text[1:], '{"kind":"report",' + text[1:], text.replace('"eps": 1.0', '"eps": NaN')):
        body = struct.pack("<4sBxxxI", b"LDPK", 2, len(wrong)) + wrong.encode() + weights
        with pytest.raises(ValueError, match="not JSON"):
            Report.from_bytes(body + ldpkernels._native.crc32c(body).to_bytes(4, "little"))


@pytest.mark.parametrize("shape", [(0,), (2**59, 0), (0, 4, 0)])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("zeros", [np.zeros, torch.zeros])
def test_aggregates_of_no_weights_travel(mechanism, shape, zeros):
    model = {"w": np.lib.stride_tricks.as_strided(np.zeros(1), shape) if shape[0] > 9 else zeros(shape)}
    total = Aggregate()
    total.add(upload(model=model, eps=2.0, mechanism=mechanism).to_bytes())
    back = Aggregate.from_bytes(total.to_bytes())
    assert back.clients == 1
    assert back.mean()["w"].shape == shape
    assert copy.deepcopy(back).clients == 1


def lines_of(call):
    """Lines of Python that a call runs."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("size", [0, 16])
def test_work_is_linear_in_tensors(mechanism, size):
    """Four times the tensors are four times the lines, for uploads, means and partial sums."""

    def lines(tensors):
        model, radii = [np.zeros(size) for _ in range(tensors)], [1.0 + i for i in range(tensors)]
        data = upload(model=model, R=radii, eps=2.0, mechanism=mechanism).to_bytes()
        total = Aggregate()
        total.add(data)
        sums = total.to_bytes()
        calls = [lambda: Report.from_bytes(data), lambda: total.add(data), total.mean]
        return [lines_of(call) for call in (*calls, lambda: Aggregate.from_bytes(sums), total.to_bytes)]

    lines(100), lines(400)  # laws are worked out once
    for few, many in zip(lines(100), lines(400), strict=True):
        assert many <= 4 * few + 50


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
    most = MOST_BIT_CLIENTS - 1 if bits else MOST_CLIENTS
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
    data = bytearray(upload().to_bytes())
    one = Report.from_bytes(data)
    wanted = one.to_bytes()
    data[:] = bytes(len(data))
    data.clear()
    assert one.to_bytes() == wanted


def test_bytes_are_read_where_they_are():
    data = upload(model=np.zeros(100_000)).to_bytes()
    assert np.shares_memory(Report.from_bytes(data).bits, np.frombuffer(data, np.uint8))


@given(st.data())
@settings(max_examples=200, deadline=None)
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
    body = struct.pack("<4sBxxxI", b"LDPK", 2, len(text)) + text + data.draw(st.just(weights) | st.binary(max_size=9))
    total.add(body + ldpkernels._native.crc32c(body).to_bytes(4, "little"), data.draw(st.binary(max_size=99)), honest)
    wanted = aggregate([honest])
    assert total.clients + total.skipped == 3
    assert total.clients > 1 or same(total.mean(), wanted)


def test_a_read_only_view_of_a_buffer_that_its_owner_changes_is_copied():
    one = ldpkernels.report(np.zeros(800), 0.0, 1.0, 1.0)
    buffer = bytearray(one.to_bytes())
    read = ldpkernels.Report.from_bytes(memoryview(buffer).toreadonly())
    buffer[:] = bytes(len(buffer))
    assert (read.bits == one.bits).all()
