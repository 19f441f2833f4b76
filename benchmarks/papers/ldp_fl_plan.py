# SPDX-License-Identifier: Apache-2.0
"""The runs of LDP-FL's tables and figures: what each is, how its cell is called, what it costs, and which there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from ldpkernels.federated import networks

RangeMethod = Literal["minmax", "capped", "quantile", "noise-subtracted", "own"]

PAPER = {  # n and rounds of the paper's experiments, its fixed radius, its learning rate
    "mnist": (100, 10, 0.075, 0.03),
    "fashion-mnist": (200, 15, 0.015, 0.03),
    "cifar10": (500, 15, 1.0, 0.015),
}
# Local epochs, which the paper does not give, one number for each dataset throughout, by the run without noise.
EPOCHS = {"mnist": 2, "fashion-mnist": 10, "cifar10": 10}
EXAMPLES = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000}
STEP = {"mnist": 4e-4, "fashion-mnist": 4e-4, "cifar10": 4e-3}  # seconds of a quiet core for a step of ten examples
COUNTING = {"mnist": 0.3, "fashion-mnist": 0.3, "cifar10": 4.0}  # and for the test examples, in every round
NETWORK = networks.LDP_FL  # what the command takes by default
SEEDS = 5


@dataclass(frozen=True)
class Setting:
    """One run. `radius` None means adaptive ranges, starting from the initial weights; `eps` None means no noise.

    Where `trained` is not 0, so many train in a round, drawn anew each time, and stand for all whom the round selects:
    each perturbs its weights as often as it stands for a client, so that the mean has the noise of them all.
    """

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
    trained: int = 0
    adapts: RangeMethod = "minmax"
    network: str = ""
    rate: float = 0.0  # 0: the paper's
    norms: float = 0.0  # radius of what a normalisation trains; 0: that of all others
    start: float = 1.0  # adaptive ranges start so many times as wide as the initial weights

    @property
    def name(self) -> str:
        """The key of the run's cell, which says all that decides its result."""
        noise = "no noise" if self.eps is None else f"{self.mechanism} eps={self.eps:g} {self.ranges}"
        part = f" trained={self.trained}" if self.trained else ""
        part += "" if self.fraction == 1 else f" f={self.fraction:g}"
        local = f"B={self.batch} E={self.epochs}" + (f" lr={self.rate:g}" if self.rate else "")
        local += f" net={self.network}" if self.network else ""
        return f"{self.dataset} n={self.clients}{part} T={self.rounds} {noise} {local} seed={self.seed}"

    @property
    def ranges(self) -> str:
        """What is perturbed, within which ranges."""
        if self.radius is None:
            way = "adaptive" if self.adapts == "minmax" else f"adaptive by {self.adapts}"
            return way + (f" from {self.start:g} x the initial" if self.start != 1 else "")
        return f"{self.upload} r={self.radius:g}" + (f" norms={self.norms:g}" if self.norms else "")

    @property
    def share(self) -> float:
        """The part of the clients that trains in a round."""
        return self.trained / self.clients if self.trained else self.fraction

    @property
    def minutes(self) -> float:
        """What the run costs a quiet core."""
        examples = EXAMPLES[self.dataset] * self.share * self.epochs * self.rounds
        usual = self.dataset == "cifar10" or not self.network
        training = examples / 10 * (STEP[self.dataset] if usual else 1e-3)
        training *= 4 if self.network.endswith("cropped") else 1  # torch's own steps
        return (training + self.rounds * COUNTING[self.dataset]) / 60

    @property
    def twin(self) -> Setting:
        """This run without noise."""
        home = PAPER[self.dataset][2]
        fraction = 1.0 if self.trained else self.fraction
        plain: dict[str, Any] = {"mechanism": "two-point", "adapts": "minmax", "fraction": fraction, "norms": 0.0}
        return replace(self, eps=None, radius=home, upload="weights", start=1.0, **plain)


