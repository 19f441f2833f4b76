# SPDX-License-Identifier: Apache-2.0
"""The bytes of a secure sum's messages: rows of one size, each under a client's number, in ascending order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ldpkernels.secure_sums import primitives
from ldpkernels.secure_sums.primitives import KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES
from ldpkernels.secure_sums.shamir import SHARE_BYTES
from ldpkernels.secure_sums.terms import ProtocolError, Terms

_NUMBER_BYTES = 8
BOX_BYTES = 2 * SHARE_BYTES + TAG_BYTES
DIGEST_BYTES = 32


def written(rows: Mapping[int, bytes]) -> bytes:
    """Rows as bytes.

    >>> read(written({5: b"ab", 2: b"cd"}), 2)
    {2: b'cd', 5: b'ab'}
    """
    return b"".join(number.to_bytes(_NUMBER_BYTES, "little") + rows[number] for number in sorted(rows))


def read(data: bytes, size: int) -> dict[int, bytes]:
    """The rows of a message; refuses a broken one, and a number that comes twice."""
    step = _NUMBER_BYTES + size
    if not isinstance(data, bytes) or len(data) % step:
        raise ProtocolError(f"a message of rows of {step} bytes has another length")
    rows = {
        int.from_bytes(data[at : at + _NUMBER_BYTES], "little"): data[at + _NUMBER_BYTES : at + step]
        for at in range(0, len(data), step)
    }
    if len(rows) * step != len(data) or list(rows) != sorted(rows):
        raise ProtocolError("a message has a client twice, or clients out of order")
    return rows


def is_signed_by(terms: Terms, number: int, signature: bytes, text: bytes) -> bool:
    """Whether the roster's client signed the text: always without a roster."""
    if terms.roster is None:
        return True
    key = terms.roster.get(number)
    return key is not None and primitives.is_signed(key, signature, text)


@dataclass(frozen=True)
class Hello:
    """What a client announces: its terms, a key for boxes, one for masks, what it is held to, a signature if any."""

    terms_digest: bytes
    box_key: bytes
    mask_key: bytes
    commitment: bytes  # SHA-256 of the seed of its own mask: shares that give another seed are wrong
    signature: bytes = b""

    @classmethod
    def size(cls, terms: Terms) -> int:
        """How long one is."""
        return 2 * DIGEST_BYTES + 2 * KEY_BYTES + (SIGNATURE_BYTES if terms.roster is not None else 0)

    @classmethod
    def of(cls, data: bytes) -> Hello:
        """From its bytes."""
        return cls(data[:32], data[32:64], data[64:96], data[96:128], data[128:])

    def to_bytes(self) -> bytes:
        """As bytes."""
        return self.terms_digest + self.box_key + self.mask_key + self.commitment + self.signature

    def signed_text(self, number: int) -> bytes:
        """What is signed."""
        about = b"hello" + number.to_bytes(_NUMBER_BYTES, "little")
        return about + self.terms_digest + self.box_key + self.mask_key + self.commitment

    def fault(self, terms: Terms, number: int) -> str | None:
        """Why it can't be a client's of this round; None where it can."""
        if self.terms_digest != terms.digest:
            return "it announced other terms: another law, threshold, round or version"
        if not is_signed_by(terms, number, self.signature, self.signed_text(number)):
            return "its announcement is not signed by a key of the roster"
        return None


@dataclass(frozen=True)
class Peers:
    """The list of everyone's announcements, as the server sent it to all."""

    terms: Terms
    data: bytes

    @cached_property
    def hellos(self) -> dict[int, Hello]:
        """Them, by number."""
        return {number: Hello.of(row) for number, row in read(self.data, Hello.size(self.terms)).items()}

    @cached_property
    def places(self) -> dict[int, int]:
        """Which share is whose: the place in the list, from 1."""
        return {number: place for place, number in enumerate(self.hellos, 1)}

    @cached_property
    def digest(self) -> bytes:
        """Of the terms and the list: clients who were shown different lists have nothing in common."""
        return hashlib.sha256(self.terms.digest + self.data).digest()

    def check(self) -> None:
        """Refuse a list that the terms do not allow."""
        count = len(self.hellos)
        if not self.terms.threshold <= count <= self.terms.invited:
            raise ProtocolError(
                f"the list has {count} clients, and from {self.terms.threshold} to {self.terms.invited} take part"
            )
        for number, hello in self.hellos.items():
            if (fault := hello.fault(self.terms, number)) is not None:
                raise ProtocolError(f"the list has client {number}: {fault}")

    def pair(self, secret: bytes, use: bytes, first: int, second: int) -> bytes:
        """A key of two clients for one use, from what their keys agree on."""
        numbers = first.to_bytes(_NUMBER_BYTES, "little") + second.to_bytes(_NUMBER_BYTES, "little")
        return primitives.derived(secret, use + numbers, self.digest)

    def mask_seed(self, private: bytes, own: int, other: int) -> bytes:
        """The seed of the mask that two clients share; `private` is the first one's mask key."""
        secret = primitives.agreed(private, self.hellos[other].mask_key)
        return self.pair(secret, b"mask", min(own, other), max(own, other))

    def is_signed_by(self, number: int, signature: bytes, text: bytes) -> bool:
        """Whether the roster's client signed the text: always without a roster."""
        return is_signed_by(self.terms, number, signature, text)

    def consent_text(self, present: bytes) -> bytes:
        """What clients sign before anything is opened."""
        return b"present" + self.digest + hashlib.sha256(present).digest()
