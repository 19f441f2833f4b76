# SPDX-License-Identifier: Apache-2.0
"""NumPy's bfloat16 where ml_dtypes is: a machine with a GPU may be bare, and tests run there without it."""

import importlib
import importlib.util

import numpy as np

BFLOAT16 = np.dtype(importlib.import_module("ml_dtypes").bfloat16) if importlib.util.find_spec("ml_dtypes") else None
SOME = () if BFLOAT16 is None else (BFLOAT16,)
