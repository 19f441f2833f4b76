# SPDX-License-Identifier: Apache-2.0
"""The sum of reports of one layout: a counter in host memory and, for reports on GPUs, a tally on each.

Tallies are added to the counter when a sum is asked for. Who calls holds a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard

import numpy as np

from ldpkernels import launch
from ldpkernels.common import capabilities
from ldpkernels.common.arrays import Array, Bytes
from ldpkernels.common.optional import is_tensor
from ldpkernels.wire.counters import counter_of
from ldpkernels.wire.layout import Layout

if TYPE_CHECKING:
    import torch

Payload: TypeAlias = "Bytes | torch.Tensor"


def is_counted_on_device(payload: Payload) -> TypeGuard[torch.Tensor]:
    """Whether a report is added where it lies, by Triton; another forced backend stands aside."""
    return is_tensor(payload) and capabilities.counts_reports(payload.device.type)


class Counts:
    """A counter for each weight: on the host, and on the devices that hold reports."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._host = counter_of(layout)
        self._on_devices: dict[torch.device, DeviceSums] = {}

    @property
    def count(self) -> int:
        """How many reports were added."""
        count = self._host.count
        for one in self._on_devices.values():
            count += one.tally.count
        return count

    def add(self, payloads: Sequence[Payload], threads: int) -> None:
        """Add reports, each where it lies. Memory for all is there before the first is added."""
        self._refuse_too_many(self.count + len(payloads))
        on_host: list[Bytes] = []
        on_devices: dict[torch.device, list[torch.Tensor]] = {}
        for payload in payloads:
            if isinstance(payload, np.ndarray):
                on_host.append(payload)
            else:
                on_devices.setdefault(payload.device, []).append(payload)
        for device, some in on_devices.items():
            if device not in self._on_devices:
                self._on_devices[device] = DeviceSums(self._layout, device)
            self._on_devices[device].reserve(len(some))
        if on_host:
            self._host.add(on_host, threads)
        for device, some in on_devices.items():
            self._on_devices[device].add(some)

    def merge(self, other: Counts) -> None:
        """Add other counts of the same layout."""
        self._refuse_too_many(self.count + other.count)
        self._gather()
        other._gather()
        self._host.add_sums(other._host.count, other._host.sums())

    def to_bytes(self) -> bytes:
        """The sums for the wire."""
        self._gather()
        return self._host.sums().tobytes()

    def restore(self, count: int, data: bytes | memoryview) -> None:
        """Read what `to_bytes` wrote, into counts that are empty."""
        self._refuse_too_many(count)
        self._host.restore(count, data)

    def decode(self, tensor: int, offset: float, step: float, dtype: str, threads: int) -> Array:
        """Give offset + step * sum for the weights of one tensor, in fp64 until the last rounding."""
        self._gather()
        return self._host.decode(tensor, offset, step, dtype, threads)

    def _refuse_too_many(self, count: int) -> None:
        if count > self._host.most_clients:
            raise ValueError(f"{count} clients are more than an aggregate can count: {self._host.most_clients} at most")

    def _gather(self) -> None:
        """Move what lies on devices to the host's counter, which waits for them."""
        for device in [*self._on_devices]:
            there = self._on_devices[device]
            found = there.sums()
            there.failed = True  # until it is gone: an exception from a signal may come between
            self._host.add_sums(there.tally.count, found)
            del self._on_devices[device]


class DeviceSums:
    """A tally on one device. Its kernels run one after another, whichever streams the callers are on."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        kind: Literal["bits", "bytes"] = "bits" if layout.codec.numbers_a_byte == 8 else "bytes"
        self.tally = launch.tally(kind, layout.nbytes, device)
        self._device = device
        self._last: torch.cuda.Event | None = None
        self.failed = False

    def reserve(self, count: int) -> None:
        """Make room for so many more reports. What is there may be copied, when the last kernels have written it."""
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
        """Copy the planes, or the sums of bytes, to host memory."""
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
