# SPDX-License-Identifier: Apache-2.0
"""The reader of the Adult data, on a small file in its format."""

import random

import pytest
import torch

from ldpkernels.federated import adult

LINES = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40,"
    " United-States, <=50K",
    "54, ?, 180211, Some-college, 10, Married-civ-spouse, ?, Husband, Asian-Pac-Islander, Female, 0, 1902, 60, South,"
    " >50K",
)


def lay_files(root, rows=120):
    """root/adult with random people, in both files."""
    coins = random.Random(0)
    values = {name: [*text.split(), *(["?"] if name in ("workclass", "occupation", "native-country") else [])]
              for name, text in adult.CATEGORIES.items()}  # fmt: skip

    def person(end):
        row = {name: coins.choice(v) for name, v in values.items()}
        row |= {name: str(coins.randint(1, 90)) for name in adult.NUMBERS}
        row |= {
            "education": "HS-grad",
            "sex": coins.choice(list(adult.SEXES)),
            "income": coins.choice(("<=50K", ">50K")),
        }
        return ", ".join(row[name] for name in adult.COLUMNS) + end

    (root / "adult").mkdir()
    (root / "adult" / "adult.data").write_text("\n".join(person("") for _ in range(rows)) + "\n\n")
    test = "|1x3 Cross validator\n" + "\n".join(person(".") for _ in range(rows // 2)) + "\n"
    (root / "adult" / "adult.test").write_text(test)


def test_there_are_88_features():
    assert len(adult.FEATURES) == len(set(adult.FEATURES)) == 88


def test_a_line_becomes_its_features(tmp_path):
    path = tmp_path / "adult.data"
    path.write_text("\n".join(LINES))
    x, y = adult.read(path)
    assert y.tolist() == [0, 1]
    first = {name: v for name, v in zip(adult.FEATURES, x[0].tolist(), strict=True) if v}
    assert first == {
        "age": 39, "fnlwgt": 77516, "education-num": 13, "capital-gain": 2174, "hours-per-week": 40, "sex": 1,
        "workclass=State-gov": 1, "marital-status=Never-married": 1, "occupation=Adm-clerical": 1,
        "relationship=Not-in-family": 1, "race=White": 1, "native-country=United-States": 1,
    }  # fmt: skip
    second = {name: v for name, v in zip(adult.FEATURES, x[1].tolist(), strict=True) if v}
    assert not any(name.startswith(("workclass", "occupation", "sex")) for name in second)  # unknown, and Female
    assert second["native-country=South"] == 1


def test_a_dataset_is_divided_and_standardised(tmp_path):
    lay_files(tmp_path)
    dataset = adult.load(tmp_path)
    assert (dataset.train_x.shape, dataset.test_x.shape, dataset.classes) == ((144, 88), (36, 88), 2)
    deviation, mean = torch.std_mean(dataset.train_x, dim=0)
    assert float(mean.abs().max()) < 1e-5
    assert bool(((deviation - 1).abs() < 1e-4).logical_or(deviation == 0).all())
    again, other = adult.load(tmp_path), adult.load(tmp_path, seed=1)
    assert torch.equal(dataset.train_x, again.train_x)
    assert not torch.equal(dataset.train_y, other.train_y)


def test_what_is_wrong_is_named(tmp_path):
    path = tmp_path / "adult.data"
    with pytest.raises(FileNotFoundError, match=r"adult.data does not exist: put UCI's"):
        adult.read(path)
    for text, message in (
        ("", "holds no example"),
        (LINES[0] + "\n" + LINES[1].replace("South", "Atlantis"), r"adult.data:2 is not a line of the Adult data"),
        (LINES[0].replace("39", "old"), "could not convert string"),
        ("1, 2, 3", "is not a line of the Adult data"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            adult.read(path)
    lay_files(tmp_path)
    with pytest.raises(ValueError, match=r"test=1\.0 leaves 0 of 180"):
        adult.load(tmp_path, test=1.0)
