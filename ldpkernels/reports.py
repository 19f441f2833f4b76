# SPDX-License-Identifier: Apache-2.0
"""Reports of one bit or one byte a weight, and their sum: what travels from clients to a server.

Bytes are magic, version, header length, a JSON header, the bits or bytes of the weights (_codecs.py), and a BLAKE2b
digest of all that. The digest finds accidents, not forgers: authenticate the channel. Nothing in a header depends on a
weight.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ldpkernels import _tensors
from ldpkernels._backends import threads
from ldpkernels._codecs import Codec, codec_of
from ldpkernels._dtypes import DTYPES, FLOAT64, Dtype
from ldpkernels.hybrid import Mechanism, mechanism_named

MAGIC = b"LDPK"
VERSION = 1
STREAM = 1  # docs/rng.md
DIGEST_BYTES = 16
_PREFIX = struct.Struct("<4sBxxxI")
_BATCH = 30  # reports added at a time: two rounds of the fifteen that the counters take at once


@dataclass(frozen=True)
class Layout:
    """Which weights were reported, and by which law. Reports of equal layouts can be added."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    c: tuple[float, ...]
    r: tuple[float, ...]
    dtypes: tuple[str, ...]  # in which the mean is given: float32 or float64
    eps: float
    threshold: int  # the lowest that is executed: the integer that proves eps
    container: str
    library: str
    mechanism: str = "two-point"
    stream: int = STREAM

    @classmethod
    def of(
        cls, tensors: _tensors.Tensors, c: list[float], r: list[float], mechanism: Mechanism, dtypes: list[Dtype]
    ) -> Layout:
        """The layout of a report that was just made."""
        executed = [mechanism.executed_range(ci, ri, d) for ci, ri, d in zip(c, r, dtypes, strict=True)]
        return cls(
            names=tuple(tensors.names),
            shapes=tuple(tuple(t.shape) for t in tensors.values),
            c=tuple(ci for ci, _ in executed),
            r=tuple(ri for _, ri in executed),
            dtypes=tuple("float64" if d is FLOAT64 else "float32" for d in dtypes),
            eps=mechanism.eps,
            threshold=mechanism.lowest_threshold,
            container=tensors.container,
            library="torch" if tensors.is_torch else "numpy",
            mechanism=mechanism.name,
        )

    @cached_property
    def codec(self) -> Codec:
        """How the weights lie in a report, and how they are counted."""
        return codec_of(self.mechanism)

    @cached_property
    def sizes(self) -> list[int]:
        """Weights in each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def nbytes(self) -> int:
        """Bytes of one report's weights."""
        return self.codec.payload_bytes(self.sizes)

    def difference(self, other: Layout) -> str:
        """The first field in which two layouts differ, in words."""
        for field, ours in {"mechanism": self.mechanism, **asdict(self)}.items():
            theirs = getattr(other, field)
            if ours != theirs:
                return f"{field} is {_short(theirs)} in one and {_short(ours)} in the others"
        return ""

    def check(self) -> None:
        """Refuse a layout that no report could have."""
        lengths = {len(self.names), len(self.shapes), len(self.c), len(self.r), len(self.dtypes)}
        if len(lengths) != 1 or not self.names or len(set(self.names)) != len(self.names):
            raise ValueError("its tensors are not named once each")
        if not all(_is_shape(shape) for shape in self.shapes):
            raise ValueError("a tensor's shape is none that a tensor can have")
        if self.mechanism not in ("two-point", "piecewise", "hybrid") or self.stream != STREAM:
            raise ValueError(
                f"it is of {_short(self.mechanism)}, stream {_short(self.stream)}: this version cannot read it"
            )
        if self.container not in ("module", "mapping", "sequence", "tensor") or self.library not in ("torch", "numpy"):
            raise ValueError(f"it is of {_short(self.library)} {_short(self.container)}")
        if self.container == "tensor" and len(self.names) > 1:
            raise ValueError("it is of one tensor, with several names")
        mechanism = mechanism_named(self.mechanism, self.eps)
        if mechanism.name != self.mechanism or mechanism.lowest_threshold != self.threshold:
            threshold = _short(self.threshold)
            raise ValueError(f"its threshold {threshold} is not that of {self.mechanism} at eps={self.eps}")
        for c, r, name in zip(self.c, self.r, self.dtypes, strict=True):
            if name not in ("float32", "float64") or mechanism.executed_range(c, r, DTYPES[name]) != (c, r):
                raise ValueError(f"C={c} with R={r} cannot be executed in {_short(name)}")


