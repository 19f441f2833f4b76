# SPDX-License-Identifier: Apache-2.0
"""A mod for Flower's ClientApp: what training changed leaves as a report under local differential privacy.

Whatever the app's own function puts into its reply, what leaves is built here: a report, the metrics of a list, and the
ledger's epsilon. An error says what is wrong with the message or the settings, and never what training raised.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

import numpy as np
from flwr.app import Context, Message
from flwr.common.constant import ErrorCode

from ldpkernels.accounting import BudgetExceeded, Ledger, LedgerError
from ldpkernels.arrays import Array
from ldpkernels.flower import records
from ldpkernels.flower.integers import Packing, countable
from ldpkernels.inputs.modules import Buffers
from ldpkernels.keys import Generator
from ldpkernels.releases.budget import Budget
from ldpkernels.releases.release import Arrays, leaving, release_of

logger = logging.getLogger("ldpkernels.flower")

CallNext = Callable[[Message, Context], Message]
KeyOf = Callable[[Message, Context], Generator]


class LdpMod:
    """What a Flower client sends of a round's training: a report, and nothing else that was not allowed.

    Give the ServerApp's `LdpFedAvg` the same settings; a round with others is refused, so that no server chooses a
    client's eps. C and R of the round come from the server. Only "train" messages are answered: replies to "evaluate"
    and "query" would leave as they are, and are refused before the app sees them.

    **eps is the privacy of each weight of a report on its own** ("two-point", "piecewise", "hybrid"), or of a whole
    update ("privunitg", "k-of-d", "gaussian", with `norm`). What a client spends in all is what its ledger says. The
    app that holds this mod comes to a SuperNode from whoever starts the run: docs/integrations/flower.md says what that
    means.

    Args:
        eps: Privacy parameter.
        mechanism: "two-point" (one bit a weight), "piecewise", "hybrid"; "privunitg", "k-of-d" or "gaussian".
        norm: For whole vectors, the L2 norm to which an update is clipped.
        bound: For "k-of-d", as for `perturb_vector`.
        upload: "updates" is what training changed; "weights" is what it arrived at, as LDP-FL has it.
        ledger: The file in which this client keeps what it has spent, over all runs. "{partition-id}" and other names
            of the node's configuration, and "{node-id}", are filled in: clients that share a machine need a file each.
        budget: The epsilon in all that no round may pass; goes with `ledger`.
        delta: The delta of that epsilon, and with "gaussian" of eps.
        metrics: Names of the app's metrics that leave as they are. They are in no epsilon: a loss is private, and so is
            a number of examples.
        buffers: For models with the statistics of batch normalisation, "perturb" or "keep", as for `report`.
        secure: Whether reports leave as integers for secure aggregation: put `secaggplus_mod` before this mod.
        generator: For simulations that must be reproduced, a function of (message, context) that gives the key of a
            report. None draws a key from the operating system. A key for each client and round must not be used for
            anything else, so that a message that comes twice makes this no privacy at all.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[LdpMod(4.0)])
    >>> @app.train()
    ... def train(message, context): ...
    """

    def __init__(
        self,
        eps: float,
        mechanism: str = "two-point",
        *,
        norm: float | None = None,
        bound: float | None = None,
        upload: str = "updates",
        ledger: str | os.PathLike[str] | None = None,
        budget: float | None = None,
        delta: float = 1e-5,
        metrics: Collection[str] = (),
        buffers: Buffers | None = None,
        secure: bool = False,
        generator: KeyOf | None = None,
    ) -> None:
        self.release = release_of(eps, mechanism, norm, bound, delta)
        self.upload = records.checked_upload(upload)
        if isinstance(metrics, str):
            raise TypeError(f"metrics={metrics!r} is one name: pass a list of names")
        if buffers not in (None, "perturb", "keep"):
            raise ValueError(f"buffers={buffers!r} must be 'perturb', 'keep' or None")
        if secure:
            countable(self.release)
        self.budget = Budget(ledger, budget, delta)
        self.metrics, self.buffers, self.secure, self.generator = tuple(metrics), buffers, secure, generator

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Flower's call: train by `call_next`, then report."""
        if message.metadata.message_type.partition(".")[0] != "train":
            return records.refusal(
                message,
                "this client answers train messages only: an answer to evaluate or query would leave unperturbed. "
                "Evaluate on the server, with evaluate_fn",
            )
        try:
            received = records.arrays_of(message.content, "the message")
            before = leaving(received, self.buffers)
            told = records.told(message, self.release, self.upload, list(before), self.secure)
            self._upload(message, {name: np.zeros_like(array) for name, array in before.items()}, told, None, {})
            event, times = self.release.event([array.size for array in before.values()])
            with self._opened(context) as ledger:
                if ledger is not None and not ledger.rounds_left(event, times):
                    ledger.spend(event, times)  # which raises, with the figures
        except (ValueError, TypeError, BudgetExceeded) as error:
            return records.refusal(message, str(error))
        except (LedgerError, OSError):
            return self._failed(message, "this client's ledger cannot be used")
        try:
            reply = call_next(message, context)
            if reply.has_error():
                raise RuntimeError(f"the app answers with error {reply.error.code}: {reply.error.reason}")
        except Exception:
            return self._failed(message, "this client's training failed", ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
        try:
            update = self._update(before, received, reply)
            key = None if self.generator is None else self.generator(message, context)
            with self._opened(context) as ledger:
                metrics = records.allowed(reply.content, self.metrics)
                if ledger is not None:
                    metrics[records.EPSILON] = ledger.spend(event, times).epsilon  # before anything is released
            return self._upload(message, update, told, key, metrics)
        except (ValueError, TypeError, BudgetExceeded) as error:
            return records.refusal(message, str(error))
        except (LedgerError, OSError):
            return self._failed(message, "this client's ledger cannot be used")
        except Exception:
            return self._failed(message, "this client's report could not be made")

    def _update(self, before: Arrays, received: Arrays, reply: Message) -> Arrays:
        """What is reported, under the names and in the formats that were received."""
        trained = records.arrays_of(reply.content, "the app's reply")
        if list(trained) != list(received):
            raise ValueError("the app's reply has other arrays than it received: send back the same names, in order")
        for name, array in before.items():
            after = trained[name]
            if after.shape != array.shape or after.dtype != array.dtype:
                raise ValueError(
                    f"array {name!r} came as {array.dtype} of shape {array.shape}, and the app's reply has "
                    f"{after.dtype} of shape {after.shape}"
                )
        if self.upload == "weights":
            return {name: trained[name] for name in before}
        return {name: _difference(trained[name], array) for name, array in before.items()}

    def _upload(
        self, message: Message, update: Arrays, told: records.Told, key: Generator, metrics: records.Metrics
    ) -> Message:
        """The reply with the report. Called on zeros before training, it refuses what no report can have."""
        if not self.secure:
            return records.answer(message, self.release.report(update, told.ranges, key), metrics)
        release = countable(self.release)
        integers = Packing.of(release, told.clients).packed(release.reported(update, told.ranges, key))
        return records.secure_answer(message, integers, metrics)

    def _opened(self, context: Context) -> AbstractContextManager[Ledger | None]:
        return self.budget.opened({"node-id": context.node_id, **context.node_config})

    def _failed(self, message: Message, what: str, code: int | None = None) -> Message:
        """The exception goes to the client's own log: its words may be of private data."""
        logger.exception(what)
        return records.refusal(message, f"{what}; its log says why", code)


def _difference(after: Array, before: Array) -> Array:
    """What training changed, in the arrays' own format, 0-d arrays too.

    Infinite weights give NaN, which a report takes for its center.
    """
    with np.errstate(all="ignore"):
        return np.subtract(after, before, out=np.empty_like(before))
