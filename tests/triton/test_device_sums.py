# SPDX-License-Identifier: Apache-2.0
# An aggregate of reports that lie on a device: the sums of the CPU, whatever comes from where.
import concurrent.futures
import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

import ldpkernels
from ldpkernels.wire import counts
from ldpkernels.wire.counters import ByteCounter

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from ldpkernels.triton import tally  # noqa: E402

MECHANISMS = ["two-point", "piecewise"]


@pytest.fixture(autouse=True)
def _on_triton():
    with ldpkernels.backend("triton"):
        yield


def some(mechanism, device, count=3, first=0):
    """Reports on the CPU, and the same on a device: 13 and 8 weights, so that bits are left over."""
    model = [torch.linspace(-1, 1, 13), torch.zeros(2, 4, dtype=torch.float64)]
    with ldpkernels.backend("scalar"):
        made = [
            ldpkernels.report(model, 0.0, 1.0, 2.0, mechanism=mechanism, generator=ldpkernels.key(first + i))
            for i in range(count)
        ]
    return [ldpkernels.Report(r.layout, r.bits) for r in made], [
        ldpkernels.Report(r.layout, r.payload.to(device)) for r in made
    ]


def alike(ours, host):
    assert ours.clients == host.clients
    assert all(torch.equal(a, b) for a, b in zip(ours.mean(), host.mean(), strict=True))
    assert ours.to_bytes() == host.to_bytes()


def held(total):
    """Reports that are counted on devices."""
    return sum(one.tally.count for one in total._counter._on_devices.values())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_reports_are_counted_where_they_lie(mechanism, device):
    here, there = some(mechanism, device)
    ours, host = ldpkernels.Aggregate(), ldpkernels.Aggregate()
    host.add(*here)
    ours.add(there[0])
    ours.add(*there[1:])
    assert (ours.clients, held(ours)) == (3, 3)
    alike(ours, host)
    assert held(ours) == 0
    more, on_device = some(mechanism, device, 2, first=9)
    host.add(*more)
    ours.add(on_device[0], more[1].to_bytes())  # after a mean, and beside an upload
    assert held(ours) == 1
    alike(ours, host)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("way", ["pickle", "deepcopy", "bytes", "merge", "merged into"])
def test_what_lies_on_a_device_goes_along(mechanism, way, device):
    here, there = some(mechanism, device)
    ours, host = ldpkernels.Aggregate(), ldpkernels.Aggregate()
    ours.add(*there)
    host.add(*here)
    if way == "pickle":
        ours = pickle.loads(pickle.dumps(ours))
    elif way == "deepcopy":
        ours = copy.deepcopy(ours)
    elif way == "bytes":
        ours = ldpkernels.Aggregate.from_bytes(ours.to_bytes())
    else:
        other = ldpkernels.Aggregate()
        other.add(*there)
        host.add(*here)
        if way == "merge":
            ours.merge(other)
            assert held(other) == 0
            assert other.clients == 3
        else:
            other.merge(ours)
            ours = other
    alike(ours, host)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_threads_add_and_look_at_once(mechanism, device):
    here, there = some(mechanism, device, 8)
    ours, host = ldpkernels.Aggregate(), ldpkernels.Aggregate()
    host.add(*here)

    def work(one):
        with ldpkernels.backend("triton"):  # the choice is a thread's own
            ours.add(one)
            ours.mean()
            return held(ours)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, there))
    alike(ours, host)


def test_what_is_copied_to_make_room_was_written_before(monkeypatch):
    """Sums that become wider, where the last reports were added on another stream."""
    done = []
    stream = SimpleNamespace(wait_event=lambda event: done.append(f"waits for {event}"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    (_, *_), (report, *_) = some("piecewise", "cpu")
    there = counts.DeviceSums(report.layout, torch.device("cpu"))
    there._device, there._last = torch.device("cuda", 1), "the last kernel"
    there.tally = SimpleNamespace(reserve=lambda n: done.append("reserves"), used_on=lambda s: done.append("keeps"))
    there.reserve(3)
    assert done == ["waits for the last kernel", "keeps", "reserves"]


def test_what_is_no_report_is_refused_before_any_is_added(device):
    for mechanism in MECHANISMS:
        (good, *_), (there, *_) = some(mechanism, device)
        payload = there.payload
        total = ldpkernels.Aggregate()
        for wrong in (payload[:-1], payload.to(torch.int8), payload[None], payload.repeat(2)[::2], None, "x"):
            with pytest.raises(ValueError, match="not a report"):
                total.add(good, there, ldpkernels.Report(there.layout, wrong))
        assert total.clients == 0


def test_bits_past_a_tensors_end_are_not_counted(device):
    (report, *_), (there, *_) = some("two-point", device)
    wrong = there.payload.clone()
    wrong[1] |= 0xE0  # of 13 weights
    ours, host = ldpkernels.Aggregate(), ldpkernels.Aggregate()
    ours.add(ldpkernels.Report(there.layout, wrong))
    host.add(report)
    alike(ours, host)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_sum_that_failed_half_way_is_not_given(mechanism, device, monkeypatch):
    _, there = some(mechanism, device)
    total = ldpkernels.Aggregate()
    total.add(there[0])

    def fails(self, reports):
        raise RuntimeError("no kernel")

    with monkeypatch.context() as patch:
        patch.setattr(tally.BitTally if mechanism == "two-point" else tally.ByteTally, "add", fails)
        with pytest.raises(RuntimeError, match="no kernel"):
            total.add(there[1])
    for call in (total.mean, total.to_bytes, lambda: total.add(there[2]), lambda: pickle.dumps(total)):
        with pytest.raises(RuntimeError, match="failed half-way, so that their sum is not known: collect them again"):
            call()


def test_an_instruction_set_that_is_forced_counts_on_the_host(device):
    _, there = some("two-point", device)
    total = ldpkernels.Aggregate()
    with ldpkernels.backend("scalar"):
        total.add(*there)
        assert counts.is_counted_on_device(there[0].payload) == (device == "cuda")
        assert held(total) == (3 if device == "cuda" else 0)


def test_more_clients_than_can_be_counted_are_refused_first(device, monkeypatch):
    _, there = some("piecewise", device)
    total = ldpkernels.Aggregate()
    total.add(there[0])
    monkeypatch.setattr(ByteCounter, "most_clients", 2)
    with pytest.raises(ValueError, match="3 clients are more than an aggregate can count"):
        total.add(*there[1:])
    assert (total.clients, np.asarray(total.mean()[0]).shape) == (1, (13,))
