# SPDX-License-Identifier: Apache-2.0
"""LDP-Fed (Truex, Liu, Chow, Gursoy and Wei, EdgeSys 2020): updates under alpha-CLDP, layer by layer.

**The true guarantee.** Over the whole run, a client's uploads are alpha-CLDP: whoever collects them can tell any two
inputs apart by at most e^(alpha distance), and the distance counts steps of 10^-rho. That is not a small epsilon: in
the worst case it is alpha 2c 10^rho, 2e10 for the paper's alpha = 1, c = 1, rho = 10 (`honest_epsilon`). Selecting k of
N clients does not lower it here, because whoever collects the uploads sees them all (docs/federated/ldp_fed.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from torch import nn

from ldpkernels.accounting import MetricEvent, composed_epsilon, rounds_per_layer, schedule
from ldpkernels.accounting.metric import METRICS, diameter
from ldpkernels.federated.checks import check, check_weights, initial_weights
from ldpkernels.federated.cldp_upload import Terms, Upload, UploadMean, terms_of
from ldpkernels.federated.runs import Row
from ldpkernels.federated.selection import remaining, select
from ldpkernels.federated.training import NOISE, Client, Crew, Local, Weights, train
from ldpkernels.federated.weighing import Mean, Weigh, check_options, weighed_mean, weight_of
from ldpkernels.laws.ordinal_cldp_integers import Noise

Method = Literal["basic", "single-layer", "alpha-cldp-fed"]
METHODS = ("basic", "single-layer", "alpha-cldp-fed")


@dataclass(frozen=True)
class Config:
    """What server and clients agree on.

    Args:
        alpha: Each client's total budget for all rounds: a number, or one for each client by its id. None sends the
            updates without noise, for comparison.
        rounds: E, by which the budget is divided. It cannot change during a run.
        method: "basic" sends every layer in every round. "single-layer" sends one layer at a time, each for the same
            number of rounds. "alpha-cldp-fed" gives each layer rounds and budget in proportion to its size.
        cycles: How often alpha-CLDP-Fed goes through all layers.
        c: Updates are clipped to [-c, c].
        rho: Digits that are kept after the decimal point.
        mechanism: "exponential" is the paper's; "laplace" is unbiased and has a quarter of its variance.
        metric: The distance of the guarantee. "linf" splits a round's budget over its values; "l1" gives all of it to
            each value, and promises less.
        select: k, the uploads that a round takes; None takes all.
        selection: "fixed" takes exactly k, "poisson" each upload with probability k / N.
        trains: What a client trains: "layer", the round's layer alone, or "all".
        local: How a client trains.
        seed: Everything random follows from it.
        weigh: "alike" is the paper's mean. "examples" weighs a client by its number of examples, which becomes public.
        dropout: The part of the selected clients that fail before their upload, at random; the mean is of the others.
            If all fail, the round changes nothing, but its part of alpha is spent, because clients that were not
            selected have uploaded too.
    """

    alpha: float | Mapping[int, float] | None = 1.0
    rounds: int = 80
    method: Method = "alpha-cldp-fed"
    cycles: int = 5
    c: float = 1.0
    rho: int = 10
    mechanism: Noise = "exponential"
    metric: Literal["linf", "l1"] = "linf"
    select: int | None = None
    selection: Literal["fixed", "poisson"] = "fixed"
    trains: Literal["layer", "all"] = "layer"
    local: Local = field(default_factory=Local)
    seed: int = 0
    weigh: Weigh = "alike"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_options(self.weigh, self.dropout)
        choices = {"method": METHODS, "selection": ("fixed", "poisson"), "trains": ("layer", "all"), "metric": METRICS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(allowed)}")
        for alpha in self.alphas:
            if not 0 < alpha < math.inf:
                raise ValueError(f"alpha={alpha} must be above 0 and finite, or None for no noise")

    def alpha_of(self, client: int) -> float | None:
        """The client's own total budget."""
        if not isinstance(self.alpha, Mapping):
            return self.alpha
        if client not in self.alpha:
            raise ValueError(f"alpha has no budget for client {client}: give one to each")
        return self.alpha[client]

    @property
    def alphas(self) -> list[float]:
        """All budgets that clients have; none without noise."""
        if self.alpha is None:
            return []
        return list(self.alpha.values()) if isinstance(self.alpha, Mapping) else [self.alpha]

    @property
    def largest_alpha(self) -> float | None:
        """The budget of the client that is protected least."""
        return max(self.alphas, default=None)


