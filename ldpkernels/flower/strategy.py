# SPDX-License-Identifier: Apache-2.0
"""A strategy for Flower's ServerApp: the model and its ranges go out, reports come back and become the next model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from ldpkernels import adaptive_ranges
from ldpkernels.adaptive_ranges import By, Method
from ldpkernels.arrays import Array
from ldpkernels.flower import checkpoint, records, sums
from ldpkernels.flower.integers import countable
from ldpkernels.flower.replies import replies
from ldpkernels.flower.secure import SecureSum
from ldpkernels.inputs.containers import Numbers
from ldpkernels.inputs.modules import Buffers
from ldpkernels.laws.distributed import Shares
from ldpkernels.releases.release import Arrays, EachWeight, Ranges, Total, leaving
from ldpkernels.releases.shares import SharesOfNoise, released

logger = logging.getLogger("ldpkernels.flower")

_BATCH = 15  # reports that the counters take at once
Evaluate = Callable[[int, ArrayRecord], "MetricRecord | None"]


@dataclass
class Summed:
    """What a secure sum gave, as the sums of reports have it."""

    clients: int
    means: Arrays
    skipped: int
    reasons: dict[str, int]

    def add(self, *reports: bytes) -> None:
        """Refused: the sum is closed."""
        raise TypeError("a secure sum takes no reports")

    def mean(self) -> Arrays:
        """The clients' mean, by name."""
        return self.means


