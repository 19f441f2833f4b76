# SPDX-License-Identifier: Apache-2.0
"""Native objects and calls from several threads, and without room for one."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native
from ldpkernels.wire.counters import BitCounter


def in_threads(count, work):
    errors = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def decoded(tally, size):
    out = np.empty(size)
    tally.decode_f64(0, 0.0, 1.0, out, 2)
    return out


@pytest.mark.parametrize("isa", _native.isas())
def test_no_report_is_lost(isa):
    """Of 4 threads, which also merge and read meanwhile. Without a lock, two of three runs crashed."""
    rng = np.random.default_rng(0)
    size, rounds = 200_003, 25
    reports = [np.packbits(rng.random(size) < 0.5, bitorder="little") for _ in range(4)]
    tally, parts = _native.Tally(len(reports[0]), isa), _native.Tally(len(reports[0]), isa)

    def work(number):
        for _ in range(rounds):
            tally.add([reports[number]], 2)
            parts.add([reports[number]] * 2, 1)
            assert tally.count <= 4 * rounds
            assert tally.planes().shape[0] <= 7
            if number == 0:
                decoded(tally, size)
                parts.merge(tally)

    in_threads(4, work)
    expected = rounds * sum(np.unpackbits(report, bitorder="little")[:size].astype(float) for report in reports)
    assert tally.count == 4 * rounds
    assert np.array_equal(decoded(tally, size), expected)
    assert parts.count >= 8 * rounds


def test_a_tally_may_be_merged_with_itself():
    tally = _native.Tally(70, "")
    report = np.arange(70, dtype=np.uint8)
    tally.add([report] * 3, 1)
    tally.merge(tally)
    assert tally.count == 6
    assert np.array_equal(decoded(tally, 560), 6.0 * np.unpackbits(report, bitorder="little"))


def test_a_count_never_overflows():
    """Three merges of 2^62 - 1 reports went negative."""
    tally, part = _native.Tally(1, ""), _native.Tally(1, "")
    part.restore(2**62 - 1, np.zeros((62, 1), np.uint8))
    tally.merge(part)
    tally.merge(part)
    before = tally.planes().tobytes()
    report = np.ones(1, np.uint8)
    for change in (lambda: tally.merge(part), lambda: tally.merge(tally), lambda: tally.add([report] * 2, 1)):
        with pytest.raises(OverflowError, match="reports"):
            change()
    assert (tally.count, tally.planes().tobytes()) == (2**63 - 2, before)
    tally.add([np.ones(1, np.uint8)], 1)
    assert tally.count == 2**63 - 1
    for count, planes in ((-1, 0), (1, 2), (2, 1), (0, 1), (255, 9)):
        with pytest.raises(ValueError, match=f"{planes} planes for a count of {count}"):
            tally.restore(count, np.zeros((planes, 1), np.uint8))


WITHOUT_ROOM = """
import resource, numpy as np
import ldpkernels
from ldpkernels import _native
n = 1 << 20
x, y = np.linspace(-1, 1, n), np.linspace(-1, 1, n)
laws = np.array([(0.0, 2.0**31, 0.0, -(2**31) + 1, 2**31 - 1, 0, 1)], _native.LAWS["two_point"])
key = np.array([1, 2], np.uint32)
tables = [np.array([(array.ctypes.data, 0, n, 0, 1)], _native.SPAN) for array in (x, y)]
_native.launch("two_point", "values", tables[0], laws, key, "", 1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 20), used + (3 << 20)))
try:
    import threading
    threading.Thread(target=print).start()
    raise SystemExit("a thread could be started")
except (RuntimeError, MemoryError):
    pass
