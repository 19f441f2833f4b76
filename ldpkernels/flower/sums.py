# SPDX-License-Identifier: Apache-2.0
"""Flower's messages for a secure sum (docs/secure_sums.md): five in a round, of which the third has the model.

A client's state between two of them is in its node's context, so that another process of the app goes on. Flower may
run two messages of a run at once, each from the same context, and sends an answer before it keeps the context. So a
step is claimed by a file before it is answered: whoever comes second is refused, whatever the context says.
"""

from __future__ import annotations

import hmac
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from ldpkernels import secure_sums
from ldpkernels.common.keys import Generator
from ldpkernels.flower import records
from ldpkernels.flower.replies import replies
from ldpkernels.releases.release import Arrays, Asked
from ldpkernels.releases.summed import Summed
from ldpkernels.secure_sums import ProtocolError, RoundLost, Server, State

logger = logging.getLogger("ldpkernels.flower")  # a client's
server_log = logging.getLogger("flwr.ldpkernels")  # in the form of Flower's own

SUM = "ldp-sum"  # the key of a record
VERSION = 1  # of these messages
KEYS, SHARES, MASKED, AGREED, DISCLOSED = STAGES = "keys", "shares", "masked", "agreed", "disclosed"
_GIVEN = {SHARES: ("keys",), MASKED: ("boxes",), AGREED: ("present",), DISCLOSED: ("present", "consents")}
_FROM = {SHARES: "begun", MASKED: "shared", AGREED: "masked", DISCLOSED: "agreed"}  # the state that a step begins with


@dataclass(frozen=True)
class Turn:
    """A client's third step: the state that it begins with, what the server said, and where the next state is kept."""

    state: State
    asked: Asked
    boxes: bytes
    record: RecordDict


@dataclass(frozen=True)
class Member:
    """A client's side: with a roster its number and private key on it, else the node's number is the client's."""

    summed: Summed
    identity: tuple[int, bytes] | None = field(default=None, repr=False)
    claims: Path | None = None  # the folder of files by which steps are claimed; None for one of the user's

    def __post_init__(self) -> None:
        if (self.summed.roster is None) != (self.identity is None):
            raise ValueError("roster and identity go together: everyone's public keys, and this client's private one")

    def stage(self, message: Message) -> str:
        """Which of the five a message is."""
        given = message.content.config_records.get(SUM, {})
        if given.get("stage") not in STAGES:
            raise ValueError(
                "the server asks for no secure sum, and this client sends in no other way: give LdpFedAvg the same "
                "threshold, and law or eps"
            )
        if given.get("version") != VERSION:
            raise ValueError(
                f"the server speaks version {given.get('version')!r} of secure sums, and this client {VERSION}: "
                "install the same ldpkernels on both"
            )
        return str(given["stage"])

    def step(self, message: Message, context: Context) -> Message:
        """The answer to any but the third."""
        given = message.content.config_records[SUM]
        if given["stage"] == KEYS:
            terms = self.summed.sum_terms(_asked(message, context))
            number, private = self.identity or (context.node_id, None)
            state, data = secure_sums.begin(terms, number, private)
        else:
            state = self._claimed(message, context)
            private = None if self.identity is None else self.identity[1]
            data = b""
            if given["stage"] == SHARES:
                state, data = secure_sums.share(state, _bytes(given, "keys"))
            elif given["stage"] == AGREED:
                state, data = secure_sums.agree(state, _bytes(given, "present"), private)
            else:
                state, data = secure_sums.disclose(state, _bytes(given, "present"), _bytes(given, "consents"))
        keep(context.state, _asked(message, context).round, state)
        return _answer(message, state.number, data, {})

    def turn(self, message: Message, context: Context) -> Turn:
        """The third step as it begins: claimed, and read before an app can change what it is read from."""
        state = self._claimed(message, context)
        given = message.content.config_records[SUM]
        return Turn(state, _asked(message, context), _bytes(given, "boxes"), context.state)

    def upload(
        self, message: Message, turn: Turn, update: Arrays, told: Asked, generator: Generator, metrics: records.Metrics
    ) -> tuple[Message, State]:
        """The answer to the third step, and the state to keep if it leaves."""
        integers = self.summed.integers(update, replace(turn.asked, ranges=told.ranges), generator)
        state, data = secure_sums.mask(turn.state, turn.boxes, integers)
        return _answer(message, state.number, data, metrics), state

    def _claimed(self, message: Message, context: Context) -> State:
        """The state that this message's step begins with, which no other message gets."""
        given = message.content.config_records[SUM]
        kept = context.state.config_records.get(SUM)
        asked = _asked(message, context)
        if kept is None or kept["round"] != asked.round:
            raise ProtocolError("this client has not begun this round")
        state = State.from_bytes(bytes(kept["state"]), self.summed.sum_terms(asked))
        if state.stage != _FROM[given["stage"]]:
            raise ProtocolError(f"this client's state is {state.stage!r}, and the step is for another")
        for name in _GIVEN[given["stage"]]:
            _bytes(given, name)
        self._claim(hmac.digest(state.root, f"claim of what follows {state.stage}".encode(), "sha256").hex())
        return state

    def _claim(self, name: str) -> None:
        """Make the file that stands for an answer, or refuse where it is there, or can't be made."""
        folder = self.claims or Path(tempfile.gettempdir()) / f"ldpkernels-claims-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid != os.getuid():
                raise PermissionError(f"{folder} belongs to another user, who could remove what is claimed")
            os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            if (folder / name).exists():
                raise ProtocolError(
                    "this step of the round was answered already, and a step is answered only once"
                ) from None
            logger.exception("a step can't be claimed in %s", folder)
            raise ProtocolError("this client can't claim its step; its log says why") from error


