# SPDX-License-Identifier: Apache-2.0
"""Han and Xue's parties with data, models and shards of their own."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from ldpkernels.federated import data, dp_gan, han_xue, han_xue_privacy, own


class Nearest:
    """A model of the user's own: the class whose mean is nearest."""

    def fit(self, x, y):
        self.means = np.stack([x[y == c].mean(0) for c in range(10)])

    def predict(self, x):
        return ((x[:, None] - self.means) ** 2).sum(2).argmin(1)


def test_parties_with_data_and_models_of_their_own():
    digits = data.load("digits")
    shards = list(torch.arange(1617).split([400, 300, 317, 300, 300]))
    models = [DecisionTreeClassifier(random_state=0), Nearest(), Nearest(), Nearest(), Nearest()]
    recipe = dp_gan.Recipe(steps=20, batch=32)
    config = han_xue.Config(parties=5, recipe=recipe, generators=("vae",), epochs=2, baseline=False)
    world = han_xue.World(digits, config, models, shards)
    assert world.examples == 300  # of the party that has fewest: its epsilon is the largest
    state = han_xue.State()
    for _ in range(han_xue.rounds(config)):
        state, _ = han_xue.round_(state, world)
    own_tree = DecisionTreeClassifier(random_state=0).fit(digits.train_x[:400].flatten(1), digits.train_y[:400])
    assert state.standalone[0] == own_tree.score(digits.test_x.flatten(1), digits.test_y)
    assert len(state.labels) == 5 * 300
    with pytest.raises(ValueError, match="2 shards for parties=5"):
        han_xue.World(digits, config, models, shards[:2])


def images(low, high, n=60):
    """So many in one channel, of numbers up to both ends, and three classes."""
    x = torch.rand(n, 1, 2, 3, generator=torch.Generator().manual_seed(0)) * (high - low) + low
    x[0, 0, 0, :2] = torch.tensor([low, high])
    y = torch.arange(n) % 3
    return x, y, x[:10], y[:10]


def quick(sound, **changes):
    recipe = dp_gan.Recipe(steps=2, batch=4, sound=sound)
    values = {"parties": 3, "recipe": recipe, "generators": ("gan", "vae"), "models": ("tree",), "epochs": 1}
    return han_xue.Config(**{**values, "global_model": "network", "baseline": False, "vote_sigma": 0.5, **changes})


def finish(world):
    state = han_xue.State()
    for _ in range(han_xue.rounds(world.config)):
        state, _ = han_xue.round_(state, world)
    return state


def told(world, samples=60):
    return "\n".join(map(str, han_xue_privacy.report(world.config, world.examples, samples, world.dataset)))


def test_the_range_of_own_images_is_never_taken_from_them_where_they_are_protected():
    with pytest.raises(
        ValueError, match=r"'your data' .* \(1, 2, 3\) and no span: .*own\.dataset\(..., span=\(0, 1\)\)"
    ):
        han_xue.World(own.dataset(images(0.2, 0.7)), quick(sound=True))
    made = []
    for low, high in ((0.2, 0.7), (0.1, 0.9)):  # of the same span, whatever the examples are
        world = han_xue.World(own.dataset(images(low, high), span=(0, 1)), quick(sound=True))
        made.append((world.span, world.generator(0).maker[-1].span, str(world.generator(1).maker)))
        assert "Range of the numbers in an example: taken to be public. It is 0 to 1" in told(world)
    assert made[0] == made[1]
    assert made[0][:2] == ((0.0, 1.0), (0.0, 1.0))
    features = [part.flatten(1) if part.dim() > 1 else part for part in images(0.2, 0.7)]
    assert han_xue.World(own.dataset(features), quick(sound=True)).span is None  # features have none, and need none
    assert han_xue.World(own.dataset(features, span=(-1, 2)), quick(sound=True)).span == (-1.0, 2.0)


