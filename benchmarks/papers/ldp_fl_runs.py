# SPDX-License-Identifier: Apache-2.0
"""How a run of LDP-FL's tables and figures is run."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.papers.common import Cell, Job
from benchmarks.papers.ldp_fl_plan import NETWORK, PAPER, Setting, plan

RANGES: dict[str, Any] = {
    "minmax": {},
    "capped": {"growth": 1.0},
    "quantile": {"method": "quantile"},
    "noise-subtracted": {"method": "noise-subtracted"},
    "own": {},
}


@functools.cache
def dataset_of(name: str, root: str) -> Any:
    from ldpkernels.federated import data

    return data.load(name, root)


def network_of(s: Setting) -> Any:
    """The network of a run, with its initial weights."""
    from benchmarks.papers import cifar_networks

    return cifar_networks.changed(s.network or NETWORK[s.dataset], s.seed)


def config_of(s: Setting, network: Any) -> Any:
    """The configuration of a run."""
    import ldpkernels
    from ldpkernels.federated import ldp_fl, training

    radii: Any = s.radius
    if s.start != 1:
        radii = {name: s.start * r for name, r in ldpkernels.ranges(training.weights_of(network))[1].items()}
    if s.norms:
        layers = {name: training.normalises(module) for name, module in network.named_children()}
        names = [name for name, _ in network.named_parameters()]
        radii = {name: s.norms if layers[name.split(".")[0]] else s.radius for name in names}
    return ldp_fl.Config(
        eps=s.eps,
        C=None if s.radius is None else 0.0,
        R=radii,
        upload=s.upload,  # type: ignore[arg-type]
        adaptive=s.radius is None,
        ranges=RANGES[s.adapts],
        fraction=s.share,
        mechanism=s.mechanism,  # type: ignore[arg-type]
        local=training.Local(epochs=s.epochs, batch=s.batch, rate=s.rate or PAPER[s.dataset][3]),
        seed=s.seed,
    )


def compute(s: Setting, root: str, workers: int | None, folder: Path) -> Cell:
    """Run it: accuracy after each round, what a client of all rounds loses, and the configuration that ran."""
    import torch

    import ldpkernels
    from ldpkernels.federated import data, ldp_fl, runs, training
    from ldpkernels.federated.selection import select
    from ldpkernels.federated.weighing import Mean
    from ldpkernels.federated.workers import available

    torch.set_num_threads(1)
    dataset = dataset_of(s.dataset, root)
    network = network_of(s)
    config = config_of(s, network)
    parts = data.deal(dataset.train_y, s.clients, s.seed)
    clients = training.clients_of(dataset.train_x, dataset.train_y, parts, ldpkernels.key(s.seed))

    copies = round(s.clients * s.fraction) // s.trained if s.trained else 1  # whom a trained client stands for
    test = (dataset.test_x, dataset.test_y)
    with training.crew(network, clients, workers or available(), test=test) as crew:

        def uploads(state: ldp_fl.State, chosen: Sequence[training.Client]) -> Iterable[bytes]:
            """The reports of the trained clients and of those whom they stand for."""
            for client, weights in training.train(
                network, state.weights, chosen, config.local, state.round, workers=crew
            ):
                if s.upload == "updates":
                    weights = {name: w - state.weights[name] for name, w in weights.items()}
                for i in range(copies):
                    key = client.round_key(state.round, training.NOISE).fold_in(i)
                    yield ldp_fl.data_perturbation(weights, state, config, key).to_bytes()

        def own_ranges(state: ldp_fl.State) -> tuple[ldp_fl.State, runs.Row]:
            """Corollary 1: a client's weights between its own least and greatest, which its outputs give away."""
            mean, few = Mean(), select(clients, s.trained, s.seed, state.round)
            for client, weights in training.train(network, state.weights, few, config.local, state.round, workers=crew):
                for i in range(copies):
                    key, sent = client.round_key(state.round, training.NOISE).fold_in(i), copy.deepcopy(weights)
                    ldpkernels.perturb_(sent, *ldpkernels.ranges(weights), s.eps, generator=key)
                    mean.add(sent)
            return replace(state, round=state.round + 1, weights=mean.mean()), {}

        def step(state: ldp_fl.State) -> tuple[ldp_fl.State, runs.Row]:
            there = uploads if s.trained and s.eps is not None else None
            if s.adapts == "own":
                after, row = own_ranges(state)
            else:
                after, row = ldp_fl.round_(state, clients, network, config, workers=crew, uploads=there)
            row["accuracy"] = training.accuracy(network, after.weights, *test, workers=crew)
            return after, {**row, "radius": max(after.R.values()) if isinstance(after.R, dict) else after.R}

        described = {"config": asdict(config), "clients": len(clients), "network": s.network or NETWORK[s.dataset]}
        described |= {"reports of a model": copies if s.eps is not None else 1}
        end, rows = runs.run(
            step,
            ldp_fl.init(network, config),
            s.rounds,
            folder=folder,
            resume=True,
            described=described,
            label=s.name,
        )
    weights = sum(p.numel() for p in network.parameters())
    honest = None if s.eps is None else ldp_fl.honest_epsilon(config, weights, s.rounds)
    ran = {**described, "examples of a client": len(clients[0].data[1]), "rounds": len(rows)}
    return {
        "accuracy": [r["accuracy"] for r in rows],
        **({"radii": [r["radius"] for r in rows]} if s.radius is None else {}),
        "train accuracy": training.accuracy(network, end.weights, dataset.train_x, dataset.train_y),
        "weights": weights,
        "honest_eps": None if s.adapts == "own" else honest,
        **asdict(s),
        "ran": ran,
    }


def jobs(root: str, workers: int | None) -> list[Job]:
    """The runs as jobs."""
    return [Job(s.name, s.minutes, functools.partial(compute, s, root, workers)) for s in plan()]
