# SPDX-License-Identifier: Apache-2.0
"""The Adult census data, from adult.data and adult.test as UCI publishes them, in 88 standardised features.

Han and Xue feed "88 numerical features" and do not say which. This encoding has 88 and leaves none of the 14 attributes
out: six numbers (education is its own number, education-num: the two name the same 16 levels), sex as one number, and a
column for each value that adult.names lists of the seven other attributes, 81 of them. An unknown value ("?") is zero
in all columns of its attribute. Then each feature has the training part's mean taken off and is divided by its
deviation.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ldpkernels.federated.data import Dataset

NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
# Those that become a column for each value, as adult.names lists them.
CATEGORIES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent"
    " Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners"
    " Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan"
    " Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France"
    " Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia"
    " El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
}
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
SEXES = {"Female": 0.0, "Male": 1.0}
INCOMES = {"<=50K": 0, ">50K": 1}
FEATURES = (
    *NUMBERS,
    "sex",
    *(f"{name}={value}" for name, values in CATEGORIES.items() for value in values.split()),
)


def load(root: str | Path, *, seed: int = 0, test: float = 0.2) -> Dataset:
    """Read `root`/adult: all 48,842 examples, a fifth of them for the test, as fp32 [N, 88].

    Han and Xue's parties hold 7,814 examples each, a fifth of four fifths of all. So the authors must have divided both
    files together, unknown values included. `seed` decides the division.
    """
    folder = Path(root) / "adult"
    parts = [read(folder / name) for name in ("adult.data", "adult.test")]
    x, y = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    cut = round(len(y) * (1 - test))
    if not 0 < cut < len(y):
        raise ValueError(f"test={test} leaves {cut} of {len(y)} examples to train on: give a share between 0 and 1")
    x, y = x[order], y[order]
    deviation, mean = torch.std_mean(x[:cut], dim=0)
    x = ((x - mean) / torch.where(deviation > 0, deviation, 1.0)).float()  # a value that never occurs stays at zero
    return Dataset("adult", x[:cut], y[:cut], x[cut:], y[cut:], len(INCOMES))


def read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Read the examples of one file as they are: features as fp64 [N, 88], and labels as int64 [N]."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: put UCI's adult.data and adult.test in that folder")
    rows, labels = [], []
    for number, line in enumerate(path.read_text("ascii", errors="replace").splitlines(), 1):
        if line.strip() and not line.startswith("|"):  # adult.test begins with a remark
            features, label = _row(line, f"{path}:{number}")
            rows.append(features)
            labels.append(label)
    if not rows:
        raise ValueError(f"{path} holds no example: fetch it again")
    return torch.tensor(rows, dtype=torch.float64), torch.tensor(labels)


_PLACE = {name: i for i, name in enumerate(FEATURES)}


def _row(line: str, where: str) -> tuple[list[float], int]:
    values = dict(zip(COLUMNS, (value.strip() for value in line.split(",")), strict=False))
    features = [0.0] * len(FEATURES)
    try:
        for name in NUMBERS:
            features[_PLACE[name]] = float(values[name])
            if not 0 <= features[_PLACE[name]] < 1e7:
                raise ValueError(f"{name} is {values[name]}")
        features[_PLACE["sex"]] = SEXES[values["sex"]]
        for name in CATEGORIES:
            if values[name] != "?":
                features[_PLACE[f"{name}={values[name]}"]] = 1.0
        return features, INCOMES[values["income"].rstrip(".")]
    except (KeyError, ValueError) as wrong:
        raise ValueError(f"{where} is not a line of the Adult data ({wrong}): {line[:60]!r}") from None
