# SPDX-License-Identifier: Apache-2.0
"""The runs of LDP-Fed's table and figure, those of ours beside them, and how one is run."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import ldpkernels
from benchmarks.papers import comparisons, private_sgd
from benchmarks.papers.common import Cell, Job
from ldpkernels.federated import data, ldp_fed, networks, runs, training
from ldpkernels.federated.cldp_upload import UploadMean, terms_of
from ldpkernels.federated.selection import select
from ldpkernels.federated.workers import available

CLIENTS, SELECT, ROUNDS, RHO, C = 50, 9, 80, 10, 1.0
EXAMPLES = 1200  # of a client
FEWER = (600, 500)  # runs with fewer of them say what training decides
LOCAL = training.Local(epochs=1, batch=20, rate=0.05)
PRIVATE = training.Local(epochs=1, batch=60, rate=0.1)
TESTED_EVERY = 20
TEST_BATCHES = (20, 500, 10_000)


@dataclass(frozen=True)
class Run:
    """One run. `alpha` None means no noise; `examples` is how many each client has."""

    method: str
    alpha: float | None = 1.0
    mechanism: Any = "exponential"
    cycles: int = 5
    trains: Any = "layer"
    rounds: int = ROUNDS
    clients: int = CLIENTS
    rho: int = RHO
    sigma: float = 2.0
    examples: int = EXAMPLES
    batch: int = LOCAL.batch
    rate: float = LOCAL.rate
    selection: Any = "fixed"
    own: float = 1.0  # a third of the clients has alpha / own, a third alpha, a third alpha * own
    keeps: bool = False  # everybody trains all layers in every round and keeps those that are not sent
    seed: int = 0

    @property
    def name(self) -> str:
        """The key of the run's cell, which says all that decides its result."""
        return f"{self.label} seed={self.seed}"

    @property
    def minutes(self) -> float:
        """What the run costs a quiet core."""
        select = self.clients if self.method == "local" or self.keeps else SELECT
        steps, seconds = (60, 3e-2) if self.method in ("dpsgd", "hybrid-one") else (20, 1.5e-3)
        return self.rounds * select * self.examples / steps * seconds / 60

    @property
    def label(self) -> str:
        """What all the seeds of a run have in common."""
        words = [self.method]
        if self.method in ldp_fed.METHODS:
            words += [f"cycles={self.cycles}"] if self.method == "alpha-cldp-fed" else []
            words += ["no noise"] if self.alpha is None else [f"alpha={self.alpha:g}", self.mechanism]
            words += [f"rho={self.rho}"] if self.rho != RHO else []
            words += ["trains all"] if self.method != "basic" and self.trains == "all" else []
            words += [f"own alpha x{self.own:g}"] if self.own != 1 else []
            words += ["poisson"] if self.selection == "poisson" else []
            words += ["keeps layers"] if self.keeps else []
        elif self.method in ("dpsgd", "hybrid-one"):
            words.append(f"sigma={self.sigma:g}")
        words.append(f"E={self.rounds} n={self.examples}")
        words += [f"B={self.batch}"] if self.batch != LOCAL.batch else []
        words += [f"lr={self.rate:g}"] if self.rate != LOCAL.rate else []
        words += [f"{self.clients} participants"] if self.clients != CLIENTS else []
        return " ".join(words)


NAMES = {
    "basic": "basic",
    "single-layer": "single layer",
    "alpha-cldp-fed": "alpha-CLDP-Fed",
    "non-private": "no noise, no schedule",
    "local": "alone",
    "smc": "secure sums",
    "dpsgd": "DP-SGD",
    "hybrid-one": "Hybrid-One",
}

