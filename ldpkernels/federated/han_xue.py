# SPDX-License-Identifier: Apache-2.0
"""Han and Xue (2020): a global model from local models of different types, end to end.

Parties train models of any type and generators of synthetic samples; the models label all the samples by majority
vote; the global model is trained on the samples that are left. **As the paper has it (`Recipe(sound=False)`, exact
votes), nothing of this is differentially private**: the noise in the generator's loss never reaches its weights, and
votes are exact. `Recipe(sound=True)` and `vote_sigma` make it so; `han_xue_privacy.report` says for each part what is
protected.

A round is a turn of all parties, between two checkpoints: some steps of every generator, every local model; then the
vote, the global model, the baseline. Workers take the parties of a turn at once, to the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from ldpkernels.federated import parties
from ldpkernels.federated.data import Dataset
from ldpkernels.federated.dp_gan import Progress, Training
from ldpkernels.federated.han_xue_world import BASELINE, GLOBAL, MODEL, ONE_CLASS, STEPS, Config, State, World
from ldpkernels.federated.runs import Row
from ldpkernels.federated.training import Weights
from ldpkernels.federated.workers import Workers

__all__ = ["Config", "State", "World", "global_model", "round_", "rounds"]


def rounds(config: Config) -> int:
    """The number of rounds of a whole run."""
    return math.ceil(config.recipe.steps / config.chunk) + 3 + config.baseline


def round_(state: State, world: World, *, workers: Workers[World] | None = None) -> tuple[State, Row]:
    """The next turn. With `workers`, which hold the world, the parties' parts of it are done at once."""
    if workers is not None and workers.shared is not world:
        raise ValueError("the workers were started with another world: start them with this one")
    if workers is not None and world.device.type != "cpu":
        raise ValueError(f"workers train on the CPU, and this world is on {str(world.device)!r}: leave workers out")
    _check_whole(state, world.config.parties)
    if not state.makers:
        after, row = _train_generators(state, world, workers)
    elif not state.votes:
        after, row = _train_models(state, world, None if world.models is not None else workers)
    elif state.labels is None:
        after, row = _vote(state, world)
    elif state.accuracy is None:
        accuracy = _accuracy(_fitted(world, *_labelled(state, world), GLOBAL), world.dataset, "the global model")
        after, row = replace(state, accuracy=accuracy), {"part": "global model", "accuracy": accuracy}
    else:
        everyone = torch.cat(world.shards)
        x, y = world.dataset.train_x[everyone], world.dataset.train_y[everyone]
        accuracy = _accuracy(_fitted(world, x, y, BASELINE), world.dataset, "the baseline")
        after, row = replace(state, baseline=accuracy), {"part": "baseline", "accuracy": accuracy}
    return replace(after, round=state.round + 1), {"accuracy": None, **row}


def _check_whole(state: State, parties: int) -> None:
    """A ValueError for the state of a run whose parties had rounds of their own, as they had in earlier versions."""
    lengths = {len(part) for part in (state.training, state.makers, state.votes)}
    if lengths - {0, parties} or len({progress["done"] for progress in state.training}) > 1:
        raise ValueError(f"the state does not hold a turn of all {parties} parties: start the run again")


def _train_generators(state: State, world: World, workers: Workers[World] | None) -> tuple[State, Row]:
    """Take `chunk` steps of Algorithm 1 for every party."""
    begun: list[Progress | None] = [*state.training] or [None] * world.config.parties
    units = list(enumerate(begun))
    if workers is not None:
        training = list(workers.map(_steps, None, units))
    else:
        training = [_steps(world, None, unit) for unit in units]
    row: Row = {"part": f"{len(units)} generators: {training[0]['done']} steps"}
    if training[0]["done"] < world.config.recipe.steps:
        return replace(state, training=training), row
    return replace(state, training=(), makers=[progress["maker"] for progress in training]), row


