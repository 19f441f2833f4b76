# SPDX-License-Identifier: Apache-2.0
"""What leaves a client, as whoever sees it takes it apart: a form, and fields by name with their values and numbers."""

from __future__ import annotations

import hashlib
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import cast

import numpy as np

from ldpkernels.accounting import Event
from ldpkernels.calls.reports import Report
from ldpkernels.calls.vector import VectorMechanism
from ldpkernels.common.arrays import Array
from ldpkernels.common.optional import is_tensor
from ldpkernels.laws.registry import mechanism_named
from ldpkernels.releases.vectors import WholeVector
from ldpkernels.wire.envelope import MAGIC, decode, opened

MOST_NUMBERS = 1 << 14  # of all fields together that are looked at one by one; the rest is compared as a whole
FEWEST_NUMBERS = 16  # of each field
_VECTOR_BITS = 10.0  # of each number of a whole vector, whose grid is far finer
_SHORT = 60
_NONE = np.zeros(0)


@dataclass(frozen=True)
class Account:
    """What a report of this package says of itself: its event, how often, and the eps of each number on its own."""

    event: Event
    times: int
    each: float | None  # None where the event is of the whole vector


@dataclass(frozen=True)
class Field:
    """One thing in an answer.

    Attributes:
        text: Its value or form, for people.
        digest: Of all of it.
        numbers: Those in it that are looked at one by one.
        is_array: Whether it is an array or a tensor.
        account: Of a report.
        bits: Two reports of one input are equal with probability 2^-bits at most.
    """

    text: str
    digest: bytes
    numbers: Array = field(default_factory=lambda: np.zeros(0))
    is_array: bool = False
    account: Account | None = None
    bits: float = 0.0


@dataclass(frozen=True)
class Answer:
    """All that left in one run: its form, which has names, kinds, lengths and headers; and its fields."""

    form: Field
    fields: Mapping[str, Field]


@dataclass(frozen=True)
class Raised:
    """In the place of an answer: an error, in the words that leave."""

    text: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """What a function raised."""
        return cls(f"{type(error).__name__}: {error}")


