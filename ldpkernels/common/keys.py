# SPDX-License-Identifier: Apache-2.0
"""Keys: where the random bits come from (docs/rng.md)."""

from __future__ import annotations

import operator
import secrets
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, Union

import numpy as np

from ldpkernels import _native
from ldpkernels.common import capabilities, gpu
from ldpkernels.common.arrays import Words

if TYPE_CHECKING:
    import torch

Generator = Union[None, Literal["secure"], "Key", "torch.Generator", "torch.Tensor", np.random.Generator]

CipherName = Literal["aes", "chacha20"]
_DERIVATION = 1  # the counter's domain for derived keys


class Cipher(NamedTuple):
    """A generator of random bits. The kernels know it by the length of its keys."""

    name: str
    words: int  # 64-bit words of a key


PHILOX, AES, CHACHA20 = Cipher("philox4x32", 1), Cipher("aes128", 2), Cipher("chacha20", 4)
CIPHERS = {cipher.words: cipher for cipher in (PHILOX, AES, CHACHA20)}
LENGTHS = "1, 2 or 4"  # of keys, for errors
_SECURE: dict[CipherName, Cipher] = {"aes": AES, "chacha20": CHACHA20}
_BEST = _native.isas()[0]


@dataclass(frozen=True)
class Key:
    """An explicit key: the same key gives the same bits on every backend. Use a key once.

    `words` are 64-bit integers: one for Philox4x32-10, two for AES-128 and four for ChaCha20.
    """

    words: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.words) not in CIPHERS or not 0 <= min(self.words) <= max(self.words) < 2**64:
            raise ValueError(f"a key has {LENGTHS} words from 0 to 2^64 - 1")  # never the words: a key is a secret

    def __repr__(self) -> str:
        return f"Key({CIPHERS[len(self.words)].name})"  # never the words

    def fold_in(self, i: int) -> Key:
        """The i-th key derived from this one, for a client, a round or a step.

        >>> key(0).fold_in(3) == key(0).fold_in(3) != key(0).fold_in(4)
        True
        """
        i = operator.index(i)
        if not 0 <= i < 2**64:
            raise ValueError(f"i={i} must be from 0 to 2^64 - 1")
        counter = np.array([i & 0xFFFFFFFF, i >> 32, 0, _DERIVATION], np.uint32)
        block = _native.cipher_block(self.uint32(), counter)
        return Key(_words(block[: 2 * len(self.words)]))

    def uint32(self) -> Words:
        """The words as the kernels read them."""
        return np.frombuffer(bytearray(self.little_endian()), "<u4").astype(np.uint32, copy=False)

    def little_endian(self) -> bytes:
        """The words as bytes, the lowest byte of each word first."""
        return struct.pack(f"<{len(self.words)}Q", *self.words)

    def tensor(self, device: str | torch.device = "cpu") -> torch.Tensor:
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


def secure_key(cipher: CipherName | None = None) -> Key:
    """A fresh key from the operating system.

    Args:
        cipher: "aes" for AES-128, which only kernels on the CPU take; "chacha20" for all backends. None chooses as a
            call without a generator does on the CPU: AES if the processor has instructions for it, else ChaCha20.

    >>> secure_key("chacha20")
    Key(chacha20)
    """
    if cipher is not None and cipher not in _SECURE:
        raise ValueError(f"cipher={cipher!r} must be 'aes', 'chacha20' or None")
    chosen = default_cipher("cpu") if cipher is None else _SECURE[cipher]
    return Key(_words(np.frombuffer(token_bytes(chosen), "<u4")))


def token_bytes(cipher: Cipher) -> bytes:
    """The bytes of a fresh key from the operating system."""
    return secrets.token_bytes(8 * cipher.words)


def default_cipher(device: str) -> Cipher:
    """What a call on a type of device draws from that names no generator.

    It is AES where an instruction set runs the call and has instructions for AES, else ChaCha20.
    """
    return AES if device == "cpu" and (capabilities.forced() or _BEST) in _native.AES_ISAS else CHACHA20


def refuse_aes(where: str) -> NoReturn:
    """AES has no kernels beyond the CPU's, where it would be slower than ChaCha20."""
    raise ValueError(f"an AES key works on the CPU only, and no kernel takes one {where}: use secure_key('chacha20')")


def numpy_key(generator: Generator) -> Key:
    """The key for one call on NumPy arrays; without a generator, a secure one."""
    if is_secure(generator):
        return secure_key()
    if isinstance(generator, Key):
        return generator
    if isinstance(generator, np.random.Generator):
        return Key((int(generator.integers(0, 2**64, dtype=np.uint64)),))
    raise TypeError(
        f"generator={described(generator)} must be None, 'secure', an ldpkernels key or a numpy.random.Generator"
    )


def is_secure(generator: Generator) -> bool:
    """Whether a call draws a fresh key from the operating system."""
    return generator is None or (isinstance(generator, str) and generator == "secure")


def host_key(generator: Generator) -> bytes:
    """The key for one call on NumPy arrays, as bytes."""
    if generator is None:
        return token_bytes(default_cipher("cpu"))
    return numpy_key(generator).little_endian()


def key_on(key: Key, device: torch.device) -> torch.Tensor:
    """An explicit key as a tensor on the device of a call."""
    return to_device(key.tensor(), device)


def to_device(words: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A key of the host's on the device of the call, without waiting for it."""
    import torch

    if device.type != "cuda" or torch.compiler.is_compiling():
        return words.to(device)
    refuse_capture(device)
    return words.pin_memory().to(device, non_blocking=True)


def refuse_capture(device: torch.device) -> None:
    """Refuse a key that is drawn or copied on the host, which every replay of a graph would use again."""
    if gpu.capturing(device):
        raise RuntimeError(
            "every replay of a CUDA graph would use the same key, since this generator is on the host: pass none, for "
            "a fresh key in every replay, or a key tensor on the device, and write a new key there before each replay"
        )


def refuse_trace(*_: object) -> NoReturn:
    """Refuse torch.jit.trace, by which torch.onnx.export traces too."""
    raise RuntimeError(
        "torch.jit.trace records no operation of ldpkernels, so the traced function would leave weights unperturbed: "
        "use torch.compile or torch.export"
    )


def described(generator: object) -> str:
    """What an error says of a generator, which may be a key."""
    return repr(generator) if isinstance(generator, str) else f"a {type(generator).__name__}"


def _words(block: Words) -> tuple[int, ...]:
    return tuple(np.ascontiguousarray(block).astype("<u4").view("<u8").tolist())
