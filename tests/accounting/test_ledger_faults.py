# SPDX-License-Identifier: Apache-2.0
"""A ledger under forks, threads, signals, kills and a full disk: no more than the budget is ever released."""

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ldpkernels.accounting import (
    BudgetExceeded,
    Ledger,
    LedgerError,
    PureEvent,
)
from tests.accounting.test_ledger_attacks import opened, run

pytest.importorskip("fcntl")


FORK = """
import os, sys
from ldpkernels.accounting import Ledger, LedgerError, PureEvent
path = sys.argv[1] if len(sys.argv) > 1 else None
ledger = Ledger(path, epsilon=1.0, delta=0.0, method="basic")
ledger.spend(PureEvent(0.25))
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        try:
            ledger.spend(PureEvent(0.75))
        except LedgerError as error:
            os._exit(0 if "was forked from it" in str(error) else 2)
        os._exit(1)
    children.append(child)
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
assert ledger.spend(PureEvent(0.75)).epsilon == 1.0
"""


@pytest.mark.parametrize("file", ["run.jsonl", None])
def test_a_forked_child_spends_nothing(tmp_path: Path, file: str | None) -> None:
    done = run(FORK, *([tmp_path / file] if file else []))
    assert done.returncode == 0, done.stderr


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = """
import os, sys, signal
from ldpkernels.accounting import Ledger, PureEvent
ledger = Ledger(sys.argv[1], epsilon=1.0, delta=0.0, method="basic")
ledger.spend(PureEvent(0.1))
ready, told = os.pipe()
child = os.fork()
if child == 0:
    ledger.close()  # as the end of a `with` would
    os.write(told, b"x")
    signal.pause()
os.read(ready, 1)
assert ledger.spend(PureEvent(0.1)).epsilon == 0.2  # the child's close was of its own copy
ledger.close()
again = Ledger(sys.argv[1], epsilon=1.0, delta=0.0, method="basic")
assert again.epsilon == 0.2
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""
    done = run(code, tmp_path / "run.jsonl")
    assert done.returncode == 0, done.stderr


def spends(ledger: Ledger) -> int:
    """Five rounds of a sixteenth, as far as the budget goes, with every other question asked meanwhile."""
    spent = 0
    for _ in range(5):
        try:
            ledger.spend(PureEvent(1 / 16))
            spent += 1
        except BudgetExceeded:
            pass
        assert ledger.rounds_left(PureEvent(1 / 16)) <= 16
        assert ledger.result.epsilon <= 1.0
        assert len(ledger.history) <= 16
    return spent


def test_threads_share_one_budget(tmp_path: Path) -> None:
    for path in (tmp_path / "run.jsonl", None):
        ledger = Ledger(path, epsilon=1.0, delta=0.0, method="basic")
        with ThreadPoolExecutor(8) as pool:
            spent = sum(pool.map(spends, [ledger] * 8))  # an error in a thread comes out here
        assert (spent, ledger.epsilon) == (16, 1.0)
        ledger.close()
    with opened(tmp_path / "run.jsonl", 1.0) as ledger:
        assert ledger.history == tuple(i / 16 for i in range(1, 17))


def test_a_handler_that_spends_within_spend_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "run.jsonl", 1.0) as ledger:
        fsync = os.fsync

        def interrupted(descriptor: int) -> None:
            fsync(descriptor)
            with pytest.raises(LedgerError, match="is under way"):
                ledger.spend(PureEvent(0.6))

        monkeypatch.setattr(os, "fsync", interrupted)
        assert ledger.spend(PureEvent(0.6)).epsilon == 0.6


INTERRUPTED = """
import random, signal, sys
from ldpkernels.accounting import Ledger, LedgerError, PureEvent

class Stop(Exception):
    pass

def stop(*_):
    raise Stop

signal.signal(signal.SIGALRM, stop)
random_, returned, stops = random.Random(int(sys.argv[2])), 0, 0
while stops < 40:
    ledger = None
    try:
        signal.setitimer(signal.ITIMER_REAL, random_.uniform(1e-4, 6e-3))
        ledger = Ledger(sys.argv[1], epsilon=1e6, delta=0.0, method="basic")
        while True:
            ledger.spend(PureEvent(1.0), times=random_.choice((1, 1, 1, 2)))
            returned += 1
    except Stop:
        stops += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        if ledger is not None:
            ledger.close()
ledger = Ledger(sys.argv[1], epsilon=1e6, delta=0.0, method="basic")
assert ledger.epsilon >= returned > 0, (ledger.epsilon, returned)
"""


def test_exceptions_from_signals_lose_nothing(tmp_path: Path) -> None:
    done = run(INTERRUPTED, tmp_path / "run.jsonl", 3)
    assert done.returncode == 0, done.stderr


KILLED = """
import sys
from ldpkernels.accounting import Ledger, PureEvent
ledger = Ledger(sys.argv[1], epsilon=1e9, delta=0.0, method="basic")
print("open", flush=True)
for i in range(10**6):
    ledger.spend(PureEvent(float(1 + i % 3)))
    sys.stdout.write(f"{1 + i % 3}\\n")
    sys.stdout.flush()
"""


def test_kill_9_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    released, random_ = 0.0, random.Random(2)
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            for _ in range(random_.randrange(40)):
                released += float(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            released += sum(float(line) for line in process.stdout if line.endswith("\n"))
        with opened(path, 1e9) as ledger:
            assert ledger.epsilon >= released
            # a round whose return was not seen, and a torn line of the dearest
            assert ledger.epsilon <= released + 6
            released = ledger.epsilon


FULL = """
import resource, signal, sys
from ldpkernels.accounting import Ledger, PureEvent
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
returned = 0
try:
    ledger = Ledger(sys.argv[1], epsilon=1e9, delta=0.0, method="basic")
    while True:
        ledger.spend(PureEvent(1.0))
        returned += 1
except OSError:
    pass
print(returned)
"""


def test_a_full_disk_leaves_a_file_that_opens(tmp_path: Path) -> None:
    """The system takes a part of the last line, then says that the file may not grow."""
    path = tmp_path / "run.jsonl"
    done = run(FULL, path, 50)
    assert done.stdout == "0\n"
    assert os.listdir(tmp_path) == []
    opened(path, 1e9).close()
    released = 0
    for more in (600, 701, 333, 1000):
        limit = path.stat().st_size + more
        done = run(FULL, path, limit)
        assert done.returncode == 0, done.stderr
        released += int(done.stdout)
        assert path.stat().st_size == limit
        with opened(path, 1e9) as ledger:
            assert released <= ledger.epsilon <= released + 1
            released = int(ledger.epsilon)
