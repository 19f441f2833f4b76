# SPDX-License-Identifier: Apache-2.0
"""A mod for Flower's ClientApp: what training changed leaves as a report under local differential privacy.

Whatever the app's own function puts into its reply, what leaves is built here: a report, the metrics of a list, and the
ledger's epsilon. What can be refused is refused before the app is called, by what the server and the settings say. From
then on the round is spent and a report leaves: a training that fails, or answers nonsense, is reported as no change, so
that failing tells nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import numpy as np
from flwr.app import Context, Message

from ldpkernels.accounting import BudgetExceeded, Ledger, LedgerError
from ldpkernels.common import arguments
from ldpkernels.common.keys import Generator, Key
from ldpkernels.flower import node, records
from ldpkernels.flower.sums import MASKED, Member, Turn, keep
from ldpkernels.inputs.containers import Weights
from ldpkernels.inputs.modules import Buffers
from ldpkernels.laws.central_gaussian import CentralGaussian
from ldpkernels.releases.budget import Budget, spent
from ldpkernels.releases.choice import Law, released
from ldpkernels.releases.layouts import Layouts, changed
from ldpkernels.releases.release import Arrays, Asked, Reported, leaving
from ldpkernels.releases.summed import Summed
from ldpkernels.releases.vectors import ClippedUpdate
from ldpkernels.secure_sums import ProtocolError, State

Alarms: TypeAlias = dict[int, tuple[float, float]]
logger = logging.getLogger("ldpkernels.flower")

MOST_MODS = 16  # that are kept for nodes and runs

CallNext = Callable[[Message, Context], Message]
KeyOf = Callable[[Message, Context], Generator]


class LdpMod:
    """What a Flower client sends of a round's training: a report, and nothing else that was not allowed.

    Give the ServerApp's `LdpFedAvg` the same settings. A round with others is refused, so that no server chooses a
    client's eps. C and R of the round come from the server. Only "train" messages are answered. "evaluate" and "query"
    are refused before the app sees them, because their replies would leave as they are. **A training that fails is
    reported as one that changed nothing**, because an error would be an exact bit about the data. Its reason stays in
    this client's log.

    **eps is the privacy of each weight of a report on its own** ("two-point", "piecewise", "hybrid"), or of a whole
    update ("privunitg", "k-of-d", "gaussian", with `norm`): between any two of them, for whoever sees the report. The
    client's ledger says what it spends in total. On a SuperNode the app with this mod comes from whoever starts the
    run; there `from_node` takes the numbers from the node's owner.

    Args:
        eps: Privacy parameter; None with a law.
        law: Exactly what is released, as `plan` finds it: `TwoPoint`, `Piecewise`, `Hybrid`, `PrivUnitG`, `KOfD`,
            `VectorGaussian`, `ProjectedCode`; or `DistributedGaussian` or `DistributedSkellam`, whose shares of noise
            leave only by a secure sum.
        central: A `CentralGaussian`: the update leaves clipped and **without noise**, which the server adds. The server
            is trusted with every update.
        threshold: What is sent leaves by a secure sum (docs/secure_sums.md), which is opened for so many clients or
            more. With a law of shares, threshold - `colluders` must be `law.clients`. Reports of a bit or byte a weight
            can be summed too. The ledger charges the cost of the sum, which is right against a server that follows the
            protocol, or with a roster. The log has the cost of one upload by itself.
        colluders: How many clients may collude with the server, or with whoever reads the model. A client that reads
            the model counts itself.
        roster: The Ed25519 public keys of those who may take part, by number (`secure_sums.new_identity`).
        identity: With a roster, this client's number and private key.
        claims: With a threshold, a folder that all processes of this client share. It gets a file for each step of a
            round that was answered, so that none is answered twice. None is this user's folder among the system's
            temporary files; processes in separate containers do not share that one.
        adaptive: With shares of noise or a trusted server: the server sets the norm of each round, which follows the
            clients' median. The law has one more number than the model: whether an update was within the norm.
        mechanism: "two-point" (one bit a weight), "piecewise", "hybrid"; "privunitg", "k-of-d" or "gaussian".
        norm: For whole vectors, the L2 norm to which an update is clipped.
        bound: For "k-of-d", as for `perturb_vector`.
        upload: "updates" is what training changed; "weights" is what it arrived at, as in LDP-FL.
        ledger: The file in which this client keeps what it has spent, over all runs. "{partition-id}" and other names
            of the node's configuration are filled in: clients that share a machine need a file each. A node's number is
            refused, because the server assigns it and a new number would open a new ledger.
        budget: The total epsilon that no round may pass; needs `ledger`.
        delta: The delta of that epsilon, and with "gaussian" of eps.
        metrics: Names of the app's metrics that leave as they are. No epsilon covers them: a loss is private, and so is
            a number of examples.
        buffers: As for `report`, for models with the statistics of batch normalisation.
        like: What the server may ask a report of: a model, or arrays or tensors by name. Another layout is refused.
            Without it, the ledger keeps the layout of its first round and refuses others.
        answer_after: No answer leaves earlier than so many seconds after a message arrives. This hides how long a
            training took, if it took less.
        generator: For simulations that must be reproduced, a function of (message, context) that gives the key of a
            report. None draws a key from the operating system. A key may serve one client in one round only: a message
            that comes twice would get the same noise twice, which protects nothing.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[LdpMod(4.0)])
    >>> @app.train()
    ... def train(message, context): ...
    """

    def __init__(
        self,
        eps: float | None = None,
        mechanism: str = "two-point",
        *,
        law: Law | None = None,
        central: CentralGaussian | None = None,
        threshold: int | None = None,
        colluders: int = 1,
        roster: Mapping[int, bytes] | None = None,
        identity: tuple[int, bytes] | None = None,
        claims: str | os.PathLike[str] | None = None,
        adaptive: bool = False,
        norm: float | None = None,
        bound: float | None = None,
        upload: str = "updates",
        ledger: str | os.PathLike[str] | None = None,
        budget: float | None = None,
        delta: float = 1e-5,
        metrics: Collection[str] = (),
        buffers: Buffers | None = None,
        like: Weights | None = None,
        answer_after: float = 0.0,
        generator: KeyOf | None = None,
    ) -> None:
        self.release = released(
            eps, mechanism, law=law, central=central, norm=norm, bound=bound, delta=delta, threshold=threshold,
            colluders=colluders, roster=roster, adaptive=adaptive,
        )  # fmt: skip
        folder = None if claims is None else Path(claims)
        self.member = Member(self.release, identity, folder) if isinstance(self.release, Summed) else None
        if identity is not None and self.member is None:
            raise ValueError("identity is for secure sums: pass threshold and roster")
        if isinstance(self.release, ClippedUpdate) and ledger is not None:
            raise ValueError("with central the server adds the noise and keeps the ledger: give it to LdpFedAvg")
        self.upload = records.checked_upload(upload)
        if isinstance(metrics, str):
            raise TypeError(f"metrics={metrics!r} is one name: pass a list of names")
        if buffers not in (None, "perturb", "keep"):
            raise ValueError(f"buffers={buffers!r} must be 'perturb', 'keep' or None")
        if ledger is not None and "{node-id" in os.fspath(ledger):
            raise ValueError(
                f"ledger={os.fspath(ledger)!r}: the server gives nodes their numbers, and a new one would begin a new "
                "budget: name the ledger by {partition-id}, or by a path of this client's own"
            )
        self.budget = Budget(ledger, budget, delta)
        self.limit: float | None = None  # a run's own end, below the budget
        self.pinned = like is None  # the first round's layout is all that the ledger takes
        self.answer_after = arguments.non_negative("answer_after", answer_after)
        self.like = None if like is None else Layouts.of(like, buffers)
        self.metrics, self.buffers, self.generator = tuple(metrics), buffers, generator

    @classmethod
    def from_node(
        cls, *, like: Weights | None = None, upload: str = "updates", buffers: Buffers | None = None
    ) -> NodesMod:
        """A mod whose numbers are the node's own: no app has them in its source, and no run makes them looser.

        They are in a TOML file that the node's configuration names (`--node-config "ldp='/etc/ldp/site.toml'"`) and
        that is read when a message comes, or in the configuration itself as `ldp.eps=4.0` and so on. Keys are named
        like the arguments of `LdpMod`. A run's configuration may have a smaller `ldp.budget`. The ledger keeps the
        first round's layout. docs/integrations/flower.md has a file.

        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[LdpMod.from_node()])
        """
        return NodesMod({"like": like, "upload": upload, "buffers": buffers})

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Flower's call: train by `call_next`, then report."""
        if message.metadata.message_type.partition(".")[0] != "train":
            return records.refusal(
                message,
                "this client answers train messages only: an answer to evaluate or query would leave unperturbed. "
                "Evaluate on the server, with evaluate_fn",
            )
        arrived = time.monotonic()
        try:
            if self.member is not None and self.member.stage(message) != MASKED:
                return self.member.step(message, context)
            received = records.arrays_of(message.content, "the message")
            before = leaving(received, self.buffers)
            if self.like is not None:
                self.like.check(before)
            told = records.told(message, context, self.release, self.upload, list(before))
            unchanged = before if self.upload == "weights" else {n: np.zeros_like(a) for n, a in before.items()}
            metrics: records.Metrics = dict.fromkeys(self.metrics, 0.0)  # all of them leave, whatever the app gives
            key = None if self.generator is None else self.generator(message, context)
            if not isinstance(key, Key | np.random.Generator | None):
                raise TypeError(f"generator returns a {type(key).__name__}: return an ldpkernels.key, or None")
            turn = None if self.member is None else self.member.turn(message, context)
            self._upload(message, turn, unchanged, told, None, metrics)
            sizes = [array.size for array in before.values()]
            self.release.event(sizes)  # it refuses arrays that the law is not of
            layout = Layouts.of(before, self.buffers).digest if self.pinned else ""
            with self._opened(context) as ledger:
                if ledger is not None:  # before the app is called: from here on a report leaves
                    metrics[records.EPSILON] = spent(ledger, self.release, sizes, layout, self.limit)
        except (ValueError, TypeError, ArithmeticError, BudgetExceeded, ProtocolError) as error:
            return records.refusal(message, str(error))
        except (LedgerError, OSError):
            logger.exception("this client's ledger cannot be used")
            return records.refusal(message, "this client's ledger cannot be used; its log says why")
        made = self._trained(message, context, call_next, before, received, told, key, metrics, turn)
        answer, state = made or self._upload(message, turn, unchanged, told, key, metrics)
        if turn is not None and state is not None:
            keep(turn.record, turn.asked.round, state)
            context.state = turn.record  # whatever the app put there
        time.sleep(max(0.0, arrived + self.answer_after - time.monotonic()))
        return Message(answer.content, reply_to=message)  # made as it leaves: a message says when it was made

    def _trained(
        self,
        message: Message,
        context: Context,
        call_next: CallNext,
        before: Arrays,
        received: Arrays,
        told: Asked,
        key: Generator,
        metrics: records.Metrics,
        turn: Turn | None,
    ) -> tuple[Message, State | None] | None:
        """The report of what the app trained; None where it failed, for whatever reason, which the log has."""
        alarms = _alarms()
        try:
            try:
                reply = call_next(message, context)
            finally:
                _set(alarms)
            if reply.has_error():
                raise RuntimeError(f"the app answers with error {reply.error.code}: {reply.error.reason}")
            update = changed(before, received, records.arrays_of(reply.content, "the app's reply"), self.upload)
            said = metrics | records.allowed(reply.content, self.metrics)
            return self._upload(message, turn, update, told, key, said)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # what Rust's panics and cancelled tasks raise is no Exception
            cure = ": this app has a client_fn: give ClientApp mods=[LdpMod(...), ldpkernels.flower.numpy_client]"
            advice = cure if isinstance(error, KeyError) and "fitins.parameters" in str(error) else ""
            logger.exception("this client's training failed: what leaves is a report of no change%s", advice)
            return None

    def _upload(
        self,
        message: Message,
        turn: Turn | None,
        update: Arrays,
        told: Asked,
        key: Generator,
        metrics: records.Metrics,
    ) -> tuple[Message, State | None]:
        """The reply with the report, and of a secure sum the state that follows it.

        Called on zeros before training, it refuses what no report can have.
        """
        if self.member is not None and turn is not None:
            return self.member.upload(message, turn, update, told, key, metrics)
        assert isinstance(self.release, Reported)
        return records.answer(message, self.release.report(update, told, key), metrics), None

    def _opened(self, context: Context) -> AbstractContextManager[Ledger | None]:
        return self.budget.opened(context.node_config)


