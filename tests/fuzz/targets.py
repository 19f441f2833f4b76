# SPDX-License-Identifier: Apache-2.0
"""Seeds and harnesses: a few lines for each reader."""

import contextlib
import dataclasses
import gzip
import importlib.util
import io
import json
import math
import pickle
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import ldpkernels
from ldpkernels import Aggregate, Report, secure_sums
from ldpkernels.accounting import Ledger, LedgerError, PureEvent, RandomizedResponseEvent
from ldpkernels.accounting.ledger import recorded
from ldpkernels.accounting.ledger_file import Header, LedgerFile, chained
from ldpkernels.federated import adult, cldp_upload, data, runs
from ldpkernels.releases import answers
from ldpkernels.secure_sums import messages
from ldpkernels.secure_sums.messages import Peers
from tests.fuzz import releases
from tests.uploads import signed

PREFIX = struct.Struct("<4sBxxxI")  # of an envelope


@dataclasses.dataclass(frozen=True)
class Target:
    """`read` gets bytes and a scratch folder; it may raise `refusals`, and nothing else."""

    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]
    refusals: tuple[type[Exception], ...] = (ValueError,)

    def run(self, given: bytes, folder: Path) -> bool:
        """Whether the reader took it."""
        try:
            self.read(given, folder)
        except self.refusals as error:
            if type(error) not in self.refusals or not str(error).strip():  # such as a UnicodeDecodeError
                raise TypeError("this is not how the reader refuses") from error
            return False
        return True


def _reports() -> list[Report]:
    weights = {"w": np.linspace(-1, 1, 11, dtype=np.float32).reshape(1, 11), "b": np.zeros(2), "none": np.zeros((0, 3))}
    key = ldpkernels.key(3)
    models = [(weights, "two-point"), (weights, "piecewise"), (weights, "hybrid"), (np.zeros(9), "two-point")]
    return [ldpkernels.report(m, 0.5, 1.0, 1.0, mechanism=name, generator=key) for m, name in models]


def _aggregates() -> list[bytes]:
    found = []
    for one in _reports():
        total: Aggregate = Aggregate()
        total.add(one, one, one)
        found.append(total.to_bytes())
    return found


def _opened(whole: bytes) -> bytes:
    """Header and weights of an envelope, parted by a zero byte."""
    length = PREFIX.unpack_from(whole)[2]
    text, rest = whole[PREFIX.size : PREFIX.size + length], whole[PREFIX.size + length : -4]
    return text + b"\0" + rest


def _enveloped(given: bytes) -> bytes:
    """The same with a prefix and a digest that fit."""
    text, _, rest = given.partition(b"\0")
    return signed(text, rest)


def _read_report(given: bytes, _: Path) -> None:
    one = Report.from_bytes(given)
    assert Report.from_bytes(one.to_bytes()).layout == one.layout
    total: Aggregate = Aggregate()
    total.add(one, given)
    if one.layout.library == "numpy":
        total.mean()


def _read_aggregate(given: bytes, _: Path) -> None:
    total = Aggregate.from_bytes(given)
    assert total.clients > 0
    assert Aggregate.from_bytes(total.to_bytes()).clients == total.clients
    total.mean()


BUDGET = {"epsilon": 8.0, "delta": 1e-5}


def _ledgers(method: str) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger"
        with Ledger(path, **BUDGET, method=method) as ledger:
            ledger.spend(RandomizedResponseEvent(0.01), times=20)
            ledger.spend(PureEvent(0.25))
            ledger.spend(RandomizedResponseEvent(0.01), times=20)
        return [path.read_bytes()]


def _rows(whole: bytes) -> bytes:
    """A ledger's rounds, a line each: event, times and epsilon as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ledger").write_bytes(whole)
        _, rounds = recorded(Path(folder) / "ledger")
    lines = (json.dumps([one.event.to_dict(), one.times, one.epsilon]) for one in rounds)
    return "\n".join(lines).encode()


def _read_ledger(method: str, begin: Callable[[bytes, Path], object] = lambda given, path: path.write_bytes(given)):
    def read(given: bytes, folder: Path) -> None:
        path = folder / "ledger"
        for leftover in folder.glob("ledger*"):
            leftover.unlink()
        begin(given, path)
        with Ledger(path, **BUDGET, method=method) as ledger:
            spent = ledger.epsilon
            assert 0 <= spent < math.inf
        with Ledger(path, **BUDGET, method=method) as ledger:
            assert ledger.epsilon == spent, "what was spent changes as the file is opened again"

    return read


def _begun(given: bytes, path: Path) -> None:
    """A ledger of these lines, each with the digest that fits."""
    header = Header(**BUDGET, method="exact")
    file, digest = LedgerFile(path, begin=True), header.digest
    with file.transaction() as db:
        file.begin(db, header)
        for number, line in enumerate(given.decode(errors="replace").splitlines(), start=1):
            event, _, rest = line.removeprefix("[").partition("}, ")
            values = [*rest.removesuffix("]").split(", "), "", ""]
            try:
                event, times, epsilon = json.loads(event + "}"), int(values[0]), float(values[1])
                digest = chained(digest, number, event, times, epsilon, "")
            except (ValueError, RecursionError):
                times, epsilon = values[0], values[1]
            row = (number, json.dumps(event), times, epsilon, "", digest)
            with contextlib.suppress(OverflowError):  # no integer of SQLite's
                db.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?)", row)


@dataclasses.dataclass(frozen=True)
class State:
    round: int
    weights: dict[str, torch.Tensor]


START = State(0, {"w": torch.zeros(3)})
DESCRIBED = {"eps": 1.0}


class Resumed(Exception):
    """A step was asked for: the checkpoint was taken."""


def _checkpoint() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        step = lambda state: (dataclasses.replace(state, round=state.round + 1), {"accuracy": 0.5})  # noqa: E731
        runs.run(step, START, 2, folder=folder, described=DESCRIBED, progress=False)
        return (Path(folder) / "checkpoint.pt").read_bytes()


def _pickled(whole: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))


def _archived(given: bytes) -> bytes:
    """A checkpoint's archive with another pickle in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(CHECKPOINT)) as archive, zipfile.ZipFile(out, "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, given if name.endswith("/data.pkl") else archive.read(name))
    return out.getvalue()