FED = Run("alpha-cldp-fed")
ALONE = Run("local", clients=5)
EQUIVALENT_SIGMA = 0.61  # DP-SGD's noise at eps = 23.6 and just below, which is alpha = 1 by the paper's conversion
CYCLES = {1: 0.8685, 2: 0.8620, 4: 0.8689, 5: 0.8693, 10: 0.8630, 16: 0.8528}
DEVIATIONS = {1: 0.12, 2: 0.61, 4: 0.10, 5: 0.12, 10: 0.24, 16: 0.11}  # the paper's, in points
METHODS = [  # Figure 3's, and the paper's accuracy, where it gives a number
    (Run("basic"), "below 10%"),
    (Run("single-layer"), "84.89%"),
    (replace(FED, cycles=1), "86.85%"),
    (Run("non-private"), ""),
    (ALONE, "below 84.89%"),
    (replace(ALONE, rounds=14), "below 84.89%"),
    (Run("smc"), ""),
    *((Run(m, sigma=s), "below 84.89%") for s in (Run.sigma, EQUIVALENT_SIGMA) for m in ("dpsgd", "hybrid-one")),
]
SHORT = Run("basic", rounds=20, cycles=1, examples=300)
ALPHAS = [1e-2, 3e-3, 1e-3, 3e-4, 1e-4]
KINDS = [(method, noise) for method in ("basic", "alpha-cldp-fed") for noise in ("exponential", "laplace")]
SWEEP = [replace(SHORT, method=m, alpha=alpha, mechanism=noise) for alpha in ALPHAS for m, noise in KINDS]
NOISY = replace(SHORT, method="alpha-cldp-fed", alpha=1e-3)  # where noise matters
OWN = [NOISY, replace(NOISY, own=10.0), replace(NOISY, selection="poisson")]
WITHOUT_NOISE = [replace(SHORT, method=method, alpha=None) for method in ("basic", "alpha-cldp-fed")]
TRAINS: dict[str, dict[str, Any]] = {
    "the round's layer": {},
    "all layers": {"trains": "all"},
    "all layers, and keeps its own": {"trains": "all", "keeps": True},
}
TRAINED = [replace(SHORT, method="alpha-cldp-fed", cycles=c, **what) for c in (1, 4) for what in TRAINS.values()]
OTHERWISE: dict[str, dict[str, Any]] = {"batches of 40": {"batch": 40}, "rate .03": {"rate": 0.03}}
OTHERWISE["960 examples, rate .02"] = {"examples": 960, "rate": 0.02}  # .02 is what a rate of .01 is with momentum .5
OTHERWISE["clients keep their layers"] = {"trains": "all", "keeps": True}
TRAINED_OTHERWISE = [replace(FED, cycles=cycles, **less) for less in OTHERWISE.values() for cycles in (1, 5, 16)]
REDUCED = [replace(FED, cycles=cycles, examples=examples) for examples in FEWER for cycles in CYCLES]
VARIANTS = [FED, replace(FED, mechanism="laplace"), replace(FED, trains="all"), replace(FED, alpha=None)]
VARIANTS += [replace(FED, selection="poisson"), replace(FED, own=10.0), Run("basic", rho=7)]


def seeds(run: Run, n: int) -> list[Run]:
    """The run with seeds 0 to n - 1."""
    return [replace(run, seed=seed) for seed in range(n)]


def plan() -> list[Run]:
    """All the runs, those of most worth first."""
    table_1 = [again for cycles in CYCLES for again in seeds(replace(FED, cycles=cycles), 10)]
    others = [run for run, _ in METHODS] + VARIANTS + REDUCED + WITHOUT_NOISE + [*SWEEP, *OWN]
    several = [again for run in others for again in seeds(run, 5)]
    few = [again for run in [*TRAINED, *TRAINED_OTHERWISE] for again in seeds(run, 3)]
    return list(dict.fromkeys([*table_1, *several, *few]))


@functools.cache
def dataset(root: str) -> data.Dataset:
    return data.load("fashion-mnist", root)


def clients_of(run: Run, root: str) -> list[training.Client]:
    parts = data.deal(dataset(root).train_y, CLIENTS, run.seed)[: run.clients]
    parts = [part[: run.examples] for part in parts]
    return training.clients_of(dataset(root).train_x, dataset(root).train_y, parts, ldpkernels.key(run.seed))


def config_of(run: Run) -> ldp_fed.Config:
    alpha: Any = run.alpha
    if run.own != 1:
        alpha = {client: alpha * run.own ** (client % 3 - 1) for client in range(run.clients)}
    return ldp_fed.Config(
        alpha=alpha,
        rounds=run.rounds,
        method=run.method,
        cycles=run.cycles,
        c=C,
        rho=run.rho,
        mechanism=run.mechanism,
        select=SELECT,
        selection=run.selection,
        trains=run.trains,
        local=replace(LOCAL, batch=run.batch, rate=run.rate),
        seed=run.seed,
    )


def other_config(run: Run) -> comparisons.Config:
    return comparisons.Config(
        run.method,
        select=None if run.method == "local" else SELECT,
        rho=RHO,
        sigma=run.sigma,
        local=PRIVATE if run.method in ("dpsgd", "hybrid-one") else LOCAL,
        seed=run.seed,
    )


def jobs(root: str, workers: int | None) -> list[Job]:
    """The runs as jobs."""
    return [Job(run.name, run.minutes, functools.partial(compute, run, root, workers)) for run in plan()]


