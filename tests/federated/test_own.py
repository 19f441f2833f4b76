# SPDX-License-Identifier: Apache-2.0
"""Networks, data and splits of the user's own: by the drivers, and by name on the command line."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from ldpkernels.__main__ import main
from ldpkernels.federated import data, dp_gan, han_xue, han_xue_privacy, own

pytestmark = pytest.mark.usefixtures("one_thread")
MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def tensors():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 3
    x = torch.randn(600, 5, generator=generator) + 3 * torch.nn.functional.one_hot(y, 5)
    return x[:500], y[:500], x[500:], y[500:]

def pairs():
    a, b, c, d = tensors()
    return TensorDataset(a, b), TensorDataset(c, d)

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.second(x + torch.tanh(self.first(x)))

def network():
    return Residual()

def tree():
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(max_depth=3, random_state=0)

def bayes():
    from sklearn.naive_bayes import GaussianNB

    return GaussianNB()

def images():
    a, b, c, d = tensors()
    return a.reshape(-1, 1, 1, 5), b, c.reshape(-1, 1, 1, 5), d

def fails(): return 1 + None
def takes(a): return nn.Linear(a, 3)
def number(): return 3
constant = 4
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_own_things.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_own_things"


@pytest.mark.parametrize("function", ["tensors", "pairs"])
def test_the_command_line_trains_what_a_function_names(mine, tmp_path, function, capsys):
    command = ["fl", "ldp-fl", "--data", f"{mine}:{function}", "--model", f"{mine}:network", "--clients", "40"]
    command += ["--rounds", "3", "--radius", ".3", "--upload", "updates", "--rate", ".2", "--quiet", "--json"]
    assert main([*command, "--uneven", "1", "--weigh", "examples", "--dropout", ".2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dataset"], found["network"], found["weights"]) == (f"{mine}:{function}", f"{mine}:network", 48)
    assert found["config"]["weigh"] == "examples"
    assert found["rounds"][-1]["accuracy"] > 0.8  # three classes; measured: 0.96
    assert {row["clients"] for row in found["rounds"]} < set(range(20, 41))


def test_the_other_algorithms_too(mine, tmp_path, capsys):
    fed = ["fl", "ldp-fed", "--data", f"{mine}:pairs", "--model", f"{mine}:network", "--clients", "10", "--rounds", "4"]
    assert main([*fed, "--cycles", "1", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["network"] == f"{mine}:network"
    parties = ["fl", "han-xue", "--data", f"{mine}:tensors", "--steps", "20", "--batch", "16", "--parties", "3"]
    assert main([*parties, "--models", "tree", "logistic", "--workers", "1", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["global"] > 0.2
    assert main([*parties, "--models", f"{mine}:tree", f"{mine}:bayes", "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    shards = data.deal(own.named(f"{mine}:tensors").train_y, 3, 0)
    first = own.named(f"{mine}:tensors")
    third = own.function_of(f"{mine}:tree")().fit(first.train_x[shards[2]], first.train_y[shards[2]])
    assert found["standalone"][2] == third.score(first.test_x, first.test_y)  # in turn: a tree, the other, a tree
    assert found["models"] == [f"{mine}:tree", f"{mine}:bayes"]
    unequal = ["--models", f"{mine}:tree", "--uneven", "3", "--skew", "2", "--out", str(tmp_path / "run")]
    assert main([*parties, *unequal, "--quiet"]) == 0
    shards = data.deal(first.train_y, 3, 0, skew=2.0, uneven=3.0)
    sizes = sorted(map(len, shards))
    assert f"3 parties with {sizes[0]} to {sizes[-1]} examples each" in capsys.readouterr().out
    third = own.function_of(f"{mine}:tree")().fit(first.train_x[shards[2]], first.train_y[shards[2]])
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    (alone,) = (row for row in rows if "party 2: DecisionTreeClassifier" in row)
    assert str(third.score(first.test_x, first.test_y)) in alone


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["my_own_things:tree", "logistic"], "for all of them, or kinds for all"),
        (["my_own_things:number"], "gave a int: a model has fit"),
        (["my_own_things:takes"], "must build a model without arguments"),
    ],
)
def test_what_is_no_model_is_refused_by_name(mine, models, message):
    with pytest.raises(SystemExit, match=message):
        main(["fl", "han-xue", "--data", f"{mine}:tensors", "--batch", "8", "--quiet", "--models", *models])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "my_own_things:tensors"], "give --model MODULE:FUNCTION, or --network"),
        (["--data", "my_own_things:nothing", "--model", "my_own_things:network"], "has no 'nothing'"),
        (["--data", "no_such_module:f", "--model", "my_own_things:network"], "is its folder on PYTHONPATH"),
        (["--data", "my_own_things:number", "--model", "my_own_things:network"], "four tensors .* not a int"),
        (["--data", "my_own_things:tensors", "--model", "my_own_things:takes"], "without arguments"),
        (["--data", "my_own_things:tensors", "--model", "my_own_things:number"], "must give a torch.nn.Module"),
        (["--data", "my_own_things:tensors", "--model", "my_own_things:constant"], "is a int: name a function"),
        (["--model", "my_own_things:network", "--network", "digits-mlp"], "give one of them"),
        (["--model", "my_own_things:network"], "does not take examples of shape"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(mine, options, message):
    with pytest.raises(SystemExit, match=message):
        main(["fl", "ldp-fl", "--clients", "10", "--rounds", "1", "--radius", "1", "--quiet", *options])


class Pairs(Dataset):
    """A dataset of no tensors of its own."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return np.full((2, 2), i, np.float32), i % 2


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(2), 0