def _read_checkpoint(given: bytes, folder: Path) -> None:
    def step(state: State) -> tuple[State, runs.Row]:
        assert isinstance(state.round, int)
        assert isinstance(state.weights, dict)
        raise Resumed

    (folder / "checkpoint.pt").write_bytes(given)
    with contextlib.suppress(Resumed):
        runs.run(step, START, 3, folder=folder, resume=True, described=DESCRIBED, progress=False)


CHECKPOINT = _checkpoint()
PICKLE = _pickled(CHECKPOINT)


def idx(array: np.ndarray) -> bytes:
    """A file as MNIST's."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


IMAGES = idx(np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28))
LABELS = idx(np.array([3, 9], np.uint8))


def _read_idx(given: bytes, folder: Path) -> None:
    """Images or labels of MNIST, whichever the third byte of the length suggests; the other files are as they were."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for split in ("train", "t10k"):
        (raw / f"{split}-images-idx3-ubyte").write_bytes(IMAGES)
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(LABELS)
    kind = "images-idx3" if len(given) > 64 else "labels-idx1"
    zipped = given[:2] == b"\x1f\x8b"
    (raw / f"train-{kind}-ubyte{'.gz' if zipped else ''}").write_bytes(given)
    if zipped:
        (raw / f"train-{kind}-ubyte").unlink(missing_ok=True)
    else:
        (raw / f"train-{kind}-ubyte.gz").unlink(missing_ok=True)
    _hold_together(data.load("mnist", folder))


def _hold_together(found: data.Dataset) -> None:
    assert len(found.train_x) == len(found.train_y), "pictures without labels"
    assert found.train_y.ndim == 1
    assert found.train_x.ndim == 4 or found.name == "adult"
    assert 0 <= int(found.train_y.min()) <= int(found.train_y.max()) < found.classes, "labels without a class"


def cifar_batches() -> list[bytes]:
    """A pickled batch, and a binary one."""
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [3, 9], b"batch_label": b"", b"filenames": [b"a", b"b"]}
    return [pickle.dumps(batch, protocol=3), bytes(2 * 3073)]


def _read_cifar(given: bytes, folder: Path) -> None:
    """A pickled batch, or a binary one where the bytes are too few zeros to be a pickle."""
    pickled, binary = (folder / name for name in ("cifar-10-batches-py", "cifar-10-batches-bin"))
    for place in (pickled, binary):
        place.mkdir(exist_ok=True)
    good = cifar_batches()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (pickled / name).write_bytes(good[0])
    first, second = pickled / "data_batch_1", binary / "data_batch_1.bin"
    if given[:1] == b"\x80":
        first.write_bytes(given)
    else:
        first.unlink()
        second.write_bytes(given)
    _hold_together(data.load("cifar10", folder))


ROWS = b"""\
39, Private, 77516, Bachelors, 13, Divorced, Sales, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
52, ?, 209642, HS-grad, 9, Married-civ-spouse, ?, Husband, White, Female, 0, 0, 45, ?, >50K
"""


def _read_adult(given: bytes, folder: Path) -> None:
    (folder / "adult").mkdir(exist_ok=True)
    (folder / "adult" / "adult.data").write_bytes(given)
    (folder / "adult" / "adult.test").write_bytes(b"|1x3 Cross validator\n" + ROWS * 5)
    found = adult.load(folder)
    _hold_together(found)
    assert bool(torch.isfinite(found.train_x).all()), "features that are no numbers"


SUM = secure_sums.Terms(round=b"1", length=4, bits=16, threshold=2, invited=3)


