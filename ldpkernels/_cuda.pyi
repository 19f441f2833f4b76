# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy as np

_Array = np.ndarray[Any, np.dtype[Any]]

def ordinal_cldp(spans: _Array, laws: _Array, key: int, key_words: int, device: int, stream: int) -> None: ...
def two_point_values(spans: _Array, laws: _Array, key: int, key_words: int, device: int, stream: int) -> None: ...
def two_point_bits(spans: _Array, laws: _Array, key: int, key_words: int, device: int, stream: int) -> None: ...
def two_point_thresholds(spans: _Array, laws: _Array, key: int, key_words: int, device: int, stream: int) -> None: ...
def clipped_workspace(spans: _Array, rows: int, layers: int) -> int: ...
def clipped_sums(
    spans: _Array,
    bounds: _Array,
    rows: int,
    stddev: float,
    divisor: float,
    unit: float,
    grid_std: int,
    key_address: int,
    key_words: int,
    norms_address: int,
    workspace_address: int,
    device: int,
    stream: int,
) -> None: ...
def keystream(
    key_address: int,
    key_words: int,
    stream_number: int,
    first_block: int,
    blocks: int,
    out_address: int,
    device: int,
    stream: int,
) -> None: ...