def setting(dataset: str, eps: float | None, *, ranges: str = "fixed", **changes: Any) -> Setting:
    """The paper's setting, with changes: the fixed ranges are of weights, or of updates where `upload` says so."""
    clients, rounds, radius, _ = PAPER[dataset]
    values = {"clients": clients, "rounds": rounds, "radius": radius if ranges == "fixed" else None}
    return Setting(dataset, eps, **{**values, "epochs": EPOCHS[dataset], **changes})


def by_few(settings: Sequence[Setting]) -> list[Setting]:
    """These settings, where 20 clients train in a round and stand for all."""
    return [replace(s, trained=20) for s in settings]


UPDATES: dict[str, Any] = {"upload": "updates"}
ADAPTIVE: dict[str, Any] = {"ranges": "adaptive"}
FIXED: dict[str, Any] = {}
WIDE: dict[str, Any] = {"network": "wide-cnn-mirrored"}


def mnist() -> list[Setting]:
    """MNIST, where a run takes minutes: all clients train, in every reading, over eps, r, n, rounds and fraction."""

    def made(eps: float, **changes: Any) -> Setting:
        return setting("mnist", eps, **changes)

    table_1 = [made(eps, **kind) for eps in (5.0, 10.0) for kind in (UPDATES, ADAPTIVE, FIXED)]
    shorter = [made(1.0, **UPDATES), made(1.0, radius=0.02, **UPDATES), *table_1]
    radii = (0.02, 0.075, 0.15, 0.3, 0.6)
    piecewise = [made(eps, clients=n, mechanism="piecewise", **UPDATES) for eps, n in ((0.3, 100), (1.0, 100))]
    kinds = ("two-point", "piecewise")
    few = [made(eps, clients=20, mechanism=m, **UPDATES) for eps, m in product((1.0, 2.0, 4.0), kinds)]
    return [
        *(made(1.0, radius=r, upload=upload) for upload in ("updates", "weights") for r in radii),
        made(1.0, **ADAPTIVE),
        *table_1,
        *(replace(s, epochs=1) for s in shorter),
        *(made(eps, **UPDATES) for eps in (0.1, 0.3, 0.5, 2.0)),
        *(made(1.0, clients=n, **UPDATES) for n in (50, 500)),
        *(made(1.0, clients=500, fraction=f, **UPDATES) for f in (0.1, 0.3, 0.6)),
        made(1.0, rounds=30, **UPDATES),
        *piecewise,
        *few,
    ]


def fashion() -> list[Setting]:
    """Fashion-MNIST: its headline and Table 1 by all clients, and all else by a tenth of them and less.

    Fixed ranges are of updates and of weights; on the network that normalises also with normalisations within 1.
    """

    def made(eps: float, **changes: Any) -> Setting:
        return setting("fashion-mnist", eps, **changes)

    home = [made(4.0, **UPDATES), made(4.0, radius=0.06, **UPDATES), made(4.0, radius=0.15), made(4.0, **ADAPTIVE)]
    home += [made(eps, **kind) for eps in (5.0, 10.0) for kind in (UPDATES, ADAPTIVE)]
    longer = made(4.0, epochs=15, **UPDATES)
    other = [made(eps, **kind) for eps in (4.0, 5.0, 10.0) for kind in (UPDATES, ADAPTIVE, FIXED, {"norms": 1.0})]
    other += [made(eps, epochs=15, **kind) for eps in (4.0, 5.0, 10.0) for kind in (ADAPTIVE, {"norms": 1.0})]
    few = [
        *home,
        longer,
        *(made(4.0, epochs=e, **UPDATES) for e in (5, 20)),
        made(4.0, radius=0.15, epochs=5),
        made(4.0, epochs=15, **ADAPTIVE),
        made(4.0, radius=0.03, **UPDATES),
        *(made(eps, **kind) for eps in (1.0, 2.0, 3.0) for kind in (UPDATES, ADAPTIVE, FIXED)),
        *(made(eps, norms=1.0, network="ldp-fed-cnn") for eps in (1.0, 2.0)),
        *(made(5.0, clients=n, **UPDATES) for n in (100, 500, 1000)),
        *(made(eps) for eps in (4.0, 5.0, 10.0)),
        made(5.0, adapts="own", **ADAPTIVE),
        *(replace(s, network="ldp-fed-cnn") for s in other),
    ]
    of_fraction = [made(4.0, clients=500, fraction=f, **UPDATES) for f in (0.04, 0.2, 1.0)]
    whole = [made(4.0, norms=1.0, network="ldp-fed-cnn"), made(5.0, network="ldp-fed-cnn", **ADAPTIVE)]
    return [*home, longer, *of_fraction, *whole, *by_few(few)]