def _steps(world: World, common: None, unit: tuple[int, Progress | None]) -> Progress:
    """The next steps of a party's generator."""
    i, progress = unit
    training = Training(world.generator(i), world.config.recipe)
    if progress is not None:
        training.load_state_dict(progress)
    x, key = world.dataset.train_x[world.shards[i]].to(world.device), world.party(i).fold_in(STEPS)
    for _ in range(min(world.config.chunk, world.config.recipe.steps - training.done)):
        training.step(x, key)
    return training.state_dict()


def _train_models(state: State, world: World, workers: Workers[World] | None) -> tuple[State, Row]:
    """Train every party's model, and have it vote on all samples."""
    everyone = range(world.config.parties)
    if workers is not None:
        found = list(workers.map(_fit_and_vote, state.makers, everyone))
    else:
        found = [_fit_and_vote(world, state.makers, i) for i in everyone]
    votes, accuracies = [votes for votes, _ in found], [accuracy for _, accuracy in found]
    row: Row = {"part": f"{len(found)} local models, on average", "accuracy": sum(accuracies) / len(found)}
    return replace(state, votes=votes, standalone=accuracies), row


def _fit_and_vote(world: World, makers: Sequence[Weights], i: int) -> tuple[torch.Tensor, float]:
    """Train a party's model: its votes on all samples, and its accuracy."""
    dataset, shard = world.dataset, world.shards[i]
    if world.models is not None:
        model = world.models[i]
    else:
        key = world.party(i).fold_in(MODEL)
        epochs = world.config.local_epochs
        kind = world.model_kind(i)
        model = parties.build(kind, world.shape, dataset.classes, key, epochs=epochs, device=world.device)
    who = f"party {i}: {world.model_kind(i)}"
    with parties.threads_of_torch():
        parties.fit(model, dataset.train_x[shard], dataset.train_y[shard], who)
        accuracy = _accuracy(model, dataset, who)
        votes = parties.predicted(model, world.samples(State(makers=makers)), dataset.classes, who)
    return torch.as_tensor(votes).to(torch.int32), accuracy


def _vote(state: State, world: World) -> tuple[State, Row]:
    """Label the samples."""
    vote = world.vote(torch.stack(list(state.votes)))
    row: Row = {"part": f"vote: {int(vote.keep.sum())} of {len(vote.keep)} kept"}
    return replace(state, labels=vote.labels, keep=vote.keep), row


def global_model(state: State, world: World) -> parties.Model:
    """The global model of a finished run, trained again on the samples that were kept: the model that the run measured.

    A kind of network gives a `parties.Network`, whose `.module` is the network.
    """
    if state.labels is None or state.keep is None:
        raise ValueError("nothing is labelled yet: run all rounds(world.config) first")
    return _fitted(world, *_labelled(state, world), GLOBAL)


def _labelled(state: State, world: World) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples that were kept, and their labels; a ValueError where the global model could not learn from them."""
    assert state.labels is not None
    assert state.keep is not None
    x, y = world.samples(state)[state.keep], state.labels[state.keep].long()
    if not len(y):
        cure = "Take more parties" + (", or a smaller vote_sigma" if world.config.vote_sigma else "")
        raise ValueError(f"no sample was kept: the votes are too close. {cure}")
    if world.global_kind in parties.TWO_CLASSES and int(y.min()) == int(y.max()):
        raise ValueError(
            f"all samples that were kept are of class {int(y[0])}, and global_model={world.global_kind!r} needs two "
            f"classes: choose one that needs only one ({ONE_CLASS})"
        )
    return x, y


def _fitted(world: World, x: torch.Tensor, y: torch.Tensor, use: int) -> parties.Model:
    """A model of the global kind, trained as the global model or as the baseline."""
    key, classes, epochs = world.key.fold_in(use), world.dataset.classes, world.config.epochs
    model = parties.build(world.global_kind, world.shape, classes, key, epochs=epochs, device=world.device)
    parties.fit(model, x, y, "the global model" if use == GLOBAL else "the baseline")
    return model


def _accuracy(model: parties.Model, dataset: Dataset, who: str) -> float:
    return float((parties.predicted(model, dataset.test_x, dataset.classes, who) == dataset.test_y.numpy()).mean())