def keep(record: RecordDict, round_: int, state: State) -> None:
    """Keep a state in a node's record of a run."""
    record[SUM] = ConfigRecord({"round": round_, "state": state.to_bytes()})


@dataclass
class Collected:
    """What a round's secure sum gave; nobody's where it was lost."""

    clients: int = 0
    silent: int = 0
    epsilon: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)
    means: Arrays = field(default_factory=dict)

    @property
    def skipped(self) -> int:
        """How many answers were refused."""
        return sum(self.reasons.values())

    def mean(self) -> Arrays:
        """The clients' mean, by name."""
        return self.means


def collect(
    summed: Summed, asked: Asked, like: Arrays, grid: Grid, messages: list[Message], timeout: float
) -> Collected:
    """One secure sum with the nodes to whom these messages would have gone."""
    if len(messages) < summed.threshold:
        reason = f"{len(messages)} nodes were selected, and the threshold is {summed.threshold}: select more a round"
        server_log.warning("round %d is lost before it began: %s", asked.round, reason)
        return Collected(silent=len(messages), reasons={reason: 1})
    said = summed.told(like, len(messages))
    asked = replace(asked, **said)  # type: ignore[arg-type]
    server, found, round_ = Server(summed.sum_terms(asked)), Collected(silent=len(messages)), asked.round
    contents = {int(message.metadata.dst_node_id): message.content for message in messages}
    numbers: dict[int, int] = {}  # of nodes

    def ask(stage: str, given: Mapping[int, Mapping[str, bytes]], whole: bool = False) -> dict[int, bytes]:
        """What the clients of these nodes answer, by the clients' numbers."""
        asked = []
        for node, values in given.items():
            record = ConfigRecord({"stage": stage, "version": VERSION, "round": round_, **said, **values})
            content = RecordDict({**contents[node], SUM: record}) if whole else RecordDict({SUM: record})
            asked.append(Message(content, node, "train", group_id=str(round_)))
        answers: dict[int, bytes] = {}
        for reply in replies(grid, asked, timeout):
            node = int(reply.metadata.src_node_id)
            if reply.has_error():
                found.reasons[reply.error.reason] = found.reasons.get(reply.error.reason, 0) + 1
                server_log.warning("round %d: node %d answers at %r: %s", round_, node, stage, reply.error.reason)
                continue
            record = reply.content.config_records.get(SUM, ConfigRecord())
            number, data = _number(record.get("number")), record.get("data")
            if stage == KEYS and isinstance(data, bytes) and number >= 0 and number not in numbers.values():
                signed = summed.roster is not None and server.fault(number, data) is None
                if signed or number == node:  # nobody takes another's number
                    numbers.setdefault(node, number)
            if node not in given or not isinstance(data, bytes) or numbers.get(node) != number:
                found.reasons["no answer of this protocol"] = found.reasons.get("no answer of this protocol", 0) + 1
                continue
            if stage == MASKED:  # added at once: a server holds one client's integers at a time
                if server.masked(number, data):
                    found.epsilon = max(found.epsilon, records.epsilon_in(reply.content))
            else:
                answers.setdefault(number, data)
        return answers

    def to(wanted: Mapping[int, object]) -> list[int]:
        return [node for node, number in numbers.items() if number in wanted]

    try:
        announced = ask(KEYS, {node: {} for node in contents})
        keys = server.keys(announced)
        listed = [number for number in announced if number not in server.refused]
        shared = ask(SHARES, {node: {"keys": keys} for node in to(dict.fromkeys(listed))})
        boxes = server.shares(shared)
        ask(MASKED, {node: {"boxes": boxes[numbers[node]]} for node in to(boxes)}, whole=True)
        present, inside = server.present(), dict.fromkeys(server.clients)
        consents = server.consents(ask(AGREED, {node: {"present": present} for node in to(inside)}))
        last = {"present": present, "consents": consents}
        total = server.total(ask(DISCLOSED, {node: last for node in to(inside)}))
        found.silent -= len(server.clients)
        found.means = summed.mean(total, like, len(server.clients), asked)
        found.clients = len(server.clients)
    except (RoundLost, ProtocolError, ValueError) as error:  # the last of a sum that honest clients have not
        server_log.warning("round %d is lost: %s", round_, error)
        found.reasons[str(error)] = 1
    for number, reason in server.refused.items():
        server_log.warning("round %d: client %d is left out: %s", round_, number, reason)
        found.reasons[reason] = found.reasons.get(reason, 0) + 1
    return found


def _answer(message: Message, number: int, data: bytes, metrics: records.Metrics) -> Message:
    said = ConfigRecord({"number": number.to_bytes(8, "little"), "data": data})  # a node's number is past int64
    content = RecordDict({SUM: said, records.METRICS: MetricRecord(metrics)})
    return Message(content, reply_to=message)


def _number(value: object) -> int:
    return int.from_bytes(value, "little") if isinstance(value, bytes) and len(value) == 8 else -1


def _asked(message: Message, context: Context) -> Asked:
    """What a message says of its round."""
    given = message.content.config_records[SUM]
    numbers = {name: given.get(name, 0) for name in ("round", "invited", "weights")}
    for name, value in numbers.items():
        if type(value) is not int or not 0 <= value < 2**40:
            raise ValueError(f"the server says {name}={value!r}, which is not a number of a round")
    if not numbers["round"]:
        raise ValueError("the server names no round")
    return Asked(run=context.run_id, client=context.node_id, **numbers)


def _bytes(given: Mapping[str, object], name: str) -> bytes:
    value = given.get(name)
    if not isinstance(value, bytes):
        raise ValueError(f"the server's message of a secure sum has no {name}")
    return value