@dataclass(frozen=True)
class Turn:
    """One round of the plan: the parameters that are sent, how many values they have, and their share of alpha."""

    names: tuple[str, ...]
    size: int
    share: Fraction

    def alpha_of_value(self, alpha: float, metric: str) -> float:
        """What the sampler gets for one value, never above its part."""
        exact = Fraction(alpha) * self.share / (self.size if metric == "linf" else 1)
        nearest = float(exact)
        return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, 0.0)

    def event(self, config: Config) -> MetricEvent:
        """What the round costs the client that is protected least, for accounting."""
        assert config.largest_alpha is not None
        alpha = math.nextafter(float(Fraction(config.largest_alpha) * self.share), math.inf)
        return MetricEvent(alpha, config.metric, diameter(config.c, config.rho, metric=config.metric, size=self.size))


@dataclass(frozen=True)
class State:
    """What the server sends: the weights after so many rounds."""

    round: int
    weights: Weights


def plan(network: nn.Module, config: Config) -> tuple[Turn, ...]:
    """Which layer is sent in which round, and its share of alpha; the shares add up to 1 exactly.

    >>> from ldpkernels.federated import networks
    >>> turns = plan(networks.ldp_fed_cnn(), Config(rounds=80, cycles=5))
    >>> len(turns), sum(turn.share for turn in turns), turns[0].names, turns[0].share
    (80, Fraction(1, 1), ('9.weight', '9.bias'), Fraction(523, 33873))
    """
    shapes = {name: p.numel() for name, p in network.named_parameters() if p.requires_grad}
    layers = tuple(layers_of(network))
    sizes = tuple(sum([shapes[name] for name in layer]) for layer in layers)
    return _turns(tuple(shapes), layers, sizes, config.method, config.rounds, config.cycles)


@lru_cache(maxsize=16)  # every round asks
def _turns(
    names: tuple[str, ...],
    layers: tuple[tuple[str, ...], ...],
    sizes: tuple[int, ...],
    method: Method,
    rounds: int,
    cycles: int,
) -> tuple[Turn, ...]:
    if method == "basic":
        return tuple(Turn(names, sum(sizes), t.alpha) for t in schedule(1, [sum(sizes)], rounds))
    if method == "single-layer":
        lengths = rounds_per_layer([1] * len(layers), rounds)
        order = [i for i in reversed(range(len(layers))) for _ in range(lengths[i])]
        return tuple(Turn(layers[i], sizes[i], Fraction(1, rounds)) for i in order)
    return tuple(Turn(layers[e.layer], e.size, e.alpha) for e in schedule(1, sizes, rounds, cycles=cycles))


def layers_of(network: nn.Module) -> list[tuple[str, ...]]:
    """What is trained of each module that has some, from the input on; batch normalisations count as layers."""
    layers: dict[str, list[str]] = {}
    for name, p in network.named_parameters():
        if p.requires_grad:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
    return [tuple(names) for names in layers.values()]


def init(network: nn.Module, config: Config) -> State:
    """The server's initial weights, once the plan is known to be one, with budgets of which uploads can be made.

    >>> from ldpkernels.federated import networks
    >>> state = init(networks.network("digits-mlp", seed=0), Config(rounds=10))
    >>> state.round, sorted(state.weights)
    (0, ['1.bias', '1.weight', '3.bias', '3.weight'])
    """
    weights = initial_weights(network, config.local)
    for turn in dict.fromkeys(plan(network, config)):
        for alpha in {min(config.alphas), max(config.alphas)} if config.alphas else ():
            UploadMean(_terms(turn, weights, config)).expect([turn.alpha_of_value(alpha, config.metric)])
    return State(0, weights)