def test_numbers_outside_the_span_are_clipped_to_it():
    raw = own.dataset(images(-3.0, 4.0), span=(0, 1))
    world = han_xue.World(raw, quick(sound=True))
    for name in ("train_x", "test_x"):
        assert torch.equal(getattr(world.dataset, name), getattr(raw, name).clamp(0, 1))
    assert float(raw.train_x.min()) == -3  # the user's own are left alone
    samples = world.samples(finish(world))
    assert 0 <= float(samples.min()) <= float(samples.max()) <= 1
    inside = own.dataset(images(0.2, 0.7), span=(0, 1))
    assert han_xue.World(inside, quick(sound=True)).dataset.train_x is inside.train_x


def test_without_protection_the_range_is_that_of_the_examples_and_the_report_says_so():
    world = han_xue.World(own.dataset(images(-3.0, 4.0)), quick(sound=False))
    assert world.span == (-3.0, 4.0)
    assert "Range of the numbers in an example: NOT PROTECTED. It is that of all parties' training examples" in told(
        world
    )
    x, y, *_ = images(0.0, 1.0)
    same = own.dataset((torch.full_like(x, 0.5), y, x, y))
    with pytest.raises(ValueError, match=r"all numbers in the examples of 'your data' are 0.5, .* give a range"):
        han_xue.World(same, quick(sound=False))
    finish(han_xue.World(dataclasses.replace(same, span=(0, 1)), quick(sound=False)))


class Gives:
    """A model whose predictions are what a function makes of the right labels' number."""

    def __init__(self, function, fails=None):
        self.function, self.fails = function, fails

    def fit(self, x, y):
        if self.fails:
            raise self.fails

    def predict(self, x):
        return self.function(np.arange(len(x)) % 3)


def ended(*models):
    world = han_xue.World(own.dataset(images(0.0, 1.0)), quick(sound=False, parties=len(models)), models)
    return finish(world)


def test_predictions_are_one_whole_number_for_each_example():
    usual = ended(*[Gives(lambda y: y)] * 3)
    assert usual.standalone == [1.0] * 3
    for other in (torch.tensor, lambda y: y.astype(np.float32), list, lambda y: y.astype(np.uint8)):
        state = ended(Gives(lambda y: y), Gives(other), Gives(lambda y: y))
        assert (state.standalone, state.accuracy) == (usual.standalone, usual.accuracy)
        assert torch.equal(state.labels, usual.labels)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda y: y[:, None], r"shape \(10, 1\) for 10 examples: it must give a label for each"),
        (lambda y: np.eye(3)[y], r"shape \(10, 3\) for 10 examples: .* scores.argmax\(1\)"),
        (lambda y: torch.eye(3)[y], r"shape \(10, 3\)"),
        (lambda y: y[1:], r"shape \(9,\)"),
        (lambda y: y + 0.5, "float64 that are not labels"),
        (lambda y: y * np.nan, "float64 that are not labels"),
        (lambda y: y.astype(str), "<U.* that are not labels"),
        (lambda y: y - 1, "labels from -1 to 1, and the classes are 0 to 2"),
        (lambda y: y + 2**32, "labels from 4294967296 to 4294967298, and the classes"),
        (lambda y: y + None, "predict failed: TypeError: unsupported"),
    ],
)
def test_other_predictions_are_refused_by_the_name_of_the_party(function, message):
    with pytest.raises((ValueError, RuntimeError), match=f"party 1: Gives: .*{message}"):
        ended(Gives(lambda y: y), Gives(function), Gives(lambda y: y))


@pytest.mark.parametrize("error", [ValueError("needs two"), KeyError("needs two")])
def test_a_model_that_cannot_be_trained_is_named(error):
    with pytest.raises((ValueError, RuntimeError), match=r"party 2: Gives: fit failed: .*needs two") as found:
        ended(*[Gives(lambda y: y)] * 2, Gives(lambda y: y, error))
    assert found.value.__cause__ is error


