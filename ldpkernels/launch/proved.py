# SPDX-License-Identifier: Apache-2.0
"""A kernel of a GPU answers small known questions before it is used there.

A kernel is a mechanism, an output, a dtype, a cipher and a backend. The first time that one is used on a device, the
host's kernels answer the same questions for the same key, and the bits must agree. What has passed is remembered: for
the process, and in the user's cache folder for this device, driver, torch, Triton and build. LDPKERNELS_PROVE says how
often a kernel is asked: "once" (the default); "always", which is in every process, and also where Triton's kernels run
on the host; or "never".
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ldpkernels import _native
from ldpkernels.common import capabilities
from ldpkernels.common.arrays import Bytes, Spans
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.common.gpu import capturing
from ldpkernels.inputs.spans import INTEGERS

if TYPE_CHECKING:
    import torch

MODES = ("once", "always", "never")
CIPHERS = {1: "philox", 4: "chacha20"}
_NAMES = {d.code: d.name for d in DTYPES.values()} | {INTEGERS: "int64"}


@dataclass(frozen=True)
class Subject:
    """What is proved: a kernel, its output, the dtype of its tensors, and the cipher of its key."""

    kernel: str
    output: str
    dtype: str
    cipher: str

    def __str__(self) -> str:
        return f"{self.kernel} {self.output} {self.dtype} {self.cipher}"


Question: TypeAlias = Callable[[Subject, str], list[Bytes]]  # what a device answers, by its name: all that was written

# They are asked of this package's launches, and need mechanisms' laws: modules above this one hold and register them.
_HOLDER = "ldpkernels.ops"
_questions: dict[str, Question] = {}
_subjects: list[Subject] = []


def register(kernel: str, question: Question, subjects: Iterable[Subject]) -> None:
    """Have a question asked of a kernel; the subjects are those that `ldpkernels verify --device` goes through."""
    _questions[kernel] = question
    _subjects.extend(subjects)


def subjects() -> tuple[Subject, ...]:
    """Everything that can be asked."""
    importlib.import_module(_HOLDER)
    return tuple(_subjects)


class WrongAnswerError(RuntimeError):
    """A kernel that does not give the host's bits: it is not used."""


@dataclass(frozen=True)
class Answer:
    """What came of a question: `error` is None where the bits agree."""

    subject: Subject
    backend: str
    error: str | None


_passed: set[tuple[str, str, Subject]] = set()
_handed_over: set[tuple[str, str, Subject]] = set()
_asking = threading.local()
_lock = threading.Lock()


def proved(name: str, kernel: str, output: str, dtypes: Iterable[str], cipher: str, device: torch.device) -> str:
    """The backend that runs a kernel, after it has answered; a CUDA C++ kernel that fails leaves its work to Triton."""
    if name not in ("cuda", "triton") or getattr(_asking, "now", False):
        return name
    mode = _mode()
    if mode == "never" or not (device.type == "cuda" or mode == "always"):
        return name
    for dtype in sorted(set(dtypes)):
        name = _proved(name, Subject(kernel, output, dtype, cipher), device, mode)
    return name


def of_spans(name: str, kernel: str, output: str, spans: Spans, key_words: int, device: torch.device) -> str:
    """The backend that runs a kernel of a table's dtypes, by a key of so many words, after it has answered."""
    dtypes = [_NAMES[code] for code in set(spans["dtype"].tolist())]
    return proved(name, kernel, output, dtypes, CIPHERS.get(key_words, "none"), device)


