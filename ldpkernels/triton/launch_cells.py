# SPDX-License-Identifier: Apache-2.0
"""Launches of the kernels that report cells: piecewise and hybrid."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from ldpkernels.triton import launch
from ldpkernels.triton.cells import CELL_COLUMNS, CELLS, TURNS, cells_kernel
from ldpkernels.triton.two_point import F64, VALUES

OUTPUTS = {"values": int(VALUES), "cells": int(CELLS), "turns": int(TURNS)}
_CIRCLE = ("origin", "band_draws", "band_scale", "rest_scale", "rest_shift", "band_end", "places", "cell_bits")
_COIN = ("last_draw", "coin_lowest", "coin_shift", "coin_scale", "lower_cell", "upper_cell")


def run_cells(output: Literal["values", "cells", "turns"], spans: Any, laws: Any, key: torch.Tensor) -> None:
    """Replace every weight by its cell's value, or write its cell, a byte, or its turn, an int64, to each `out`."""
    if not spans["numel"].any():
        return
    chacha = launch._is_chacha(key)
    with launch._launching(key.device):
        for one in _launches(OUTPUTS[output], spans, laws, chacha, key.device):
            cells_kernel[(one.programs,)](
                one.table,
                key,
                one.rows,
                one.tiles,
                one.dtype,
                OUTPUTS[output],
                "piecewise" in (laws.dtype.names or ()),
                chacha,
                launch.BLOCKS,
                **launch.OPTIONS,
            )


def _launches(output: int, spans: Any, laws: Any, chacha: bool, device: torch.device) -> list[launch._Launch]:
    key = (device, output, chacha, str(laws.dtype), spans.tobytes(), laws.tobytes())
    return launch._tables.get(key, device, lambda: _make_launches(spans, laws, chacha, device))


def _make_launches(spans: Any, laws: Any, chacha: bool, device: torch.device) -> list[launch._Launch]:
    launches = []
    for dtype in np.unique(spans["dtype"][spans["numel"] > 0]):
        chosen = (spans["dtype"] == dtype) & (spans["numel"] > 0)
        table, tiles, programs = table_of(spans[chosen], laws[chosen], 32 if chacha else 8)
        on_device = torch.from_numpy(table)
        if device.type == "cuda":
            on_device = on_device.pin_memory().to(device, non_blocking=True)
        launches.append(launch._Launch(int(dtype), False, len(table), tiles, programs, on_device))
    return launches


def table_of(spans: Any, laws: Any, per_block: int) -> tuple[Any, int, int]:
    """The kernel's table for tensors of one dtype, its tiles a program, and its number of programs."""
    circle = laws["piecewise"] if "piecewise" in (laws.dtype.names or ()) else laws
    table, tiles, programs = launch.span_columns(spans, circle, per_block, int(CELL_COLUMNS))
    for column, name in enumerate(_CIRCLE, 12):
        table[:, column] = circle[name]
    wide = bool((spans["dtype"] == int(F64)).all())
    for column, name in ((20, "lowest"), (21, "step")):
        table[:, column] = launch.number_column(circle[name], wide)
    for column, name in enumerate(_COIN, 22):
        table[:, column] = laws[name] if circle is not laws else 0
    return table, tiles, programs
