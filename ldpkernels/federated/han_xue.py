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
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import torch

import ldpkernels
from ldpkernels.federated import data, dp_gan_together, generators, parties
from ldpkernels.federated.data import Dataset
from ldpkernels.federated.dp_gan import Progress, Recipe, Training
from ldpkernels.federated.generators import generator_of
from ldpkernels.federated.runs import Row
from ldpkernels.federated.training import Weights
from ldpkernels.federated.workers import Workers
from ldpkernels.keys import Key

Result = TypeVar("Result")

# What a party's key, and the global party's, is folded into: one use each.
_WEIGHTS, _STEPS, _SAMPLES, _MODEL = range(4)
_VOTE, _GLOBAL, _BASELINE, _QUERIES = (2**63 + i for i in range(4))
_ONE_CLASS = ", ".join(kind for kind in (*parties.TABULAR, "cnn-1") if kind not in parties.TWO_CLASSES)


@dataclass(frozen=True)
class Config:
    """What the parties agree on.

    Args:
        parties: How many.
        recipe: How generators are trained (`dp_gan.Recipe`).
        generators: Kinds of generators, dealt to the parties in turn; empty for the paper's: GAN and VAE for features,
            GAN and DCGAN for images.
        models: Kinds of local models, likewise; empty for the paper's five types for features, five CNNs for images.
        global_model: The kind of the global model and of the baseline; empty for a network of four layers for features,
            "cnn-3" for images.
        vote_sigma: None for exact votes; the noise on each count of `ldpkernels.noisy_vote`.
        queries: How many of the samples are labelled, at random; None for all.
        samples: How many a party generates; None for as many as the smallest party has examples.
        local_epochs, epochs: Of the parties' networks, and of the global model and the baseline.
        baseline: Whether to train the baseline, the global model on all parties' real examples.
        chunk: Steps of a generator in a round.
        delta: Of every epsilon.
        seed: What everything random follows from.
    """

    parties: int = 5
    recipe: Recipe = field(default_factory=Recipe)
    generators: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    global_model: str = ""
    vote_sigma: float | None = None
    queries: int | None = None
    samples: int | None = None
    local_epochs: int = 5
    epochs: int = 5
    baseline: bool = True
    chunk: int = 100
    delta: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("parties", "queries", "samples", "local_epochs", "epochs", "chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be 1 or more")
        if self.parties == 1 and self.vote_sigma is None:
            raise ValueError("parties=1: a single vote is one apart from none, so that every sample would be dropped")
        if self.vote_sigma is not None and not 0 <= self.vote_sigma < float("inf"):
            raise ValueError(f"vote_sigma={self.vote_sigma} must be 0 or more and finite, or None for exact votes")


@dataclass(frozen=True)
class State:
    """All that is known after so many rounds."""

    round: int = 0
    makers: Sequence[Weights] = ()  # of the parties whose generators are trained
    training: Sequence[Progress] = ()  # of the parties after them whose training has begun
    votes: Sequence[torch.Tensor] = ()
    standalone: Sequence[float] = ()
    labels: torch.Tensor | None = None
    keep: torch.Tensor | None = None
    accuracy: float | None = None
    baseline: float | None = None