def cifar() -> list[Setting]:
    """CIFAR-10 by 20 of its 500 clients."""

    def made(eps: float, **changes: Any) -> Setting:
        return setting("cifar10", eps, **changes)

    home = [made(eps, **kind) for eps in (10.0, 5.0) for kind in (ADAPTIVE, FIXED)]
    wide = [made(eps, **kind, **WIDE) for eps in (10.0, 5.0) for kind in (ADAPTIVE, FIXED)]
    fast = [replace(s, rate=0.05) for s in wide]
    kinds = ("piecewise", "two-point")
    few = [
        *home,
        *wide,
        *fast,
        *(replace(fast[0], upload="updates", radius=0.05, mechanism=m) for m in kinds),
        replace(fast[0], mechanism="piecewise"),
        replace(fast[0], upload="updates", radius=0.015),
        *(made(eps, **kind) for eps in (1.0, 3.0) for kind in (ADAPTIVE, {**ADAPTIVE, **WIDE})),
        *(made(10.0, radius=r) for r in (0.1, 0.3)),
        *(made(10.0, clients=n, **ADAPTIVE) for n in (100, 200)),
        *(made(10.0, fraction=f, **ADAPTIVE) for f in (0.04, 0.2)),
        *(made(10.0, network=f"small-vgg-normalised {change}", **ADAPTIVE) for change in ("batch", "cropped")),
    ]
    return by_few(few)


def adaptive() -> list[Setting]:
    """Ways to choose ranges from the mean of the uploads, where its noise is large."""
    ways: tuple[RangeMethod, ...] = ("minmax", "capped", "quantile", "noise-subtracted")
    return by_few([setting("mnist", 1.0, ranges="adaptive", adapts=way) for way in ways])


def tries() -> list[Setting]:
    """What has a seed of each: runs by all clients, for which those by 20 stand; networks; what may help CIFAR-10."""
    whole = [setting("cifar10", eps, **kind) for eps in (10.0, 5.0) for kind in (ADAPTIVE, FIXED)]
    ways: list[tuple[float, dict[str, Any]]] = [(eps, {"norms": 1.0}) for eps in (5.0, 10.0)]
    ways += [(eps, ADAPTIVE) for eps in (4.0, 10.0)] + [(4.0, {"norms": 1.0, "epochs": 15})]
    whole += [setting("fashion-mnist", eps, network="ldp-fed-cnn", **way) for eps, way in ways]
    small = "small-vgg-normalised"
    changes: list[dict[str, Any]] = [{"network": "wide-cnn"}, {"epochs": 50}, {"start": 2.0}, {"start": 3.0}]
    alone = [setting("cifar10", None, network=n) for n in (f"{small} plain", "tutorial")]
    alone.append(setting("cifar10", None, rounds=40))
    few = [*with_twins([setting("cifar10", 10.0, **ADAPTIVE, **change) for change in changes]), *alone]
    return [*with_twins(whole), *by_few(few)]


def with_twins(noisy: Sequence[Setting]) -> list[Setting]:
    """These runs, each behind the same without noise."""
    return list(dict.fromkeys(one for s in noisy for one in (s.twin, s)))


def plan() -> list[Setting]:
    """All runs: five seeds of what has noise and of its twin without, fewer of what is shown once."""
    several = with_twins([*mnist(), *fashion(), *cifar()])
    found = [replace(s, seed=seed) for s in several for seed in range(SEEDS)]
    found += [replace(s, seed=seed) for s in adaptive() for seed in range(3)]
    return list(dict.fromkeys([*found, *tries()]))
