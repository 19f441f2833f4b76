# SPDX-License-Identifier: Apache-2.0
"""A ledger under forks, threads, processes, signals, kills and a full disk: no more than the budget is released."""

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ldpkernels.accounting import BudgetExceeded, Ledger, LedgerError, PureEvent
from ldpkernels.accounting.ledger_file import LedgerFile, Round
from tests.accounting.test_ledger import opened

PRELUDE = """
import ctypes, os, random, resource, signal, sys, threading
from ldpkernels.accounting import BudgetExceeded, Ledger, LedgerError, PureEvent
path = sys.argv[1] if len(sys.argv) > 1 else None
def opened(budget):
    return Ledger(path, epsilon=budget, delta=0.0, method="basic")
def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def started(code: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PRELUDE + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(code: str, *arguments: object) -> str:
    with started(code, *arguments) as process:
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out


FORK = """
ledger = opened(1.0)
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
assert [ended(child) for child in children] == [0, 0, 0]
assert ledger.spend(PureEvent(0.75)).epsilon == 1.0
"""


@pytest.mark.parametrize("file", ["run.ledger", None])
def test_a_forked_child_spends_nothing(tmp_path: Path, file: str | None) -> None:
    run(FORK, *([tmp_path / file] if file else []))


FORK_BESIDE_A_THREAD = """
ledger, stop = opened(1e6), threading.Event()
def spend():
    while not stop.is_set():
        ledger.spend(PureEvent(1.0))
thread = threading.Thread(target=spend)
thread.start()
while ledger.epsilon < 50:
    if (child := os.fork()) == 0:
        ledger.close()
        ledger = None  # and the interpreter ends, with all that it has of the other thread
        sys.exit(0)
    assert ended(child) == 0
stop.set()
thread.join()
assert opened(1e6).epsilon == ledger.epsilon, (opened(1e6).epsilon, ledger.epsilon)
"""


def test_a_child_that_is_forked_while_a_thread_spends_undoes_nothing(tmp_path: Path) -> None:
    run(FORK_BESIDE_A_THREAD, tmp_path / "run.ledger")


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


@pytest.mark.parametrize("file", ["run.ledger", None])
def test_threads_share_one_budget(tmp_path: Path, file: str | None) -> None:
    with opened(tmp_path / file if file else None, 1.0) as ledger:
        others = [opened(tmp_path / file, 1.0) for _ in range(4)] if file else []
        with ThreadPoolExecutor(8) as pool:
            spent = sum(
                pool.map(spends, [ledger] * 4 + (others or [ledger] * 4))
            )  # an error in a thread comes out here
        assert spent == 16
    assert file is None or opened(tmp_path / file, 1.0).history == tuple(i / 16 for i in range(1, 17))


PROCESS = """
ledger, spent = opened(32.0), 0
print("open", flush=True)
sys.stdin.readline()
try:
    while True:
        ledger.spend(PureEvent(1.0))
        spent += 1
except BudgetExceeded:
    print(spent)
"""


def test_processes_share_one_budget(tmp_path: Path) -> None:
    """Each learns in its transaction what the others have spent: together they spend the budget, and no more."""
    processes = [started(PROCESS, tmp_path / "run.ledger") for _ in range(3)]
    outs = [process.communicate(timeout=120) for process in processes]
    assert [errors for _, errors in outs] == [""] * 3
    assert sum(int(out.split()[-1]) for out, _ in outs) == 32
    assert opened(tmp_path / "run.ledger", 32.0).history == tuple(map(float, range(1, 33)))


def test_a_handler_that_spends_within_spend_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "run.ledger", 1.0) as ledger:
        write = LedgerFile.write

        def interrupted(file: LedgerFile, db: sqlite3.Connection, one: Round) -> None:
            with pytest.raises(LedgerError, match="is under way"):
                ledger.spend(PureEvent(0.6))
            write(file, db, one)

        monkeypatch.setattr(LedgerFile, "write", interrupted)
        assert ledger.spend(PureEvent(0.6)).epsilon == 0.6


INTERRUPTED = """
class Stop(Exception):
    pass

def stop(*_):
    raise Stop

signal.signal(signal.SIGALRM, stop)
random_, returned, stops, ledger = random.Random(3), 0, 0, None
while stops < 40 or returned < 5:
    try:
        signal.setitimer(signal.ITIMER_REAL, random_.uniform(1e-4, 2e-2))
        if ledger is None or random_.random() < .5:
            ledger = opened(1e6)
        while True:
            ledger.spend(PureEvent(1.0))
            returned += 1
    except Stop:
        stops += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
