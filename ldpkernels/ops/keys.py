# SPDX-License-Identifier: Apache-2.0
"""The keys of calls on tensors, and `torch.ops.ldpkernels.fresh_key`: one that nobody has had before, on a device.

A fresh key is an operation so that torch.compile leaves it where it stands: its tag says that two calls differ, and a
compiled function draws anew each time it runs. On the CPU each key comes from the operating system. A GPU holds one
state, seeded once from the operating system, and every use takes the next number of it: nothing is copied and nothing
waits, and a CUDA graph that was captured once has a key of its own in every replay.
"""

from __future__ import annotations

import threading

import torch

from ldpkernels import launch
from ldpkernels.common import gpu
from ldpkernels.common.keys import (
    AES,
    CHACHA20,
    CIPHERS,
    LENGTHS,
    PHILOX,
    Generator,
    Key,
    default_cipher,
    described,
    is_secure,
    key_on,
    refuse_aes,
    refuse_capture,
    refuse_trace,
    to_device,
    token_bytes,
)
from ldpkernels.inputs.checks import check_key
from ldpkernels.ops.define import define_source

_UNSEEDED = 67280421310721  # what a torch.Generator starts from until it is seeded

_states: dict[torch.device, torch.Tensor] = {}
_lock = threading.Lock()


def _fresh_key(device: torch.device) -> torch.Tensor:
    """A key from the operating system, or from the device's state."""
    if device.type == "cuda":
        return launch.next_key(_state(device), "cuda")
    return torch.frombuffer(bytearray(token_bytes(CHACHA20)), dtype=torch.int64).to(device)


def new_state(device: torch.device) -> torch.Tensor:
    """Four words of key and the number of the next derived key: docs/rng.md."""
    seed = bytearray(token_bytes(CHACHA20) + bytes(8))
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


fresh_key = define_source("fresh_key(Device device) -> Tensor", _fresh_key, (CHACHA20.words,))


def torch_key(generator: Generator, device: torch.device) -> torch.Tensor:
    """The key for one call on tensors of `device`; without a generator, a secure one."""
    if torch._C._get_tracing_state() is not None:
        refuse_trace()
    if isinstance(generator, torch.Tensor):
        if generator.dtype != torch.int64 or generator.dim() != 1 or generator.shape[0] not in CIPHERS:
            raise TypeError(
                f"a key tensor is int64 of {LENGTHS} words, not {generator.dtype} of {tuple(generator.shape)}"
            )
        if generator.device != device:
            raise ValueError(f"the key is on {generator.device} and the tensors are on {device}: move the key there")
        if device.type != "cpu" and generator.shape[0] == AES.words:
            refuse_aes(f"on {device.type!r}")
        if not torch.compiler.is_compiling() and not torch._C._len_torch_dispatch_stack():
            check_key(generator, device)
        return generator
    if isinstance(generator, Key):
        if device.type != "cpu" and len(generator.words) == AES.words:
            refuse_aes(f"on {device.type!r}")
        return key_on(generator, device)
    if is_secure(generator):
        if device.type == "cpu" and not torch.compiler.is_compiling() and not torch._C._len_torch_dispatch_stack():
            return torch.frombuffer(bytearray(token_bytes(default_cipher("cpu"))), dtype=torch.int64)
        key: torch.Tensor = fresh_key(device)
        return key
    if isinstance(generator, torch.Generator):
        refuse_unseeded(generator)
        if generator.device.type == "cpu":
            refuse_capture(device)
        words = torch.randint(
            -(2**63), 2**63 - 1, (PHILOX.words,), dtype=torch.int64, device=generator.device, generator=generator
        )
        return to_device(words, device) if words.device.type == "cpu" else words.to(device, non_blocking=True)
    raise TypeError(
        f"generator={described(generator)} must be None, 'secure', an ldpkernels key, an int64 key tensor or a "
        "torch.Generator"
    )


def refuse_unseeded(generator: torch.Generator) -> None:
    """A key from such a generator would be the same everywhere."""
    if generator.initial_seed() == _UNSEEDED:
        raise ValueError(
            "generator was never seeded, and such a torch.Generator is the same everywhere: seed it, or pass none "
            "for a key from the operating system"
        )


def torch_key_on_host(generator: Generator, device: torch.device) -> Key:
    """That key in host memory, for what is drawn there whatever the device."""
    return Key(tuple(word % 2**64 for word in torch_key(generator, device).cpu().tolist()))
