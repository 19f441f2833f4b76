# SPDX-License-Identifier: Apache-2.0
"""The names of array types, so that signatures say what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array: TypeAlias = NDArray[Any]  # of a format that is known only when it runs
Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint32]
Flags: TypeAlias = NDArray[np.bool_]
Spans: TypeAlias = NDArray[np.void]  # records of _native.SPAN: ldpkernels/inputs/spans.py
Laws: TypeAlias = NDArray[np.void]  # records of _native.LAWS: what a kernel executes for each span
AnyArray: TypeAlias = "Array | torch.Tensor"
Value = TypeVar("Value", Array, "torch.Tensor")  # what goes in as one comes out as one
