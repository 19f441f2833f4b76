# SPDX-License-Identifier: Apache-2.0
"""LDP-FL (Sun, Qian and Chen, IJCAI 2021), Algorithm 1, as written.

**The true guarantee.** Each weight of each upload, on its own, is eps-locally differentially private within its public
range: any two values of it, for whoever sees the upload. A client's whole upload of d weights, T times, is not eps but
far more: d T eps by basic composition, and `honest_epsilon` by an exact one. The paper's claim that unlinkable
parameters do not add up is wrong (docs/federated/ldp_fl.md). An ideal shuffler of every position would help; random
delays are not one (`latency`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict

from torch import nn

from ldpkernels.accounting import Event, local_epsilon
from ldpkernels.calls.adaptive_ranges import By, Method
from ldpkernels.calls.adaptive_ranges import ranges as ranges_of
from ldpkernels.calls.expectation import expected
from ldpkernels.calls.perturb import Range, report
from ldpkernels.calls.reports import Aggregate, Report
from ldpkernels.common.keys import Key
from ldpkernels.common.keys import key as key_of
from ldpkernels.federated.checks import check, check_weights, initial_weights
from ldpkernels.federated.runs import Row
from ldpkernels.federated.selection import remaining, select
from ldpkernels.federated.training import NOISE, Client, Crew, Local, Weights, train
from ldpkernels.federated.weighing import Mean, Weigh, alike_clients, check_options, weighed_mean, weight_of
from ldpkernels.laws.registry import MechanismName, mechanism_named


class RangeOptions(TypedDict, total=False):
    """Arguments of `ldpkernels.ranges` that stay the same from round to round."""

    method: Method
    by: By
    quantile: float
    growth: float


@dataclass(frozen=True)
class Config:
    """What cloud and clients agree on.

    Args:
        eps: Of each weight of a round: any two values, for whoever sees a report. None sends weights without noise.
        C: Centers of the ranges, by layer or one for all; None takes them from the initial weights, which are public.
        R: Radii, likewise.
        upload: "weights" is Algorithm 1. "updates" sends the change since the cloud's weights within the same ranges,
            of which a small radius cuts off less (docs/federated/ldp_fl.md).
        adaptive: New ranges from the averaged uploads after each round (`ldpkernels.ranges`); else they stay.
        ranges: Further arguments of `ldpkernels.ranges`: method, growth, quantile, by.
        fraction: The fraction of the clients that a round selects, k_l / n.
        mechanism: "two-point" is the paper's; "piecewise" has less variance if eps is above 1.2, "hybrid" above .61.
        local: How a client trains.
        seed: Everything random follows from it.
        weigh: "alike" is the paper's mean. "examples" weighs a client by its number of examples, which becomes public:
            reports with the same number are added, and their means are weighed. The privacy of weights is the same.
        dropout: The part of the selected clients that fail before their upload, at random; the mean is of the others.
            If all fail, the round changes nothing.
    """

    eps: float | None
    C: Range | None = None
    R: Range | None = None
    upload: Literal["weights", "updates"] = "weights"
    adaptive: bool = False
    ranges: RangeOptions = field(default_factory=RangeOptions)
    fraction: float = 1.0
    mechanism: MechanismName = "two-point"
    local: Local = field(default_factory=Local)
    seed: int = 0
    weigh: Weigh = "alike"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_options(self.weigh, self.dropout)
        if self.eps is not None:
            mechanism_named(self.mechanism, self.eps)  # it refuses what is not a mechanism, or not an eps
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction} must be above 0 and at most 1")
        if self.upload not in ("weights", "updates"):
            raise ValueError(f"upload={self.upload!r} must be 'weights' or 'updates'")
        if self.upload == "updates" and self.R is None:
            raise ValueError("upload='updates' needs R: the initial weights do not tell how far a client will move")


@dataclass(frozen=True)
class State:
    """What the cloud sends: the weights and the ranges after so many rounds."""

    round: int
    weights: Weights
    C: Range
    R: Range


Uploads = Callable[[State, Sequence[Client]], Iterable[bytes]]


def init(network: nn.Module, config: Config) -> State:
    """Lines 1 to 4: the initial weights and ranges.

    >>> from ldpkernels.federated import networks
    >>> state = init(networks.network("digits-mlp", seed=0), Config(eps=1.0, C=0.0, R=0.25))
    >>> state.round, state.R, sorted(state.weights)
    (0, 0.25, ['1.bias', '1.weight', '3.bias', '3.weight'])
    """
    weights = initial_weights(network, config.local)
    by, quantile = config.ranges.get("by", "module"), config.ranges.get("quantile", 0.99)
    C, R = ranges_of(weights, method="minmax", by=by, quantile=quantile)
    state = State(0, weights, C if config.C is None else config.C, R if config.R is None else config.R)
    _rehearse(state, config)
    return state


def round_(
    state: State,
    clients: Sequence[Client],
    network: nn.Module,
    config: Config,
    *,
    before_upload: Callable[[], object] | None = None,
    workers: Crew | None = None,
    uploads: Uploads | None = None,
) -> tuple[State, Row]:
    """Lines 5 to 14: select clients, train them, perturb, average, and choose the next ranges.

    `before_upload` is called once before any client trains. A ledger that refuses the round raises there, after all
    other checks of the round. With `workers` (`training.crew`) clients train in parallel. With `uploads` they train and
    perturb elsewhere (ldpkernels/flower/engine.py). Calling it prepares and may refuse; iterating over what it returns
    asks for the bytes of the chosen clients' reports, in any order.
    """
    check_weights(clients, config.weigh)
    if uploads is not None and (config.eps is None or config.weigh != "alike"):
        raise ValueError(
            "uploads are reports, which all count the same: set eps and weigh='alike', or leave uploads out"
        )
    chosen = select(clients, max(1, round(config.fraction * len(clients))), config.seed, state.round)
    chosen = remaining(chosen, config.dropout, config.seed, state.round)
    check(network, state.weights, chosen if state.round else clients, config.local, state.round)
    if not chosen:
        return replace(state, round=state.round + 1), {"clients": 0, "upload_bytes": 0}
    _rehearse(state, config)
    plain, sums, size = Mean(), _servers(state, config, chosen), 0
    here = chosen if uploads is None else []
    trained = train(network, state.weights, here, config.local, state.round, workers=workers)
    elsewhere = [] if uploads is None else uploads(state, chosen)
    if before_upload is not None:
        before_upload()
    for sent in elsewhere:
        sums[1].add(sent)
        size = len(sent)
    for client, weights in trained:
        if config.upload == "updates":
            weights = {name: w - state.weights[name] for name, w in weights.items()}
        if config.eps is None:
            plain.add(weights, weight_of(client, config.weigh))
            size = sum(w.numel() * w.itemsize for w in weights.values())
            continue
        upload = data_perturbation(weights, state, config, client.round_key(state.round, NOISE))
        sums[weight_of(client, config.weigh)].add(upload)  # in any order and from anyone: as ParameterShuffling needs
        size = size or len(upload.to_bytes())
    mean = plain.mean() if config.eps is None else weighed_mean(sums)
    C, R = state.C, state.R
    if config.adaptive:
        C, R = _next_ranges(mean, state, config, len(chosen) if config.eps is None else alike_clients(sums))
    mean = {name: value.to(state.weights[name]) for name, value in mean.items()}  # reports decode on the host, in fp32
    if config.upload == "updates":
        mean = {name: state.weights[name] + update for name, update in mean.items()}
    return State(state.round + 1, mean, C, R), {"clients": len(chosen), "upload_bytes": size}


def _rehearse(state: State, config: Config) -> None:
    """Refuse ranges that no upload can have, or that none can follow: tried on the public weights, and not sent."""
    if config.eps is not None:
        data_perturbation(state.weights, state, config, key_of(0))
    if config.adaptive:
        _next_ranges(state.weights, state, config, clients=10**9)  # so many that no warning of their noise applies


def _servers(state: State, config: Config, chosen: Sequence[Client]) -> dict[int, Aggregate[Weights]]:
    """A sum for each weight that clients have, of uploads of this round's model, ranges and eps, and of no others."""
    if config.eps is None:
        return {}
    agreed = expected(state.weights, state.C, state.R, config.eps, mechanism=config.mechanism)
    return {weight: Aggregate(agreed) for weight in {weight_of(client, config.weigh) for client in chosen}}


def data_perturbation(weights: Weights, state: State, config: Config, key: Key) -> Report:
    """Algorithm 2: the upload of one client, one bit a weight (or one byte)."""
    assert config.eps is not None
    return report(weights, state.C, state.R, config.eps, mechanism=config.mechanism, generator=key)


def _next_ranges(mean: Weights, state: State, config: Config, clients: int) -> tuple[Range, Range]:
    """The ranges of line 13, from the average of so many clients."""
    noisy = None if config.eps is None else clients
    C, R = ranges_of(mean, previous=(state.C, state.R), eps=config.eps, clients=noisy, **config.ranges)
    return C, R


def event(config: Config) -> Event:
    """The event that accounting composes for each weight of each upload."""
    assert config.eps is not None
    return mechanism_named(config.mechanism, config.eps).event


def honest_epsilon(config: Config, weights: int, rounds: int, delta: float = 1e-5) -> float:
    """What a client loses that takes part in so many rounds: any two inputs of it, for whoever sees its uploads."""
    if config.eps is None:
        return math.inf
    return local_epsilon(event(config), d=weights, rounds=rounds, delta=delta).epsilon
