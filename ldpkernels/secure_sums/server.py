# SPDX-License-Identifier: Apache-2.0
"""A server's steps of a secure sum. A client that sends something wrong is left out, and is named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Sized

import numpy as np

from ldpkernels.common.arrays import Array
from ldpkernels.secure_sums import masks, messages, primitives, shamir
from ldpkernels.secure_sums.messages import BOX_BYTES, Hello, Peers
from ldpkernels.secure_sums.shamir import SHARE_BYTES
from ldpkernels.secure_sums.terms import MOST_NUMBER, ProtocolError, Terms

_ANY_KEY = bytes(31) + b"\x40"  # nobody's
_TRIES = 64  # of shares to join a secret from, where some are wrong


class RoundLost(RuntimeError):
    """Too few clients are left to open the sum, or their shares are wrong. Nobody learns anything about the round."""


class Server:
    """One round. `refused` has the clients whose messages were wrong, and why; nothing that they sent counts.

    >>> Server(Terms(round=b"1", length=4, bits=16, threshold=2, invited=3)).refused
    {}
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.refused: dict[int, str] = {}
        self._peers = Peers(terms, b"")
        self._sharing: set[int] = set()
        self._present: set[int] = set()
        self._sum = np.zeros(terms.length, masks.integers_of(terms))
        self._closed = False
        self._known: dict[tuple[int, ...], list[int]] = {}

    @property
    def clients(self) -> list[int]:
        """Those whose integers are in the sum."""
        return sorted(self._present)

    def fault(self, number: int, announcement: bytes) -> str | None:
        """Why an announcement of step 1 can't be this client's; None where it can."""
        size = Hello.size(self.terms)
        if not 0 <= number <= MOST_NUMBER:
            return "its number is none"
        if len(announcement) != size:
            return f"its announcement is not of {size} bytes"
        hello = Hello.of(announcement)
        try:
            for key in (hello.box_key, hello.mask_key):
                primitives.agreed(_ANY_KEY, key)  # one of small order would make every client refuse the round
        except ProtocolError as error:
            return str(error)
        return hello.fault(self.terms, number)

    def keys(self, announcements: Mapping[int, bytes]) -> bytes:
        """Step 1: the list of keys, for every client on it."""
        rows: dict[int, bytes] = {}
        for number, message in announcements.items():
            fault = self.fault(number, message)
            if fault is not None:
                self.refused[number] = fault
            elif len(rows) < self.terms.invited:
                rows[number] = message
            else:
                self.refused[number] = f"{self.terms.invited} clients take part already"
        self._enough(rows, "announced themselves")
        self._peers = Peers(self.terms, messages.written(rows))
        return self._peers.data

    def shares(self, sent: Mapping[int, bytes]) -> dict[int, bytes]:
        """Step 2: the boxes for each client that goes on."""
        everyone = self._peers.hellos.keys()
        rows: dict[int, dict[int, bytes]] = {}
        for number, message in sent.items():
            try:
                boxes = messages.read(message, BOX_BYTES)
            except ProtocolError as error:
                self.refused[number] = str(error)
                continue
            if number in everyone and boxes.keys() == everyone - {number}:
                rows[number] = boxes
            else:
                self.refused[number] = "it has not a box for everyone else on the list"
        self._enough(rows, "shared their secrets")
        self._sharing = set(rows)
        return {
            number: messages.written({sender: boxes[number] for sender, boxes in rows.items() if sender != number})
            for number in rows
        }

    def masked(self, number: int, message: bytes) -> bool:
        """Step 3: add a client's masked integers. False if they cannot be used; then nothing is added."""
        if number not in self._sharing or number in self._present or self._closed:
            reason = "its integers came twice" if number in self._present else "it shared no secrets, or came too late"
        elif len(message) != self._sum.nbytes:
            reason = f"its integers are {len(message)} bytes instead of {self._sum.nbytes}"
        else:
            self._sum += np.frombuffer(message, self._sum.dtype)
            self._present.add(number)
            return True
        self.refused[number] = reason
        return False

    def present(self) -> bytes:
        """The list of those whose integers are in the sum, for every one of them. Nobody is added after this."""
        self._closed = True
        self._enough(self._present, "sent their integers")
        return self._listed()

    def consents(self, sent: Mapping[int, bytes]) -> bytes:
        """Step 4: the signatures, for every client that gave one; empty without a roster."""
        if self.terms.roster is None:
            return b""
        text = self._peers.consent_text(self._listed())
        rows: dict[int, bytes] = {}
        for number, signature in sent.items():
            if number in self._present and self._peers.is_signed_by(number, signature, text):
                rows[number] = signature
            else:
                self.refused[number] = "it did not sign the list of who is present"
        self._enough(rows, "signed who is present")
        return messages.written(rows)

    def total(self, disclosed: Mapping[int, bytes]) -> Array:
        """Step 5: the sum modulo 2^bits, of those in `clients`."""
        shares = self._opened(disclosed)
        seeds: list[bytes] = []
        added: list[bool] = []
        for number in self.clients:
            seeds.append(self._joined(shares[number], number, _seed_check(self._peers.hellos[number])))
            added.append(False)
        for lost in self._sharing - self._present:
            private = self._joined(shares[lost], lost, _key_check(self._peers.hellos[lost]))
            for number in self.clients:
                seeds.append(self._peers.mask_seed(private, lost, number))
                added.append(number > lost)  # the client had subtracted it
        masks.apply(self._sum, seeds, added, self.terms)
        return self._sum >> (self.terms.width - self.terms.bits)

    def _listed(self) -> bytes:
        return messages.written(dict.fromkeys(self._present, b""))

    def _opened(self, disclosed: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        """The shares of each client's secret, by the place of who held them."""
        places = self._peers.places
        shares: dict[int, dict[int, bytes]] = {number: {} for number in self._sharing}
        for number, message in disclosed.items():
            try:
                rows = messages.read(message, SHARE_BYTES)
            except ProtocolError as error:
                self.refused[number] = str(error)
                continue
            if number not in self._present or not {number} <= rows.keys() <= shares.keys():
                self.refused[number] = "its shares are of others than were asked for"
                continue
            for owner, row in rows.items():
                shares[owner][places[number]] = row
        return shares

    def _joined(self, shares: dict[int, bytes], owner: int, right: Callable[[bytes], bool]) -> bytes:
        """The secret of one client, from any shares that give the right one."""
        threshold, held = self.terms.threshold, sorted(shares)
        if len(held) < threshold:
            raise RoundLost(f"{len(held)} shares of client {owner}'s are left, and the threshold is {threshold}")
        step = -(-len(held) // _TRIES)
        for start in range(0, len(held) if len(held) > threshold else 1, step):
            chosen = sorted((held[start:] + held[:start])[:threshold])
            secret = shamir.joined(shares, chosen, self._weights(chosen))
            if secret is not None and right(secret):
                return secret
        raise RoundLost(f"the shares of client {owner}'s secret are wrong, too many of them to tell which")

    def _weights(self, places: Sequence[int]) -> list[int]:
        """Lagrange's weights, which are the same for every secret that the same clients hold."""
        key = tuple(places)
        if key not in self._known:
            self._known[key] = shamir.weights(places)
        return self._known[key]

    def _enough(self, clients: Sized, what: str) -> None:
        if len(clients) < self.terms.threshold:
            raise RoundLost(f"{len(clients)} clients {what}, and the threshold is {self.terms.threshold}")


def _seed_check(hello: Hello) -> Callable[[bytes], bool]:
    """Whether a seed is the one that a client committed itself to."""
    return lambda seed: hashlib.sha256(seed).digest() == hello.commitment


def _key_check(hello: Hello) -> Callable[[bytes], bool]:
    """Whether a private key is that of a client's public one."""
    return lambda key: primitives.public_key(key) == hello.mask_key
