# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy as np

_Array = np.ndarray[Any, np.dtype[Any]]

def two_point_values(spans: _Array, laws: _Array, key: int, key_words: int, device: int, stream: int) -> None: ...
def two_point_bits(spans: _Array, laws: _Array, key: int, key_words: int, device: int, stream: int) -> None: ...
def two_point_thresholds(spans: _Array, laws: _Array, key: int, key_words: int, device: int, stream: int) -> None: ...
