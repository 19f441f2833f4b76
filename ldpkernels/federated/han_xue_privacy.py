# SPDX-License-Identifier: Apache-2.0
"""What Han and Xue's scheme protects, part by part, for the settings of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ldpkernels.accounting import CENTRAL, PrivacyResult, Unit, han_xue_eq18, sampled_gaussian
from ldpkernels.calls.votes import vote_epsilon
from ldpkernels.federated.data import Dataset
from ldpkernels.federated.han_xue import Config

SCOPE = CENTRAL.per(Unit.EXAMPLE)
NEIGHBOURS = "the parties' data sets, one example of one party added or removed"


@dataclass(frozen=True)
class Part:
    """One thing that leaves a party, or does not: its guarantee, infinite if there is none, and why.

    `claimed` is the paper's epsilon, if it gives one. `result` is None for what is not released, and for what is taken
    to be known to everyone (`public`).
    """

    name: str
    result: PrivacyResult | None
    reason: str
    claimed: float | None = None
    public: bool = False

    @property
    def protected(self) -> bool:
        """Whether there is a guarantee."""
        return self.result is None or math.isfinite(self.result.epsilon)

    def __str__(self) -> str:
        guarantee = str(self.result) if self.protected else "NOT PROTECTED"
        unreleased = "taken to be public" if self.public else "not released"
        verdict = unreleased if self.result is None else guarantee
        claimed = "" if self.claimed is None else f" The paper claims epsilon = {self.claimed:.4f} by equation (18)."
        return f"{self.name}: {verdict}. {self.reason}{claimed}".replace("..", ".")


def report(config: Config, examples: int, samples: int, dataset: Dataset | None = None) -> list[Part]:
    """The parts of a run with so many examples a party, and so many samples labelled, of the dataset that it had.

    >>> from ldpkernels.federated.dp_gan import Recipe
    >>> [part.protected for part in report(Config(recipe=Recipe(steps=10)), 7814, 39070)[:3]]
    [False, False, False]
    >>> sound = Config(recipe=Recipe(steps=10, sound=True), vote_sigma=500.0)
    >>> [part.protected for part in report(sound, 7814, 39070)[:3]]
    [True, True, True]
    """
    made, votes = generators(config, examples), labels(config, samples)
    known = [_seed(config)] if made.protected or votes.protected else []
    return [made, votes, together(made, votes, config), *known, *_beside(), *_range(config, dataset)]


def generators(config: Config, examples: int) -> Part:
    """The part about the trained generators and all their samples, for one party."""
    recipe = config.recipe
    name = "Generators and synthetic samples"
    if recipe.sound and recipe.sigma > 0:
        result = sampled_gaussian(recipe.sigma, recipe.rate(examples), recipe.steps, delta=config.delta)
        return Part(name, result, "Each real example's gradient is clipped and noised, on Poisson samples.")
    reason = "The loss is clipped and noised, and its noise is a constant in the weights: the gradient is exact."
    claimed = None
    if recipe.sound:
        reason = "sigma = 0 is no noise."
    elif recipe.sigma > 0:
        claimed = han_xue_eq18(recipe.batch / examples, recipe.sigma, recipe.steps, config.delta).claimed
    return Part(name, _nothing(config, "whoever sees a trained generator or its samples"), reason, claimed)


def labels(config: Config, samples: int) -> Part:
    """The part about the labels of the samples, and which samples were dropped."""
    if config.vote_sigma:
        reason = "A noisy majority vote (GNMax): one example may move its party's vote on every sample."
        return Part("Votes", vote_epsilon(samples, config.vote_sigma, delta=config.delta), reason)
    reason = "Exact votes of models trained without privacy; the samples that are dropped tell of them too."
    return Part("Votes", _nothing(config, "whoever sees the labels"), reason)


def together(made: Part, votes: Part, config: Config) -> Part:
    """Everything that the global party learns about one example, which covers the global model too."""
    name = "Global model, samples and labels together"
    if not (made.protected and votes.protected):
        return Part(name, _nothing(config, "whoever sees the global model"), "It is made of what is not protected.")
    assert made.result is not None
    assert votes.result is not None
    result = PrivacyResult(
        made.result.epsilon + votes.result.epsilon,
        made.result.delta + votes.result.delta,
        SCOPE,
        (*made.result.assumptions, *votes.result.assumptions),
        "basic composition of the two",
        "anyone who sees the samples, the labels and the global model",
        NEIGHBOURS,
    )
    return Part(name, result, "The rest is post-processing.")


def _nothing(config: Config, adversary: str) -> PrivacyResult:
    return PrivacyResult(math.inf, config.delta, SCOPE, (), "no guarantee", adversary, NEIGHBOURS)


def _seed(config: Config) -> Part:
    """The part that says that a run's random numbers follow from its seed."""
    reason = (
        f"A simulation: all noise and all batches follow from seed={config.seed}. The figures above hold against those "
        "who do not know it; what is released needs random numbers that nobody knows, and a run draws none."
    )
    return Part("All of these, where the seed is known", _nothing(config, "whoever knows or guesses the seed"), reason)


def _beside() -> list[Part]:
    return [
        Part("Local models", None, "They stay with their parties; nothing of them leaves but the votes."),
        Part("Standalone and baseline accuracy", None, "They are computed on real data to compare, and not accounted."),
        Part(
            "Sizes and scales", None,
            "The numbers of examples and of classes, and for Adult the means and deviations of its features.",
            public=True,
        ),
    ]  # fmt: skip


def _range(config: Config, dataset: Dataset | None) -> list[Part]:
    """The part about the range that generators keep to, where there is one: all samples tell it."""
    name = "Range of the numbers in an example"
    if dataset is None:
        return [Part(name, None, "Images have one, and all their samples are in it.", public=True)]
    if dataset.span is not None:
        low, high = dataset.span
        reason = f"It is {low:g} to {high:g}: numbers outside are clipped to it, and all samples are in it."
        return [Part(name, None, reason, public=True)]
    if dataset.train_x.dim() < 3:
        return []
    reason = "It is that of all parties' training examples, and all generators and samples have it: give a span."
    return [Part(name, _nothing(config, "whoever sees a trained generator or its samples"), reason)]
