# SPDX-License-Identifier: Apache-2.0
"""Reports of one bit or one byte a weight, and their sum: what travels from clients to a server.

Bytes are a header (wire/layout.py), the bits or bytes of the weights (wire/codec.py), and a digest (wire/envelope.py).
It finds accidents, not forgers: authenticate the channel. Nothing in a header depends on a weight.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np

from ldpkernels.capabilities import threads
from ldpkernels.laws.registry import mechanism_named
from ldpkernels.wire.envelope import decode, encode
from ldpkernels.wire.layout import Layout, layout_of

_BATCH = 30  # reports added at a time: two rounds of the fifteen that the counters take at once


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
        return encode({"kind": "report", **asdict(self.layout)}, self.bits.tobytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Report:
        """Read what `to_bytes` wrote; anything else is a ValueError.

        >>> import numpy as np, ldpkernels
        >>> one = ldpkernels.report(np.zeros(20), C=0.0, R=1.0, eps=1.0)
        >>> Report.from_bytes(one.to_bytes()).layout == one.layout
        True
        """
        header, payload = decode(data, "report")
        layout = layout_of(header)
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

        Where some clients reported torch tensors and others NumPy arrays, it is as for the first that was added.
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
        return encode(header, self._counter.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Aggregate:
        """Read what `to_bytes` wrote; anything else is a ValueError."""
        header, payload = decode(data, "aggregate")
        clients = header.pop("clients", None)
        layout = layout_of(header)
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
