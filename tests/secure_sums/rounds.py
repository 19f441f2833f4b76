# SPDX-License-Identifier: Apache-2.0
"""A whole round in one process, with clients that are lost at each stage and messages that are changed on the way."""

from dataclasses import dataclass, field

import numpy as np

from ldpkernels.secure_sums import Server, Terms, agree, begin, disclose, mask, new_identity, share

STAGES = ("keys", "shares", "masked", "agreed", "disclosed")


def terms(clients=5, threshold=4, length=50, bits=16, signed=False, **others):
    """Terms of a round and, with a roster, the clients' private keys."""
    pairs = {number: new_identity() for number in range(clients)} if signed else {}
    roster = {number: public for number, (_, public) in pairs.items()} or None
    made = Terms(
        round=b"a round", length=length, bits=bits, threshold=threshold, invited=clients, roster=roster, **others
    )
    return made, {number: private for number, (private, _) in pairs.items()}


def integers(number, made):
    return np.random.default_rng(number).integers(0, 2**made.bits, made.length, np.uint32)


def plain_sum(made, numbers):
    total = sum(integers(number, made).astype(np.uint64) for number in numbers)
    return (total % 2**made.bits).astype(f"u{made.width // 8}")


@dataclass
class Round:
    """`lost` has the stage at which a client sends nothing more; `change` may change any message to the server."""

    terms: Terms
    identities: dict = field(default_factory=dict)
    lost: dict = field(default_factory=dict)
    change: object = None
    integers: object = integers
    restart: bool = False  # every client is read from bytes between two steps

    def sent(self, stage, step):
        """The messages of those who are left at a stage, and the states after it."""
        found = {}
        for number in list(self.states):
            lost = number in self.lost and STAGES.index(self.lost[number]) <= STAGES.index(stage)
            if lost or number in self.server.refused:
                continue
            state = self.states[number]
            if self.restart and state is not None:
                state = type(state).from_bytes(state.to_bytes(), self.terms)
            self.states[number], message = step(number, state)
            self.after.setdefault(stage, {})[number] = self.states[number]
            message = self.change(stage, number, message) if self.change else message
            if message is not None:
                found[number] = message
        return found

    def run(self):
        made, ids = self.terms, self.identities
        self.after = {}  # the states after each step
        self.server, self.states = Server(made), dict.fromkeys(range(made.invited))
        self.keys = self.server.keys(self.sent("keys", lambda n, _: begin(made, n, ids.get(n))))
        self.boxes = self.server.shares(self.sent("shares", lambda n, s: share(s, self.keys)))
        for number, message in self.sent("masked", lambda n, s: mask(s, self.boxes[n], self.integers(n, made))).items():
            self.server.masked(number, message)
        self.states = {number: self.states[number] for number in self.server.clients}
        self.present = self.server.present()
        self.consents = self.server.consents(self.sent("agreed", lambda n, s: agree(s, self.present, ids.get(n))))
        return self.server.total(self.sent("disclosed", lambda n, s: disclose(s, self.present, self.consents)))