def _proved(name: str, subject: Subject, device: torch.device, mode: str) -> str:
    known = str(device), name, subject
    if known in _passed:
        return name
    if known in _handed_over:
        return _proved("triton", subject, device, mode)
    if mode == "once" and _line(name, subject) in _remembered(_identity(device)):
        _passed.add(known)
        return name
    if capturing(device):
        raise RuntimeError(
            f"the {name} kernel of {subject} has not been checked on {str(device)!r} yet, which no capture can hold: "
            "make the same call once before the capture"
        )
    with _lock:
        found = ask(name, subject, device)
    if found.error is None:
        _passed.add(known)
        if mode == "once":
            _remember(_identity(device), _line(name, subject))
        return name
    message = f"the {name} kernel of {subject} {found.error} on {_described(device)}"
    if name == "cuda" and capabilities.forced() is None and "triton" in capabilities.able(subject.kernel, device.type):
        warnings.warn(f"{message}: Triton's is used instead", RuntimeWarning, stacklevel=2)
        _handed_over.add(known)
        return _proved("triton", subject, device, mode)
    raise WrongAnswerError(
        f"{message}, so it is not used: choose another by LDPKERNELS_BACKEND or ldpkernels.backend(), or move the "
        "tensors to 'cpu'"
    )


def ask(name: str, subject: Subject, device: torch.device) -> Answer:
    """Compare the answers of a backend on a device with those of the host's kernels."""
    importlib.import_module(_HOLDER)
    question = _questions[subject.kernel]
    with _unasked():
        with capabilities.backend(_native.isas()[0]):
            expected = question(subject, "cpu")
        try:
            with capabilities.backend(name):
                found = question(subject, str(device))
        except Exception as error:  # whatever a driver or a compiler says
            return Answer(subject, name, f"fails ({type(error).__name__}: {error})")
    wrong = sum(int((f != e).sum()) for f, e in zip(found, expected, strict=True))
    total = sum(e.size for e in expected)
    return Answer(subject, name, f"gives {wrong} of {total} known bytes wrong" if wrong else None)


def ask_all(device: torch.device) -> Iterator[Answer]:
    """The questions of all subjects, to every backend of a GPU that runs their kernel on a device."""
    for subject in subjects():
        for name in capabilities.able(subject.kernel, device.type, device.index):
            if name in ("cuda", "triton"):
                yield ask(name, subject, device)


@contextlib.contextmanager
def _unasked() -> Iterator[None]:
    """What is called meanwhile is the question itself."""
    _asking.now = True
    try:
        yield
    finally:
        _asking.now = False


def _mode() -> str:
    mode = _native.environment("LDPKERNELS_PROVE") or "once"
    if mode not in MODES:
        raise ValueError(f"LDPKERNELS_PROVE={mode!r} must be one of {', '.join(MODES)}")
    return mode


def _line(name: str, subject: Subject) -> str:
    return f"{name} {subject}"


def _described(device: torch.device) -> str:
    """Device and driver, in words."""
    if device.type != "cuda":
        return f"{str(device)!r}"
    import torch

    return f"{str(device)!r} ({torch.cuda.get_device_name(device)}, driver {_driver()})"


def _driver() -> str:
    import torch

    version: Callable[[], int] | None = getattr(torch._C, "_cuda_getDriverVersion", None)
    return str(version()) if version and torch.cuda.is_available() else "unknown"


@lru_cache(maxsize=64)
def _identity(device: torch.device) -> str:
    """What a check holds for: the device, its driver, torch, Triton, this build, and what it asks."""
    import torch

    parts = [_described(device).partition("(")[2], torch.__version__]
    if device.type == "cuda":
        parts.append(str(torch.cuda.get_device_capability(device)))
    for package in ("triton", "ldpkernels"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.append(importlib.metadata.version(package))
    root = Path(__file__).resolve().parents[1]
    sources = [path for folder in ("triton", "ops") for path in (root / folder).glob("*.py")]
    for path in sorted([*root.glob("_cuda*"), *sources, Path(_native.__file__ or root)]):
        parts.append(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _file(identity: str) -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "ldpkernels" / f"proved-{identity}"


@lru_cache(maxsize=64)
def _remembered(identity: str) -> frozenset[str]:
    """What earlier processes have proved."""
    try:
        return frozenset(_file(identity).read_text().splitlines())
    except (OSError, RuntimeError, UnicodeDecodeError):  # no such file, no home, or not ours
        return frozenset()


def _remember(identity: str, line: str) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # a later process asks again
        path = _file(identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(line + "\n")