def observed(value: object) -> Answer:
    """Take apart whatever left.

    >>> found = observed({"weights": np.zeros(3), "loss": 0.5})
    >>> print(found.form.text)
    answer: 2 by name; weights: float64 of shape (3,); loss: float
    >>> found.fields["loss"].numbers
    array([0.5])
    """
    parts = list(_parts("", value))
    share = max(FEWEST_NUMBERS, MOST_NUMBERS // max(1, len(parts)))
    form = "; ".join(f"{name or 'answer'}: {kind}" for name, kind, _ in parts)
    fields = {name or "answer": replace(one, numbers=_some(one.numbers, share)) for name, _, one in parts}
    return Answer(Field(form, _digest(form.encode())), fields)


def joined(fields: Sequence[Field]) -> Field:
    """Several fields as one."""
    digest, bits = _digest(b"".join(one.digest for one in fields)), sum(one.bits for one in fields)
    return Field("this", digest, np.concatenate([_NONE, *(one.numbers for one in fields)]), bits=bits)


def _parts(name: str, value: object) -> Iterator[tuple[str, str, Field]]:
    """Names, kinds and fields of what left, before what is in it."""
    if isinstance(value, Raised):
        yield f"{name}/error".lstrip("/"), "error", _field(value.text, value.text.encode())
    elif isinstance(value, Report):
        yield from _parts(name, value.to_bytes())
    elif isinstance(value, (bytes, bytearray, memoryview)):
        yield (name, *_of_bytes(bytes(value)))
    elif isinstance(value, str):
        yield name, f"text of {len(value)}", _field(value, value.encode("utf-8", "surrogatepass"))
    elif value is None or isinstance(value, (bool, int, float)):
        numbers = _NONE if value is None else np.array([_float(value)])
        yield name, type(value).__name__, _field(value, repr(value).encode(), numbers)
    elif isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        array = np.asarray(value)
        yield name, f"{array.dtype} of shape {array.shape}", _of_array(array)
    elif is_tensor(value):
        held = value.detach().cpu()
        array = (held.double() if held.is_floating_point() else held).resolve_conj().resolve_neg().numpy()
        yield name, f"{held.dtype} of shape {tuple(held.shape)}", _of_array(array)
    elif isinstance(value, Mapping):
        yield name, f"{len(value)} by name", _field(list(value), repr(list(value)).encode())
        for key, item in value.items():
            yield from _parts(f"{name}/{key}".lstrip("/"), item)
    elif isinstance(value, (list, tuple)):
        yield name, f"{len(value)} in a row", _field(len(value), repr(len(value)).encode())
        for i, item in enumerate(value):
            yield from _parts(f"{name}/{i}".lstrip("/"), item)
    else:
        kind, found = _of_bytes(pickle.dumps(value))
        yield name, f"{type(value).__name__}, pickled in {kind}", found


def _field(shown: object, data: bytes, numbers: Array = _NONE) -> Field:
    return Field(_short(shown), _digest(data), numbers)


def _of_array(array: Array) -> Field:
    numbers = array.ravel().view(array.real.dtype)  # of complex numbers both parts
    return Field(_short(array), _digest(array.tobytes()), numbers, is_array=True)


def _of_bytes(data: bytes) -> tuple[str, Field]:
    """A report is taken apart; other bytes are numbers from 0 to 255."""
    if data.startswith(MAGIC):
        for read in (_weights, _vector):
            try:
                header, numbers, account, bits = read(data)
            except ValueError:
                continue
            return f"report of {len(data)} bytes, {header}", Field(
                "a report", _digest(data), numbers, account=account, bits=bits
            )
    return f"{len(data)} bytes", _field(data, data, np.frombuffer(data, np.uint8))


def _weights(data: bytes) -> tuple[str, Array, Account, float]:
    """A report of weights, each under its own eps: its bits or bytes."""
    report = Report.from_bytes(data)
    layout, header = report.layout, opened(data, "report")[0].decode()
    parts = np.split(report.bits, layout.offsets[1:])
    if layout.codec.numbers_a_byte == 8:
        parts = [np.unpackbits(part, bitorder="little") for part in parts]
    numbers = np.concatenate([part[:size] for part, size in zip(parts, layout.sizes, strict=True)])
    event, eps = _claimed(layout.mechanism, layout.eps)
    bits = numbers.size * math.log2(1 + math.exp(-eps))  # no output is likelier than e^eps / (1 + e^eps)
    return header, numbers, Account(event, numbers.size, eps), bits


@lru_cache(maxsize=64)
def _claimed(mechanism: str, eps: float) -> tuple[Event, float]:
    """The event of a weight's report, and its eps."""
    found = mechanism_named(mechanism, eps)
    return found.event, found.effective_eps


def _vector(data: bytes) -> tuple[str, Array, Account, float]:
    """A report of a whole vector: its numbers."""
    header, payload = decode(data, "vector")
    numbers = np.frombuffer(payload, "<f4")
    names = ("eps", "norm", "bound", "delta", "sigma")
    said = tuple((name, float(str(header[name]))) for name in names if name in header)
    mechanism = str(header.get("mechanism"))
    bits = 0.0 if mechanism == "k-of-d" else _VECTOR_BITS * numbers.size
    return repr(header), numbers, Account(_spent(mechanism, numbers.size, said), 1, None), bits


@lru_cache(maxsize=64)
def _spent(mechanism: str, dimension: int, settings: tuple[tuple[str, float], ...]) -> Event:
    """The event of a whole vector's report."""
    said = dict(settings)
    release = WholeVector(
        cast(VectorMechanism, mechanism), said["norm"], said.get("eps"), said.get("bound"), said.get("delta"),
        said.get("sigma"),
    )  # fmt: skip
    return release.event([dimension])[0]


def _some(numbers: Array, most: int) -> Array:
    """So many of them at most, evenly spread; what is not a finite number is a large one."""
    if numbers.size > most:
        numbers = numbers[np.linspace(0, numbers.size - 1, most).astype(np.int64)]
    if numbers.dtype.kind != "f":
        return numbers
    return np.nan_to_num(numbers.astype(np.float64), nan=-3e300, posinf=2e300, neginf=-2e300)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _short(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."