def _sum_states() -> dict[str, list[bytes]]:
    """What clients of a secure sum keep and send, by kind."""
    begun = {number: secure_sums.begin(SUM, number) for number in range(3)}
    server = secure_sums.Server(SUM)
    keys = server.keys({number: message for number, (_, message) in begun.items()})
    shared = {number: secure_sums.share(state, keys) for number, (state, _) in begun.items()}
    boxes = server.shares({number: message for number, (_, message) in shared.items()})
    masked = secure_sums.mask(shared[0][0], boxes[0], np.arange(4))[0]
    return {"state": [begun[0][0].to_bytes(), masked.to_bytes()], "keys": [keys], "boxes": [*boxes.values()]}


def _read_sum_keys(given: bytes, folder: Path) -> None:
    Peers(SUM, given).check()


def _read_sum_boxes(given: bytes, folder: Path) -> None:
    rows = messages.read(given, messages.BOX_BYTES)
    assert messages.written(rows) == given, "rows are not written as they were read"


CLDP = cldp_upload.terms_of({"w": (3,), "b": ()}, 1.0, 2, "exponential")


def _cldp_uploads() -> list[bytes]:
    update = {"w": torch.tensor([0.1, -0.2, 0.3]), "b": torch.tensor(0.5)}
    return [cldp_upload.Upload.of(update, CLDP, 0.5, ldpkernels.key(1)).to_bytes()]


def _read_cldp(given: bytes, folder: Path) -> None:
    total = cldp_upload.UploadMean(CLDP, least_alpha=1e-6)
    total.add(given)
    assert all(bool(torch.isfinite(mean).all()) for mean in total.mean().values()), "a mean that is not a number"


DATA = (ValueError, FileNotFoundError)
REFUSED = (secure_sums.ProtocolError,)
ASKED = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "s": np.array(2.5)}
TARGETS = {
    "answer": Target(
        lambda: [answers.packed(ASKED, ASKED, said) for said in ({}, {"loss": 0.5, "rows": 7})],
        lambda given, _: answers.unpacked(given, ASKED, ["loss", "rows"]),
    ),
    "report": Target(lambda: [one.to_bytes() for one in _reports()], _read_report),
    "report-header": Target(
        lambda: [_opened(one.to_bytes()) for one in _reports()], lambda given, f: _read_report(_enveloped(given), f)
    ),
    "aggregate": Target(_aggregates, _read_aggregate),
    "aggregate-header": Target(
        lambda: [_opened(whole) for whole in _aggregates()], lambda given, f: _read_aggregate(_enveloped(given), f)
    ),
    "ledger": Target(lambda: _ledgers("basic"), _read_ledger("basic"), (LedgerError,)),
    "ledger-records": Target(
        lambda: [_rows(whole) for whole in _ledgers("exact")], _read_ledger("exact", _begun), (LedgerError,)
    ),
    "cldp-upload": Target(_cldp_uploads, _read_cldp),
    "sum-state": Target(
        lambda: _sum_states()["state"], lambda given, _: secure_sums.State.from_bytes(given, SUM), REFUSED
    ),
    "sum-keys": Target(lambda: _sum_states()["keys"], _read_sum_keys, REFUSED),
    "sum-boxes": Target(lambda: _sum_states()["boxes"], _read_sum_boxes, REFUSED),
    "vector-report": Target(releases.vector_reports, releases.read_vector),
    "code": Target(releases.codes, releases.read_code),
    "sum-at-server": Target(releases.to_server, releases.read_at_server, (*REFUSED, secure_sums.RoundLost)),
    "sum-at-client": Target(releases.to_client, releases.read_at_client, REFUSED),
    "checkpoint": Target(lambda: [CHECKPOINT], _read_checkpoint, (runs.CheckpointError,)),
    "checkpoint-pickle": Target(
        lambda: [PICKLE], lambda given, f: _read_checkpoint(_archived(given), f), (runs.CheckpointError,)
    ),
    "idx": Target(lambda: [IMAGES, LABELS, gzip.compress(LABELS, mtime=0)], _read_idx, DATA),
    "cifar10": Target(cifar_batches, _read_cifar, (*DATA, pickle.UnpicklingError)),
    "adult": Target(lambda: [ROWS], _read_adult, DATA),
}
if importlib.util.find_spec("flwr"):
    from ldpkernels.flower.checkpoint import CheckpointError

    TARGETS |= {
        "flower-message": Target(releases.flower_messages, releases.read_flower_message),
        "flower-checkpoint": Target(
            lambda: [releases.server_checkpoint()], releases.read_server_checkpoint, (CheckpointError,)
        ),
        "node-file": Target(lambda: [releases.NODE], releases.read_node),
    }
WORDS = {
    "report-header": (
        "null",
        "true",
        "1e400",
        "NaN",
        "-1",
        "9223372036854775807",
        "two-point",
        "piecewise",
        "torch",
        "[",
        "{",
    ),
    "ledger-records": ('"kind":', "pure", "1e400", "NaN", "-1", "9223372036854775807", "null", "], 1, 0.5]"),
}
WORDS["aggregate-header"] = (*WORDS["report-header"], '"clients":', "4611686018427387903")


def dictionary(name: str) -> str:
    """libFuzzer's words for a target."""
    return "".join(f"{json.dumps(word)}\n" for word in WORDS.get(name, ()))
