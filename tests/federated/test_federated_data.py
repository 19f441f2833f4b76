# SPDX-License-Identifier: Apache-2.0
"""The readers, the Adult data's too, against tiny files in the real formats, and how examples are dealt."""

import gzip
import os
import pickle
import pickletools
import random
import struct

import numpy as np
import pytest
import torch

from ldpkernels.federated import adult, data


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def images(rng, n, *shape):
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8)


def python_2_pickle(batch):
    """As the originals were written: bytes are Python 2's strings, and NumPy's module has its old name."""
    new = bytearray(pickle.dumps(batch, protocol=3))
    strings = {"SHORT_BINBYTES": b"U", "BINBYTES": b"T"}
    for opcode, _, position in pickletools.genops(bytes(new)):
        if opcode.name in strings:
            new[position : position + 1] = strings[opcode.name]
    return bytes(new).replace(b"\x80\x03", b"\x80\x02", 1).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.fixture
def root(tmp_path):
    """What torchvision leaves on disk, five training images and three test images of each dataset."""
    rng = np.random.default_rng(0)
    for folder in ("MNIST", "FashionMNIST"):
        raw = tmp_path / folder / "raw"
        raw.mkdir(parents=True)
        for split, n in (("train", 5), ("t10k", 3)):
            (raw / f"{split}-images-idx3-ubyte").write_bytes(idx(images(rng, n, 28, 28)))
            (raw / f"{split}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(n, dtype=np.uint8))))
    batches = tmp_path / "cifar-10-batches-py"
    batches.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        batch = {
            b"data": images(rng, 2, 3072),
            b"labels": [3, 9],
            b"batch_label": b"a batch",
            b"filenames": [b"a", b"b"],
        }
        (batches / name).write_bytes(python_2_pickle(batch))
    return tmp_path


@pytest.mark.parametrize(("name", "mean", "deviation"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_idx_files(root, name, mean, deviation):
    read = data.load(name, root)
    assert read.train_x.shape == (5, 1, 28, 28)
    assert read.test_x.shape == (3, 1, 28, 28)
    assert read.train_y.tolist() == [0, 1, 2, 3, 4]
    folder = root / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name] / "raw"
    raw = np.frombuffer((folder / "train-images-idx3-ubyte").read_bytes(), np.uint8, offset=16).reshape(5, 1, 28, 28)
    torch.testing.assert_close(read.train_x, torch.tensor((raw / 255 - mean) / deviation, dtype=torch.float32))


def test_cifar_pickles_and_binaries_are_the_same(root):
    pickled = data.load("cifar10", root)
    assert pickled.train_x.shape == (10, 3, 32, 32)
    assert pickled.test_y.tolist() == [3, 9]
    folder, binary = root / "cifar-10-batches-py", root / "cifar-10-batches-bin"
    binary.mkdir()
    for file in folder.iterdir():
        batch = pickle.loads(file.read_bytes(), encoding="bytes")
        labels = np.array(batch[b"labels"], np.uint8)[:, None]
        (binary / f"{file.name}.bin").write_bytes(np.hstack([labels, batch[b"data"]]).tobytes())
        file.unlink()
    unpacked = data.load("cifar10", root)
    assert torch.equal(unpacked.train_x, pickled.train_x)
    assert torch.equal(unpacked.train_y, pickled.train_y)


def test_a_pickle_that_would_run_code_is_refused(root):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(root / "ran"),)

    (root / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}, 3))
    with pytest.raises(pickle.UnpicklingError, match=r"holds arrays, not \w+\.mkdir"):
        data.load("cifar10", root)
    assert not (root / "ran").exists()


def test_damaged_and_missing_files_are_named(root):
    labels = root / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(np.arange(5, dtype=np.uint8))[:-1]))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte .* is cut off: fetch it again"):
        data.load("mnist", root)
    labels.unlink()
    with pytest.raises(FileNotFoundError, match=r"train-labels-idx1-ubyte nor train-labels-idx1-ubyte\.gz exists"):
        data.load("mnist", root)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        data.load("mnist", root / "nowhere")
    with pytest.raises(ValueError, match=r"give the folder that holds it \(--data DIR\)"):
        data.load("mnist")
    with pytest.raises(ValueError, match="dataset='imagenet' must be one of digits, mnist"):
        data.load("imagenet", root)


def test_the_span_is_that_of_all_pixels_there_may_be(root):
    """To the bit: what a file with a black and a white pixel has, and this one need not have."""
    for name, folder in (("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")):
        path = root / folder / "raw" / "train-images-idx3-ubyte"
        path.write_bytes(idx(np.full((5, 28, 28), 7, np.uint8)))
        grey = data.load(name, root)
        path.write_bytes(idx(np.tile(np.array([[0], [255]], np.uint8), (5, 14, 28))))
        whole = data.load(name, root).train_x
        assert grey.span == (float(whole.min()), float(whole.max()))
        assert grey.span[0] < float(grey.train_x.min())
    assert data.load("mnist", root).span == (-0.4242129623889923, 2.821486711502075)  # of the papers' runs
    assert data.load("fashion-mnist", root).span == (-0.8101983666419983, 2.022662878036499)
    assert data.load("cifar10", root).span == (-1.9894737005233765, 2.12648868560791)
    assert data.load("digits").span == (0.0, 1.0)


@pytest.mark.parametrize("span", [(1, 0), (0.5, 0.5), (0, float("nan")), (0, float("inf")), (0, 1e-40), (0, 1, 2), 3])
def test_a_span_is_two_numbers_the_lower_first(span):
    x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"span=.* must be two numbers"):
        data.Dataset("x", x, y, x, y, 2, span)
    assert data.Dataset("x", x, y, x, y, 2, [0, np.float32(2)]).span == (0.0, 2.0)


def test_dealing_is_a_partition_of_equal_parts():
    labels = torch.arange(103) % 10
    parts = data.deal(labels, 10, seed=1)
    assert [len(p) for p in parts] == [10] * 10
    assert len(set(torch.cat(parts).tolist())) == 100
    assert all(torch.equal(a, b) for a, b in zip(parts, data.deal(labels, 10, seed=1), strict=True))
    assert not torch.equal(parts[0], data.deal(labels, 10, seed=2)[0])
    for clients in (0, 104):
        with pytest.raises(ValueError, match=f"clients={clients} must be from 1 to 103"):
            data.deal(labels, clients, seed=0)


def test_a_skewed_deal_gives_clients_few_classes():
    labels = torch.arange(2000) % 10

    def classes(skew):
        parts = data.deal(labels, 20, seed=3, skew=skew)
        assert len(set(torch.cat(parts).tolist())) == 2000
        tops = [float(labels[p].bincount().max()) / len(p) for p in parts]
        return sum(tops) / len(tops)

    assert classes(0.05) > 0.6
    assert classes(1000.0) < 0.25
    with pytest.raises(ValueError, match="skew=0 must be above 0"):
        data.deal(labels, 20, seed=3, skew=0)


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
