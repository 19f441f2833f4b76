# SPDX-License-Identifier: Apache-2.0
"""The runs of LDP-FL's tables and figures, what each costs, and how one is run."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.papers.common import Cell, Job

PAPER = {  # n and rounds of the paper's experiments, its fixed radius, its learning rate
    "mnist": (100, 10, 0.075, 0.03),
    "fashion-mnist": (200, 15, 0.015, 0.03),
    "cifar10": (500, 15, 1.0, 0.015),
}
# Local epochs, which the paper does not give, one number for each dataset throughout.
EPOCHS = {"mnist": 1, "fashion-mnist": 10, "cifar10": 10}
# The paper's noise-free accuracy: its headline and what it says that the noise costs.
NOISE_FREE = {"mnist": 0.9721, "fashion-mnist": 0.8758, "cifar10": 0.6255}
EXAMPLES = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000}
STEP = {"mnist": 7e-4, "fashion-mnist": 7e-4, "cifar10": 1e-2}  # seconds of a quiet core for a step of ten examples
NETWORK = {"mnist": "ldp-fl-cnn", "fashion-mnist": "ldp-fl-cnn", "cifar10": "small-vgg-normalised"}
SEEDS = 5


_NAME = re.compile(
    r"(\S+) n=(\d+)(?: f=(\S+))? T=(\d+) (?:no noise|(\S+) eps=(\S+) (?:adaptive|(\S+) r=(\S+))) "
    r"B=(\d+) E=(\d+) seed=(\d+)"
)


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
    fraction: float = 1.0
    seed: int = 0

    @property
    def name(self) -> str:
        noise = "no noise" if self.eps is None else f"{self.mechanism} eps={self.eps:g} {self.ranges}"
        part = "" if self.fraction == 1 else f" f={self.fraction:g}"
        local = f"B={self.batch} E={self.epochs}"
        return f"{self.dataset} n={self.clients}{part} T={self.rounds} {noise} {local} seed={self.seed}"

    @classmethod
    def of(cls, name: str) -> Setting:
        """The run of a name."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"{name!r} is no run of this table")
        dataset, n, part, rounds, mechanism, eps, upload, radius, batch, epochs, seed = found.groups()
        if eps is None:
            upload, radius = "weights", str(PAPER[dataset][2])
        return cls(
            dataset,
            None if eps is None else float(eps),
            int(n),
            int(rounds),
            None if radius is None else float(radius),
            upload or "weights",
            mechanism or "two-point",
            int(batch),
            int(epochs),
            float(part or 1),
            int(seed),
        )

    @property
    def ranges(self) -> str:
        """What is perturbed, within which ranges."""
        return "adaptive" if self.radius is None else f"{self.upload} r={self.radius:g}"

    @property
    def minutes(self) -> float:
        """Of a quiet core."""
        examples = EXAMPLES[self.dataset] * self.fraction * self.epochs * self.rounds
        return examples / 10 * STEP[self.dataset] / 60

    @property
    def twin(self) -> Setting:
        """The same run without noise."""
        home = PAPER[self.dataset][2]
        return replace(self, eps=None, radius=home, upload="weights", mechanism="two-point")


def setting(dataset: str, eps: float | None, *, ranges: str = "fixed", **changes: Any) -> Setting:
    """The paper's setting, with changes: the fixed ranges are of weights, or of updates where `upload` says so."""
    clients, rounds, radius, _ = PAPER[dataset]
    values = {"clients": clients, "rounds": rounds, "radius": radius if ranges == "fixed" else None}
    return Setting(dataset, eps, **{**values, "epochs": EPOCHS[dataset], **changes})


def seeds(s: Setting, count: int = SEEDS) -> list[Setting]:
    """The same with so many seeds."""
    return [replace(s, seed=seed) for seed in range(count)]


@functools.cache
def dataset_of(name: str, root: str) -> Any:
    from ldpkernels.federated import data

    return data.load(name, root)


def config_of(s: Setting) -> Any:
    """What is run."""
    from ldpkernels.federated import ldp_fl, training

    return ldp_fl.Config(
        eps=s.eps,
        C=None if s.radius is None else 0.0,
        R=s.radius,
        upload=s.upload,  # type: ignore[arg-type]
        adaptive=s.radius is None,
        fraction=s.fraction,
        mechanism=s.mechanism,  # type: ignore[arg-type]
        local=training.Local(epochs=s.epochs, batch=s.batch, rate=PAPER[s.dataset][3]),
        seed=s.seed,
    )


def compute(s: Setting, root: str, workers: int | None, folder: Path) -> Cell:
    """Run it: accuracy after each round, what a client of all rounds loses, and the configuration that ran."""
    import torch

    import ldpkernels
    from ldpkernels.federated import data, ldp_fl, networks, runs, training
    from ldpkernels.federated.workers import available

    torch.set_num_threads(1)
    dataset, config = dataset_of(s.dataset, root), config_of(s)
    network = networks.network(NETWORK[s.dataset], s.seed)
    parts = data.deal(dataset.train_y, s.clients, s.seed)
    clients = training.clients_of(dataset.train_x, dataset.train_y, parts, ldpkernels.key(s.seed))

    with training.crew(network, clients, workers or available()) as crew:

        def step(state: ldp_fl.State) -> tuple[ldp_fl.State, runs.Row]:
            after, row = ldp_fl.round_(state, clients, network, config, workers=crew)
            return after, {**row, "accuracy": training.accuracy(network, after.weights, dataset.test_x, dataset.test_y)}

        described = {"config": asdict(config), "clients": len(clients), "network": NETWORK[s.dataset]}
        _, rows = runs.run(
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
        "weights": weights,
        "honest_eps": honest,
        **asdict(s),
        "ran": ran,
    }


