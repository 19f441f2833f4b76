# SPDX-License-Identifier: Apache-2.0
"""Who takes part in Han and Xue's scheme, and with what: the configuration, the parties' world, the state of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from ldpkernels.calls.votes import Vote, majority_vote, noisy_vote
from ldpkernels.common.keys import Key, key
from ldpkernels.federated import data, generators, own, parties
from ldpkernels.federated.data import Dataset
from ldpkernels.federated.dp_gan import Progress, Recipe, Training
from ldpkernels.federated.generators import generator_of
from ldpkernels.federated.training import Weights

# What a party's key, and the global party's, is folded into: one use each.
WEIGHTS, STEPS, SAMPLES, MODEL = range(4)
VOTE, GLOBAL, BASELINE, QUERIES = (2**63 + i for i in range(4))
ONE_CLASS = ", ".join(kind for kind in (*parties.TABULAR, "cnn-1") if kind not in parties.TWO_CLASSES)


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
        samples: How many samples a party generates; None for as many as the smallest party has examples.
        local_epochs, epochs: Epochs of the parties' networks, and of the global model and the baseline.
        baseline: Whether to train the baseline, the global model on all parties' real examples.
        chunk: Steps of a generator in a round.
        delta: The delta of every epsilon.
        seed: Everything random follows from it.
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
            raise ValueError(
                "parties=1: a single vote leads by 1 only, so every sample would be dropped: use 2 or more"
            )
        if self.vote_sigma is not None and not 0 <= self.vote_sigma < float("inf"):
            raise ValueError(f"vote_sigma={self.vote_sigma} must be 0 or more and finite, or None for exact votes")


@dataclass(frozen=True)
class State:
    """All that is known after so many rounds."""

    round: int = 0
    training: Sequence[Progress] = ()  # of all parties' generators, until they are trained
    makers: Sequence[Weights] = ()  # of all parties, once they are
    votes: Sequence[torch.Tensor] = ()
    standalone: Sequence[float] = ()
    labels: torch.Tensor | None = None
    keep: torch.Tensor | None = None
    accuracy: float | None = None
    baseline: float | None = None


class World:
    """A dataset dealt to parties. It holds no state but the samples that were made last.

    Making one takes a step of each kind of generator on zeros, and a vote, so that what cannot run is refused before
    any work.

    Args:
        dataset: Its test examples measure all accuracies. Numbers outside its `span` are clipped to it. Images without
            a span are given that of all training examples, which a sound recipe refuses.
        config: What the parties agree on.
        models: One for each party, of the user's own; None for those of `config.models`. They predict one whole number
            for each example.
        shards: Which training examples each party has, as indices; None deals the same number to each. No example is in
            two: every epsilon is of an example of one party, added or removed, for whoever sees its samples.
        device: Where networks and generators are trained. Initial weights, batches and the samples' noise are drawn on
            the host, and are the same on every device.
    """

    def __init__(
        self,
        dataset: Dataset,
        config: Config,
        models: Sequence[parties.Model] | None = None,
        shards: Sequence[torch.Tensor] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        dataset = own.dataset(dataset)
        if not dataset.train_x.is_floating_point():
            raise ValueError(
                f"examples of {dataset.name!r} are {dataset.train_x.dtype}: generators make floating-point ones"
            )
        self.dataset, self.config, self.device = _within_span(dataset), config, torch.device(device)
        self.shape = tuple(dataset.train_x.shape[1:])
        images = len(self.shape) > 1
        self.kinds = config.generators or (("gan", "dcgan") if images else ("gan", "vae"))
        self.model_kinds = config.models or (parties.IMAGES if images else parties.TABULAR)
        self.global_kind = config.global_model or ("cnn-3" if images else "network")
        self.span = _span_of(dataset, config.recipe.sound)
        self.key = key(config.seed)
        dealt = data.deal(dataset.train_y, config.parties, config.seed) if shards is None else shards
        self.shards = [torch.as_tensor(shard) for shard in dealt]
        self.models = models
        if len(self.shards) != config.parties:
            raise ValueError(f"{len(self.shards)} shards for parties={config.parties}: give one for each party")
        self._check_shards()
        if models is not None and len(models) != config.parties:
            raise ValueError(f"{len(models)} models for parties={config.parties}: give one for each party")
        for i, model in enumerate(models or ()):
            if not all(callable(getattr(model, name, None)) for name in ("fit", "predict")):
                raise ValueError(f"model {i} is a {type(model).__name__}: a model has fit(x, y) and predict(x)")
        if config.recipe.batch > self.examples:
            found = f"batch={config.recipe.batch} is more than the {self.examples} examples of a party"
            raise ValueError(f"{found}: take a smaller batch, or deal more evenly")
        self._rehearse()
        for kind in (self.global_kind, *(() if models is not None else self.model_kinds)):
            parties.build(kind, self.shape, dataset.classes, self.key)
        self._check_classes()
        self._made: tuple[object, torch.Tensor] | None = None  # the makers, and what they made

    def _rehearse(self) -> None:
        """Take a step of each kind of generator on zeros, and a vote: what they refuse is refused before any work."""
        recipe, zeros = self.config.recipe, torch.zeros(self.config.recipe.batch, *self.shape)
        for kind in self.kinds:
            generator = generators.build(kind, self.shape, self.span, self.key, loss=recipe.discriminator_loss)
            Training(generator, recipe).step(zeros, self.key)
        self.vote(torch.zeros(self.config.parties, 1, dtype=torch.int32))

    def _check_shards(self) -> None:
        """Refuse an example that is dealt twice: it would lose more than any epsilon says."""
        examples = len(self.dataset.train_y)
        for i, shard in enumerate(self.shards):
            if shard.dtype is not torch.int64 or shard.dim() != 1:
                found = f"{shard.dtype} of shape {tuple(shard.shape)}"
                raise ValueError(f"shard {i} is {found}: give the indices of its examples, int64 of shape [N]")
            if len(shard) and not 0 <= int(shard.min()) <= int(shard.max()) < examples:
                found = f"{int(shard.min())} to {int(shard.max())}"
                raise ValueError(f"shard {i} has indices from {found}, and the examples are 0 to {examples - 1}")
        times = torch.bincount(torch.cat(self.shards), minlength=examples)
        if int(times.max()) > 1:
            most = int(times.argmax())
            raise ValueError(
                f"example {most} is dealt {int(times[most])} times: the epsilons hold only where each example is "
                "dealt once"
            )

    def _check_classes(self) -> None:
        """Refuse a party of one class whose model needs examples of two."""
        known = [] if self.models is not None else list(enumerate(self.shards))  # a user's models may need anything
        learners = [(f"party {i}", self.model_kind(i), shard) for i, shard in known]
        if self.config.baseline:
            learners.append(("the baseline", self.global_kind, torch.cat(self.shards)))
        for who, kind, shard in learners:
            found = self.dataset.train_y[shard].unique().tolist() if kind in parties.TWO_CLASSES else []
            if len(found) == 1:
                raise ValueError(
                    f"{who} has examples of class {found[0]} alone, and model {kind!r} needs two classes: deal more "
                    f"evenly (a larger skew), or take a model that needs one ({ONE_CLASS})"
                )

    @property
    def examples(self) -> int:
        """N, the number of examples of the party that has fewest. Every epsilon is that of its examples (`World`)."""
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
        key = self.party(i).fold_in(WEIGHTS)
        loss = self.config.recipe.discriminator_loss
        return generators.build(self.kind(i), self.shape, self.span, key, loss=loss).to(self.device)

    def samples_of(self, state: State, i: int, n: int) -> torch.Tensor:
        """The i-th party's first n synthetic samples."""
        generator = self.generator(i)
        generator.maker.load_state_dict(state.makers[i])
        made = generator.sample(n, self.party(i).fold_in(SAMPLES))
        if not torch.isfinite(made).all():
            raise ValueError(
                f"party {i}: samples of its generator {self.kind(i)!r} are not finite, as its training diverged: scale "
                "features to about -1 to 1, by constants chosen without looking at the data, or lower the rate"
            )
        return made

    def samples(self, state: State) -> torch.Tensor:
        """The samples that are labelled."""
        if self._made is None or self._made[0] is not state.makers:
            each = self.config.samples or self.examples
            made = torch.cat([self.samples_of(state, i, each) for i in range(self.config.parties)])
            self._made = state.makers, made if self.config.queries is None else made[self.queried(len(made))]
        return self._made[1]

    @property
    def labelled(self) -> int:
        """The number of samples that are labelled."""
        made = (self.config.samples or self.examples) * self.config.parties
        return made if self.config.queries is None else min(made, self.config.queries)

    def vote(self, votes: torch.Tensor) -> Vote[torch.Tensor]:
        """The labels by the vote of section 3.3, or by the noisy vote in its place."""
        if self.config.vote_sigma is None:
            return majority_vote(votes, self.dataset.classes)
        return noisy_vote(votes, self.dataset.classes, self.config.vote_sigma, generator=self.key.fold_in(VOTE))

    def queried(self, n: int) -> torch.Tensor:
        """Which of n samples are labelled, where `queries` says how many."""
        return torch.randperm(n, generator=generator_of(self.key.fold_in(QUERIES)))[: self.config.queries]


