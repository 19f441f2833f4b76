# SPDX-License-Identifier: Apache-2.0
"""Reports of one bit or one byte a weight, and their sum: what travels from clients to a server.

Bytes are a header (wire/layout.py), the bits or bytes of the weights (wire/codec.py), and a digest (wire/envelope.py).
Nothing in a header depends on a weight. What a server can be made to do is in docs/security.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, cast, overload

import numpy as np

from ldpkernels.calls.expectation import Expected, Mean
from ldpkernels.common.arrays import AnyArray, Array, Bytes
from ldpkernels.common.capabilities import threads
from ldpkernels.common.optional import is_tensor
from ldpkernels.wire.counts import Counts, is_counted_on_device
from ldpkernels.wire.envelope import Uploaded, encode
from ldpkernels.wire.layout import Layout
from ldpkernels.wire.locks import shared_lock
from ldpkernels.wire.reader import Reader

if TYPE_CHECKING:
    import torch

M = TypeVar("M")
OnBad = Literal["raise", "skip"]

_BATCH = 30  # reports added at a time: two rounds of the fifteen that the counters take at once
_REASONS = 16  # that are kept of what was skipped
_OTHERS = "other reasons"


class Report:
    """One client's randomised weights: a bit or a byte each."""

    def __init__(self, layout: Layout, payload: Bytes | torch.Tensor) -> None:
        self.layout = layout
        self.payload = payload  # uint8, on the device that made it

    def __repr__(self) -> str:
        return f"Report({_summary(self.layout)})"

    @property
    def nbytes(self) -> int:
        """Bytes of the weights: one for each, or one for eight. `to_bytes` adds the header."""
        return self.layout.nbytes

    @cached_property
    def bits(self) -> Bytes:
        """The weights in host memory: a bit each, with a new byte for every tensor; or a byte each ("piecewise")."""
        return self.payload if isinstance(self.payload, np.ndarray) else self.payload.cpu().numpy()

    def to_bytes(self) -> bytes:
        """The report for the wire."""
        return encode({"kind": "report", **self.layout.header}, self.bits.tobytes())

    @classmethod
    def from_bytes(cls, data: Uploaded) -> Report:
        """Read what `to_bytes` wrote; anything else is a ValueError. The weights are not copied out of `data`.

        >>> import numpy as np, ldpkernels
        >>> one = ldpkernels.report(np.zeros(20), C=0.0, R=1.0, eps=1.0)
        >>> Report.from_bytes(one.to_bytes()).layout == one.layout
        True
        """
        return cls(*Reader().report(data))


