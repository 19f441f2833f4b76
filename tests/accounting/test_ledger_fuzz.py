# SPDX-License-Identifier: Apache-2.0
"""Bytes that no ledger wrote: the reader answers with a LedgerError or a ledger, and never with less than was spent.

LDPKERNELS_FUZZ raises the number of files that are tried.
"""

import os
import random
from pathlib import Path

import pytest

from ldpkernels.accounting import (
    BudgetExceeded,
    Event,
    GaussianEvent,
    Ledger,
    LedgerError,
    MetricEvent,
    PureEvent,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    ShuffledEvent,
)
from ldpkernels.accounting.arguments import MOST
from ldpkernels.accounting.ledger_file import Chain
from ldpkernels.accounting.ledger_records import Declared, Header, Record, Spent, Torn

FILES = int(os.environ.get("LDPKERNELS_FUZZ", "400"))
BUDGET, DELTA = 1e6, 1e-5

PURE: list[Event] = [PureEvent(0.5), PureEvent(2.0), RandomizedResponseEvent(0.1), MetricEvent(0.25, "linf", 4.0)]
ANY = [*PURE, GaussianEvent(2.0), ShuffledEvent(1.0, 10), SampledGaussianEvent(1.0, 0.01), PureEvent(0.0)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of files needn't be durable, and none is read a second time from the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def opened(path: Path, method: str = "basic") -> Ledger:
    return Ledger(path, epsilon=BUDGET, delta=DELTA, method=method)


def written(path: Path, random_: random.Random, method: str) -> list[float]:
    """A ledger as a run leaves it, perhaps after a crash or two: epsilon after each byte of it."""
    path.unlink(missing_ok=True)
    epsilons = [0.0]
    for _ in range(random_.randrange(1, 4)):
        with opened(path, method) as ledger:
            for _ in range(random_.randrange(4)):
                ledger.spend(random_.choice(PURE), times=random_.choice((1, 3, 1000)))
                epsilons += [epsilons[-1]] * (path.stat().st_size - len(epsilons)) + [ledger.epsilon]
        if random_.random() < 0.4:
            whole = path.read_bytes()
            last = whole.rfind(b"\n", 0, -1) + 1
            if last:
                cut = random_.randrange(last + 1, len(whole))
                path.write_bytes(whole[:cut])
                epsilons = epsilons[: cut + 1]
                epsilons += [epsilons[-1]] * (cut + 1 - len(epsilons))
    return epsilons + [epsilons[-1]] * (path.stat().st_size + 1 - len(epsilons))


def flipped(data: bytes, random_: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(random_.choice((1, 1, 1, 2, 3, 8, 40))):
        # often where lines meet
        ends = [i for i, byte in enumerate(out) if byte == ord("\n")]
        at = (
            random_.choice(ends) + random_.randrange(-2, 3)
            if ends and random_.random() < 0.5
            else random_.randrange(len(out))
        )
        out[at % len(out)] = random_.choice((random_.randrange(256), ord("\n"), ord(" "), ord("{"), ord("}"), 0))
    return bytes(out)


def inserted(data: bytes, random_: random.Random) -> bytes:
    at = random_.randrange(len(data) + 1)
    lines = data.split(b"\n")
    more = random_.choice(
        (b"\n", b"\x00" * 9, random_.randbytes(random_.randrange(1, 300)), random_.choice(lines) + b"\n")
    )
    return data[:at] + more + data[at:]


@pytest.mark.parametrize("method", ["basic", "rdp"])
def test_changed_bytes_never_pay_less(tmp_path: Path, method: str) -> None:
    path, random_ = tmp_path / "run.jsonl", random.Random(5)
    accepted = refused = 0
    for _ in range(FILES // 8):
        truth = written(path, random_, method)
        whole = path.read_bytes()
        for _ in range(4):
            changed = random_.choice((flipped, flipped, inserted))(whole, random_)
            if changed == whole:
                continue
            path.write_bytes(changed)
            try:
                with opened(path, method) as ledger:
                    assert ledger.epsilon >= truth[-1] * (1 - 1e-12), changed
                    more = ledger.spend(PureEvent(2.0)).epsilon
                with opened(path, method) as ledger:
                    assert ledger.epsilon == more
                accepted += 1
            except LedgerError:
                refused += 1
    assert accepted > 0
    assert refused > accepted


def test_a_cut_file_charges_all_that_it_still_holds(tmp_path: Path) -> None:
    path, random_ = tmp_path / "run.jsonl", random.Random(6)
    for _ in range(FILES // 8):
        truth = written(path, random_, "basic")
        whole = path.read_bytes()
        cut = random_.randrange(len(whole))
        path.write_bytes(whole[:cut])
        if cut >= whole.index(b"\n"):
            with opened(path) as ledger:  # a crash leaves no other file: it has to open
                assert ledger.epsilon >= truth[cut] * (1 - 1e-12)
        else:
            with pytest.raises(LedgerError):
                opened(path)


def forged(random_: random.Random) -> bytes:
    """Records of any content, in any order, chained as a ledger chains them."""

    def number() -> float:
        return random_.choice((0.0, 0.5, 1e-320, 1e300, random_.random()))

    def count() -> int:
        return random_.choice((0, 1, 2, 3, 10**6, MOST, 10**30))

    chain, out = Chain(), b""
    for i in range(random_.randrange(1, 8)):
        records: list[Record] = [
            Header(BUDGET, DELTA, "basic"),
            Declared(random_.choice(ANY), count()),
            Declared(random_.choice(PURE), 1),
            Spent(random_.choice((1, i, count())), random_.choice((0, 0, count())), number()),
            Torn(count()),
        ]
        line = chain.line(records[0] if i == 0 and random_.random() < 0.9 else random_.choice(records))[1]
        if random_.random() < 0.1:
            line = random_.choice((flipped, inserted))(line, random_)
        chain.follow(line)
        out += line
    return out


def test_bytes_of_any_kind_are_refused_or_read(tmp_path: Path) -> None:
    path, random_ = tmp_path / "run.jsonl", random.Random(7)
    sources = [
        forged,
        lambda r: r.randbytes(r.randrange(600)),
        lambda r: bytes(r.choice(b'{}[]",:\n0e9 \xff') for _ in range(r.randrange(2000))),
        lambda r: flipped(forged(r), r),
    ]
    opens = 0
    for i in range(FILES):
        path.write_bytes(sources[i % len(sources)](random_))
        try:
            with opened(path) as ledger:
                before = ledger.epsilon
                opens += 1
                try:
                    assert ledger.spend(PureEvent(0.5)).epsilon >= before
                except (BudgetExceeded, ValueError):
                    assert ledger.epsilon == before  # a round of another view, or too dear: nothing was spent
        except LedgerError:
            pass
    assert opens > 0


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 10**6,
        b'{"chain":' * 10**5,
        b"\n" * 10**5,
        b"{\n" * 10**5,
        b"x\n" * 10**5,
        b'{"chain":"0","record":{"type":"ledger","format":' + b"9" * 10**5 + b"}}\n",
        b'{"chain":"0","record":{"type":"ledger","format":{}}}\n',
        b'{"chain":"\\ud800","record":{"type":"\\udfff"}}\n',
        b"\xff\xfe" * 10**5,
    ],
    ids=range(9),
)
def test_large_nonsense_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "run.jsonl").write_bytes(data)
    with pytest.raises(LedgerError):
        opened(tmp_path / "run.jsonl")