def compute(run: Run, root: str, workers: int | None, folder: Path) -> Cell:
    """Accuracy on the test set every few rounds, what a client of all the rounds loses, and what ran."""
    torch.set_num_threads(1)
    clients, network = clients_of(run, root), networks.network("ldp-fed-cnn", run.seed)
    ran: Any
    round_: Any = ldp_fed.round_
    if run.method in ldp_fed.METHODS:
        ran = config_of(run)
        honest = math.inf if run.alpha is None else ldp_fed.honest_epsilon(network, ran, run.rounds)
        state = ldp_fed.init(network, ran)
        if run.keeps:
            state, round_ = ldp_fed.State(0, stacked([state.weights] * (1 + len(clients)))), keeping
    else:
        ran, round_ = other_config(run), comparisons.round_
        network = private_sgd.group_normalised(network) if ran.local is PRIVATE else network
        honest = comparisons.honest_epsilon(clients, ran, run.rounds)
        state = comparisons.init(network, ran, clients)
    with training.crew(network, clients, workers or available()) as crew:
        step = functools.partial(round_, clients=clients, network=network, config=ran, workers=crew)
        state, rows = go(run, network, state, step, root, folder, ran)
    tested = {row["round"]: row["accuracy"] for row in rows if "accuracy" in row}
    return {
        "accuracy": tested,
        "final": tested[run.rounds],
        "by test batch": {} if run.method == "local" else by_batch(network, server_of(run, state), root),
        "honest_eps": honest if math.isfinite(honest) else None,
        **asdict(run),
        "ran": {"config": asdict(ran), "clients": len(clients), "examples of a client": len(clients[0].data[1])},
    }


def keeping(state: ldp_fed.State, clients: Any, network: Any, config: Any, workers: Any) -> Any:
    """A round in which everybody trains all layers of a model of its own and takes from the server the round's layer.

    `state.weights` are the server's and then each client's, stacked. Who was not selected has trained all the same.
    """
    turn = ldp_fed.plan(network, config)[state.round]
    server, before = server_of(None, state), {name: w[1:] for name, w in state.weights.items()}
    places = training.places(workers, network, clients)
    own = list(workers.map(comparisons.train_alone, (before, config.local, state.round), places))
    chosen = select(clients, config.select, config.seed, state.round)
    terms = terms_of({n: server[n].shape for n in turn.names}, config.c, config.rho, config.mechanism)
    sums = UploadMean(terms)
    for client in chosen:
        update = ldp_fed.difference(own[client.id], server, turn.names)  # of which all start from the server's
        sums.add(ldp_fed.ldp_module(update, turn, terms, client, state.round, config))
    server = ldp_fed.add(server, sums.mean())
    sent = {name: server[name] for name in turn.names}
    return ldp_fed.State(state.round + 1, stacked([server, *({**mine, **sent} for mine in own)])), {}


def stacked(models: Any) -> training.Weights:
    """Each tensor of these models in one."""
    return {name: torch.stack([model[name] for model in models]) for name in models[0]}


def server_of(run: Run | None, state: Any) -> training.Weights:
    """The server's weights, which are the first where each client's are behind them."""
    return {name: w[0] for name, w in state.weights.items()} if run is None or run.keeps else state.weights


def by_batch(network: Any, weights: training.Weights, root: str) -> dict[str, float]:
    """Accuracies with test batches of several sizes, as the network normalises by what is in a batch."""
    tests = dataset(root).test_x, dataset(root).test_y
    return {str(size): training.accuracy(network, weights, *tests, batch=size) for size in TEST_BATCHES}


def go(run: Run, network: Any, state: Any, round_: Any, root: str, folder: Path, ran: Any) -> Any:
    """All the rounds, tested now and then: where they end, and a row of each."""
    tests = dataset(root).test_x, dataset(root).test_y

    def step(before: ldp_fed.State) -> tuple[ldp_fed.State, runs.Row]:
        after, row = round_(before)
        if after.round % TESTED_EVERY and after.round != run.rounds:
            return after, row
        test = ran if isinstance(ran, comparisons.Config) else comparisons.Config("non-private")
        seen = ldp_fed.State(after.round, server_of(run, after))
        return after, {**row, "accuracy": comparisons.accuracy(network, seen, test, *tests)}

    described = {"config": asdict(ran), "clients": run.clients, "examples": run.examples}
    return runs.run(step, state, run.rounds, folder=folder, resume=True, described=described, label=run.name)