class Aggregate(Generic[M]):
    """The sum of any number of reports: a counter for each weight, whatever the number of clients.

    A counter has log2(n + 1) bits for n one-bit reports, and 32 for reports of one byte a weight (64 from 2^32 / 255
    clients on). Several threads may use it at once. A report that is added twice counts twice: it is the caller's task
    that each client sends one.

    Args:
        expect: What `ldpkernels.expected` makes of the model, C, R and eps that the clients were told. Reports that
            differ are refused. **Without it the first report decides**, whoever sent it, and the mean has the names and
            the container of that client's model.
        on_bad: "raise" refuses reports that cannot be added, and then adds nothing of that call. "skip", with `expect`,
            leaves them out: `skipped` counts them and `reasons` says why.

    >>> import numpy as np, ldpkernels
    >>> total = Aggregate()
    >>> for client in range(100):
    ...     total.add(ldpkernels.report(np.full(1000, 0.2), 0.0, 1.0, eps=2.0, generator=ldpkernels.key(client)))
    >>> total.clients, round(float(total.mean().mean()), 1)
    (100, 0.2)
    """

    @overload
    def __init__(self: Aggregate[Mean], expect: None = None, *, on_bad: OnBad = ...) -> None: ...
    @overload
    def __init__(self, expect: Expected[M], *, on_bad: OnBad = ...) -> None: ...
    def __init__(self, expect: Expected[M] | None = None, *, on_bad: OnBad = "raise") -> None:
        if expect is not None and not isinstance(expect, Expected):
            raise TypeError(f"expect is a {type(expect).__name__}: pass ldpkernels.expected(model, C, R, eps)")
        if on_bad not in ("raise", "skip"):
            raise ValueError(f"on_bad={on_bad!r} must be 'raise' or 'skip'")
        if on_bad == "skip" and expect is None:
            raise ValueError(
                "on_bad='skip' needs expect: without it the first upload, perhaps a stranger's, would decide what is "
                "valid"
            )
        self.expect = expect
        self.on_bad = on_bad
        self.layout = None if expect is None else expect.layout
        self.skipped = 0
        self.reasons: dict[str, int] = {}  # why uploads were skipped, and how many; of many reasons the first
        self._counter: Counts | None = None
        self._reader = Reader(self.layout)
        self._lock = shared_lock()  # of all that changes

    def __repr__(self) -> str:
        with self._lock:
            weights = "" if self.layout is None else f", {_summary(self.layout)}"
            return f"Aggregate({self.clients} clients{weights}{f', {self.skipped} skipped' * bool(self.skipped)})"

    @property
    def clients(self) -> int:
        """How many reports were added."""
        with self._lock:
            return 0 if self._counter is None else self._counter.count

    def add(self, *reports: Report | Uploaded) -> None:
        """Add reports or their bytes; several at once are faster. All are checked before the first is added."""
        ready = self._read_all(reports)
        if not ready:
            return
        with self._lock:
            layout = self.layout or ready[0].layout
            for one in ready:
                if one.layout is not layout:
                    _refuse_other(layout, one.layout)
            payloads = [one.payload if is_counted_on_device(one.payload) else one.bits for one in ready]
            self._counting(layout).add(payloads, _threads(layout))

    def merge(self, other: Aggregate[M]) -> None:
        """Add another aggregate, such as that of another server or process: its clients, and what it skipped."""
        if not isinstance(other, Aggregate):
            raise TypeError(f"cannot merge a {type(other).__name__}: pass an Aggregate")
        if other is self:
            raise ValueError("an aggregate cannot be merged into itself: its clients would count twice")
        first, second = sorted((self._lock, other._lock), key=id)  # so that no two wait for each other
        with first, second:
            if other._counter is not None and other.layout is not None:
                _refuse_other(self.layout or other.layout, other.layout)
                self._counting(other.layout).merge(other._counter)
            for reason, times in other.reasons.items():
                self._skip(reason, times)

    def mean(self) -> M:
        """The clients' mean, named and shaped like the model: a dict, a list, a tensor or an array.

        Its container and library are those of `expect`, or else of the first report that was added; without torch it is
        made of arrays. Counts are decoded in fp64, and the mean is fp32 (fp64 for fp64 models). `ldpkernels.load(model,
        mean)` writes it into a model.
        """
        with self._lock:
            layout, counter, clients = self._counted("average")
            most, means = _threads(layout), []
            for i, (offset, step) in enumerate(layout.decoding):
                flat = counter.decode(i, offset, step / clients, layout.dtypes[i], most)
                means.append(flat.reshape(layout.shapes[i]))
        return cast(M, contained(layout, _as_library(layout, means)))

    def to_bytes(self) -> bytes:
        """The aggregate as bytes, to send or to save. What it expects and what it skipped are not included."""
        with self._lock:
            layout, counter, clients = self._counted("write")
            return encode({"kind": "aggregate", "clients": clients, **layout.header}, counter.to_bytes())

    @overload
    @classmethod
    def from_bytes(cls, data: Uploaded, expect: None = None) -> Aggregate[Mean]: ...
    @overload
    @classmethod
    def from_bytes(cls, data: Uploaded, expect: Expected[M]) -> Aggregate[M]: ...
    @classmethod
    def from_bytes(cls, data: Uploaded, expect: Expected[M] | None = None) -> Aggregate[M] | Aggregate[Mean]:
        """Read what `to_bytes` wrote, of the expected model if one is given; anything else is a ValueError.

        The bytes say how many clients they stand for, and nothing can check that: take them from your own servers only.
        """
        total = Aggregate(expect) if expect is not None else Aggregate()
        layout, clients, sums = total._reader.aggregate(data)
        total._counting(layout).restore(clients, sums)
        return total

    def __getstate__(self) -> dict[str, object]:
        """The state that copies and pickles get: sums as bytes, so that nothing is shared."""
        with self._lock:
            sums = None if self._counter is None else (self._counter.count, self._counter.to_bytes())
            plain = {name: value for name, value in vars(self).items() if name not in ("_lock", "_reader", "_counter")}
            return {**plain, "reasons": dict(self.reasons), "_sums": sums}

    def __setstate__(self, state: dict[str, object]) -> None:
        sums = cast("tuple[int, bytes] | None", state.pop("_sums"))
        vars(self).update(state, _counter=None, _lock=shared_lock())
        self._reader = Reader(None if self.expect is None else self.expect.layout)
        if sums is not None and self.layout is not None:
            self._counting(self.layout).restore(*sums)

    def _read_all(self, reports: tuple[Report | Uploaded, ...]) -> list[Report]:
        """Those that may be added: uploads with a header that was read before are looked at together."""
        found: list[Report] = []
        rest = reports
        if rest and not self._reader.remembered:  # the first is looked at alone, so that its header is known
            found += self._read(rest[0])
            rest = rest[1:]
        if rest:
            most = 1 if self.layout is None else max(1, min(threads(), len(rest) * self.layout.nbytes >> 23))
            for one, known in zip(rest, self._reader.known(rest, most), strict=True):
                found += self._read(one) if known is None else [Report(*known)]
        return found

    def _read(self, one: Report | Uploaded) -> list[Report]:
        """The report, if it may be added; nothing where it is skipped."""
        try:
            if not isinstance(one, Report):
                if not isinstance(one, (bytes, bytearray, memoryview)):
                    raise TypeError(f"cannot add a {type(one).__name__}: pass a Report or its bytes")
                return [Report(*self._reader.report(one))]
            if self.expect is not None:
                _refuse_other(self.expect.layout, one.layout)
            _check_payload(one)
        except ValueError as error:
            if self.on_bad == "raise":
                raise
            with self._lock:
                self._skip(str(error))
            return []
        return [one]

    def _skip(self, reason: str, times: int = 1) -> None:
        known = reason in self.reasons or len(self.reasons) < _REASONS - 1
        reason = reason if known else _OTHERS
        self.reasons[reason] = self.reasons.get(reason, 0) + times
        self.skipped += times

    def _counting(self, layout: Layout) -> Counts:
        """The counter, made when the first report was checked."""
        if self._counter is None:
            self._counter = Counts(layout)
            self.layout = self.layout or layout
        return self._counter

    def _counted(self, purpose: str) -> tuple[Layout, Counts, int]:
        """The layout, the sums, and the number of clients, of which there must be one at least."""
        if self.layout is not None and self._counter is not None and (clients := self._counter.count):
            return self.layout, self._counter, clients
        why = f" ({self.skipped} were skipped, as: {next(iter(self.reasons))})" if self.skipped else ""
        raise ValueError(f"nothing to {purpose}: add at least one report{why}")