class World:
    """A dataset dealt to parties. It holds no state but caches: of samples, and of what workers do ahead.

    Args:
        dataset: Whose test examples measure all accuracies. Numbers outside its `span` are clipped to it; images that
            have none are given that of all training examples, which a sound recipe refuses.
        config: What the parties agree on.
        models: One for each party, of the user's own; None for those of `config.models`. What they predict is one whole
            number for each example.
        shards: Which training examples each party has, as indices; None deals them alike.
        device: Where networks and generators are trained. Initial weights, batches and the samples' noise are drawn on
            the host: they are the same on every device.
        together: Whether generators of one kind take their steps at once (`dp_gan_together`), the others' units of a
            turn ahead of their rounds. None does so on a GPU: elsewhere workers are faster. Local models, of different
            types, are trained one after another.
    """

    def __init__(
        self,
        dataset: Dataset,
        config: Config,
        models: Sequence[parties.Model] | None = None,
        shards: Sequence[torch.Tensor] | None = None,
        device: torch.device | str = "cpu",
        together: bool | None = None,
    ) -> None:
        self.dataset, self.config, self.device = _within_span(dataset), config, torch.device(device)
        self.together = self.device.type == "cuda" if together is None else together
        self.shape = tuple(dataset.train_x.shape[1:])
        images = len(self.shape) > 1
        self.kinds = config.generators or (("gan", "dcgan") if images else ("gan", "vae"))
        self.model_kinds = config.models or (parties.IMAGES if images else parties.TABULAR)
        self.global_kind = config.global_model or ("cnn-3" if images else "network")
        self.span = _span_of(dataset, config.recipe.sound)
        self.key = ldpkernels.key(config.seed)
        self.shards = list(shards or data.deal(dataset.train_y, config.parties, config.seed))
        self.models = models
        if len(self.shards) != config.parties:
            raise ValueError(f"{len(self.shards)} shards for parties={config.parties}: give one for each party")
        if models is not None and len(models) != config.parties:
            raise ValueError(f"{len(models)} models for parties={config.parties}: give one for each party")
        if config.recipe.batch > self.examples:
            found = f"batch={config.recipe.batch} is more than the {self.examples} examples of a party"
            raise ValueError(f"{found}: take a smaller batch, or deal more evenly")
        for kind in self.kinds:  # what does not fit is refused before any work
            generators.build(kind, self.shape, self.span, self.key, loss=config.recipe.discriminator_loss)
        for kind in (self.global_kind, *(() if models is not None else self.model_kinds)):
            parties.build(kind, self.shape, dataset.classes, self.key)
        self._check_classes()
        self._made: tuple[object, torch.Tensor] | None = None  # the makers, and what they made
        self.ahead: tuple[State, Iterator[object]] | None = None  # the state that the next result belongs to

    def _check_classes(self) -> None:
        """Who has a model that needs examples of two classes has them."""
        known = [] if self.models is not None else list(enumerate(self.shards))  # a user's models may need anything
        learners = [(f"party {i}", self.model_kind(i), shard) for i, shard in known]
        if self.config.baseline:
            learners.append(("the baseline", self.global_kind, torch.cat(self.shards)))
        for who, kind, shard in learners:
            found = self.dataset.train_y[shard].unique().tolist() if kind in parties.TWO_CLASSES else []
            if len(found) == 1:
                raise ValueError(
                    f"{who} has examples of class {found[0]} alone, and model {kind!r} needs two classes: deal more "
                    f"evenly (a larger skew), or take a model that needs one ({_ONE_CLASS})"
                )

    @property
    def examples(self) -> int:
        """The examples of the party that has fewest, N: every epsilon is that of its examples."""
        return min(len(shard) for shard in self.shards)

    def party(self, i: int) -> Key:
        """The key of a party."""
        return self.key.fold_in(i)

    def model_kind(self, i: int) -> str:
        """What the i-th party's model is called."""
        if self.models is not None:
            return type(self.models[i]).__name__
        return self.model_kinds[i % len(self.model_kinds)]

    def kind(self, i: int) -> str:
        """What the i-th party's generator is called."""
        return self.kinds[i % len(self.kinds)]

    def generator(self, i: int) -> generators.LocalGenerator:
        """The i-th party's generator before its training."""
        key = self.party(i).fold_in(_WEIGHTS)
        loss = self.config.recipe.discriminator_loss
        return generators.build(self.kind(i), self.shape, self.span, key, loss=loss).to(self.device)

    def samples_of(self, state: State, i: int, n: int) -> torch.Tensor:
        """The i-th party's first n synthetic samples."""
        generator = self.generator(i)
        generator.maker.load_state_dict(state.makers[i])
        return generator.sample(n, self.party(i).fold_in(_SAMPLES))

    def samples(self, state: State) -> torch.Tensor:
        """The samples that are labelled."""
        if self._made is None or self._made[0] is not state.makers:
            each = self.config.samples or self.examples
            made = torch.cat([self.samples_of(state, i, each) for i in range(self.config.parties)])
            self._made = state.makers, made if self.config.queries is None else made[self.queried(len(made))]
        return self._made[1]

    def queried(self, n: int) -> torch.Tensor:
        """Which of n samples are labelled, where `queries` says how many."""
        return torch.randperm(n, generator=generator_of(self.key.fold_in(_QUERIES)))[: self.config.queries]


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
            raise ValueError("no sample was kept: the votes are too close. Take more parties, or a smaller vote_sigma")
        if world.global_kind in parties.TWO_CLASSES and int(y.min()) == int(y.max()):
            raise ValueError(
                f"all samples that were kept are of class {int(y[0])}, and global_model={world.global_kind!r} needs "
                f"two classes: take one that needs one ({_ONE_CLASS})"
            )
        accuracy = _fit_and_score(world, x, y, world.key.fold_in(_GLOBAL), "the global model")
        after, row = replace(state, accuracy=accuracy), {"part": "global model", "accuracy": accuracy}
    else:
        everyone = torch.cat(world.shards)
        x, y = world.dataset.train_x[everyone], world.dataset.train_y[everyone]
        accuracy = _fit_and_score(world, x, y, world.key.fold_in(_BASELINE), "the baseline")
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
    return training, world.dataset.train_x[world.shards[i]].to(world.device), world.party(i).fold_in(_STEPS)


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
        key = world.party(i).fold_in(_MODEL)
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
        vote = ldpkernels.majority_vote(votes, classes)
    else:
        key = world.key.fold_in(_VOTE)
        vote = ldpkernels.noisy_vote(votes, classes, world.config.vote_sigma, generator=key)
    row: Row = {"part": f"vote: {int(vote.keep.sum())} of {len(vote.keep)} kept"}
    return replace(state, labels=vote.labels, keep=vote.keep), row


