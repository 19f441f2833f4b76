# SPDX-License-Identifier: Apache-2.0
"""From tables to launches, and what all launches share. A call is one launch for each dtype it holds, over any number
of tensors.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton

from ldpkernels.common.arrays import Array, Laws, Spans
from ldpkernels.common.gpu import capturing
from ldpkernels.common.keys import AES, refuse_aes
from ldpkernels.triton import cache
from ldpkernels.triton.ciphers import keystream_kernel
from ldpkernels.triton.table import BLOCKS, Part, Plan

CACHED = 64  # tables kept on devices
OPTIONS = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": False}


def over(
    kernel: Any,
    name: Hashable,
    plan: Plan,
    spans: Spans,
    laws: Laws,
    key: torch.Tensor,
    out: torch.Tensor | None,
    constants: tuple[object, ...],
) -> None:
    """Launch kernel(table, key, out, *the part's numbers, *constants) for each part of a plan, which `name` names.

    `out` is the tensor that the spans' `out` point into, None for a kernel that writes in place. Tables hold
    distances from its start, so that a call whose output is new copies nothing and can be captured.
    """
    if not spans["numel"].any():
        return
    spans = spans.copy()
    if out is not None:
        if out.data_ptr() % 16:
            raise ValueError("an output must begin at a multiple of 16 bytes, as every new tensor does")
        spans["out"] -= out.data_ptr()
    per_block = 32 if is_chacha(key) else 8
    known = name, key.device, per_block, laws.dtype, spans.tobytes(), laws.tobytes()
    with launching(key.device):
        for launch in tables.get(known, key.device, lambda: plan(spans, laws, per_block)):
            kernel[(launch.programs,)](launch.table, key, out, *launch.numbers, *constants, **OPTIONS)


def keystream(key: torch.Tensor, stream: int, first_block: int, blocks: int) -> torch.Tensor:
    """The words of consecutive blocks of a keystream (docs/rng.md), as int32."""
    chacha = is_chacha(key)
    out = torch.empty(blocks * (16 if chacha else 4), dtype=torch.int32, device=key.device)
    first_block -= first_block >> 63 << 64  # the same bits as an int64
    with launching(key.device):
        keystream_kernel[(-(-blocks // BLOCKS),)](key, out, stream, first_block, blocks, chacha, BLOCKS, **OPTIONS)
    return out


def is_chacha(key: torch.Tensor) -> bool:
    """Whether a key is ChaCha20's, and not Philox's."""
    if key.shape == (AES.words,):
        refuse_aes("in Triton")
    if key.dtype != torch.int64 or key.shape not in ((1,), (4,)) or not key.is_contiguous():
        raise ValueError(f"a key is a contiguous int64 tensor of 1 or 4 numbers, not {key.dtype} {tuple(key.shape)}")
    return key.numel() == 4


@contextlib.contextmanager
def launching(device: torch.device) -> Iterator[None]:
    """What launches on a device need around them: its context, a cache, and no warnings of the interpreter."""
    check_reach(device)
    if device.type == "cuda":
        cache.make_writable()
        with torch.cuda.device(device):
            yield
    else:  # the interpreter is NumPy, which warns of the infinities that the kernels rely on
        with np.errstate(all="ignore"):
            yield


def check_reach(device: torch.device) -> None:
    """Triton decides when it is imported whether kernels run on the host, where a device's addresses mean nothing."""
    interpreted = not isinstance(keystream_kernel, triton.JITFunction)
    if interpreted and device.type == "cuda":
        raise RuntimeError(
            "TRITON_INTERPRET=1 runs Triton's kernels on the host, which cannot read tensors on 'cuda': unset it "
            "before the process starts, or move the tensors to 'cpu'"
        )
    if not interpreted and device.type == "cpu":
        raise RuntimeError(
            "Triton runs kernels on 'cpu' where TRITON_INTERPRET=1 was set before triton was first imported: set it "
            "before the process starts, or use a CPU backend"
        )


def to_device(array: Array, device: torch.device) -> torch.Tensor:
    """A copy for which the host does not wait; on the CPU, the array itself."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def fp64_bits(number: float) -> int:
    """A number as an argument of kernels, which would round a Python float to fp32; weights.fp64 is its inverse."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


@dataclass(frozen=True)
class Launch:
    """A part of a plan, its table on the device."""

    programs: int
    table: torch.Tensor
    numbers: tuple[int | bool, ...]


class _Entry:
    """The launches of one call; their tables were copied on the stream that was current."""

    def __init__(self, parts: list[Part], device: torch.device) -> None:
        self.launches = [Launch(part.programs, to_device(part.table, device), part.numbers) for part in parts]
        if device.type == "cuda":
            stream = torch.cuda.current_stream(device)
            self.stream, self.copied = stream.cuda_stream, stream.record_event()

    def follow(self, device: torch.device) -> None:
        """The current stream's next launch comes after the copies, and the tables live until it has run."""
        if device.type != "cuda" or (current := torch.cuda.current_stream(device)).cuda_stream == self.stream:
            return
        current.wait_event(self.copied)
        for launch in self.launches:
            launch.table.record_stream(current)


class Tables:
    """The launches of recent calls, with their tables on the device.

    A call with the same tables copies nothing, so it can be captured in a CUDA graph. What a graph has captured is kept
    for good: its replays read the table.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recent: OrderedDict[Hashable, _Entry] = OrderedDict()
        self.captured: dict[Hashable, _Entry] = {}

    def get(self, known: Hashable, device: torch.device, make: Callable[[], list[Part]]) -> list[Launch]:
        """The launches that are kept under a name, made where there are none."""
        with self.lock:
            entry = self.captured.get(known) or self.recent.get(known)
            if capturing(device):  # a capture begins after the work it depends on: there is nothing to wait for
                if entry is None:
                    raise RuntimeError(
                        "these tensors are new to Triton's kernels, and a table that describes them cannot be copied "
                        "in a capture: make the same call before it, with tensors that are contiguous (of others, "
                        "every call has a new copy)"
                    )
                self.captured[known] = entry
                self.recent.pop(known, None)
                return entry.launches
            if entry is None:
                entry = self.recent[known] = _Entry(make(), device)
                while len(self.recent) > CACHED:
                    self.recent.popitem(last=False)
            elif known in self.recent:
                self.recent.move_to_end(known)
            entry.follow(device)
            return entry.launches


tables = Tables()