ledger.spend(PureEvent(1.0))  # it goes on
assert opened(1e6).epsilon > returned > 0, (opened(1e6).epsilon, returned)
"""


def test_exceptions_from_signals_lose_nothing(tmp_path: Path) -> None:
    run(INTERRUPTED, tmp_path / "run.ledger")


KILLED = """
ptrace, TRACEME, NEXT_CALL = ctypes.CDLL(None, use_errno=True).ptrace, 0, 24
def killed(calls):
    '''Whether a child was killed in this one of its system calls (or ended before), and whether its spend returned.'''
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        ledger = opened(1e6) if os.path.exists(path) else None
        if ptrace(TRACEME, 0, None, None):
            os._exit(3)
        os.kill(os.getpid(), signal.SIGSTOP)
        (ledger or opened(1e6)).spend(PureEvent(1.0))
        os.write(tell, b"1")
        os._exit(0)
    os.close(tell)
    alive = os.WIFSTOPPED(os.waitpid(child, 0)[1])
    assert alive, "this machine has no ptrace"
    for _ in range(2 * calls):  # a call is stopped before and after
        ptrace(NEXT_CALL, child, None, None)
        alive = os.WIFSTOPPED(os.waitpid(child, 0)[1])
        if not alive:
            break
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    returned = os.read(told, 1) == b"1"
    os.close(told)
    return alive, returned

def kept(before):
    calls, alive, hidden = 0, True, 0
    while alive:
        for name in (path, path + "-journal"):
            if os.path.exists(name):
                os.remove(name)
        if before:
            open(path, "wb").write(whole)
        alive, returned = killed(calls)
        after = opened(1e6).epsilon
        assert before + returned <= after <= before + 1, (calls, before, after, returned)
        hidden += after > before and not returned
        calls += 1
    assert calls > 50 and 5 < hidden < 30, (calls, hidden)

opened(1e6).spend(PureEvent(1.0))
whole = open(path, "rb").read()
kept(1)
kept(0)
"""


def test_kill_9_at_every_system_call_loses_nothing(tmp_path: Path) -> None:
    """Of a first round, which begins the file, and of another: what returned is there, and nothing is there twice."""
    run(KILLED, tmp_path / "run.ledger")


def test_a_round_is_durable_before_spend_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the round's pages the file is synced, then the journal is deleted, then the directory is synced."""
    found = []
    with opened(tmp_path / "run.ledger") as ledger:
        write = LedgerFile.write

        def asked(file: LedgerFile, db: sqlite3.Connection, one: Round) -> None:
            found.extend(db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode"))
            write(file, db, one)

        monkeypatch.setattr(LedgerFile, "write", asked)
        with sqlite3.connect(tmp_path / "run.ledger") as db:
            db.execute("PRAGMA journal_mode = WAL")
        ledger.spend(PureEvent(1.0))
    assert found == [3, "delete"]  # 3: EXTRA


FULL = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
returned = 0
try:
    ledger = opened(1e9)
    while True:
        ledger.spend(PureEvent(1.0))
        returned += 1
except LedgerError as error:
    assert "can't be used, and nothing is released" in str(error), error
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(returned, os.path.getsize(path))
"""


def test_a_full_disk_leaves_a_file_that_opens(tmp_path: Path) -> None:
    path, released = tmp_path / "run.ledger", 0
    for limit in (50, 5000, 20000, 28672):
        returned, size = map(int, run(FULL, path, limit).split())
        released += returned
        assert size <= max(limit, 16384)  # of a ledger that was begun
        with opened(path, 1e9) as ledger:
            assert ledger.epsilon == released
    assert released > 50


def test_a_ledger_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to root, whom permissions don't stop: another program has the file, longer than a ledger waits."""
    monkeypatch.setattr("ldpkernels.accounting.ledger_file.PATIENCE", 0.05)
    with opened(tmp_path / "run.ledger") as ledger, sqlite3.connect(tmp_path / "run.ledger") as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=r"database is locked\. Check its locks"):
            ledger.spend(PureEvent(1.0))
        db.rollback()
        assert ledger.spend(PureEvent(1.0)).epsilon == 1.0