def _fit_and_score(world: World, x: torch.Tensor, y: torch.Tensor, key: Key, who: str) -> float:
    dataset = world.dataset
    epochs, device = world.config.epochs, world.device
    model = parties.build(world.global_kind, world.shape, dataset.classes, key, epochs=epochs, device=device)
    parties.fit(model, x, y, who)
    return _accuracy(model, dataset, who)


def _accuracy(model: parties.Model, dataset: Dataset, who: str) -> float:
    return float((parties.predicted(model, dataset.test_x, dataset.classes, who) == dataset.test_y.numpy()).mean())


def _span_of(dataset: Dataset, sound: bool) -> tuple[float, float] | None:
    """The range of numbers that generators keep to, and so that of the samples; None for features that have none."""
    if dataset.span is not None or dataset.train_x.dim() < 3:
        return dataset.span
    cure = "give a range that is known without looking at them: own.dataset(..., span=(0, 1)), or --span 0 1"
    if sound:
        raise ValueError(
            f"dataset {dataset.name!r} has examples of shape {tuple(dataset.train_x.shape[1:])} and no span: that of "
            f"the examples would be in all samples, and sound=True protects the examples: {cure}"
        )
    low, high = float(dataset.train_x.min()), float(dataset.train_x.max())  # of no privacy, as all here is then
    if not low < high:
        raise ValueError(f"all numbers of the examples of {dataset.name!r} are {low:g}, which has no range: {cure}")
    return low, high


def _within_span(dataset: Dataset) -> Dataset:
    """Numbers outside a span that was given are clipped to it, whatever the others are: samples cannot have them."""
    if dataset.span is None:
        return dataset
    low, high = dataset.span
    if all(low <= float(x.min()) and float(x.max()) <= high for x in (dataset.train_x, dataset.test_x)):
        return dataset  # the same numbers, and no copy
    return replace(dataset, train_x=dataset.train_x.clamp(low, high), test_x=dataset.test_x.clamp(low, high))
