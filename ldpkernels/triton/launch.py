# SPDX-License-Identifier: Apache-2.0
"""From tables to launches. A call is one launch for each dtype it holds, over any number of tensors."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ldpkernels.triton.ciphers import keystream_kernel
from ldpkernels.triton.two_point import BITS, COLUMNS, F64, THRESHOLDS, VALUES, two_point_kernel

BLOCKS = 32  # cipher blocks a tile: one for each lane of the warp that is a program
LONGEST = 16  # tiles a program: its prologue is then a hundredth of its work
PROGRAMS = 8192  # programs are made longer only when there are more than a GPU runs at once
CACHED = 64  # tables kept on devices
OPTIONS = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": False}


def values(spans: Any, laws: Any, key: torch.Tensor) -> None:
    """Replace every weight by one of its law's two values."""
    _run(int(VALUES), spans, laws, key)


def bits(spans: Any, laws: Any, key: torch.Tensor) -> None:
    """Write one bit a weight to each span's `out`: eight to a byte, the first lowest, unused bits zero."""
    _run(int(BITS), spans, laws, key)


def thresholds(spans: Any, laws: Any, key: torch.Tensor) -> None:
    """Write 2^31 + k for each weight to each span's `out`, as int64."""
    _run(int(THRESHOLDS), spans, laws, key)


