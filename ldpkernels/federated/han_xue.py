# SPDX-License-Identifier: Apache-2.0
"""Han and Xue (2020): a global model from local models of different types, end to end.

Parties train models of any type and generators of synthetic samples; the models label all the samples by majority
vote; the global model is trained on the samples that are left. **As the paper has it (`Recipe(sound=False)`, exact
votes), nothing of this is differentially private**: the noise in the generator's loss never reaches its weights, and
votes are exact. `Recipe(sound=True)` and `vote_sigma` make it so; `han_xue_privacy.report` says for each part what is
protected.

A round is a unit of work between two checkpoints: some steps of a generator, a local model, the vote, the global model,
the baseline. Parties take turns: workers do all the units of a turn at once, and its rounds collect them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar, cast

import torch

from ldpkernels.federated import dp_gan_together, parties
from ldpkernels.federated.data import Dataset
from ldpkernels.federated.dp_gan import Progress, Training
from ldpkernels.federated.han_xue_world import BASELINE, GLOBAL, MODEL, ONE_CLASS, STEPS, VOTE, Config, State, World
from ldpkernels.federated.runs import Row
from ldpkernels.federated.training import Weights
from ldpkernels.federated.workers import Workers
from ldpkernels.keys import Key
from ldpkernels.votes import majority_vote, noisy_vote

__all__ = ["Config", "State", "World", "global_model", "round_", "rounds"]

Result = TypeVar("Result")


def rounds(config: Config) -> int:
    """Units of work in all."""
    return config.parties * (math.ceil(config.recipe.steps / config.chunk) + 1) + 2 + config.baseline


def round_(state: State, world: World, *, workers: Workers[World] | None = None) -> tuple[State, Row]:
    """The next unit of work. With `workers`, which hold the world, the parties' units of a turn are done at once."""
    config = world.config
    if workers is not None and workers.shared is not world:
        raise ValueError("the workers were started with another world: start them with this one")
    if workers is not None and world.device.type != "cpu":
        raise ValueError(f"workers train on the CPU, and this world is on {str(world.device)!r}: do without")
    if workers is not None and world.together:
        raise ValueError("workers train one generator each, and this world's train together: give one of the two")
    if len(state.makers) < config.parties:
        after, row = _train_generator(state, world, workers)
    elif len(state.votes) < config.parties:
        after, row = _train_model(state, world, None if world.models is not None else workers)
    elif state.labels is None:
        after, row = _vote(state, world)
    elif state.accuracy is None:
        assert state.keep is not None
        x, y = world.samples(state)[state.keep], state.labels[state.keep].long()
        if not len(y):
            cure = "Take more parties" + (", or a smaller vote_sigma" if config.vote_sigma else "")
            raise ValueError(f"no sample was kept: the votes are too close. {cure}")
        if world.global_kind in parties.TWO_CLASSES and int(y.min()) == int(y.max()):
            raise ValueError(
                f"all samples that were kept are of class {int(y[0])}, and global_model={world.global_kind!r} needs "
                f"two classes: take one that needs one ({ONE_CLASS})"
            )
        accuracy = _accuracy(_fitted(world, x, y, GLOBAL, "the global model"), world.dataset, "the global model")
        after, row = replace(state, accuracy=accuracy), {"part": "global model", "accuracy": accuracy}
    else:
        everyone = torch.cat(world.shards)
        x, y = world.dataset.train_x[everyone], world.dataset.train_y[everyone]
        accuracy = _accuracy(_fitted(world, x, y, BASELINE, "the baseline"), world.dataset, "the baseline")
        after, row = replace(state, baseline=accuracy), {"part": "baseline", "accuracy": accuracy}
    after = replace(after, round=state.round + 1)
    if world.ahead is not None and world.ahead[0] is state:
        world.ahead = after, world.ahead[1]
    return after, {"accuracy": None, **row}


def _train_generator(state: State, world: World, workers: Workers[World] | None) -> tuple[State, Row]:
    """`chunk` steps of Algorithm 1 for the party that has taken the fewest."""
    first, recipe = len(state.makers), world.config.recipe
    begun: list[Progress | None] = [*state.training, *[None] * (world.config.parties - first - len(state.training))]
    done = [0 if progress is None else progress["done"] for progress in begun]
    turn = done.index(min(done))
    units = [(first + k, begun[k]) for k in range(turn, len(begun))]
    if world.together:
        progress = _first(state, world, lambda: _steps_together(world, units), len(units))
    elif workers is not None:
        progress = _first(state, world, lambda: workers.map(_steps, None, units), len(units))
    else:
        progress = _steps(world, None, units[0])
    row: Row = {"part": f"party {first + turn}: {world.kind(first + turn)}, {progress['done']} steps"}
    if progress["done"] < recipe.steps:
        training = [*state.training[:turn], progress, *state.training[turn + 1 :]]
        return replace(state, training=training), row
    return replace(state, training=state.training[1:], makers=[*state.makers, progress["maker"]]), row


