# SPDX-License-Identifier: Apache-2.0
"""Whole updates in some bits, whose meaning is said by a public key for each client and round."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ldpkernels.accounting import Event
from ldpkernels.common.keys import Generator, Key
from ldpkernels.laws.projected_code import ProjectedCode
from ldpkernels.releases.release import Arrays, Asked, Reported, Terms
from ldpkernels.releases.vectors import checked_dimension, counted, parts_of
from ldpkernels.updates import mean_of_codes, report_code

_NUMBER_BYTES = 8  # of a node


@dataclass(frozen=True)
class Codes(Reported):
    """A whole update in some bits (`ldpkernels.updates.report_code`), and in nothing else.

    What a code means is said by a public key for each client and round. Both sides make it from the numbers of the run,
    the round and the node, so that no message has to carry it.
    """

    law: ProjectedCode

    @property
    def terms(self) -> Terms:
        """The settings that client and server compare."""
        return {"law": repr(self.law)}

    def event(self, sizes: Sequence[int]) -> tuple[Event, int]:
        """An event for the whole update, once."""
        checked_dimension(sizes, self.law.dimension)
        return self.law.event, 1

    def report(self, update: Arrays, asked: Asked, generator: Generator) -> bytes:
        """The report of one client: `law.bytes` bytes."""
        code = report_code(update, self.law, shared_key(asked), generator=generator, buffers="perturb")
        return code.to_bytes(self.law.bytes, "little")

    def labelled(self, report: bytes, client: int) -> bytes:
        """A report after the number of its node."""
        return client.to_bytes(_NUMBER_BYTES, "little") + report

    def total(self, like: Arrays, asked: Asked) -> CodeTotal:
        """The codes of a round."""
        checked_dimension([array.size for array in like.values()], self.law.dimension)
        return CodeTotal(self.law, like, asked)


class CodeTotal:
    """Codes with the keys that say what they mean, after the number of the node that each is from."""

    def __init__(self, law: ProjectedCode, like: Arrays, asked: Asked) -> None:
        self.skipped = 0
        self.reasons: dict[str, int] = {}
        self._law, self._like, self._asked = law, dict(like), asked
        self._codes: list[int] = []
        self._keys: list[Key] = []

    @property
    def clients(self) -> int:
        """How many codes there are."""
        return len(self._codes)

    def add(self, *reports: bytes) -> None:
        """Add codes; what is none is skipped."""
        for one in reports:
            number, code = one[:_NUMBER_BYTES], int.from_bytes(one[_NUMBER_BYTES:], "little")
            if len(one) != _NUMBER_BYTES + self._law.bytes or code >= 2 * self._law.projected:
                self.skipped += 1
                counted(self.reasons, f"no code of {self._law.bits} bits")
            else:
                asked = Asked(run=self._asked.run, round=self._asked.round, client=int.from_bytes(number, "little"))
                self._codes.append(code)
                self._keys.append(shared_key(asked))

    def mean(self) -> Arrays:
        """The clients' mean, by name."""
        return parts_of(mean_of_codes(self._codes, self._law, self._keys).astype(np.float64), self._like)


def shared_key(asked: Asked) -> Key:
    """The public key of one client in one round. Whatever it is, a code is private."""
    text = f"code of run {asked.run}, round {asked.round}, client {asked.client}"
    return Key((int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"),))
