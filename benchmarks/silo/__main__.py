# SPDX-License-Identifier: Apache-2.0
"""Patients of eight hospitals: accuracy over the epsilon of a patient, for six ways to train one model.

Hospitals have uneven shares of the patients, and a patient has one to eight records. Each run is a process of its own,
whose processor time and memory are measured. What was measured is appended to a file as it comes, and a call that was
stopped goes on from there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import dp_accounting
import dp_accounting.pld
import numpy as np
import torch
from scipy import stats

from benchmarks.silo import page
from benchmarks.silo.world import MOST, SILOS, TASKS, Silo, Task, World, world
from ldpkernels.accounting import Ledger
from ldpkernels.planning import plan
from ldpkernels.trainers import train_privately

DELTA = 1e-5
EPSILONS = (1.0, 3.0, 8.0)
cross_entropy = torch.nn.functional.cross_entropy


@dataclass(frozen=True)
class Noise:
    """The multipliers for a total, and what each is worth to a patient."""

    epsilon: float
    each: float
    summed: float
    honest: float
    by_hand: float
    honest_by_hand: float


def calibrated(task: Task, epsilon: float) -> Noise:
    """By `plan`, for both ways; and by Opacus for a record, as guides have it."""
    from opacus.accountants.utils import get_noise_multiplier

    weights, people = sum(p.numel() for p in task.network().parameters()), 10**4  # the multipliers are q's alone
    each, summed = sorted(
        plan(
            epsilon, DELTA, unit="person", rounds=task.rounds, examples=people, batch=task.q * people,
            epochs=task.epochs, most=MOST, clients=SILOS - 1, weights=weights, norm=task.norm,
        ),
        key=lambda one: one.name,
    )  # fmt: skip
    assert summed.law is not None
    steps = task.rounds * task.steps
    sigma = get_noise_multiplier(
        target_epsilon=epsilon, target_delta=DELTA, sample_rate=task.q, steps=steps, accountant="rdp"
    )
    shares = summed.parameter * (summed.law.invited / summed.law.clients) ** 0.5  # all silos', of whom one may tell
    honest = max(each.epsilon, summed.epsilon)
    return Noise(epsilon, each.parameter, shares, honest, sigma, of_a_patient(sigma, task.q, steps))


def rounds_of(world: World, model: torch.nn.Module, silo: Silo, sigma: float, rounds: int) -> None:
    """DP-SGD. Its ledger is the quick one: the plan has counted all steps exactly."""
    task, ledger = world.task, Ledger(None, epsilon=1e3, delta=DELTA, method="rdp")
    optimizer = torch.optim.SGD(model.parameters(), lr=task.rate)
    train_privately(
        model, optimizer, cross_entropy, (silo.x, silo.y), ledger, steps=rounds * task.steps, q=task.q, C=task.norm,
        sigma=sigma, batch_size=task.q * silo.people, persons=silo.persons, most=MOST,
    )  # fmt: skip


def averaged(world: World, train: Callable[[torch.nn.Module, Silo], None]) -> torch.nn.Module:
    """Federated averaging by the silos' public sizes."""
    model = world.model()
    sizes = np.array([silo.people for silo in world.silos]) / world.pooled.people
    for _ in range(world.task.rounds):
        start = {name: value.clone() for name, value in model.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for share, silo in zip(sizes, world.silos, strict=True):
            model.load_state_dict(start)
            train(model, silo)
            total = {name: total[name] + share * value for name, value in model.state_dict().items()}
        model.load_state_dict(total)
    return model


def without_noise(world: World, noise: Noise) -> torch.nn.Module:
    """Pooled records, no privacy."""
    model, pooled, task = world.model(), world.pooled, world.task
    optimizer = torch.optim.SGD(model.parameters(), lr=task.rate / 4)
    for _ in range(task.rounds * task.steps):
        rows = torch.rand(len(pooled.y)) < task.q
        optimizer.zero_grad()
        cross_entropy(model(pooled.x[rows]), pooled.y[rows]).backward()
        optimizer.step()
    return model


def at_once(world: World, sigma: float) -> torch.nn.Module:
    """DP-SGD of people on the pooled records: by someone who has them, or as the sum of all silos' batches and shares.

    Of shares no transport is here: tests/distributed trains with them among ranks.
    """
    model = world.model()
    rounds_of(world, model, world.pooled, sigma, world.task.rounds)
    return model


def alone(world: World, noise: Noise) -> list[torch.nn.Module]:
    """Each silo by itself."""
    models = [world.model() for _ in world.silos]
    for model, silo in zip(models, world.silos, strict=True):
        rounds_of(world, model, silo, noise.each, world.task.rounds)
    return models


def noise_at_each(world: World, noise: Noise) -> torch.nn.Module:
    """Ours, against the server."""
    return averaged(world, lambda model, silo: rounds_of(world, model, silo, noise.each, 1))


def opacus_by_hand(world: World, noise: Noise) -> torch.nn.Module:
    """What guides show: a PrivacyEngine in each client, calibrated for all rounds and for a record."""
    import opacus

    task = world.task

    def train(model: torch.nn.Module, silo: Silo) -> None:
        batch = max(1, round(task.q * len(silo.y)))
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(silo.x, silo.y), batch_size=batch)
        wrapped, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=task.rate),
            data_loader=loader, noise_multiplier=noise.by_hand, max_grad_norm=task.norm,
        )  # fmt: skip
        for x, y in itertools.islice(loader, task.steps):
            optimizer.zero_grad()
            cross_entropy(wrapped(x), y).backward()
            optimizer.step()
        wrapped.to_standard_module()

    return averaged(world, train)