def test_torch_datasets_are_read_whole():
    found = own.dataset((Pairs(), Pairs()))
    assert found.train_x[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert (found.train_y.tolist(), found.classes) == ([0, 1, 0, 1], 2)
    again = own.dataset(found)
    assert (again.train_x is found.train_x, again.classes, again.span) == (True, 2, None)
    assert own.dataset(found, span=(0, 3)).span == (0.0, 3.0)
    assert own.dataset(data.load("digits")).span == (0.0, 1.0)


class Labels(Dataset):
    """A dataset with these labels."""

    def __init__(self, *labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.zeros(2), self.labels[i]


X, Y = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
READY = data.Dataset("ready", X, Y, X, Y, 3)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ((X, Y), "not 2 of Tensor"),
        ((X, Y[:3], X, Y), r"training examples .* shape \(4, 3\), labels \(3,\)"),
        ((X.int(), Y, X, Y), "training examples .* are torch.int32, .* floating-point numbers: convert"),
        ((X, Y, X.byte(), Y), r"test examples .* are torch.uint8, .* x\.float\(\) / 255"),
        ((X / 0, Y, X, Y), "training examples .* hold NaN or infinity"),
        ((X.double() + 1e300, Y, X, Y), r"training examples .* up to 1e\+300, and fp32 ends at 3.4e\+38"),
        ((X[:, 0], Y, X[:, 0], Y), r"training examples .* shape \(4,\): give \[N, features\]"),
        ((X[:, :0], Y, X[:, :0], Y), r"training examples .* shape \(4, 0\): give \[N, features\]"),
        ((X[0, 0], Y, X, Y), r"training examples .* shape \(\), labels \(4,\)"),
        ((X[:0], Y[:0], X, Y), "training examples .* is empty"),
        ((X, Y, X, Y.float()), "test labels .* are torch.float32, .* whole numbers"),
        ((X, Y - 1, X, Y), "training labels .* go down to -1, .* from 0"),
        ((X, Y, X[:, :2], Y), "shapes"),
        ((Labels(0.7, 1.2, -0.4), Labels(0)), "label 0 of the training part .* is 0.7: .* whole numbers"),
        ((Labels(0, 1), Labels(1, torch.tensor(0.5))), r"label 1 of the test part .* is 0.5"),
        ((Labels(0, 1), Labels(float("nan"))), "test part .* does not give pairs .*NaN"),
        ((Labels(0, 1), Labels()), "test part of 'your data' is empty: give one"),
        (dataclasses.replace(READY, train_x=X / 0), "training examples of 'ready' hold NaN"),
        (dataclasses.replace(READY, test_y=Y - 1), "test labels of 'ready' go down to -1"),
        (dataclasses.replace(READY, classes=2), "labels of 'ready' go up to 2, and it has classes=2"),
        (dataclasses.replace(READY, train_x=[[0.0]] * 4), "'ready' must be tensors"),
        ((TensorDataset(X), TensorDataset(X)), "does not give pairs"),
        ((Endless(), Endless()), "has no length"),
        (None, "not a NoneType"),
    ],
)
def test_other_data_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        own.dataset(made)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "broken_module:f",
            "importing 'broken_module' fails: AttributeError: module 'torch' has no attribute 'no_such'",
        ),
        ("my_own_things:fails", "^unsupported operand"),  # its own error, not that it takes arguments
        ("my-package:f", "'my-package:f' is not the name of a function, package.module:function"),
        ("some/where:f", "'some/where:f' is not the name of a function, package.module:function"),
    ],
)
def test_what_a_name_stands_for_tells_what_is_wrong(mine, tmp_path, text, message):
    (tmp_path / "broken_module.py").write_text("import torch\ntorch.no_such\n")
    with pytest.raises((ValueError, TypeError), match=message) as found:
        own.named(text)
    if "broken" in text:
        assert isinstance(found.value.__cause__, AttributeError)
    with pytest.raises((SystemExit, TypeError), match=message.replace("^", "")):
        main(["fl", "han-xue", "--data", text, "--quiet"])