def keystream(key: torch.Tensor, stream: int, first_block: int, blocks: int) -> torch.Tensor:
    """The words of consecutive blocks of a keystream (docs/rng.md), as int32."""
    chacha = _is_chacha(key)
    out = torch.empty(blocks * (16 if chacha else 4), dtype=torch.int32, device=key.device)
    first_block -= first_block >> 63 << 64  # the same bits as an int64
    with _launching(key.device):
        keystream_kernel[(-(-blocks // BLOCKS),)](key, out, stream, first_block, blocks, chacha, BLOCKS, **OPTIONS)
    return out


def _run(output: int, spans: Any, laws: Any, key: torch.Tensor) -> None:
    if not spans["numel"].any():
        return
    chacha = _is_chacha(key)
    with _launching(key.device):
        for launch in _launches(output, spans, laws, chacha, key.device):
            two_point_kernel[(launch.programs,)](
                launch.table,
                key,
                launch.rows,
                launch.tiles,
                launch.dtype,
                output,
                chacha,
                launch.aligned,
                BLOCKS,
                **OPTIONS,
            )


def _is_chacha(key: torch.Tensor) -> bool:
    if key.dtype != torch.int64 or key.shape not in ((1,), (4,)) or not key.is_contiguous():
        raise ValueError(f"a key is a contiguous int64 tensor of 1 or 4 numbers, not {key.dtype} {tuple(key.shape)}")
    return key.numel() == 4


@contextlib.contextmanager
def _launching(device: torch.device) -> Iterator[None]:
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
    else:  # the interpreter is NumPy, which warns of the infinities that the kernels rely on
        with np.errstate(all="ignore"):
            yield


@dataclass
class _Launch:
    dtype: int
    aligned: bool
    rows: int
    tiles: int
    programs: int
    table: torch.Tensor


class _Tables:
    """The launches of recent calls, with their tables on the device.

    A call with the same tables copies nothing, so it can be captured in a CUDA graph. What a graph has captured is kept
    for good: its replays read the table.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recent: OrderedDict[Any, tuple[list[_Launch], int, Any]] = OrderedDict()
        self.captured: dict[Any, list[_Launch]] = {}

    def get(self, key: Any, device: torch.device, make: Any) -> list[_Launch]:
        with self.lock:
            return self._get(key, device, make)

    def _get(self, key: Any, device: torch.device, make: Any) -> list[_Launch]:
        on_gpu = device.type == "cuda"
        capturing = on_gpu and torch.cuda.is_current_stream_capturing()
        if key in self.captured:
            return self.captured[key]
        if key not in self.recent:
            if capturing:
                raise RuntimeError("the first call with these tensors copies a table: make it before the capture")
            launches = make()
            stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
            self.recent[key] = launches, stream, torch.cuda.current_stream(device).record_event() if on_gpu else None
            while len(self.recent) > CACHED:
                self.recent.popitem(last=False)
        self.recent.move_to_end(key)
        launches, stream, copied = self.recent[key]
        if capturing:  # a capture begins after the work it depends on
            self.captured[key] = self.recent.pop(key)[0]
        elif on_gpu and (current := torch.cuda.current_stream(device)).cuda_stream != stream:
            current.wait_event(copied)
            for launch in launches:
                launch.table.record_stream(current)
        return launches


_tables = _Tables()


def _launches(output: int, spans: Any, laws: Any, chacha: bool, device: torch.device) -> list[_Launch]:
    key = (device, output, chacha, spans.tobytes(), laws.tobytes())
    return _tables.get(key, device, lambda: _make_launches(output, spans, laws, chacha, device))


def _make_launches(output: int, spans: Any, laws: Any, chacha: bool, device: torch.device) -> list[_Launch]:
    aligned = (spans["data"] % 16 == 0) & (output != int(THRESHOLDS))
    kinds = spans["dtype"] * 2 + aligned
    launches = []
    for kind in np.unique(kinds[spans["numel"] > 0]):
        chosen = (kinds == kind) & (spans["numel"] > 0)
        table, tiles, programs = table_of(spans[chosen], laws[chosen], 32 if chacha else 8)
        on_device = torch.from_numpy(table)
        if device.type == "cuda":
            on_device = on_device.pin_memory().to(device, non_blocking=True)
        launches.append(_Launch(int(kind) // 2, bool(kind % 2), len(table), tiles, programs, on_device))
    return launches


def table_of(spans: Any, laws: Any, per_block: int) -> tuple[Any, int, int]:
    """The kernel's table for tensors of one dtype, its tiles a program, and its number of programs."""
    table, tiles, programs = span_columns(spans, laws, per_block, int(COLUMNS))
    table[:, 12], table[:, 13] = laws["lower"].view(np.int64), laws["upper"].view(np.int64)
    return table, tiles, programs


def span_columns(spans: Any, laws: Any, per_block: int, columns: int) -> tuple[Any, int, int]:
    """A table whose first twelve columns are filled: the tensors, and how a weight becomes an integer."""
    tile = BLOCKS * per_block
    tiles_of = -(-(spans["numel"] + spans["first"] % per_block) // tile)
    tiles = int(np.clip(tiles_of.sum() // PROGRAMS, 1, LONGEST))
    programs = np.concatenate([[0], np.cumsum(-(-tiles_of // tiles))])
    wide = bool((spans["dtype"] == int(F64)).all())
    table = np.empty((len(spans), columns), dtype=np.int64)
    table[:, 0] = programs[:-1]
    for column, name in enumerate(("data", "out", "numel", "first"), 1):
        table[:, column] = spans[name].view(np.int64)
    for column, name in enumerate(("center", "slope", "fallback"), 5):
        table[:, column] = number_column(laws[name], wide)
    table[:, 8], table[:, 9] = laws["k_lo"], laws["k_hi"]
    table[:, 10] = (-_float_at_most(-laws["k_lo"])).view(np.int32)
    table[:, 11] = _float_at_most(laws["k_hi"]).view(np.int32)
    return table, tiles, int(programs[-1])


def number_column(numbers: Any, wide: bool) -> Any:
    """fp64 numbers as the bits of fp64 (`wide`) or fp32 ones."""
    numbers = np.ascontiguousarray(numbers)
    return numbers.view(np.int64) if wide else numbers.astype(np.float32).view(np.int32)


def _float_at_most(k: Any) -> Any:
    """The largest fp32 numbers that are at most k (csrc/lanes.h)."""
    nearest = k.astype(np.float32)
    return np.where(nearest > k.astype(np.float64), np.nextafter(nearest, np.float32(-np.inf)), nearest)
