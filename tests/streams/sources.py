# SPDX-License-Identifier: Apache-2.0
"""The random streams as mechanisms use them, as 32-bit words, for statistical batteries.

    python -m tests.streams.sources NAME > words

writes words until its reader has enough. A cipher's own counter mode alone would say little: what matters is what a
server sees, which is the same few draws under keys that are related to each other.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import count

import numpy as np

import ldpkernels
from ldpkernels import Key, _native
from ldpkernels.common.arrays import Words

CHACHA = Key((1, 2**64 - 1, 0xA5A5A5A55A5A5A5A, 2**63))
AES = Key((1, 2**64 - 1))
BLOCKS = 1 << 14


def elements(key: Key) -> Iterator[Words]:
    """The 16-bit draws of one tensor's elements, one after the other."""
    for first in count(0, BLOCKS):
        yield _native.keystream(key.uint32(), 0, first, BLOCKS, "")


def draws(key: Key) -> Iterator[Words]:
    """The 32-bit draws of elements: high halves of keystream 0, low ones of keystream 1."""
    for first in count(0, BLOCKS):
        high, low = (_native.keystream(key.uint32(), s, first, BLOCKS, "").view("<u2") for s in (0, 1))
        yield high.astype(np.uint32) << 16 | low


def keystreams(key: Key) -> Iterator[Words]:
    """One block of each keystream in turn: what a mechanism that rejects draws for one element."""
    for first in count(0, 1 << 10):
        yield np.concatenate([_native.keystream(key.uint32(), s % 2**32, 7, 1, "") for s in range(first, first + 1024)])


def clients(key: Key) -> Iterator[Words]:
    """The first block under the keys of clients 0, 1, 2, ...: what a server sees of one weight."""
    for first in count(0, 1 << 10):
        yield first_blocks(key.fold_in(i) for i in range(first, first + 1024))


def seeds(_: Key) -> Iterator[Words]:
    """The first block under key(0), key(1), ...: what scripts do."""
    for first in count(0, 1 << 10):
        yield first_blocks(ldpkernels.key(i) for i in range(first, first + 1024))


def first_blocks(keys: Iterable[Key]) -> Words:
    """Block 0 of keystream 0 under each key."""
    return np.concatenate([_native.keystream(key.uint32(), 0, 0, 1, "") for key in keys])


def reports(key: Key) -> Iterator[Words]:
    """One-bit reports of weights at the center of their range, which are fair coins."""
    weights = np.zeros(1 << 20, np.float32)
    for i in count():
        bits = ldpkernels.report(weights, 0.0, 1.0, 1.0, generator=key.fold_in(i)).bits
        yield np.frombuffer(bits.tobytes(), np.uint32)


def fresh(_: Key) -> Iterator[Words]:
    """Reports of a small model without a generator: every one under a key from the operating system."""
    weights = np.zeros(4096, np.float32)
    while True:
        found = [ldpkernels.report(weights, 0.0, 1.0, 1.0).bits.tobytes() for _ in range(64)]
        yield np.frombuffer(b"".join(found), np.uint32)


USES: dict[str, Callable[[Key], Iterator[Words]]] = {
    "elements": elements,
    "draws": draws,
    "keystreams": keystreams,
    "clients": clients,
    "reports": reports,
}
SOURCES: dict[str, Callable[[], Iterator[Words]]] = {
    f"{cipher}-{name}": lambda use=use, key=key: use(key)  # type: ignore[misc]
    for cipher, key in (("philox", ldpkernels.key(0x0123456789ABCDEF)), ("aes", AES), ("chacha20", CHACHA))
    for name, use in USES.items()
} | {"philox-seeds": lambda: seeds(CHACHA), "fresh": lambda: fresh(CHACHA)}


def words(name: str, n: int) -> Words:
    """The first n words of a source."""
    parts, found = [], 0
    for part in SOURCES[name]():
        parts.append(part)
        found += len(part)
        if found >= n:
            break
    return np.concatenate(parts)[:n]


def main(name: str) -> None:
    """Write a source to standard output."""
    with contextlib.suppress(BrokenPipeError):
        for part in SOURCES[name]():
            sys.stdout.buffer.write(part.astype("<u4").tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