class Report:
    """One client's randomised weights: a bit or a byte each."""

    def __init__(self, layout: Layout, payload: Any) -> None:
        self.layout = layout
        self.payload = payload  # uint8, on the device that made it

    def __repr__(self) -> str:
        weights = sum(self.layout.sizes)
        mechanism = "" if self.layout.mechanism == "two-point" else f"{self.layout.mechanism}, "
        return f"Report({len(self.layout.names)} tensors, {weights} weights, {mechanism}eps={self.layout.eps})"

    @property
    def nbytes(self) -> int:
        """Bytes of the weights: an eighth of their number, or their number; `to_bytes` adds the header."""
        return self.layout.nbytes

    @cached_property
    def bits(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The weights in host memory: a bit each, every tensor from a byte of its own; or a byte each ("piecewise")."""
        array: np.ndarray[Any, Any] = (
            self.payload if isinstance(self.payload, np.ndarray) else self.payload.cpu().numpy()
        )
        return array

    def to_bytes(self) -> bytes:
        """The report for the wire."""
        return _encode({"kind": "report", **asdict(self.layout)}, self.bits.tobytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Report:
        """Read what `to_bytes` wrote; anything else is a ValueError.

        >>> import numpy as np, ldpkernels
        >>> one = ldpkernels.report(np.zeros(20), C=0.0, R=1.0, eps=1.0)
        >>> Report.from_bytes(one.to_bytes()).layout == one.layout
        True
        """
        header, payload = _decode(data, "report")
        layout = _layout(header)
        if len(payload) != layout.nbytes:
            raise ValueError(f"not a report: {len(payload)} bytes of weights where the header promises {layout.nbytes}")
        bits = np.frombuffer(payload, np.uint8)
        layout.codec.check(bits, layout.sizes)
        return cls(layout, bits)


class Aggregate:
    """The sum of any number of reports: a counter for each weight, whatever the number of clients.

    It has log2(n + 1) bits for n one-bit reports, and 32 for reports of one byte a weight.

    >>> import numpy as np, ldpkernels
    >>> total = Aggregate()
    >>> for client in range(100):
    ...     total.add(ldpkernels.report(np.full(1000, 0.2), 0.0, 1.0, eps=2.0, generator=ldpkernels.key(client)))
    >>> total.clients, round(float(total.mean().mean()), 1)
    (100, 0.2)
    """

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self._counter: Any = None

    @property
    def clients(self) -> int:
        """How many reports were added."""
        return 0 if self._counter is None else int(self._counter.count)

    def add(self, *reports: Report | bytes) -> None:
        """Add reports; several at once are faster. All are checked before the first is added."""
        ready = [Report.from_bytes(r) if isinstance(r, (bytes, bytearray, memoryview)) else r for r in reports]
        for one in ready:
            if not isinstance(one, Report):
                raise TypeError(f"cannot add a {type(one).__name__}: pass a Report or its bytes")
        layout = self.layout or (ready[0].layout if ready else None)
        for one in ready:
            self._match(layout, one.layout)
        if layout is not None and ready:
            self._adopt(layout)
            self._counter.add([one.bits for one in ready], _threads(layout))

    def merge(self, other: Aggregate) -> None:
        """Add a partial aggregate, of another server or process, say."""
        if other is self:
            raise ValueError("an aggregate cannot be merged into itself: its clients would count twice")
        if other.layout is None:
            return
        self._match(self.layout or other.layout, other.layout)
        self._adopt(other.layout)
        self._counter.merge(other._counter)

    def mean(self) -> Any:
        """The clients' mean, named and shaped like the model: a dict, a list, a tensor or an array.

        Counts are decoded in fp64 and given in fp32 (fp64 for fp64 models). For a module, it is what
        `load_state_dict(mean, strict=False)` takes.
        """
        if self.layout is None or not self.clients:
            raise ValueError("nothing to average: add at least one report")
        layout, means = self.layout, []
        mechanism = mechanism_named(layout.mechanism, layout.eps)
        columns = (layout.shapes, layout.c, layout.r, layout.dtypes)
        for i, (shape, c, r, dtype) in enumerate(zip(*columns, strict=True)):
            offset, step = mechanism.affine(c, r)
            flat = self._counter.decode(i, offset, step / self.clients, dtype, _threads(layout))
            means.append(_as_library(flat.reshape(shape), layout.library))
        if layout.container == "tensor":
            return means[0]
        return means if layout.container == "sequence" else dict(zip(layout.names, means, strict=True))

    def to_bytes(self) -> bytes:
        """The partial aggregate for the wire, or for a checkpoint."""
        if self.layout is None:
            raise ValueError("nothing to write: add at least one report")
        header = {"kind": "aggregate", "clients": self.clients, **asdict(self.layout)}
        return _encode(header, self._counter.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Aggregate:
        """Read what `to_bytes` wrote; anything else is a ValueError."""
        header, payload = _decode(data, "aggregate")
        clients = header.pop("clients", None)
        layout = _layout(header)
        if type(clients) is not int or not 0 < clients < 2**62:
            raise ValueError(f"not an aggregate: it counts {clients!r} clients")
        total = cls()
        total._adopt(layout)
        total._counter.restore(clients, payload)
        return total

    def _adopt(self, layout: Layout) -> None:
        if self._counter is None:
            self.layout, self._counter = layout, layout.codec.counter(layout.sizes)

    @staticmethod
    def _match(ours: Layout | None, theirs: Layout) -> None:
        if ours is not None and ours is not theirs and ours != theirs:
            raise ValueError(f"reports of different kinds cannot be added: {ours.difference(theirs)}")


def aggregate(reports: Iterable[Report | bytes]) -> Any:
    """The mean of the clients' weights, from any number of reports or their bytes.

    Reports are added a few at a time as the iterable yields them: an iterable of any length needs a counter for each
    weight and no more. `Aggregate` does the same step by step, merges partial sums, and saves them.

    >>> import numpy as np, ldpkernels
    >>> clients = (ldpkernels.report({"w": np.full((2, 500), 0.5)}, 0.0, 1.0, eps=4.0) for _ in range(50))
    >>> round(float(ldpkernels.aggregate(clients)["w"].mean()), 1)
    0.5
    """
    if isinstance(reports, (Report, bytes)):
        raise TypeError("pass the reports as a list or another iterable")
    total, remaining = Aggregate(), iter(reports)
    while batch := list(itertools.islice(remaining, _BATCH)):
        total.add(*batch)
    return total.mean()


def _threads(layout: Layout) -> int:
    return max(1, min(threads(), layout.nbytes >> 16))


def _as_library(array: np.ndarray[Any, Any], library: str) -> Any:
    if library == "numpy":
        return array
    import torch

    return torch.from_numpy(array)


def _encode(header: dict[str, Any], payload: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    body = _PREFIX.pack(MAGIC, VERSION, len(text)) + text + payload
    return body + hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


def _decode(data: bytes, kind: str) -> tuple[dict[str, Any], bytes]:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"{kind} bytes are bytes, not a {type(data).__name__}")
    data = bytes(data)
    if len(data) < _PREFIX.size + DIGEST_BYTES:
        raise ValueError(f"not {kind} bytes: {len(data)} bytes are too few")
    magic, version, length = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"not {kind} bytes: they begin with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise ValueError(f"{kind} of format version {version}: this library reads version {VERSION}")
    body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() != digest:
        raise ValueError(f"the {kind} was truncated or altered on its way: its digest does not match")
    if _PREFIX.size + length > len(body):
        raise ValueError(f"not {kind} bytes: the header is longer than the data")
    try:
        header = json.loads(body[_PREFIX.size : _PREFIX.size + length])
    except (ValueError, RecursionError):
        raise ValueError(f"not {kind} bytes: the header is not JSON") from None
    if not isinstance(header, dict) or header.pop("kind", None) != kind:
        raise ValueError(f"not {kind} bytes: they hold something else of this library's")
    return header, body[_PREFIX.size + length :]


def _layout(header: dict[str, Any]) -> Layout:
    """The layout in a header, whoever wrote it: every field typed and checked."""
    try:
        layout = Layout(
            names=tuple(_each(header.pop("names"), str)),
            shapes=tuple(tuple(_each(shape, int)) for shape in _each(header.pop("shapes"), list)),
            c=tuple(_each(header.pop("c"), float)),
            r=tuple(_each(header.pop("r"), float)),
            dtypes=tuple(_each(header.pop("dtypes"), str)),
            eps=_typed(header.pop("eps"), float),
            threshold=_typed(header.pop("threshold"), int),
            container=_typed(header.pop("container"), str),
            library=_typed(header.pop("library"), str),
            mechanism=_typed(header.pop("mechanism"), str),
            stream=_typed(header.pop("stream"), int),
        )
        if header:
            raise ValueError(f"it has a field {sorted(header)[0]!r} that this version does not know")
        layout.check()
    except KeyError as missing:
        raise ValueError(f"the header is not one of this version's: it has no {missing}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the header is not one of this version's: {error}") from None
    return layout


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{_short(value)} is no {kind.__name__}")
    return value


def _each(values: Any, kind: type) -> list[Any]:
    return [_typed(v, kind) for v in _typed(values, list)]


def _is_shape(shape: tuple[int, ...]) -> bool:
    """Whether an array can have this shape; empty ones have a limit too."""
    return len(shape) <= 64 and all(0 <= n < 2**60 for n in shape) and math.prod(n or 1 for n in shape) < 2**60


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