def _span_of(dataset: Dataset, sound: bool) -> tuple[float, float] | None:
    """The range of numbers that generators keep to, and so that of the samples; None for features that have none."""
    if dataset.span is not None or dataset.train_x.dim() < 3:
        return dataset.span
    cure = "give a range that is known without looking at them: own.dataset(..., span=(0, 1)), or --span 0 1"
    if sound:
        raise ValueError(
            f"dataset {dataset.name!r} has examples of shape {tuple(dataset.train_x.shape[1:])} and no span: the "
            f"examples' own span would show in all samples, and sound=True protects the examples: {cure}"
        )
    low, high = float(dataset.train_x.min()), float(dataset.train_x.max())  # of no privacy, as all here is then
    if not low < high:
        raise ValueError(f"all numbers in the examples of {dataset.name!r} are {low:g}, so they have no range: {cure}")
    return low, high


def _within_span(dataset: Dataset) -> Dataset:
    """The dataset with numbers outside a given span clipped to it: samples cannot have them."""
    if dataset.span is None:
        return dataset
    low, high = dataset.span
    if all(low <= float(x.min()) and float(x.max()) <= high for x in (dataset.train_x, dataset.test_x)):
        return dataset  # the same numbers, and no copy
    return replace(dataset, train_x=dataset.train_x.clamp(low, high), test_x=dataset.test_x.clamp(low, high))