def _alarms() -> Alarms:
    """The timers as they are set; of the thread that handles their signals alone."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return {}
    return {timer: signal.getitimer(timer) for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)}


def _set(alarms: Alarms) -> None:
    """Set timers as they were: one that a failed training leaves behind would end the report, and tell of it."""
    for timer, left in alarms.items():
        signal.setitimer(timer, *left)


class NodesMod:
    """A mod that is made of a node's own configuration when a message comes: `LdpMod.from_node`."""

    def __init__(self, task: Mapping[str, object]) -> None:
        self._task = dict(task)
        self._mods: dict[str, LdpMod] = {}  # a process may serve several nodes, and a calibration takes time

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Flower's call."""
        try:
            mod = self._mod(context)
        except Exception:  # a path or a number of the owner's does not leave
            logger.exception("this client's own configuration cannot be used")
            return records.refusal(message, "this client's own configuration cannot be used; its log says why")
        return mod(message, context, call_next)

    def _mod(self, context: Context) -> LdpMod:
        name = repr((node.read(context.node_config), sorted(context.run_config.items())))
        if name in self._mods:
            return self._mods[name]
        found = node.settings_of(context.node_config, context.run_config)
        try:
            mod = LdpMod(**{**self._task, **found.settings})  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{found.source}: {error}") from error
        # A `like` is the app's, and events that a run chooses by what it has seen do not add up as the ledger has it.
        mod.limit, mod.pinned = found.limit, True
        if len(self._mods) == MOST_MODS:
            self._mods.clear()
        self._mods[name] = mod
        return mod
