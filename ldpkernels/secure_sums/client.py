# SPDX-License-Identifier: Apache-2.0
"""A client's steps of a secure sum. Each takes the state of the step before, and returns the next one and a message.

Keep the new state before the message leaves, and never go back to an old one. A client that answers `disclose` twice,
with two lists of who is present, opens integers that nobody should see. `State.to_bytes` is for that.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ldpkernels.secure_sums import masks, messages, primitives, shamir
from ldpkernels.secure_sums.messages import BOX_BYTES, Hello, Peers
from ldpkernels.secure_sums.shamir import SHARE_BYTES
from ldpkernels.secure_sums.terms import ProtocolError, Terms

if TYPE_CHECKING:
    from ldpkernels.common.arrays import Array

STAGES = ("begun", "shared", "masked", "agreed", "over")
_HEAD = 1 + 8 + 32 + 32 + 8  # stage, number, the terms' digest, root, the length of the list of keys


@dataclass(frozen=True)
class State:
    """What a client keeps between two messages of a round. All of its secrets follow from `root`: keep it secret."""

    terms: Terms
    number: int
    stage: str
    root: bytes = field(repr=False)
    keys: bytes = b""
    boxes: Mapping[int, bytes] = field(default_factory=dict, repr=False)  # from the others, for this client
    present: bytes = b""

    def to_bytes(self) -> bytes:
        """The state as bytes, without the terms, which the client makes again from its own settings."""
        boxes = messages.written(self.boxes)
        return b"".join([
            bytes([STAGES.index(self.stage)]), self.number.to_bytes(8, "little"), self.terms.digest, self.root,
            len(self.keys).to_bytes(8, "little"), self.keys, len(boxes).to_bytes(8, "little"), boxes, self.present,
        ])  # fmt: skip

    @classmethod
    def from_bytes(cls, data: bytes, terms: Terms) -> State:
        """Read a state that was kept; refuse that of a round with other terms."""
        if len(data) < _HEAD + 8 or data[0] >= len(STAGES) or data[9:41] != terms.digest:
            raise ProtocolError("the state that was kept belongs to no round with these terms")
        end = _HEAD + int.from_bytes(data[73:_HEAD], "little")
        start = end + 8
        stop = start + int.from_bytes(data[end:start], "little")
        boxes = messages.read(data[start:stop], BOX_BYTES)
        number = int.from_bytes(data[1:9], "little")
        return cls(terms, number, STAGES[data[0]], data[41:73], data[_HEAD:end], boxes, data[stop:])


def new_identity() -> tuple[bytes, bytes]:
    """A client's long-lived Ed25519 keys: the private one, for `begin` and `agree`, and the roster's public one."""
    private = secrets.token_bytes(32)
    return private, primitives.verifying_key(private)


def begin(terms: Terms, number: int, identity: bytes | None = None) -> tuple[State, bytes]:
    """Step 1: announce two public keys of this round.

    Args:
        terms: The round's terms, from the client's own settings.
        number: The client's number, below 2^64, which no other client has.
        identity: With a roster, the client's private key (`new_identity`).
    """
    terms.listed(number)
    state = State(terms, number, "begun", secrets.token_bytes(32))
    hello = Hello(
        terms.digest,
        primitives.public_key(_secret(state, b"box key")),
        primitives.public_key(_secret(state, b"mask key")),
        hashlib.sha256(_secret(state, b"seed")).digest(),
    )
    return state, replace(hello, signature=_signature(state, hello.signed_text(number), identity)).to_bytes()


def share(state: State, keys: bytes) -> tuple[State, bytes]:
    """Step 2: split this client's secrets among those on the server's list, in a box for each that only it can open."""
    _expect(state, "begun")
    peers = _listed(state, keys)
    seeds, mask_keys = (_shares(state, peers, label) for label in (b"seed", b"mask key"))
    boxes = {}
    for number, place in peers.places.items():
        if number != state.number:
            text = seeds[place - 1] + mask_keys[place - 1]
            boxes[number] = primitives.boxed(_box_key(state, peers, state.number, number), text, peers.digest)
    return replace(state, stage="shared", keys=keys), messages.written(boxes)


def mask(state: State, boxes: bytes, integers: Array) -> tuple[State, bytes]:
    """Step 3: this client's integers under its own mask, and one for each client that shared its secrets.

    For whoever knows fewer shares than the threshold, each integer that is sent is equally likely to be any of 2^bits
    numbers. Spend the cost of the sum before it leaves.

    Args:
        state: What `share` gave.
        boxes: What the server passed on to this client.
        integers: The client's, of any integer type and shape; they count modulo 2^bits.
    """
    _expect(state, "shared")
    terms, peers = state.terms, Peers(state.terms, state.keys)
    received = messages.read(boxes, BOX_BYTES)
    if state.number in received or not received.keys() <= peers.hellos.keys():
        raise ProtocolError("a box comes from a client that is not on the list")
    if len(received) + 1 < terms.threshold:
        raise ProtocolError(f"{len(received) + 1} clients are left, and the threshold is {terms.threshold}")
    seeds, added = _pairs(state, peers, received)
    total = masks.made(integers, [_secret(state, b"seed"), *seeds], [True, *added], terms)
    return replace(state, stage="masked", boxes=received), total.tobytes()


def mask_pairs(state: State, keys: bytes, integers: Array) -> tuple[State, Array]:
    """In place of steps 2 to 5 if nobody may be lost: this client's integers under the masks of pairs alone.

    In the sum of everyone on the list no mask is left; it is the sum of the integers times 2^(terms.width -
    terms.bits). A sum without one of them is noise that nobody can open, because no secret was shared.
    """
    _expect(state, "begun")
    peers = _listed(state, keys)
    seeds, added = _pairs(state, peers, [number for number in peers.hellos if number != state.number])
    return replace(state, stage="over", root=bytes(32)), masks.made(integers, seeds, added, state.terms)


def agree(state: State, present: bytes, identity: bytes | None = None) -> tuple[State, bytes]:
    """Step 4: agree to the server's list of those whose integers are in the sum; with a roster, sign it.

    Everyone on the list must have shared secrets with this client. A client that was shown too few others refuses here,
    so that too few are left to open its masks (docs/secure_sums.md has the count).
    """
    _expect(state, "masked")
    listed, threshold = messages.read(present, 0), state.terms.threshold
    if state.number not in listed or not listed.keys() <= {state.number, *state.boxes}:
        raise ProtocolError("the list of who is present leaves this client out, or has one who shared nothing with it")
    if len(listed) < threshold:
        raise ProtocolError(f"{len(listed)} clients are present, and the threshold is {threshold}")
    signature = _signature(state, Peers(state.terms, state.keys).consent_text(present), identity)
    return replace(state, stage="agreed", present=present), signature


def disclose(state: State, present: bytes, consents: bytes = b"") -> tuple[State, bytes]:
    """Step 5: this client's shares of what opens the sum, and nothing else; its own secrets are forgotten.

    That is a share of the seed of a present client's own mask, or of a lost client's key for the masks of pairs: never
    both. With a roster, as many as the threshold must have signed the same list.
    """
    _expect(state, "agreed")
    if present != state.present:
        raise ProtocolError("the list of who is present is not the one that this client agreed to")
    terms, peers = state.terms, Peers(state.terms, state.keys)
    listed = messages.read(present, 0)
    if terms.roster is not None:
        text = peers.consent_text(present)
        rows = messages.read(consents, primitives.SIGNATURE_BYTES)
        signers = [number for number, row in rows.items() if number in listed and peers.is_signed_by(number, row, text)]
        if len(signers) < terms.threshold:
            raise ProtocolError(f"{len(signers)} clients signed who is present, and the threshold is {terms.threshold}")
    own = _shares(state, peers, b"seed")[peers.places[state.number] - 1]
    shares = {state.number: own}
    for number, box in state.boxes.items():
        pair = primitives.unboxed(_box_key(state, peers, number, state.number), box, peers.digest)
        if pair is not None:  # a box that was changed gives no share, and the others' are enough
            shares[number] = pair[:SHARE_BYTES] if number in listed else pair[SHARE_BYTES:]
    return replace(state, stage="over", root=bytes(32), boxes={}), messages.written(shares)


def _expect(state: State, stage: str) -> None:
    if state.stage != stage:
        raise ProtocolError(f"this client's state is {state.stage!r}, and the step is for one that is {stage!r}")


def _listed(state: State, keys: bytes) -> Peers:
    """The server's list, where this client is on it as it announced itself."""
    peers = Peers(state.terms, keys)
    peers.check()
    own = peers.hellos.get(state.number)
    if own is None or own.box_key != primitives.public_key(_secret(state, b"box key")):
        raise ProtocolError("this client is not on the list as it announced itself")
    return peers


