# SPDX-License-Identifier: Apache-2.0
"""Keys: where the random bits come from (docs/rng.md)."""

from __future__ import annotations

import operator
import os
import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np

if TYPE_CHECKING:
    import torch

Generator = Union[None, str, "Key", "torch.Generator", "torch.Tensor", np.random.Generator]

PHILOX, CHACHA20 = 1, 4  # 64-bit words of a key
_DERIVATION = 1  # the counter's domain for derived keys


@dataclass(frozen=True)
class Key:
    """An explicit key: the same key gives the same bits on every backend. Use a key once.

    `words` are 64-bit integers: one keys Philox4x32-10, four key ChaCha20.
    """

    words: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.words) not in (PHILOX, CHACHA20) or any(not 0 <= w < 2**64 for w in self.words):
            raise ValueError("a key has 1 or 4 words from 0 to 2^64 - 1")  # never the words: a key is a secret

    def __repr__(self) -> str:
        return f"Key({'philox4x32' if len(self.words) == PHILOX else 'chacha20'})"  # never the words

    def fold_in(self, i: int) -> Key:
        """The i-th key derived from this one, for a client, a round or a step.

        >>> key(0).fold_in(3) == key(0).fold_in(3) != key(0).fold_in(4)
        True
        """
        from ldpkernels import _native

        i = operator.index(i)
        if not 0 <= i < 2**64:
            raise ValueError(f"i={i} must be from 0 to 2^64 - 1")
        counter = np.array([i & 0xFFFFFFFF, i >> 32, 0, _DERIVATION], np.uint32)
        block = _native.cipher_block(self.uint32(), counter)
        return Key(_words(block[: 2 * len(self.words)]))

    def uint32(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The words as the kernels read them."""
        return np.array(self.words, "<u8").view("<u4").astype(np.uint32)

    def tensor(self, device: Any = "cpu") -> torch.Tensor:
        """The key as an int64 tensor, for a CUDA graph or an operation of `torch.ops.ldpkernels`."""
        import torch

        return torch.tensor([w - 2**64 if w >= 2**63 else w for w in self.words], dtype=torch.int64, device=device)


def key(seed: int) -> Key:
    """A reproducible Philox key from a seed of up to 64 bits.

    >>> import numpy as np, ldpkernels
    >>> w = np.zeros(4, np.float32)
    >>> ldpkernels.perturb_(w, C=0.0, R=1.0, eps=1.0, generator=ldpkernels.key(7)).round(2)
    array([..., ...], dtype=float32)
    """
    seed = operator.index(seed)
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed={seed} must fit in 64 bits")
    return Key((seed % 2**64,))


def secure_key() -> Key:
    """A fresh ChaCha20 key from the operating system, which is what `generator="secure"` draws for each call."""
    return Key(_words(np.frombuffer(secrets.token_bytes(32), "<u4")))


def numpy_key(generator: Generator) -> Key:
    """The key for one call on NumPy arrays; without a generator, a secure one."""
    if generator is None or (isinstance(generator, str) and generator == "secure"):
        return secure_key()
    if isinstance(generator, Key):
        return generator
    if isinstance(generator, np.random.Generator):
        return Key((int(generator.integers(0, 2**64, dtype=np.uint64)),))
    raise TypeError(
        f"generator={_described(generator)} must be None, 'secure', an ldpkernels key or a numpy.random.Generator"
    )


def torch_key(generator: Generator, device: torch.device) -> torch.Tensor:
    """The key for one call on tensors of `device`; without a generator, drawn from the device's default one."""
    import torch

    if isinstance(generator, torch.Tensor):
        if generator.dtype != torch.int64 or generator.shape not in ((PHILOX,), (CHACHA20,)):
            raise TypeError(f"a key tensor is int64 of 1 or 4 words, not {generator.dtype} of {tuple(generator.shape)}")
        if generator.device != device:
            raise ValueError(f"the key is on {generator.device} and the tensors are on {device}: move the key there")
        return generator
    if isinstance(generator, Key):
        return generator.tensor(device)
    if isinstance(generator, str) and generator == "secure":
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "generator='secure' would be drawn once, when the function is compiled: pass "
                "secure_key().tensor(device) as an argument of the compiled function"
            )
        return secure_key().tensor(device)
    if generator is None:
        words = torch.randint(-(2**63), 2**63 - 1, (PHILOX,), dtype=torch.int64, device=device)
        return words ^ _fork_salt() if _forked else words
    if isinstance(generator, torch.Generator):
        size = (PHILOX,)
        words = torch.randint(
            -(2**63), 2**63 - 1, size, dtype=torch.int64, device=generator.device, generator=generator
        )
        return words.to(device, non_blocking=True)
    raise TypeError(
        f"generator={_described(generator)} must be None, 'secure', an ldpkernels key, an int64 key tensor or a "
        "torch.Generator"
    )


def _described(generator: Any) -> str:
    return repr(generator) if isinstance(generator, str) else f"a {type(generator).__name__}"  # a tensor may be a key


def _words(block: np.ndarray[Any, Any]) -> tuple[int, ...]:
    return tuple(int(w) for w in np.ascontiguousarray(block).astype("<u4").view("<u8"))


# A forked child inherits the default generator's state: parent and child would draw the same keys, and put the same
# noise on different updates. So a child that has not been seeded anew mixes 63 bits of its own into the keys it draws.
_forked = False
_salt = 0
_seed_at_fork: int | None = None


def _default_seed() -> int | None:
    return sys.modules["torch"].initial_seed() if "torch" in sys.modules else None


def _after_fork_in_child() -> None:
    global _forked, _salt, _seed_at_fork
    _forked, _salt, _seed_at_fork = True, secrets.randbits(63), _default_seed()


def _fork_salt() -> int:
    return _salt if _default_seed() == _seed_at_fork else 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
