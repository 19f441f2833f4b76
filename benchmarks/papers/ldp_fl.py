# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's tables and figures, rerun: `python benchmarks/papers/ldp_fl.py --data DIR`.

Every cell is one run of `ldpkernels.federated.ldp_fl` with one seed (the paper averages ten). Finished cells are kept
in the JSON file; --only REGEX runs some of them, --dry writes the page from what is there.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from common import Cell, Cells, markdown_table, parser_of, percent, write_markdown

PAPER = {  # n and rounds of the paper's experiments, its fixed radius, its learning rate
    "mnist": (100, 10, 0.075, 0.03),
    "fashion-mnist": (200, 15, 0.015, 0.03),
    "cifar10": (500, 15, 1.0, 0.015),
}


@dataclass(frozen=True)
class Setting:
    """One run. `radius` None means adaptive ranges, starting from the initial weights; `eps` None means no noise."""

    dataset: str
    eps: float | None
    clients: int
    rounds: int
    radius: float | None
    upload: str = "weights"
    mechanism: str = "two-point"
    batch: int = 10
    epochs: int = 1

    @property
    def name(self) -> str:
        ranges = "adaptive" if self.radius is None else f"{self.upload} r={self.radius:g}"
        noise = "no noise" if self.eps is None else f"{self.mechanism} eps={self.eps:g} {ranges}"
        return f"{self.dataset} n={self.clients} T={self.rounds} {noise} B={self.batch} E={self.epochs}"


def setting(dataset: str, eps: float | None, *, ranges: str = "fixed", **changes: Any) -> Setting:
    """The paper's setting, with changes."""
    clients, rounds, radius, _ = PAPER[dataset]
    values = {"clients": clients, "rounds": rounds, "radius": radius if ranges == "fixed" else None}
    return Setting(dataset, eps, **{**values, **changes})


@functools.cache
def dataset_of(name: str, root: str) -> Any:
    from ldpkernels.federated import data

    return data.load(name, root)


def compute(s: Setting, root: str, seed: int) -> Cell:
    """Run it: accuracy after each round, and what a client of all rounds loses."""
    import torch

    import ldpkernels
    from ldpkernels.federated import data, ldp_fl, networks, runs, training

    torch.set_num_threads(1)
    dataset = dataset_of(s.dataset, root)
    network = networks.network(networks.LDP_FL[s.dataset], seed)
    parts = data.deal(dataset.train_y, s.clients, seed)
    clients = training.clients_of(dataset.train_x, dataset.train_y, parts, ldpkernels.key(seed))
    config = ldp_fl.Config(
        eps=s.eps,
        C=None if s.radius is None else 0.0,
        R=s.radius,
        upload=s.upload,
        adaptive=s.radius is None,
        mechanism=s.mechanism,
        local=training.Local(epochs=s.epochs, batch=s.batch, rate=PAPER[s.dataset][3]),
        seed=seed,
    )

    def step(state: ldp_fl.State) -> tuple[ldp_fl.State, runs.Row]:
        after, row = ldp_fl.round_(state, clients, network, config)
        return after, {**row, "accuracy": training.accuracy(network, after.weights, dataset.test_x, dataset.test_y)}

    _, rows = runs.run(step, ldp_fl.init(network, config), s.rounds, label=s.name)
    weights = sum(p.numel() for p in network.parameters())
    honest = None if s.eps is None else ldp_fl.honest_epsilon(config, weights, s.rounds)
    return {"accuracy": [r["accuracy"] for r in rows], "weights": weights, "honest_eps": honest, "seed": seed}


def runs_of() -> list[Setting]:
    """All cells in the order of their worth: an interrupted rerun has the paper's own figures first."""
    updates = {"upload": "updates"}
    ordered = [
        setting("mnist", 1.0),
        setting("mnist", 1.0, **updates),
        setting("mnist", None),
        setting("mnist", 1.0, mechanism="piecewise", **updates),
        *(setting("mnist", 5.0, ranges=ranges) for ranges in ("fixed", "adaptive")),
        setting("fashion-mnist", 4.0, epochs=3, **updates),
        setting("mnist", 0.3, **updates),
        setting("mnist", 0.3, mechanism="piecewise", **updates),
        *(setting("mnist", 10.0, ranges=ranges) for ranges in ("fixed", "adaptive")),
        setting("fashion-mnist", 5.0, **updates),
        setting("fashion-mnist", 5.0, ranges="adaptive"),
        setting("fashion-mnist", 1.0, **updates),
        setting("fashion-mnist", 1.0, mechanism="piecewise", **updates),
        setting("fashion-mnist", None),
        setting("fashion-mnist", 4.0, rounds=5),
        setting("mnist", 1.0, clients=500, **updates),
        setting("fashion-mnist", None, epochs=3),
        setting("mnist", 0.1, **updates),
        setting("mnist", 0.5, **updates),
        setting("fashion-mnist", 10.0, **updates),
        setting("fashion-mnist", 10.0, ranges="adaptive"),
        setting("mnist", 1.0, clients=50, **updates),
        setting("fashion-mnist", 2.0, **updates),
        setting("fashion-mnist", 5.0, clients=50, **updates),
        setting("fashion-mnist", 5.0, clients=500, **updates),
    ]
    return ordered


def main() -> None:
    args = parser_of(__doc__ or "", "ldp-fl").parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cells = Cells(args.out / f"{args.name}.json", args.only, args.dry)
    for s in runs_of():
        cells.get(s.name, lambda s=s: compute(s, args.data, args.seed))


if __name__ == "__main__":
    main()