class LdpFedAvg(FedAvg):
    """Federated averaging of reports from clients that use `LdpMod` with the same settings.

    Reports are added as they arrive, into a counter for each weight. What is no report of this round, model, ranges and
    eps is left out and counted, and so are a second reply of one client and an error. Every report counts alike: a
    number of examples is private.

    Args:
        eps: The clients' privacy parameter; None with a law.
        law: `DistributedGaussian` or `DistributedSkellam`: clients add shares of its noise and send their updates by a
            secure sum (docs/secure_sums.md), as `LdpMod(law=...)`. A round costs them `law.event`.
        threshold: With a law, the fewest clients whose sum is opened.
        colluders: With a law, as for `LdpMod`, and so is `roster`.
        mechanism: As for `LdpMod`, and so are `norm`, `bound`, `delta`, `upload` and `buffers`.
        C: Centers of the ranges of the first round: a number, or one for each array or module by name.
        R: Radii, likewise. With upload="updates" they are of what a round of training changes. Both are public, and
            must not come from one client's data. Whole vectors have a `norm` instead.
        ranges: How the next ranges are found from the mean: "noise-subtracted", "quantile" or "minmax", of
            `ldpkernels.ranges`. None leaves them.
        growth: The most by which a radius may grow in a round.
        by: What shares a range.
        secure: A `SecureSum` has the clients' reports added by SecAgg+, so that the server learns counts only.
        save: A folder that has the state after the last round.
        resume: Go on from `save`; without it, a folder that has a state is refused.
        options: Of Flower's FedAvg: fraction_train, min_train_nodes, min_available_nodes, arrayrecord_key, ...
            Evaluation by clients is off: their answers would leave unperturbed.

    `skipped` and `reasons` say what was left out in the last round; the metrics of a round are the numbers of reports,
    of replies that were skipped, of failures, of clients that did not answer, and the largest epsilon that a client
    says to have spent.

    >>> strategy = LdpFedAvg(4.0, R=0.05, ranges="noise-subtracted", fraction_train=0.5, min_train_nodes=1)
    >>> strategy.fraction_train, strategy.fraction_evaluate
    (0.5, 0.0)
    """

    def __init__(
        self,
        eps: float | None = None,
        mechanism: str = "two-point",
        *,
        law: Shares | None = None,
        threshold: int | None = None,
        colluders: int = 1,
        roster: Mapping[int, bytes] | None = None,
        C: Numbers = 0.0,
        R: Numbers | None = None,
        norm: float | None = None,
        bound: float | None = None,
        delta: float = 1e-5,
        upload: str = "updates",
        ranges: Method | None = None,
        growth: float | None = None,
        by: By = "module",
        buffers: Buffers | None = None,
        secure: SecureSum | None = None,
        save: str | Path | None = None,
        resume: bool = False,
        **options: object,
    ) -> None:
        options = {"fraction_evaluate": 0.0, **options}
        if options["fraction_evaluate"]:
            raise ValueError(
                f"fraction_evaluate={options['fraction_evaluate']}: what clients say of an evaluation would leave "
                "unperturbed, and LdpMod refuses it: evaluate on the server, with evaluate_fn"
            )
        super().__init__(**options)
        self.release = released(eps, mechanism, norm, bound, delta, law, threshold, colluders, roster)
        self.upload = records.checked_upload(upload)
        if not isinstance(self.release, EachWeight):
            if R is not None or ranges is not None:
                raise ValueError(f"mechanism={mechanism!r} has a norm and no ranges: leave out R and ranges")
            R = 0.0
        elif R is None:
            raise ValueError("R is missing: the radius of what a client sends, which must not come from private data")
        if growth is not None and ranges is None:
            raise ValueError(f"growth={growth} is for adaptive ranges: give ranges='noise-subtracted', say")
        if secure is not None:
            countable(self.release)
        if resume and save is None:
            raise ValueError("resume goes on from the state in save: give its folder")
        self.ranges: Ranges = (C, R)
        self.method, self.growth, self.by = ranges, growth, by
        self.buffers, self.secure = buffers, secure
        self.save, self.resume = None if save is None else Path(save), resume
        self.skipped, self.reasons = 0, dict[str, int]()
        self._asked: set[int] = set()
        self._arrays: Arrays = {}

    def summary(self) -> None:
        """Say what was set up, in Flower's log."""
        super().summary()
        logger.info("reports: %s, upload=%s, C=%s, R=%s", self.release.terms, self.upload, *self.ranges)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message with the model and the round's ranges for each node that is selected."""
        self._begin(arrays)
        messages: list[Message] = list(super().configure_train(server_round, arrays, config, grid))
        like = leaving(self._arrays, self.buffers)
        terms = records.terms(self.release, self.upload, server_round, like, self.ranges)
        for message in messages:  # FedAvg gives all of them one content
            message.content[records.TERMS] = terms
        self._asked = {int(message.metadata.dst_node_id) for message in messages}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add reports as they come; the next model, and what there is to say of the round."""
        if isinstance(self.release, SharesOfNoise):
            raise TypeError("shares of noise are summed by start, and there are no replies to aggregate")
        total = self.release.total(leaving(self._arrays, self.buffers), self.ranges)
        waiting, failures, strange, epsilon = set(self._asked), 0, 0, 0.0
        reports: list[bytes] = []  # several at once are added faster
        for reply in replies:
            node = int(reply.metadata.src_node_id)
            if node not in waiting:  # a second reply, or a stranger's
                strange += 1
                continue
            waiting.discard(node)
            if reply.has_error():
                failures += 1
                logger.warning("round %d: node %d answers: %s", server_round, node, reply.error.reason)
                continue
            try:
                reports.append(records.report_in(reply.content))
                epsilon = max(epsilon, records.epsilon_in(reply.content))
            except ValueError:
                strange += 1
            if len(reports) == _BATCH:
                total.add(*reports)
                reports = []
        total.add(*reports)
        return self._next(server_round, total, failures, strange, len(waiting), epsilon)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Flower's `Strategy.start`, but for two things: replies are added as they arrive, and a run can be resumed.

        A server that died in a round asks for that round anew. Clients that had answered it spend again, and their
        ledgers say so.
        """
        arrays, first, result = self._opened(initial_arrays)
        self.summary()
        if evaluate_fn is not None and first == 1:
            _noted(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, arrays))
        for round_ in range(first, num_rounds + 1):
            config = ConfigRecord(dict(train_config or {}))
            messages = list(self.configure_train(round_, arrays, config, grid))
            if isinstance(self.release, SharesOfNoise):
                after, metrics = self._summed_round(round_, grid, messages, timeout)
            elif self.secure is None:
                after, metrics = self.aggregate_train(round_, replies(grid, messages, timeout))
            else:
                after, metrics = self._secure_round(round_, grid, messages, timeout)
            arrays = arrays if after is None else after
            result.arrays = arrays
            _noted(result.train_metrics_clientapp, round_, metrics)
            if evaluate_fn is not None:
                _noted(result.evaluate_metrics_serverapp, round_, evaluate_fn(round_, arrays))
            self._keep(round_, result)
        return result

    def _begin(self, arrays: ArrayRecord) -> None:
        """Take over the model; what no round can have is refused before a client trains."""
        self._arrays = {str(name): array.numpy() for name, array in arrays.items()}
        like = leaving(self._arrays, self.buffers)
        if isinstance(self.release, SharesOfNoise):
            self.release.event([array.size for array in like.values()])  # it refuses another number of weights
            return
        self.release.total(like, self.ranges)
        self._after({name: np.zeros_like(array) for name, array in like.items()}, clients=10**9)  # no warning of noise

    def _secure_round(
        self, server_round: int, grid: Grid, messages: list[Message], timeout: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert self.secure is not None
        release, like = countable(self.release), leaving(self._arrays, self.buffers)
        found = self.secure.collect(server_round, grid, messages, timeout, release, release.expected(like, self.ranges))
        missing = len(messages) - found.reports
        return self._next(server_round, found.total, missing, int(found.refused), 0, found.epsilon)

    def _summed_round(
        self, round_: int, grid: Grid, messages: list[Message], timeout: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert isinstance(self.release, SharesOfNoise)
        if not messages:
            return self._next(round_, None, 0, 0, 0, 0.0)
        run, like = messages[0].metadata.run_id, leaving(self._arrays, self.buffers)
        found = sums.collect(self.release, run, round_, grid, messages, timeout)
        mean: Arrays = {}
        if found.total is not None:
            mean = self.release.mean(found.total, like, found.clients, run, round_)
        total = Summed(found.clients, mean, sum(found.refused.values()), found.refused)
        return self._next(round_, total, 0, 0, len(messages) - found.clients, found.epsilon)

    def _next(
        self, server_round: int, total: Total | None, failures: int, strange: int, silent: int, epsilon: float
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """The next model and ranges, if there was a report."""
        clients = 0 if total is None else total.clients
        self.skipped = strange + (0 if total is None else total.skipped)
        self.reasons = {} if total is None else dict(total.reasons)
        if strange:
            self.reasons["no report, a second one, or from a node that was not asked"] = strange
        metrics = MetricRecord({"reports": clients, "skipped": self.skipped, "failures": failures, "silent": silent})
        if epsilon:
            metrics[records.EPSILON] = epsilon
        if total is None or not clients:
            logger.warning("round %d has no report: the model stays (%s)", server_round, self.reasons or "no answer")
            return None, metrics
        mean = total.mean()
        self.ranges = self._after(mean, clients)
        arrays = {name: self._moved(array, mean.get(name)) for name, array in self._arrays.items()}
        return records.record_of(arrays), metrics

    def _after(self, mean: Arrays, clients: int) -> Ranges:
        """The ranges that follow from a mean of so many reports."""
        if self.method is None or isinstance(self.release, SharesOfNoise):
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
        return {**self.release.terms, **{name: getattr(self, name) for name in names}}

    def _opened(self, initial: ArrayRecord) -> tuple[ArrayRecord, int, Result]:
        """The model, the round to begin with, and what is known of those before."""
        self._begin(initial)
        result = Result()
        result.arrays = initial
        if self.save is None:
            return initial, 1, result
        kept = checkpoint.load(self.save, self._described(), self._arrays)
        if kept is None:
            return initial, 1, result
        if not self.resume:
            raise checkpoint.CheckpointError(f"{self.save} has a run of {kept.round} rounds: resume, or another folder")
        self.ranges = kept.ranges
        result.arrays = records.record_of(kept.arrays)
        result.train_metrics_clientapp = {k: MetricRecord(dict(v)) for k, v in kept.metrics.items()}
        return result.arrays, kept.round + 1, result

    def _keep(self, round_: int, result: Result) -> None:
        if self.save is None:
            return
        arrays = {str(name): array.numpy() for name, array in result.arrays.items()}
        metrics = {k: dict(v) for k, v in result.train_metrics_clientapp.items()}
        ranges = checkpoint.plain(self.ranges[0]), checkpoint.plain(self.ranges[1])
        checkpoint.save(self.save, checkpoint.Kept(round_, arrays, ranges, metrics), self._described())


def _noted(where: dict[int, MetricRecord], round_: int, metrics: MetricRecord | None) -> None:
    if metrics is not None:
        where[round_] = metrics