@overload
def aggregate(reports: Iterable[Report | Uploaded], expect: None = None) -> Mean: ...
@overload
def aggregate(reports: Iterable[Report | Uploaded], expect: Expected[M], *, on_bad: OnBad = ...) -> M: ...
def aggregate(
    reports: Iterable[Report | Uploaded], expect: Expected[M] | None = None, *, on_bad: OnBad = "raise"
) -> M | Mean:
    """The mean of the clients' weights, from any number of reports or their bytes.

    An iterable of any length needs a counter for each weight and no more, because reports are added a few at a time as
    it yields them. `Aggregate` has the same arguments and does the same step by step. It also merges partial sums,
    saves them, and says what was skipped.

    >>> import numpy as np, ldpkernels
    >>> clients = (ldpkernels.report({"w": np.full((2, 500), 0.5)}, 0.0, 1.0, eps=4.0) for _ in range(50))
    >>> round(float(ldpkernels.aggregate(clients)["w"].mean()), 1)
    0.5
    """
    if isinstance(reports, (Report, bytes, bytearray, memoryview)):
        raise TypeError("pass the reports as a list or another iterable")
    total = Aggregate(cast("Expected[M]", expect), on_bad=on_bad)
    remaining = iter(reports)
    while batch := list(itertools.islice(remaining, _BATCH)):
        total.add(*batch)
    return total.mean()


def _refuse_other(ours: Layout, theirs: Layout) -> None:
    if ours != theirs:
        name, one, rest = ours.difference(theirs)
        raise ValueError(f"reports of different kinds cannot be added: {name} is {one} in one and {rest} in the others")


def _check_payload(report: Report) -> None:
    """A report that is no bytes read by us may hold anything. Bits past a tensor's end are looked for on the host."""
    payload, size = report.payload, report.layout.nbytes
    plain = isinstance(payload, np.ndarray) or is_tensor(payload)
    if not plain or str(payload.dtype).removeprefix("torch.") != "uint8" or tuple(payload.shape) != (size,):
        raise ValueError(f"not a report: its payload must be {size} numbers of uint8, as ldpkernels.report makes them")
    contiguous = payload.flags.c_contiguous if isinstance(payload, np.ndarray) else payload.is_contiguous()
    if not contiguous:
        raise ValueError("not a report: its payload must be contiguous, as ldpkernels.report makes it")
    if not is_counted_on_device(payload):
        report.layout.check_payload(report.bits)


def _threads(layout: Layout) -> int:
    return max(1, min(threads(), layout.nbytes >> 16))


def _summary(layout: Layout) -> str:
    mechanism = "" if layout.mechanism == "two-point" else f"{layout.mechanism}, "
    return f"{len(layout.names)} tensors, {sum(layout.sizes)} weights, {mechanism}eps={layout.eps}"


def _as_library(layout: Layout, means: list[Array]) -> list[AnyArray]:
    if layout.library == "torch":
        try:
            import torch
        except ImportError:  # a client has it, this server has not
            pass
        else:
            return [torch.from_numpy(mean) for mean in means]
    return [*means]


def contained(layout: Layout, values: list[AnyArray]) -> Mean:
    """The means of all tensors as the model was handed in."""
    if layout.container == "tensor":
        return values[0]
    return values if layout.container == "sequence" else dict(zip(layout.names, values, strict=True))