def of_a_patient(sigma: float, q: float, steps: int, records: int = MOST) -> float:
    """The epsilon of all of a patient's records together, each of which is in a batch by a draw of its own."""
    drawn = stats.binom(records, q).pmf(np.arange(records + 1))
    event = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        sigma, list(range(records + 1)), (drawn / drawn.sum()).tolist()
    )
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    return float(accountant.get_epsilon(DELTA))


WAYS = {
    "pooled, no privacy": without_noise,
    "central DP-SGD, pooled": lambda world, noise: at_once(world, noise.each),
    "each silo alone": alone,
    "Flower and Opacus by hand": opacus_by_hand,
    "ours, noise at each silo": noise_at_each,
    "ours, shares of noise": lambda world, noise: at_once(world, noise.summed),
}


def measured(way: str, world: World, noise: Noise, sender: Connection) -> None:
    """One run, in a process of its own."""
    warnings.simplefilter("ignore")
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    models = WAYS[way](world, noise)
    spent, most = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    each = [world.accuracy(model) for model in (models if isinstance(models, list) else [models])]
    honest = {"pooled, no privacy": float("inf"), "Flower and Opacus by hand": noise.honest_by_hand}
    sender.send({
        "way": way, "epsilon": noise.epsilon, "seed": world.seed, "accuracy": float(np.mean(each)),
        "honest": honest.get(way, noise.honest), "seconds": spent, "megabytes": (most - before) / 1024,
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.silo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", choices=TASKS, default="digits", help="digits needs no file (default)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder that holds MNIST/raw or adult")
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS), help="of a patient (1 3 8)")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)), help="runs of each (0 to 4)")
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=list(WAYS), help="of them all")
    parser.add_argument("--redraw", action="store_true", help="run nothing: table and picture of what was stored")
    parser.add_argument("--out", type=Path, default=Path("out/silo"), help="folder of results (out/silo)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / f"{options.dataset}.jsonl"
    found = [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []
    known = {(one["way"], one["epsilon"], one["seed"]) for one in found}
    noises: dict[float, Noise] = {}
    torch.set_num_threads(1)
    for seed in [] if options.redraw else options.seeds:
        it = world(options.dataset, options.data, seed)
        for epsilon, way in itertools.product(options.epsilon, options.ways):
            if (way, epsilon, seed) in known:
                continue
            noises[epsilon] = noises.get(epsilon) or calibrated(it.task, epsilon)
            receiver, sender = multiprocessing.Pipe(duplex=False)
            run = multiprocessing.get_context("fork").Process(target=measured, args=(way, it, noises[epsilon], sender))
            run.start()
            sender.close()
            one = receiver.recv()  # raises EOFError where the run failed
            run.join()
            found.append(one)
            with store.open("a") as file:
                file.write(json.dumps(one) + "\n")
            print(f"{way:28} eps {epsilon:g} seed {seed}: {one['accuracy']:.4f}, {one['seconds']:.1f} s", flush=True)
    print(page.write(options.out, options.dataset, found))


if __name__ == "__main__":
    main()