def _pairs(state: State, peers: Peers, others: Iterable[int]) -> tuple[list[bytes], list[bool]]:
    """The seeds of the masks that this client shares with others, and whether it adds each or takes it away."""
    private, own = _secret(state, b"mask key"), state.number
    found = [(peers.mask_seed(private, own, other), own < other) for other in others]
    return [seed for seed, _ in found], [plus for _, plus in found]


def _secret(state: State, label: bytes) -> bytes:
    return primitives.derived(state.root, label, state.terms.digest)


def _shares(state: State, peers: Peers, label: bytes) -> list[bytes]:
    """The shares of one secret for everyone on the list; they follow from the root, so that nobody keeps them."""
    randomness = _secret(state, b"polynomial of " + label) + peers.digest
    return shamir.split(_secret(state, label), state.terms.threshold, len(peers.places), randomness)


def _box_key(state: State, peers: Peers, sender: int, receiver: int) -> bytes:
    other = receiver if sender == state.number else sender
    secret = primitives.agreed(_secret(state, b"box key"), peers.hellos[other].box_key)
    return peers.pair(secret, b"box", sender, receiver)


def _signature(state: State, text: bytes, identity: bytes | None) -> bytes:
    """A signature where there is a roster, nothing where there is none."""
    roster = state.terms.roster
    if roster is None:
        return b""
    if identity is None or primitives.verifying_key(identity) != roster[state.number]:
        raise ValueError(
            f"identity is not the private key of client {state.number} on the roster: pass the one that new_identity "
            "made"
        )
    return primitives.signed(identity, text)
