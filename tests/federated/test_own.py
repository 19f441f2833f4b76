# SPDX-License-Identifier: Apache-2.0
"""Networks, data and splits of the user's own: by the drivers, and by name on the command line."""

import json

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from ldpkernels.__main__ import main
from ldpkernels.federated import data, dp_gan, han_xue, own

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
    assert own.dataset(found) is found


X, Y = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ((X, Y), "not 2 of Tensor"),
        ((X, Y[:3], X, Y), r"training examples .* shape \(4, 3\), labels \(3,\)"),
        ((X.int(), Y, X, Y), "training examples .* floating-point"),
        ((X / 0, Y, X, Y), "training examples .* finite"),
        ((X, Y, X, Y.float()), "test labels .* whole numbers"),
        ((X, Y - 1, X, Y), "training labels .* from 0"),
        ((X, Y, X[:, :2], Y), "shapes"),
        ((TensorDataset(X), TensorDataset(X)), "does not give pairs"),
        ((Endless(), Endless()), "has no length"),
        (None, "not a NoneType"),
    ],
)
def test_other_data_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        own.dataset(made)


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