def _steps(world: World, common: None, unit: tuple[int, Progress | None]) -> Progress:
    """The next steps of a party's generator."""
    training, x, key = _begun(world, unit)
    for _ in range(min(world.config.chunk, world.config.recipe.steps - training.done)):
        training.step(x, key)
    return training.state_dict()


def _steps_together(world: World, units: Sequence[tuple[int, Progress | None]]) -> Iterator[Progress]:
    """The same of several parties, those of one kind at once."""
    begun = [_begun(world, unit) for unit in units]
    count = min(world.config.chunk, world.config.recipe.steps - begun[0][0].done)
    for kind in dict.fromkeys(training.generator.kind for training, _, _ in begun):
        dp_gan_together.steps([party for party in begun if party[0].generator.kind == kind], count)
    yield from (training.state_dict() for training, _, _ in begun)


def _begun(world: World, unit: tuple[int, Progress | None]) -> tuple[Training, torch.Tensor, Key]:
    """A party's generator as it stands, its examples, and the key of its steps."""
    i, progress = unit
    training = Training(world.generator(i), world.config.recipe)
    if progress is not None:
        training.load_state_dict(progress)
    return training, world.dataset.train_x[world.shards[i]].to(world.device), world.party(i).fold_in(STEPS)


def _train_model(state: State, world: World, workers: Workers[World] | None) -> tuple[State, Row]:
    """A party's model, its accuracy alone, and its votes."""
    i = len(state.votes)
    rest = range(i, world.config.parties)
    if workers is not None:
        votes, accuracy = _first(state, world, lambda: workers.map(_fit_and_vote, state.makers, rest), len(rest))
    else:
        votes, accuracy = _fit_and_vote(world, state.makers, i)
    row: Row = {"part": f"party {i}: {world.model_kind(i)}", "accuracy": accuracy}
    return replace(state, votes=[*state.votes, votes], standalone=[*state.standalone, accuracy]), row


def _fit_and_vote(world: World, makers: Sequence[Weights], i: int) -> tuple[torch.Tensor, float]:
    """The votes of a party's model on all samples, and its accuracy."""
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


def _first(state: State, world: World, turn: Callable[[], Iterator[Result]], units: int) -> Result:
    """The first unit's result, of as many as are left of a turn. All are begun at once, ahead of their rounds."""
    if world.ahead is None or world.ahead[0] is not state:
        world.ahead = state, turn()
    ahead, world.ahead = world.ahead, None  # gone where the next result is an error: asked again, the turn begins anew
    result = cast(Result, next(ahead[1]))
    world.ahead = ahead if units > 1 else None
    return result


def _vote(state: State, world: World) -> tuple[State, Row]:
    """Section 3.3, or the noisy vote in its place."""
    votes, classes = torch.stack(list(state.votes)), world.dataset.classes
    if world.config.vote_sigma is None:
        vote = majority_vote(votes, classes)
    else:
        key = world.key.fold_in(VOTE)
        vote = noisy_vote(votes, classes, world.config.vote_sigma, generator=key)
    row: Row = {"part": f"vote: {int(vote.keep.sum())} of {len(vote.keep)} kept"}
    return replace(state, labels=vote.labels, keep=vote.keep), row


def global_model(state: State, world: World) -> parties.Model:
    """The global model of a run whose vote is done, trained again on the samples that were kept: what the run measured.

    Of a kind of network it is a `parties.Network`, and `.module` is the network.
    """
    if state.labels is None or state.keep is None:
        raise ValueError("nothing is labelled yet: take all rounds(world.config) of a run before")
    x, y = world.samples(state)[state.keep], state.labels[state.keep].long()
    return _fitted(world, x, y, GLOBAL, "the global model")


def _fitted(world: World, x: torch.Tensor, y: torch.Tensor, use: int, who: str) -> parties.Model:
    key, classes, epochs = world.key.fold_in(use), world.dataset.classes, world.config.epochs
    model = parties.build(world.global_kind, world.shape, classes, key, epochs=epochs, device=world.device)
    parties.fit(model, x, y, who)
    return model


def _accuracy(model: parties.Model, dataset: Dataset, who: str) -> float:
    return float((parties.predicted(model, dataset.test_x, dataset.classes, who) == dataset.test_y.numpy()).mean())
