# SPDX-License-Identifier: Apache-2.0
"""Networks, data and splits of the user's own: by the drivers, and by name on the command line."""

import csv
import dataclasses
import json

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from ldpkernels.__main__ import main
from ldpkernels.common.arguments import is_name
from ldpkernels.federated import data, own

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

def tokens():
    x = torch.randint(0, 9, (600, 4), generator=torch.Generator().manual_seed(0))
    y = x[:, 0] % 3
    return x[:500], y[:500], x[500:], y[500:]

def embedding():
    return nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(32, 3))

def drawn():
    return torch.randn(60, 5), torch.arange(60) % 3, torch.randn(9, 5), torch.arange(9) % 3

def arrays():
    return tuple(part.numpy() for part in tensors())

scale = 1.0
def frozen():
    made = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.init.constant_(made[0].weight, scale)
    made[0].requires_grad_(False)
    return made

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
    command += ["--workers", "1"]
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
    parties += ["--workers", "1"]
    assert main([*parties, "--models", "tree", "logistic", "--quiet", "--json"]) == 0
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
    each = [
        own.function_of(f"{mine}:tree")().fit(first.train_x[i], first.train_y[i]).score(first.test_x, first.test_y)
        for i in shards
    ]
    with (tmp_path / "run" / "metrics.csv").open() as file:
        (alone,) = (row["accuracy"] for row in csv.DictReader(file) if row["part"] == "3 local models, on average")
    assert float(alone) == sum(each) / 3


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["my_own_things:tree", "logistic"], "for all, or kinds for all"),
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
        ((X.int(), Y, X, Y), "training examples .* are torch.int32, .* floating-point numbers, .*: convert"),
        ((X.long(), Y, X, Y), "training examples are torch.int64, test examples torch.float32: give both alike"),
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
        ("my_own_things:fails", "'my_own_things:fails' fails: TypeError: unsupported operand"),
        ("my-package:f", "'my-package:f' is not the name of a function, package.module:function"),
        ("some/where:f", "'some/where:f' is not the name of a function, package.module:function"),
    ],
)
def test_what_a_name_stands_for_tells_what_is_wrong(mine, tmp_path, text, message):
    (tmp_path / "broken_module.py").write_text("import torch\ntorch.no_such\n")
    with pytest.raises(ValueError, match=message) as found:
        own.named(text)
    if "broken" in text:
        assert isinstance(found.value.__cause__, AttributeError)
    with pytest.raises(SystemExit, match=message):
        main(["fl", "han-xue", "--data", text, "--quiet"])


def test_a_folder_may_have_a_colon_in_its_name(tmp_path, monkeypatch):
    (tmp_path / "data:old").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not is_name("data:old")
    assert is_name("data:new")


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


def test_data_that_a_function_draws_is_the_same_at_every_call(mine):
    state = torch.random.get_rng_state()
    first, again = own.named("my_own_things:drawn"), own.named("my_own_things:drawn")
    assert torch.equal(first.train_x, again.train_x)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_arrays_are_tensors(mine):
    first, again = own.named("my_own_things:tensors"), own.named("my_own_things:arrays")
    assert own.fingerprint(first) == own.fingerprint(again)
    with pytest.raises(ValueError, match="must be four tensors"):
        own.dataset((np.array(["a"]),) * 4)
    with pytest.raises(ValueError, match="are sparse: give dense"):
        own.dataset((first.train_x.to_sparse(), first.train_y, first.test_x, first.test_y))


def test_a_fingerprint_tells_examples_and_networks_apart():
    made = data.Dataset("x", X, Y, X, Y, 3)
    network = torch.nn.Linear(2, 3)
    found = [own.fingerprint(made), own.fingerprint(dataclasses.replace(made, test_y=Y.flip(0)))]
    found += [own.fingerprint(made, network)]
    with torch.no_grad():
        network.bias[0] += 1
    found += [own.fingerprint(made, network)]
    assert len(set(found)) == 4
    assert own.fingerprint(made, network) == found[-1]


@pytest.mark.parametrize("algorithm", ["ldp-fl", "ldp-fed"])
def test_a_run_does_not_go_on_with_other_frozen_weights_or_data(mine, algorithm, tmp_path, monkeypatch, capsys):
    import my_own_things

    command = ["fl", algorithm, "--data", "my_own_things:tensors", "--model", "my_own_things:frozen", "--clients", "10"]
    command += ["--quiet", "--out", str(tmp_path / "run"), "--rounds"]
    assert main([*command, "4", *(["--cycles", "1"] if algorithm == "ldp-fed" else ["--radius", "1"])]) == 0
    more = [*command, "4", "--resume", *(["--cycles", "1"] if algorithm == "ldp-fed" else ["--radius", "1"])]
    assert main(more) == 0
    weights = torch.load(tmp_path / "run" / "checkpoint.pt")["state"]["weights"]
    assert sorted(weights) == ["2.bias", "2.weight"]  # which load_state_dict(..., strict=False) takes
    monkeypatch.setattr(my_own_things, "scale", 2.0)
    with pytest.raises(SystemExit, match=r"belongs to another run \(fingerprint: '.*' then, '.*' now\)"):
        main(more)


def test_a_folder_is_not_passed_over_for_the_digits(tmp_path):
    for algorithm in ("ldp-fl", "ldp-fed", "han-xue"):
        with pytest.raises(SystemExit, match="dataset 'digits' comes with scikit-learn, not from"):
            main(["fl", algorithm, "--data", str(tmp_path), "--quiet"])


@pytest.mark.parametrize("algorithm", ["ldp-fl", "ldp-fed"])
def test_tokens_train_what_embeds_them(mine, algorithm, capsys):
    command = ["fl", algorithm, "--data", "my_own_things:tokens", "--clients", "10", "--rate", ".3", "--epochs", "5"]
    command += ["--quiet", "--rounds", "8"]
    command += ["--radius", ".5", "--upload", "updates"] if algorithm == "ldp-fl" else ["--cycles", "2"]
    assert main([*command, "--model", "my_own_things:embedding", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"][-1]["accuracy"] > 0.9  # of three classes; measured: 1 and 1
    with pytest.raises(SystemExit, match="the network does not take examples of shape"):
        main([*command, "--model", "my_own_things:network"])
    with pytest.raises(SystemExit, match=r"are torch.int64: generators make floating-point ones"):
        main(["fl", "han-xue", "--data", "my_own_things:tokens", "--quiet"])
