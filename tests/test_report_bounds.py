# SPDX-License-Identifier: Apache-2.0
# Headers that promise too much: memory and work follow the bytes that came.
import copy
import json
import sys
import tracemalloc

import numpy as np
import pytest
import torch

from ldpkernels import Aggregate, Report, expected
from ldpkernels.laws.registry import MECHANISMS
from ldpkernels.wire import reader
from ldpkernels.wire.envelope import decode
from ldpkernels.wire.layout import Layout
from tests.uploads import MODEL, forged, signed, upload


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
    data = signed(text)
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
        with pytest.raises(ValueError, match="not JSON"):
            Report.from_bytes(signed(wrong.encode(), weights))


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