def headlines() -> list[Setting]:
    """The paper's own figures and their twins without noise, in the readings of what is perturbed; piecewise beside."""
    mnist = [
        setting("mnist", 1.0, upload="updates"),
        setting("mnist", None),
        setting("mnist", 1.0, upload="updates", mechanism="piecewise"),
        setting("mnist", 1.0),
        setting("mnist", 1.0, ranges="adaptive"),
    ]
    fashion = [
        setting("fashion-mnist", 4.0, upload="updates"),
        setting("fashion-mnist", None),
        setting("fashion-mnist", 4.0, ranges="adaptive"),
        setting("fashion-mnist", 4.0, radius=0.15),
    ]
    return [*(s for one in fashion for s in seeds(one, 1)), *(s for one in mnist for s in seeds(one))]


def longer() -> list[Setting]:
    """More local epochs, and fewer."""
    updates: dict[str, Any] = {"upload": "updates"}
    twice = [setting("mnist", 1.0, epochs=2, **updates), setting("mnist", None, epochs=2)]
    return [
        *(s for one in twice for s in seeds(one)),
        setting("fashion-mnist", 4.0, epochs=15, **updates),
        setting("fashion-mnist", None, epochs=15),
        setting("fashion-mnist", 4.0, epochs=5, **updates),
        setting("fashion-mnist", None, epochs=5),
    ]


def table_1() -> list[Setting]:
    """Fixed and adaptive ranges. Fixed ones are of updates for Fashion-MNIST, whose radius leaves weights dead."""
    mnist = [
        setting("mnist", eps, **kind)
        for eps in (5.0, 10.0)
        for kind in ({"upload": "updates"}, {"ranges": "adaptive"}, {})
    ]
    fashion = [
        setting("fashion-mnist", eps, **kind)
        for eps in (5.0, 10.0)
        for kind in ({"upload": "updates"}, {"ranges": "adaptive"})
    ]
    return [*mnist, *fashion]


def figures() -> list[Setting]:
    """Figures 3, 4 and 5 where a run takes minutes: over n, rounds, fraction, eps and r, with twins."""
    updates: dict[str, Any] = {"upload": "updates"}
    over_n = [setting("mnist", 1.0, clients=n, **updates) for n in (20, 50, 500)]
    over_rounds = [setting("mnist", 1.0, rounds=30, **updates)]
    over_fraction = [setting("mnist", 1.0, clients=500, fraction=f, **updates) for f in (0.1, 0.3, 0.6)]
    over_eps = [setting("mnist", eps, **updates) for eps in (0.1, 0.3, 0.5, 2.0)]
    over_r = [setting("mnist", 1.0, upload=u, radius=r) for u in ("updates", "weights") for r in (0.02, 0.15, 0.3, 0.6)]
    noisy = [*over_eps, *over_n, *over_rounds, *over_fraction, *over_r]
    fashion = [setting("fashion-mnist", eps, **updates) for eps in (1.0, 2.0, 3.0)]
    fashion += [setting("fashion-mnist", 5.0, clients=n, **updates) for n in (50, 500)]
    twins = dict.fromkeys(s.twin for s in [*noisy, *fashion])
    return [*noisy, *(t for t in twins if t.dataset == "mnist"), *fashion, *(t for t in twins if t.dataset != "mnist")]


def piecewise() -> list[Setting]:
    """The piecewise mechanism beside the two-point one where the average over clients has not taken the noise away."""
    kinds = ("two-point", "piecewise")
    few = [setting("mnist", eps, clients=20, upload="updates", mechanism=m) for eps in (1.0, 2.0, 4.0) for m in kinds]
    low = [setting("mnist", 0.3, upload="updates", mechanism="piecewise")]
    return [*few, *low]


def cifar() -> list[Setting]:
    """CIFAR-10 with a part of the clients in a round; and the paper's four cells, which no core does in hours."""
    part: dict[str, Any] = {"fraction": 0.04, "rounds": 15}
    home = [setting("cifar10", eps, ranges=ranges) for eps in (5.0, 10.0) for ranges in ("adaptive", "fixed")]
    return [
        setting("cifar10", None, **part),
        setting("cifar10", 10.0, ranges="adaptive", **part),
        setting("cifar10", None, **{**part, "rounds": 40}),
        setting("cifar10", None),
        *home,
    ]


def in_order(seed: int = 0) -> list[Setting]:
    """All runs, those of most worth first; the seed is added to each run's own."""
    several = [
        s
        for one in [*table_1()[:6], *piecewise(), *figures()[:4], *(t.twin for t in piecewise()[:1])]
        for s in seeds(one)[1:]
    ]
    fashion = [s for one in headlines()[:4] for s in seeds(one)[1:]]
    ordered: Iterable[Setting] = [
        *headlines(),
        *longer()[:10],
        *table_1(),
        *figures(),
        *piecewise(),
        *cifar()[:2],
        *longer()[10:],
        *fashion,
        *several,
        *cifar()[2:],
    ]
    return [replace(s, seed=s.seed + seed) for s in dict.fromkeys(ordered)]


def jobs(root: str, workers: int | None, seed: int = 0) -> list[Job]:
    """The runs as jobs."""
    return [Job(s.name, s.minutes, functools.partial(compute, s, root, workers)) for s in in_order(seed)]