def round_(
    state: State,
    clients: Sequence[Client],
    network: nn.Module,
    config: Config,
    *,
    before_upload: Callable[[Turn], object] | None = None,
    workers: Crew | None = None,
) -> tuple[State, Row]:
    """One round: select clients, train them, perturb the turn's updates, average, add.

    `before_upload` is called with the turn before any client trains. A ledger that refuses it raises there, after all
    other checks of the round. Clients that are not selected are not simulated, because nothing would use what they
    compute. With `workers` (`training.crew`) clients train in parallel.
    """
    turns = plan(network, config)
    if state.round >= len(turns):
        raise ValueError(f"the plan of {len(turns)} rounds is over and alpha is spent: there is no further round")
    turn = turns[state.round]
    check_weights(clients, config.weigh)
    chosen = select(clients, config.select, config.seed, state.round, law=config.selection)
    chosen = remaining(chosen, config.dropout, config.seed, state.round)
    check(network, state.weights, chosen if state.round else clients, config.local, state.round)
    terms, plain, size = _terms(turn, state.weights, config), Mean(), 0
    alphas = {client.id: config.alpha_of(client.id) for client in clients}  # of those who are selected later too
    sums = {weight: UploadMean(terms) for weight in {weight_of(client, config.weigh) for client in chosen}}
    for weight, total in sums.items():
        own = [alphas[client.id] for client in chosen if weight_of(client, config.weigh) == weight]
        total.expect([turn.alpha_of_value(alpha, config.metric) for alpha in own if alpha is not None])
    only = turn.names if config.trains == "layer" else None
    trained = train(network, state.weights, chosen, config.local, state.round, only=only, workers=workers)
    if before_upload is not None:
        before_upload(turn)
    for client, weights in trained:
        update = difference(weights, state.weights, turn.names)
        if config.alpha is None:
            plain.add(update, weight_of(client, config.weigh))
            size = sum(w.numel() * state.weights[name].itemsize for name, w in update.items())
            continue
        upload = ldp_module(update, turn, terms, client, state.round, config)
        sums[weight_of(client, config.weigh)].add(upload)
        size = len(upload)
    weights = add(state.weights, plain.mean() if config.alpha is None else weighed_mean(sums))
    row: Row = {"clients": len(chosen), "layer": layer_name(turn), "values": turn.size, "upload_bytes": size}
    return State(state.round + 1, weights), row


def _terms(turn: Turn, weights: Weights, config: Config) -> Terms:
    return terms_of({n: weights[n].shape for n in turn.names}, config.c, config.rho, config.mechanism)


def ldp_module(update: Weights, turn: Turn, terms: Terms, client: Client, round_: int, config: Config) -> bytes:
    """The LDP module of one client: its update, randomised under its own budget, as bytes."""
    alpha = config.alpha_of(client.id)
    assert alpha is not None
    key = client.round_key(round_, NOISE)
    return Upload.of(update, terms, turn.alpha_of_value(alpha, config.metric), key).to_bytes()


def honest_epsilon(network: nn.Module, config: Config, rounds: int) -> float:
    """What a client loses in so many rounds in the worst case: any two updates within [-c, c], to the server.

    >>> from ldpkernels.federated import networks
    >>> f"{honest_epsilon(networks.ldp_fed_cnn(), Config(alpha=1.0, c=1.0, rho=10), rounds=80):.6g}"
    '2e+10'
    """
    if config.alpha is None:
        return math.inf
    return composed_epsilon([(turn.event(config), 1) for turn in plan(network, config)[:rounds]], 0.0, "basic")


def difference(after: Weights, before: Weights, names: Sequence[str]) -> Weights:
    """The update of these parameters in fp64, where the difference of two fp32 numbers is as good as exact."""
    return {name: after[name].double() - before[name].double() for name in names}


def add(weights: Weights, update: Weights) -> Weights:
    """The weights after an update of all, some or none of them."""
    moved = {name: weights[name].double() + step.to(weights[name].device) for name, step in update.items()}
    return weights | {name: value.to(weights[name].dtype) for name, value in moved.items()}


def layer_name(turn: Turn) -> str:
    """The module that the turn sends, for a table."""
    modules = dict.fromkeys(name.rpartition(".")[0] for name in turn.names)
    return next(iter(modules)) if len(modules) == 1 else "all"