def test_a_folder_may_have_a_colon_in_its_name(tmp_path, monkeypatch):
    (tmp_path / "data:old").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not own.is_name("data:old")
    assert own.is_name("data:new")


def test_unequal_splits_deal_every_example_once():
    labels = torch.arange(1000) % 10
    for uneven, skew in ((0.5, None), (0.5, 0.3), (100.0, None)):
        parts = data.deal(labels, 20, 3, uneven=uneven, skew=skew)
        assert sorted(torch.cat(parts).tolist()) == list(range(1000))
        sizes = [len(part) for part in parts]
        assert min(sizes) >= 1
        assert (max(sizes) > 100) == (uneven == 0.5)
    with pytest.raises(ValueError, match="uneven=0 must be above 0"):
        data.deal(labels, 20, 3, uneven=0)


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
    with pytest.raises(ValueError, match=r"all numbers of the examples of 'your data' are 0.5, .* give a range"):
        han_xue.World(same, quick(sound=False))
    finish(han_xue.World(dataclasses.replace(same, span=(0, 1)), quick(sound=False)))


def test_the_command_line_takes_the_span(mine, tmp_path, capsys):
    command = ["fl", "han-xue", "--data", f"{mine}:images", "--steps", "4", "--batch", "16", "--parties", "3"]
    command += ["--generators", "vae", "--models", "tree", "--global-model", "network", "--workers", "1", "--quiet"]
    with pytest.raises(SystemExit, match=r"no span: .* or --span 0 1"):
        main([*command, "--sound"])
    assert main([*command, "--sound", "--span", "-9", "9", "--json", "--out", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["span"] == [-9, 9]
    assert "It is -9 to 9" in (tmp_path / "run" / "privacy.txt").read_text()
    with pytest.raises(SystemExit, match="belongs to another run"):
        main([*command, "--sound", "--span", "-9", "8", "--resume", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit, match="--span 1 0 must be two numbers, the lower first"):
        main([*command, "--span", "1", "0"])
    with pytest.raises(SystemExit, match=r"--span is for data of your own .*, not dataset 'digits'"):
        main(["fl", "han-xue", "--span", "0", "1"])


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
        (lambda y: y + 0.5, "float64 that are no labels"),
        (lambda y: y * np.nan, "float64 that are no labels"),
        (lambda y: y.astype(str), "<U.* that are no labels"),
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
            "example .* is dealt 2 times: epsilons hold for one that is so once",
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
