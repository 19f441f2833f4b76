# SPDX-License-Identifier: Apache-2.0
"""DP-DSSGD, the first method of Han and Xue's Table 3, in a setting of our own: theirs is not in the text.

From the text: parties upload a tenth of their parameters with noise, and the global model is the average. Of our own
choosing: five parties that share MNIST, 21,840 weights, an epoch in each of ten rounds, a tenth drawn at random by each
party in each round (the largest tenth would tell where it is), and changes clipped to [-R, R] with the noise of
`ldpkernels.perturb_`. Who sends nothing for a weight has no part in its average.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import ldpkernels
from benchmarks.papers.common import Cell, Job, spread, table
from benchmarks.papers.han_xue_plan import dataset_of
from ldpkernels.federated import data, ldp_fl, networks, runs, training
from ldpkernels.federated.generators import generator_of

PREFIX = "dp-dssgd "  # of the names of these cells
PARTIES, ROUNDS, R, SEEDS = 5, 10, 0.075, 3
WEIGHTS = 21_840
LOCAL = training.Local(epochs=1, batch=10, rate=0.03)


@dataclass(frozen=True)
class Run:
    """`eps` is that of a parameter, once; None means no noise, and no clipping."""

    eps: float | None
    seed: int = 0

    @property
    def name(self) -> str:
        """The key of the run's cell."""
        return f"{PREFIX}mnist n={PARTIES} " + (f"eps={self.eps:g}" if self.eps else "no noise") + f" seed={self.seed}"


RUNS = [Run(None), Run(10.0), Run(1.0)]


def jobs(root: str) -> list[Job]:
    """The runs as jobs."""
    planned = [replace(run, seed=seed) for run in RUNS for seed in range(SEEDS)]
    return [Job(run.name, 0.5, functools.partial(compute, run, root)) for run in planned]


def config_of(run: Run) -> ldp_fl.Config:
    """What a party does to each of the values that it sends."""
    return ldp_fl.Config(run.eps, C=0.0, R=R, upload="updates", mechanism="piecewise", local=LOCAL, seed=run.seed)


def compute(run: Run, root: str, folder: Path) -> Cell:
    """Run it: accuracy after each round, and what a party of all rounds loses."""
    torch.set_num_threads(1)
    mnist, config = dataset_of("mnist", root), config_of(run)
    network = networks.network(networks.LDP_FL["mnist"], run.seed)
    parts = data.deal(mnist.train_y, PARTIES, run.seed)
    parties = training.clients_of(mnist.train_x, mnist.train_y, parts, ldpkernels.key(run.seed))

    def step(state: ldp_fl.State) -> tuple[ldp_fl.State, runs.Row]:
        before = parameters_to_vector(state.weights.values())
        sums, senders = torch.zeros_like(before), torch.zeros_like(before)
        for party, trained in training.train(network, state.weights, parties, LOCAL, state.round):
            key = party.round_key(state.round, training.NOISE)
            sent = torch.randperm(WEIGHTS, generator=generator_of(key.fold_in(0)))[: WEIGHTS // 10]
            change = (parameters_to_vector(trained.values()) - before)[sent]
            if config.eps is not None:
                ldpkernels.perturb_(
                    {"change": change}, 0.0, R, config.eps, mechanism=config.mechanism, generator=key.fold_in(1)
                )
            sums[sent] += change
            senders[sent] += 1
        weights = {name: w.clone() for name, w in state.weights.items()}
        vector_to_parameters(before + sums / senders.clamp(min=1), weights.values())
        accuracy = training.accuracy(network, weights, mnist.test_x, mnist.test_y)
        return replace(state, round=state.round + 1, weights=weights), {"accuracy": accuracy}

    start, described = ldp_fl.init(network, config), {"config": asdict(config), "parties": PARTIES}
    _, rows = runs.run(step, start, ROUNDS, folder=folder, resume=True, described=described, label=run.name)
    return {
        "dataset": "mnist",
        **asdict(run),
        "accuracy": [row["accuracy"] for row in rows],
        "honest_eps": None if run.eps is None else ldp_fl.honest_epsilon(config, WEIGHTS // 10, ROUNDS),
        "ran": described,
    }


def shown(cells: dict[str, Cell]) -> str:
    """The runs by eps, beside what the paper prints."""
    rows = [["the paper's Table 3", "not given", "", "97.00%"]]
    for run in RUNS:
        found = [cells[name] for s in range(SEEDS) if (name := replace(run, seed=s).name) in cells]
        if found:
            lost, eps = found[0]["honest_eps"], "no noise" if run.eps is None else f"{run.eps:g}"
            accuracy = spread([cell["accuracy"][-1] for cell in found])
            rows.append(["ours", eps, "infinite" if lost is None else f"{lost:,.0f}", accuracy])
    return table(["DP-DSSGD on MNIST", "eps of a parameter", "honest eps", "global"], rows)
