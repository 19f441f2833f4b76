# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.ldpkernels.fresh_key`: a ChaCha20 key that nobody has had before, for one call on a device.

It is an operation so that torch.compile leaves it where it stands: its tag says that two calls differ, and a compiled
function draws anew each time it runs. On the CPU each key comes from the operating system. A GPU holds one state,
seeded once from the operating system, and every use takes the next number of it: nothing is copied and nothing waits,
and a CUDA graph that was captured once has a key of its own in every replay.
"""

from __future__ import annotations

import secrets
import threading

import torch

from ldpkernels import gpu, launch
from ldpkernels.keys import CHACHA20
from ldpkernels.ops.define import define_source

_states: dict[torch.device, torch.Tensor] = {}
_lock = threading.Lock()


def _fresh_key(device: torch.device) -> torch.Tensor:
    """A key from the operating system, or from the device's state."""
    if device.type == "cuda":
        return launch.next_key(_state(device), "cuda")
    return torch.frombuffer(bytearray(secrets.token_bytes(8 * CHACHA20)), dtype=torch.int64).to(device)


def new_state(device: torch.device) -> torch.Tensor:
    """Four words of key and the number of the next derived key: docs/rng.md."""
    seed = bytearray(secrets.token_bytes(8 * CHACHA20) + bytes(8))
    return torch.frombuffer(seed, dtype=torch.int64).to(device)


def _state(device: torch.device) -> torch.Tensor:
    index = torch.cuda.current_device() if device.index is None else device.index
    device = torch.device("cuda", index)
    with _lock:
        if device not in _states:
            if gpu.capturing(device):
                raise RuntimeError(
                    "the first key on a device is seeded by a copy, which a CUDA graph cannot hold: make one call "
                    "before the capture, or pass a key tensor as the generator"
                )
            _states[device] = new_state(device)
            torch.cuda.synchronize(device)  # once: other streams may be the next to use it
        return _states[device]


fresh_key = define_source("fresh_key(Device device) -> Tensor", _fresh_key, (CHACHA20,))