def test_a_party_of_one_class_is_refused_before_any_work(monkeypatch):
    x, y, *test = images(0.0, 1.0)
    zeros, ones = ((y == label).nonzero().flatten() for label in (0, 1))
    shards = [torch.cat([zeros[::2], ones[:5]]), ones[10:], torch.cat([zeros[1::2], ones[5:10]])]
    mine = own.dataset((x, y, *test))
    for kind in ("logistic", "svm"):
        config = quick(sound=False, models=("tree", kind, "forest"))
        with pytest.raises(ValueError, match=f"party 1 has examples of class 1 alone, and model '{kind}' needs two"):
            han_xue.World(mine, config, shards=shards)
        han_xue.World(mine, config)  # where all have all classes
    finish(han_xue.World(mine, quick(sound=False, models=("tree", "forest", "network")), shards=shards))
    with pytest.raises(ValueError, match=r"party 1: LogisticRegression: fit failed: .*2 classes"):
        finish(han_xue.World(mine, quick(sound=False), [LogisticRegression() for _ in range(3)], shards))
    alone = own.dataset((x, y * 0, *test))
    config = quick(sound=False, global_model="svm", baseline=True)
    with pytest.raises(ValueError, match="the baseline has examples of class 0 alone"):
        han_xue.World(alone, config)
    with pytest.raises(ValueError, match="all samples that were kept are of class 0, and global_model='svm' needs two"):
        finish(han_xue.World(alone, dataclasses.replace(config, baseline=False, vote_sigma=None)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda shard: torch.cat([shard, shard[:1]]),
            "example .* is dealt 2 times: the epsilons hold only where each example is dealt once",
        ),
        (lambda shard: torch.arange(60), "example .* is dealt 2 times"),
        (
            lambda shard: torch.cat([shard, torch.tensor([-1])]),
            "shard 1 has indices from -1 to .*, and the examples are",
        ),
        (
            lambda shard: torch.cat([shard, torch.tensor([60])]),
            "shard 1 has indices from .* to 60, and the examples are 0",
        ),
        (lambda shard: shard.bool(), r"shard 1 is torch.bool of shape \(20,\): give the indices"),
    ],
)
def test_shards_that_deal_an_example_twice_are_refused(spoil, message):
    """Its epsilon would be that of both parties together, and the report would say one party's."""
    mine = own.dataset(images(0.0, 1.0))
    shards = list(torch.arange(60).split(20))
    han_xue.World(mine, quick(sound=False), shards=shards)
    with pytest.raises(ValueError, match=message):
        han_xue.World(mine, quick(sound=False), shards=[shards[0], spoil(shards[1]), shards[2]])


def test_a_dataset_that_was_not_checked_is_checked_by_the_world():
    mine = own.dataset(images(0.0, 1.0))
    with pytest.raises(ValueError, match="training examples of 'your data' hold NaN"):
        han_xue.World(dataclasses.replace(mine, train_x=mine.train_x / 0), quick(sound=False))


def test_the_global_model_of_a_run_can_be_had():
    x, y, *test = images(0.0, 1.0)
    for kind in ("network", "tree"):
        world = han_xue.World(own.dataset((x, y, *test)), quick(sound=False, global_model=kind, epochs=3))
        with pytest.raises(ValueError, match="nothing is labelled yet"):
            han_xue.global_model(han_xue.State(), world)
        state = finish(world)
        model = han_xue.global_model(state, world)
        right = model.predict(world.dataset.test_x.flatten(1).numpy()) == world.dataset.test_y.numpy()
        assert right.mean() == state.accuracy


def test_a_generator_that_diverged_is_named_before_any_model_is_blamed():
    x, y, *test = images(0.0, 1.0)
    flat = own.dataset((x.flatten(1) * 1e30, y, test[0].flatten(1), test[1]))
    with pytest.raises(ValueError, match="party 1: samples of its generator 'vae' are not finite"):
        finish(han_xue.World(flat, quick(sound=False)))


def test_shards_may_be_lists():
    mine = own.dataset(images(0.0, 1.0))
    world = han_xue.World(mine, quick(sound=False), shards=[list(range(20)), range(20, 40), np.arange(40, 60)])
    assert all(torch.equal(a, b) for a, b in zip(world.shards, torch.arange(60).split(20), strict=True))
