# SPDX-License-Identifier: Apache-2.0
"""The sum of reports of one layout: a counter in host memory and, for reports on GPUs, a tally on each.

Tallies are added to the counter when a sum is asked for. Who calls holds a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from ldpkernels import capabilities
from ldpkernels.arrays import Array, Bytes
from ldpkernels.optional import is_tensor
from ldpkernels.wire.codec import MOST_BIT_CLIENTS, MOST_CLIENTS, BitCodec, Codec, Counter, refuse_more_than

if TYPE_CHECKING:
    import torch

    from ldpkernels.triton.tally import BitTally, ByteTally

Payload: TypeAlias = "Bytes | torch.Tensor"


def stays(payload: Payload) -> TypeGuard[torch.Tensor]:
    """Whether a report is added where it lies, by Triton; another forced backend stands aside."""
    return is_tensor(payload) and capabilities.counts_reports(payload.device.type)


class Counts:
    """A counter for each weight: on the host, and on the devices that hold reports."""

    def __init__(self, codec: Codec, sizes: Sequence[int]) -> None:
        self._bits = isinstance(codec, BitCodec)
        self._bytes = codec.payload_bytes(sizes)
        self._host: Counter = codec.counter(sizes)
        self._there: dict[torch.device, _There] = {}

    @property
    def count(self) -> int:
        """Reports added."""
        return self._host.count + sum(one.tally.count for one in self._there.values())

    def add(self, payloads: Sequence[Payload], threads: int) -> None:
        """Add reports, each where it lies. Memory for all is there before the first is added."""
        here: list[Bytes] = []
        there: dict[torch.device, list[torch.Tensor]] = {}
        for payload in payloads:
            if stays(payload):
                there.setdefault(payload.device, []).append(payload)
            else:
                here.append(payload)  # type: ignore[arg-type]  # tensors of the host were read as arrays
        if there:
            refuse_more_than(MOST_BIT_CLIENTS if self._bits else MOST_CLIENTS, self.count + len(payloads))
            for device, some in there.items():
                if device not in self._there:
                    self._there[device] = _There(self._bits, self._bytes, device)
                self._there[device].reserve(len(some))
        if here:
            self._host.add(here, threads)
        for device, some in there.items():
            self._there[device].add(some)

    def merge(self, other: Counts) -> None:
        """Add other counts of the same layout."""
        self._gather()
        other._gather()
        self._host.merge(other._host)

    def to_bytes(self) -> bytes:
        """The sums for the wire."""
        self._gather()
        return self._host.to_bytes()

    def restore(self, count: int, data: bytes | memoryview) -> None:
        """Read what `to_bytes` wrote, into counts that are empty."""
        self._host.restore(count, data)

    def decode(self, tensor: int, offset: float, step: float, dtype: str, threads: int) -> Array:
        """offset + step * sum for the weights of one tensor."""
        self._gather()
        return self._host.decode(tensor, offset, step, dtype, threads)

    def _gather(self) -> None:
        """Move what lies on devices to the host's counter, which waits for them."""
        for device in [*self._there]:
            there = self._there[device]
            found = there.sums()
            there.failed = True  # until it is gone: an exception from a signal may come between
            self._host.merge_sums(there.tally.count, found)
            del self._there[device]


class _There:
    """A tally on one device. Its kernels run one after another, whichever streams the callers are on."""

    def __init__(self, bits: bool, size: int, device: torch.device) -> None:
        from ldpkernels.triton import tally

        self.tally: BitTally | ByteTally = tally.BitTally(size, device) if bits else tally.ByteTally(size, device)
        self._device = device
        self._last: torch.cuda.Event | None = None
        self.failed = False

    def reserve(self, count: int) -> None:
        """Memory for so many more reports. What is there may be copied, when the last kernels have written it."""
        import torch

        self._check()
        if self._device.type == "cuda":
            self._follow(torch.cuda.current_stream(self._device))
        self.tally.reserve(count)

    def add(self, reports: Sequence[torch.Tensor]) -> None:
        """Add reports on the current stream; after an exception from a signal, the sum is not known."""
        import torch

        on_gpu = self._device.type == "cuda"
        stream = torch.cuda.current_stream(self._device) if on_gpu else None
        self.failed = True
        with torch.cuda.stream(stream):
            self._follow(stream)
            self.tally.add(reports)
            if stream is not None:
                for report in reports:  # they may be freed before the kernels have run
                    report.record_stream(stream)
                self._last = stream.record_event()
        self.failed = False

    def sums(self) -> Array:
        """The planes, or the sums of bytes, in host memory."""
        import torch

        self._check()
        if self._device.type == "cuda":
            self._follow(torch.cuda.current_stream(self._device))
        return self.tally.sums()

    def _follow(self, stream: torch.cuda.Stream | None) -> None:
        """Come after the kernels that were launched last, and keep their memory until this stream is done with it."""
        if stream is not None and self._last is not None:
            stream.wait_event(self._last)
            self.tally.used_on(stream)

    def _check(self) -> None:
        if self.failed:
            raise RuntimeError(
                f"adding reports on {self._device} failed half-way, so that their sum is not known: collect them "
                "again, in a new Aggregate"
            )
