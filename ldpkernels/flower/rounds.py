# SPDX-License-Identifier: Apache-2.0
"""The rounds of a run, in Flower's own form: what is logged, evaluated and kept after each, and how a run ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from ldpkernels.flower import checkpoint, records
from ldpkernels.flower.optimizer import ServerOptimizer
from ldpkernels.releases.release import Arrays, Ranges

logger = logging.getLogger("flwr.ldpkernels")

Evaluate: TypeAlias = "Callable[[int, ArrayRecord], MetricRecord | None]"


class NoReportsError(RuntimeError):
    """A run in which no round had a report: its model was never trained. `result` is what `start` would return."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class Rounds(FedAvg):
    """A strategy whose replies are added as they arrive, and whose run can be resumed."""

    reasons: Mapping[str, int]
    refusals: Mapping[str, int]
    ranges: Ranges
    optimizer: ServerOptimizer | None

    def __init__(self, save: str | Path | None, resume: bool, **options: object) -> None:
        super().__init__(**options)
        if resume and save is None:
            raise ValueError("resume goes on from the state in save: give its folder")
        self.save, self.resume = None if save is None else Path(save), resume

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
        """Flower's `Strategy.start`, but that replies are added as they arrive, and that a run can be resumed.

        A server that died in a round asks for that round anew. Clients that had answered it spend again, and their
        ledgers say so. A run in which no round had a report raises `NoReportsError`.
        """
        arrays, first, result = self._opened(initial_arrays)
        logger.info("Starting %s strategy, rounds %d to %d:", type(self).__name__, first, num_rounds)
        self.summary()
        if evaluate_fn is not None and first == 1:
            logger.info("Initial global evaluation")
            _noted(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, arrays))
        for round_ in range(first, num_rounds + 1):
            logger.info("[ROUND %d/%d]", round_, num_rounds)
            if not self._affordable(round_):
                break
            after, metrics = self._round(round_, grid, arrays, ConfigRecord(dict(train_config or {})), timeout)
            arrays = arrays if after is None else after
            result.arrays = arrays
            _noted(result.train_metrics_clientapp, round_, metrics)
            if evaluate_fn is not None:
                logger.info("Global evaluation")
                _noted(result.evaluate_metrics_serverapp, round_, evaluate_fn(round_, arrays))
            self._keep(round_, result)
        rounds = result.train_metrics_clientapp
        if rounds and not any(metrics["reports"] for metrics in rounds.values()):
            why = {**self.reasons, **self.refusals} or "nobody answered"
            raise NoReportsError(f"no round of {len(rounds)} had a report. The last: {why}", result)
        return result

    def _opened(self, initial: ArrayRecord) -> tuple[ArrayRecord, int, Result]:
        """The model, the round to begin with, and what is known of those before."""
        arrays = self._begun(initial)
        result = Result()
        result.arrays = initial
        kept = None if self.save is None else checkpoint.load(self.save, self._described(), arrays)
        if kept is None:
            return initial, 1, result
        if not self.resume:
            raise checkpoint.CheckpointError(
                f"{self.save} has a run of {kept.round} rounds: resume it, or give another folder"
            )
        self.ranges = kept.ranges
        if self.optimizer is not None:
            self.optimizer.state = kept.optimizer
        result.arrays = records.record_of(kept.arrays)
        result.train_metrics_clientapp = {k: MetricRecord(dict(v)) for k, v in kept.metrics.items()}
        return result.arrays, kept.round + 1, result

    def _keep(self, round_: int, result: Result) -> None:
        """Write down what a run needs to go on."""
        if self.save is None:
            return
        arrays = {str(name): array.numpy() for name, array in result.arrays.items()}
        metrics = {k: dict(v) for k, v in result.train_metrics_clientapp.items()}
        ranges = checkpoint.plain(self.ranges[0]), checkpoint.plain(self.ranges[1])
        state = b"" if self.optimizer is None else self.optimizer.state
        checkpoint.save(self.save, checkpoint.Kept(round_, arrays, ranges, metrics, state), self._described())

    def _begun(self, initial: ArrayRecord) -> Arrays:
        """Take over the model; what no round can have is refused before a client trains."""
        raise NotImplementedError

    def _described(self) -> Mapping[str, object]:
        """The settings with which a run may go on."""
        raise NotImplementedError

    def _affordable(self, round_: int) -> bool:
        """Whether another round is within the server's own budget."""
        raise NotImplementedError

    def _round(
        self, round_: int, grid: Grid, arrays: ArrayRecord, config: ConfigRecord, timeout: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model, or None where it stays, and what there is to say of the round."""
        raise NotImplementedError


def _noted(where: dict[int, MetricRecord], round_: int, metrics: MetricRecord | None) -> None:
    if metrics is not None:
        logger.info("\t└──> MetricRecord: %s", dict(metrics))
        where[round_] = metrics