_native.launch("two_point", "values", tables[1], laws, key, "", 8)
assert (x == y).all()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="limits a process's memory as Linux does")
def test_no_room_for_a_threads_stack_is_no_error():
    done = subprocess.run([sys.executable, "-c", WITHOUT_ROOM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_a_task_throws_is_raised():
    """In any of the call's threads: 2^59 classes have no room for their counts."""
    votes = np.zeros((1, 1 << 17), np.int64)
    labels, keep = np.zeros(1 << 17, np.int64), np.zeros(1 << 17, np.bool_)
    for threads in (1, 4):
        with pytest.raises(MemoryError):
            _native.majority_vote(votes, 2**59, labels, keep, "", threads)


HELPERS = """
import os, threading, numpy as np
import ldpkernels
from ldpkernels import _native
n = 1 << 20
laws = np.array([(0.0, 2.0**31, 0.0, -(2**31) + 1, 2**31 - 1, 0, 1)], _native.LAWS["two_point"])
key = np.array([1, 2], np.uint32)
def out(threads):
    x = np.linspace(-1, 1, n)
    _native.launch("two_point", "values", np.array([(x.ctypes.data, 0, n, 0, 1)], _native.SPAN), laws, key, "", threads)
    return x.tobytes()
def tasks():
    return set(os.listdir("/proc/self/task"))
before, expected = tasks(), out(1)
assert tasks() == before, "a thread for a call of one thread"
for _ in range(20):
    assert out(4) == expected
helpers = tasks() - before
assert len(helpers) == 3, helpers
for helper in helpers:
    status = open(f"/proc/self/task/{helper}/status").read()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    assert blocked >> 1 & 1 and blocked >> 14 & 1 and not blocked >> 10 & 1, "SIGINT, SIGTERM, SIGSEGV"
found = []
callers = [threading.Thread(target=lambda: found.append(all(out(3) == expected for _ in range(9)))) for _ in range(3)]
[caller.start() for caller in callers], [caller.join() for caller in callers]
assert found == [True] * 3
joined = {str(caller.native_id) for caller in callers}  # the system may list them for a moment longer
assert len(tasks() - before - joined) <= 6, "no more than were at work at once"
child = os.fork()
alone = len(tasks()) == 1
if not child:
    import signal
    signal.alarm(60)
    os._exit(3 if alone and out(4) == expected and len(tasks()) == 4 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3, "a child of a fork has no helpers of its own"
assert out(4) == expected
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="lists a process's threads as Linux does")
def test_helpers_wait_for_the_next_call_and_a_fork_starts_its_own():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", HELPERS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", ["aggregate", "ldp-fed"])
def test_a_fork_waits_for_what_another_thread_adds(kind, monkeypatch):
    # Before, a child found the lock taken for good.
    if kind == "aggregate":
        total = ldpkernels.Aggregate()
        data = ldpkernels.report(np.zeros(9), 0.0, 1.0, 1.0).to_bytes()
        owner, name = BitCounter, "add"
    else:
        cldp_upload = pytest.importorskip("ldpkernels.federated.cldp_upload")
        terms = cldp_upload.terms_of({"w": (9,)}, 1.0, 2, "exponential")
        total = cldp_upload.UploadMean(terms)
        data = cldp_upload.Upload(terms, 1.0, np.zeros(9, np.int64)).to_bytes()
        owner, name = cldp_upload, "_bound"
    slow, inside = threading.Event(), threading.Event()
    plain = getattr(owner, name)

    def halting(*args):
        if total._lock._is_owned() and not inside.is_set():
            inside.set()
            slow.wait(0.5)
        return plain(*args)

    monkeypatch.setattr(owner, name, halting)
    adding = threading.Thread(target=total.add, args=(data,))
    adding.start()
    assert inside.wait(10)
    child = os.fork()
    if not child:
        signal.alarm(20)  # a lock that nobody lets go
        before = count(total)
        total.add(data)
        os._exit(10 * before + count(total))
    slow.set()
    adding.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 12, "the child had not all, or could not add"
    assert count(total) == 1


def count(total):
    return total.clients


def test_an_alpha_that_would_fill_the_sum_is_refused():
    cldp_upload = pytest.importorskip("ldpkernels.federated.cldp_upload")
    terms = cldp_upload.terms_of({"w": (1,)}, 1.0, 2, "laplace")
    total = cldp_upload.UploadMean(terms, least_alpha=0.5)
    honest = cldp_upload.Upload(terms, 0.5, np.array([7])).to_bytes()
    total.add(honest)
    with pytest.raises(ValueError, match=r"alpha is 1e-17, below 0\.5"):
        total.add(cldp_upload.Upload(terms, 1e-17, np.array([7])).to_bytes())
    total.add(honest)
    assert total.mean()["w"].tolist() == [0.07]
