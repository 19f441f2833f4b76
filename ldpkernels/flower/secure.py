# SPDX-License-Identifier: Apache-2.0
"""Reports behind Flower's SecAgg+: the server learns how many clients reported what of a weight, and of none who.

What this promises rests on SecAgg+ as Flower runs it (docs/integrations/flower.md): against a server that follows the
protocol. Each report is under local differential privacy as ever, whatever becomes of the sum.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, FitRes, Parameters, parameters_to_ndarrays
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid

import ldpkernels
from ldpkernels.flower import records
from ldpkernels.flower.integers import MODULUS, Packing, aggregate_of
from ldpkernels.releases.release import Arrays, EachWeight
from ldpkernels.reports import Aggregate

logger = logging.getLogger("ldpkernels.flower")


@dataclass(frozen=True)
class Collected:
    """What a secure round gave: an aggregate, or none where too many dropped out or the sum was none of reports."""

    total: Aggregate[Arrays] | None
    reports: int
    refused: bool
    epsilon: float


@dataclass(frozen=True)
class SecureSum:
    """How SecAgg+ shares its keys, for `LdpFedAvg(secure=...)`. Clients: mods=[secaggplus_mod, LdpMod(secure=True)].

    Args:
        shares: Into how many shares a client's keys are split: a number, or a fraction of the round's clients.
        threshold: How many shares open a key: a number, or a fraction of the shares. Fewer clients than this left at
            the end lose the round; so many together, or a server with them, can open anyone's report.

    >>> SecureSum(threshold=0.6)
    SecureSum(shares=1.0, threshold=0.6)
    """

    shares: float = 1.0
    threshold: float = 2 / 3

    def __post_init__(self) -> None:
        SecAggPlusWorkflow(self.shares, self.threshold)  # it refuses what it cannot run

    def collect(
        self,
        round_: int,
        grid: Grid,
        messages: list[Message],
        timeout: float,
        release: EachWeight,
        expect: ldpkernels.Expected[Arrays],
    ) -> Collected:
        """One round of SecAgg+ with the nodes to whom these messages would have gone."""
        packing = Packing.of(release, len(messages))
        protocol = _Protocol(self, packing, messages, timeout)
        context = LegacyContext(Context(0, 0, {}, RecordDict(), {}), strategy=protocol.strategy)
        context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: round_})
        context.state.array_records[MAIN_PARAMS_RECORD] = records.record_of({})
        protocol(grid, context)
        answers = protocol.strategy.answers
        if not answers:
            return Collected(None, 0, False, 0.0)
        clients = len(answers)
        epsilon = max(map(_said, answers))
        try:
            mean = np.concatenate([part.ravel() for part in parameters_to_ndarrays(answers[0].parameters)])
            sums = np.rint(mean * clients).astype(np.int64)  # exact: they are below 2^32
            counts = packing.counts(sums, clients, sum(expect.layout.sizes))
            return Collected(aggregate_of(expect, counts, clients), clients, False, epsilon)
        except ValueError as error:
            logger.warning("round %d: %s", round_, error)
            return Collected(None, clients, True, epsilon)


@dataclass
class _Strategy:
    """What SecAggPlusWorkflow asks of a strategy of Flower's older interface."""

    nodes: list[int]
    answers: list[FitRes] = field(default_factory=list)

    def configure_fit(self, *_: object) -> list[tuple[SimpleNamespace, FitIns]]:
        """Whom to ask."""
        return [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in self.nodes]

    def aggregate_fit(self, _: int, results: list[tuple[object, FitRes]], failures: object) -> tuple[None, None]:
        """All answers have the sum in their parameters."""
        self.answers = [answer for _, answer in results]
        return None, None


class _Protocol(SecAggPlusWorkflow):
    """SecAgg+ on our records: the third stage carries the messages of the round, whatever the older interface has."""

    def __init__(self, secure: SecureSum, packing: Packing, messages: list[Message], timeout: float) -> None:
        bound = packing.bound  # so that integers are quantised to themselves, and weigh one each
        super().__init__(
            secure.shares, secure.threshold, max_weight=1.0, clipping_range=float(bound),
            quantization_range=2 * bound, modulus_range=MODULUS, timeout=timeout,
        )  # fmt: skip
        self.strategy = _Strategy([message.metadata.dst_node_id for message in messages])
        self._contents = {message.metadata.dst_node_id: message.content for message in messages}
        self._clients = packing.clients

    def setup_stage(self, grid: Grid, context: LegacyContext, state: WorkflowState) -> bool:
        """SecAgg+'s, after which the older interface's messages are replaced."""
        going_on: bool = super().setup_stage(grid, context, state)
        for node, content in self._contents.items():
            terms = ConfigRecord({**content[records.TERMS], records.CLIENTS: self._clients})
            state.nid_to_fitins[node] = RecordDict({**content, records.TERMS: terms})
        return going_on

    def share_keys_stage(self, grid: Grid, context: LegacyContext, state: WorkflowState) -> bool:
        """SecAgg+'s, after which who has shared no keys is forgotten: nobody's mask depends on it.

        Flower would ask for its shares at the end, which nobody has, and lose the round.
        """
        going_on: bool = super().share_keys_stage(grid, context, state)
        state.sampled_node_ids = set(state.active_node_ids)
        for neighbours in state.nid_to_neighbours.values():
            neighbours &= state.sampled_node_ids
        return going_on


def _said(answer: FitRes) -> float:
    """What a client says that it has spent; 0 where it says nothing sensible."""
    value = answer.metrics.get(records.EPSILON)
    return value if isinstance(value, float) and math.isfinite(value) and value >= 0 else 0.0
