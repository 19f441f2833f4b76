# SPDX-License-Identifier: Apache-2.0
"""A device's own source of keys: ldpkernels/ops/keys.py says what for.

The state is five int64 numbers, a ChaCha20 key and the number of the next derived key. Number n is taken by an atomic
addition, so that no two uses have the same, whatever streams or graphs they run in.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ldpkernels.triton.ciphers import keystream_words, load_key
from ldpkernels.triton.launch import OPTIONS, launching


@triton.jit
def next_key_kernel(state, out):
    """The first eight words of block n of keystream 0 under the state's key."""
    n = tl.atomic_add(state + 4, 1)
    words = keystream_words(n, tl.zeros([], tl.uint32), load_key(state, True), True, 1)
    i = tl.arange(0, 16)
    tl.store(out + i, words.to(tl.int32, bitcast=True), i < 8)


def next_key(state: torch.Tensor) -> torch.Tensor:
    """The next key of a state on its device."""
    key = torch.empty(4, dtype=torch.int64, device=state.device)
    with launching(state.device):
        next_key_kernel[(1,)](state, key.view(torch.int32), **OPTIONS)
    return key
