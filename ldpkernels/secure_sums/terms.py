# SPDX-License-Identifier: Apache-2.0
"""What the clients and the server of one secure sum agree on, and the refusal of whatever departs from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from ldpkernels.common import arguments

if TYPE_CHECKING:
    from ldpkernels.common.keys import Key
    from ldpkernels.laws.distributed import Shares

MOST_CLIENTS = 2**16  # a complete graph ends long before
MOST_LENGTH = 2**30
MOST_NUMBER = 2**64 - 1


class ProtocolError(RuntimeError):
    """What arrived is not what the protocol or the terms allow. The one who raises it sends nothing more."""


@dataclass(frozen=True)
class Terms:
    """The terms of one round. A client makes them from its own settings, and compares with them what a server says.

    Args:
        round: Bytes that no other round of these clients has, such as a run's name and the number of the round.
        length: How many integers a client sends.
        bits: From 2 to 32; sums are modulo 2^bits. An integer travels as 16 or 32 bits.
        threshold: The fewest clients whose sum is opened. So many of them together can open anyone's integers.
        invited: The most clients that take part.
        colluders: How many clients may collude with the server, or with whoever reads the sum. If clients read the
            model, each of them counts itself: use at least 1.
        purpose: What the integers mean, as bytes that everyone compares: a law, a rotation, a model's layout.
        roster: The Ed25519 public keys of those who may take part, by number. With it keys are signed, a server cannot
            invent clients, and clients sign who is present before anything is opened.
        cipher: What expands masks, "aes" or "chacha20".

    >>> Terms(round=b"1", length=10, bits=16, threshold=2, invited=3, colluders=1).honest
    1
    """

    round: bytes
    length: int
    bits: int
    threshold: int
    invited: int
    colluders: int = 1
    purpose: bytes = b""
    roster: Mapping[int, bytes] | None = None
    cipher: Literal["aes", "chacha20"] = "aes"

    def __post_init__(self) -> None:
        if not isinstance(self.round, bytes) or not self.round:
            raise ValueError(f"round={self.round!r} must be bytes that no other round of these clients has")
        arguments.count("length", self.length, most=MOST_LENGTH)
        arguments.count("bits", self.bits, 2, 32)
        arguments.count("invited", self.invited, 2, MOST_CLIENTS)
        arguments.count("threshold", self.threshold, 2, self.invited)
        arguments.count("colluders", self.colluders, 0)
        arguments.choice("cipher", self.cipher, ("aes", "chacha20"))
        if self.colluders >= self.threshold:
            raise ValueError(
                f"colluders={self.colluders} of threshold={self.threshold} could open anyone's integers: "
                "pass a larger threshold"
            )
        if self.roster is None:
            return
        if self.invited > len(self.roster):
            raise ValueError(f"invited={self.invited} is more than the roster's {len(self.roster)} clients")
        if len(set(self.roster.values())) < len(self.roster):
            raise ValueError("the roster has a key twice: one signature would count for two clients")
        if any(len(key) != 32 for key in self.roster.values()):
            raise ValueError("the roster has a key that is not 32 bytes of Ed25519")
        if 2 * self.threshold <= self.invited + self.colluders:
            raise ValueError(
                f"threshold={self.threshold} lets a server show two lists of who is present to invited={self.invited} "
                f"clients, of whom colluders={self.colluders} help it: pass a threshold of at least "
                f"{(self.invited + self.colluders) // 2 + 1}"
            )

    @classmethod
    def of(
        cls,
        law: Shares,
        rotation: Key,
        *,
        round: bytes,
        threshold: int,
        invited: int | None = None,
        colluders: int = 1,
        roster: Mapping[int, bytes] | None = None,
        cipher: Literal["aes", "chacha20"] = "aes",
    ) -> Terms:
        """The terms for `ldpkernels.updates.encode` under this law; the threshold leaves enough noise in the sum.

        >>> import ldpkernels
        >>> law = ldpkernels.DistributedGaussian.calibrated(8.0, 1e-5, dimension=100, clients=20, invited=30)
        >>> Terms.of(law, ldpkernels.key(0), round=b"1", threshold=21).length
        128
        """
        invited = law.invited if invited is None else invited
        if invited > law.invited:
            raise ValueError(f"invited={invited} is more than the {law.invited} for whom the law's range was planned")
        terms = cls(
            round, law.padded, law.bits, threshold, invited, colluders,
            repr((law, rotation.words)).encode(), roster, cipher,
        )  # fmt: skip
        if terms.honest < law.clients:
            raise ValueError(
                f"threshold={threshold} less colluders={colluders} leaves the noise of {terms.honest} honest clients "
                f"in a sum, and the law needs that of {law.clients}: pass threshold={law.clients + colluders}, or a "
                "law with fewer clients"
            )
        return terms

    @property
    def width(self) -> int:
        """Bits of an integer as it is sent."""
        return 16 if self.bits <= 16 else 32

    @property
    def honest(self) -> int:
        """How many honest clients are at least in every sum that is opened, if those who take part are real."""
        return self.threshold - self.colluders

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that differ wherever the terms do."""
        roster = None if self.roster is None else sorted((n, key.hex()) for n, key in self.roster.items())
        said = [
            "ldpkernels secure sum 1", self.round.hex(), self.length, self.bits, self.threshold, self.invited,
            self.colluders, self.purpose.hex(), roster, self.cipher,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(said).encode()).digest()

    def listed(self, number: int) -> None:
        """Refuse a client's number that can't take part."""
        arguments.count("number", number, 0, MOST_NUMBER)
        if self.roster is not None and number not in self.roster:
            raise ProtocolError(f"client {number} is not on the roster")
