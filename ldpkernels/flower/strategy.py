# SPDX-License-Identifier: Apache-2.0
"""A strategy for Flower's ServerApp: the model and its ranges go out, reports come back and become the next model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import get_args

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from ldpkernels.accounting import BudgetExceeded
from ldpkernels.calls import adaptive_ranges
from ldpkernels.calls.adaptive_ranges import By, Method
from ldpkernels.common import arguments
from ldpkernels.common.arrays import Array
from ldpkernels.flower import records, sums
from ldpkernels.flower.optimizer import MakeOptimizer, ServerOptimizer
from ldpkernels.flower.replies import replies
from ldpkernels.flower.rounds import Rounds
from ldpkernels.inputs.containers import Numbers
from ldpkernels.inputs.modules import Buffers
from ldpkernels.laws.central_gaussian import CentralGaussian
from ldpkernels.releases.budget import Budget, affords, spent
from ldpkernels.releases.choice import Law, released
from ldpkernels.releases.release import Arrays, Asked, EachWeight, Ranges, Reported, Total, leaving
from ldpkernels.releases.summed import Summed, SummedReports
from ldpkernels.releases.vectors import NEXT_NORM, ClippedUpdate

logger = logging.getLogger("flwr.ldpkernels")  # in the form of Flower's own

_BATCH = 15  # reports that the counters take at once


class LdpFedAvg(Rounds):
    """Federated averaging of reports from clients that use `LdpMod` with the same settings.

    Reports are added as they arrive, into a counter for each weight. A reply that is not a report of this round, model,
    ranges and eps is left out and counted; so are errors, and a client's second reply. Every report counts the same,
    because a number of examples is private.

    Args:
        eps: As for `LdpMod`: any two weights or updates, for whoever sees a report. None with a law.
        law: As for `LdpMod`, and so are `mechanism`, `threshold`, `colluders`, `roster`, `adaptive`, `norm`, `bound`,
            `delta`, `upload` and `buffers`.
        central: A `CentralGaussian`. **This server sees every update and must be trusted**: it adds them, adds the
            noise once, and divides by the number of clients that the law expects, however many came.
        ledger: With central, the file in which the server keeps what its models have cost, over all runs.
        budget: The total epsilon, at `delta`, that no model may pass; needs `ledger`. The run ends before it does.
        at_least: A round with fewer usable reports is dropped: the model stays, and what clients spent stays spent.
        C: Centers of the ranges of the first round: a number, or one for each array or module by name.
        R: Radii, likewise. With upload="updates" they bound what a round of training changes. Both are public, and must
            not come from one client's data. Whole vectors have a `norm` instead.
        ranges: How the next ranges are found from the mean: "noise-subtracted", "quantile" or "minmax", of
            `ldpkernels.ranges`. None leaves them.
        growth: The largest factor by which a radius may grow in a round.
        by: What shares a range.
        server_optimizer: A function that makes a torch optimizer of a list of tensors. Its gradient is the model minus
            the clients' noisy mean: torch.optim.SGD of rate 1 with momentum is FedAvgM, Adam is FedAdam. None moves the
            model to the mean.
        save: A folder for the state after the last round.
        resume: Go on from `save`. Without it, a folder that has a state is refused.
        options: Of Flower's FedAvg: fraction_train, min_train_nodes, min_available_nodes, arrayrecord_key, ...
            Evaluation by clients is off, because their answers would leave without noise.

    `skipped` and `reasons` say what was left out in the last round, and `refusals` what clients answered instead of a
    report. The metrics of a round are the numbers of reports, of replies that were skipped, of failures and of clients
    that did not answer, and the largest epsilon that a client says it has spent.

    >>> strategy = LdpFedAvg(4.0, R=0.05, ranges="noise-subtracted", fraction_train=0.5, min_train_nodes=1)
    >>> strategy.fraction_train, strategy.fraction_evaluate
    (0.5, 0.0)
    """

    def __init__(
        self,
        eps: float | None = None,
        mechanism: str = "two-point",
        *,
        law: Law | None = None,
        central: CentralGaussian | None = None,
        ledger: str | PathLike[str] | None = None,
        budget: float | None = None,
        at_least: int = 1,
        threshold: int | None = None,
        colluders: int = 1,
        roster: Mapping[int, bytes] | None = None,
        adaptive: bool = False,
        C: Numbers = 0.0,
        R: Numbers | None = None,
        norm: float | None = None,
        bound: float | None = None,
        delta: float = 1e-5,
        upload: str = "updates",
        ranges: Method | None = None,
        growth: float | None = None,
        by: By = "module",
        server_optimizer: MakeOptimizer | None = None,
        buffers: Buffers | None = None,
        save: str | Path | None = None,
        resume: bool = False,
        **options: object,
    ) -> None:
        self.release = released(
            eps, mechanism, law=law, central=central, norm=norm, bound=bound, delta=delta, threshold=threshold,
            colluders=colluders, roster=roster, adaptive=adaptive,
        )  # fmt: skip
        self.at_least = arguments.count("at_least", at_least)
        least = max(self.at_least, threshold or 0)
        few = {"min_train_nodes": least, "min_available_nodes": least} if least > 1 else {}  # Flower waits for them
        options = {"fraction_evaluate": 0.0, **few, **options}
        if options["fraction_evaluate"]:
            raise ValueError(
                f"fraction_evaluate={options['fraction_evaluate']}: what clients report of an evaluation would leave "
                "unperturbed, and LdpMod refuses it: evaluate on the server, with evaluate_fn"
            )
        super().__init__(save, resume, **options)
        self.upload = records.checked_upload(upload)
        first = self.release.first_norm
        if first is not None or not self.release.ranged:
            if R is not None or ranges is not None:
                raise ValueError(f"{self.release.terms} has a norm and no ranges: leave out R and ranges")
            R = first or 0.0
        elif R is None:
            raise ValueError("R is missing: the radius of what a client sends, which must not come from private data")
        if growth is not None and ranges is None:
            raise ValueError(f"growth={growth} is for adaptive ranges: give for example ranges='noise-subtracted'")
        if ranges is not None:
            arguments.choice("ranges", ranges, get_args(Method))
        for radius in R.values() if isinstance(R, Mapping) else R if isinstance(R, Sequence) else [R]:
            arguments.non_negative("R", float(radius))
        if ledger is not None and not isinstance(self.release, ClippedUpdate):
            raise ValueError(
                "ledger is for central, where the server adds the noise: without it each client keeps its own"
            )
        self.budget = Budget(ledger, budget, delta)
        self.ranges: Ranges = (C, R)
        self.method, self.growth, self.by = ranges, growth, by
        self.buffers = buffers
        self.optimizer = None if server_optimizer is None else ServerOptimizer(server_optimizer)
        self.skipped, self.reasons, self.refusals = 0, dict[str, int](), dict[str, int]()
        self._asked: set[int] = set()
        self._run = 0
        self._arrays: Arrays = {}

    def summary(self) -> None:
        """Say what was set up, in Flower's log."""
        logger.info("\t├──> Sampling: train (%.2f), at least %d nodes", self.fraction_train, self.min_train_nodes)
        logger.info("\t├──> Reports: %s, upload=%s, C=%s, R=%s", self.release.terms, self.upload, *self.ranges)
        logger.info("\t│\t├── Weighted: all alike")
        logger.info("\t│\t└── Their epsilon is against %s", self.release.against)
        logger.info("\t└──> Keys in records: arrays '%s', config '%s'", self.arrayrecord_key, self.configrecord_key)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message with the model and the round's ranges for each node that is selected."""
        self._begun(arrays)
        messages: list[Message] = list(super().configure_train(server_round, arrays, config, grid))
        terms = records.terms(self.release, self.upload, server_round, self._like, self.ranges)
        for message in messages:  # FedAvg gives all of them one content
            message.content[records.TERMS] = terms
        self._asked = {int(message.metadata.dst_node_id) for message in messages}
        if messages:  # older versions of Flower number a message's run when it is sent
            self._run = int(messages[0].metadata.run_id or grid.run.run_id)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add reports as they come; return the next model, and the metrics of the round."""
        if not isinstance(self.release, Reported):
            raise TypeError("secure sums are computed by start, so there are no replies to aggregate")
        total = self.release.total(self._like, Asked(self.ranges, self._run, server_round))
        waiting, failures, strange, epsilon = set(self._asked), 0, 0, 0.0
        self.refusals = {}
        reports: list[bytes] = []  # several at once are added faster
        for reply in replies:
            node = int(reply.metadata.src_node_id)
            if node not in waiting:  # a second reply, or a stranger's
                strange += 1
                continue
            waiting.discard(node)
            if reply.has_error():
                failures += 1
                self.refusals[reply.error.reason] = self.refusals.get(reply.error.reason, 0) + 1
                logger.warning("round %d: node %d answers: %s", server_round, node, reply.error.reason)
                continue
            try:
                reports.append(self.release.labelled(records.report_in(reply.content), node))
                epsilon = max(epsilon, records.epsilon_in(reply.content))
            except ValueError:
                strange += 1
            if len(reports) == _BATCH:
                total.add(*reports)
                reports = []
        total.add(*reports)
        return self._next(server_round, total, failures, strange, len(waiting), epsilon)

    def _round(
        self, round_: int, grid: Grid, arrays: ArrayRecord, config: ConfigRecord, timeout: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        messages = list(self.configure_train(round_, arrays, config, grid))
        if isinstance(self.release, Summed):
            asked = Asked(self.ranges, self._run, round_)
            found = sums.collect(self.release, asked, self._like, grid, messages, timeout)
            return self._next(round_, found, 0, 0, found.silent, found.epsilon)
        return self.aggregate_train(round_, replies(grid, messages, timeout))

    def _begun(self, initial: ArrayRecord) -> Arrays:
        """Take over the model; what no round can have is refused before a client trains."""
        self._arrays = {str(name): array.numpy() for name, array in initial.items()}
        like, asked = self._like, Asked(self.ranges)
        self.release.event(self._sizes)  # it refuses another number of weights
        if isinstance(self.release, Reported):
            self.release.total(like, asked)
        elif isinstance(self.release, SummedReports):
            self.release.each.total(like, asked)
        self._after({name: np.zeros_like(array) for name, array in like.items()}, clients=10**9)  # no warning of noise
        return self._arrays

    def _affordable(self, round_: int) -> bool:
        """Whether the server's own ledger covers another round, before anybody trains for it."""
        with self.budget.opened({}) as ledger:
            if ledger is None or affords(ledger, self.release, self._sizes):
                return True
        logger.warning("round %d is not begun: the next model would pass the budget of %s", round_, self.budget.epsilon)
        return False

    @property
    def _like(self) -> Arrays:
        """Arrays like those that leave a client."""
        return leaving(self._arrays, self.buffers)

    @property
    def _sizes(self) -> list[int]:
        return [array.size for array in self._like.values()]

    def _next(
        self, server_round: int, total: Total | sums.Collected, failures: int, strange: int, silent: int, epsilon: float
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """The next model and ranges, if there was a report."""
        clients = total.clients
        self.skipped, self.reasons = strange + total.skipped, dict(total.reasons)
        if strange:
            self.reasons["no report, a second one, or from a node that was not asked"] = strange
        metrics = MetricRecord({"reports": clients, "skipped": self.skipped, "failures": failures, "silent": silent})
        if epsilon:
            metrics[records.EPSILON] = epsilon
        if clients < self.at_least:
            least = f", of at least {self.at_least}" if self.at_least > 1 else ""
            why = self.reasons or self.refusals or "no answer"
            logger.warning("round %d has %d reports%s: the model stays (%s)", server_round, clients, least, why)
            return None, metrics
        with self.budget.opened({}) as ledger:
            if ledger is not None:  # before anybody sees the next model
                try:
                    metrics[records.EPSILON] = spent(ledger, self.release, self._sizes, "")
                except BudgetExceeded as error:
                    logger.warning("round %d is dropped: %s", server_round, error)
                    return None, metrics
        mean = total.mean()
        norm = mean.pop(NEXT_NORM, None)
        self.ranges = self._after(mean, clients) if norm is None else (0.0, float(norm))
        arrays = {name: self._moved(array, mean.get(name)) for name, array in self._arrays.items()}
        if self.optimizer is not None:
            stepped = self.optimizer.moved({name: self._arrays[name] for name in mean}, {n: arrays[n] for n in mean})
            arrays |= {name: np.asarray(array, self._arrays[name].dtype) for name, array in stepped.items()}
        return records.record_of(arrays), metrics

    def _after(self, mean: Arrays, clients: int) -> Ranges:
        """The ranges that follow from a mean of so many reports."""
        if self.method is None or not isinstance(self.release, EachWeight | SummedReports):
            return self.ranges
        return adaptive_ranges.ranges(
            mean, method=self.method, by=self.by, growth=self.growth, previous=self.ranges, eps=self.release.eps,
            clients=clients, buffers="perturb",
        )  # fmt: skip

    def _moved(self, array: Array, mean: Array | None) -> Array:
        """An array after the round, in its own format; what clients keep to themselves stays as it is."""
        if mean is None:
            return array
        after = array + mean if self.upload == "updates" else mean
        return np.asarray(after, array.dtype)

    def _described(self) -> dict[str, object]:
        names = ("upload", "method", "growth", "by", "buffers")
        optimizer = {} if self.optimizer is None else {"server_optimizer": True}
        return {**self.release.terms, **{name: getattr(self, name) for name in names}, **optimizer}
