# SPDX-License-Identifier: Apache-2.0
"""Keys: where the random bits come from (docs/rng.md)."""

from __future__ import annotations

import operator
import secrets
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, Union

import numpy as np

from ldpkernels import _native, capabilities, gpu
from ldpkernels.arrays import Words

if TYPE_CHECKING:
    import torch

Generator = Union[None, Literal["secure"], "Key", "torch.Generator", "torch.Tensor", np.random.Generator]

CipherName = Literal["aes", "chacha20"]

PHILOX, AES, CHACHA20 = 1, 2, 4  # 64-bit words of a key, which say whose it is
CIPHERS = {PHILOX: "philox4x32", AES: "aes128", CHACHA20: "chacha20"}
_SECURE: dict[CipherName, int] = {"aes": AES, "chacha20": CHACHA20}
_DERIVATION = 1  # the counter's domain for derived keys
_BEST = _native.isas()[0]
_UNSEEDED = 67280421310721  # what a torch.Generator starts from until it is seeded
_PACK = {size: struct.Struct(f"<{size}Q").pack for size in CIPHERS}


@dataclass(frozen=True)
class Key:
    """An explicit key: the same key gives the same bits on every backend. Use a key once.

    `words` are 64-bit integers: one keys Philox4x32-10, two key AES-128 and four ChaCha20.
    """

    words: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.words) not in CIPHERS or any(not 0 <= w < 2**64 for w in self.words):
            raise ValueError("a key has 1, 2 or 4 words from 0 to 2^64 - 1")  # never the words: a key is a secret

    def __repr__(self) -> str:
        return f"Key({CIPHERS[len(self.words)]})"  # never the words

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
        """The words, each in this order."""
        return _PACK[len(self.words)](*self.words)

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
        cipher: "aes" for AES-128, which kernels on the CPU take; "chacha20" for all backends. None for what a call
            without a generator draws here for numbers on the CPU: AES where the processor has instructions for it, else
            ChaCha20.

    >>> secure_key("chacha20")
    Key(chacha20)
    """
    if cipher is not None and cipher not in _SECURE:
        raise ValueError(f"cipher={cipher!r} must be 'aes', 'chacha20' or None")
    size = default_size("cpu") if cipher is None else _SECURE[cipher]
    return Key(_words(np.frombuffer(secrets.token_bytes(8 * size), "<u4")))


def default_size(device: str) -> int:
    """How many 64-bit words a key has that nobody asked for, of a call on a type of device.

    It is AES's where an instruction set runs the call and has instructions for AES, else ChaCha20's.
    """
    return AES if device == "cpu" and (capabilities.forced() or _BEST) in _native.AES_ISAS else CHACHA20


def refuse_aes(where: str) -> NoReturn:
    """AES has no kernels beyond the CPU's, where it would be slower than ChaCha20."""
    raise ValueError(f"an AES key is for the CPU, and there are no kernels for it {where}: use secure_key('chacha20')")


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
    """The key for one call on tensors of `device`; without a generator, a secure one."""
    import torch

    if torch._C._get_tracing_state() is not None:
        refuse_trace()
    if isinstance(generator, torch.Tensor):
        if generator.dtype != torch.int64 or generator.dim() != 1 or len(generator) not in CIPHERS:
            raise TypeError(
                f"a key tensor is int64 of 1, 2 or 4 words, not {generator.dtype} of {tuple(generator.shape)}"
            )
        if generator.device != device:
            raise ValueError(f"the key is on {generator.device} and the tensors are on {device}: move the key there")
        if device.type != "cpu" and len(generator) == AES:
            refuse_aes(f"on {device.type!r}")
        return generator
    if isinstance(generator, Key):
        if device.type != "cpu" and len(generator.words) == AES:
            refuse_aes(f"on {device.type!r}")
        return _to_device(generator.tensor(), device)
    if generator is None or (isinstance(generator, str) and generator == "secure"):
        if device.type == "cpu" and not torch.compiler.is_compiling() and not torch._C._len_torch_dispatch_stack():
            return torch.frombuffer(bytearray(secrets.token_bytes(8 * default_size("cpu"))), dtype=torch.int64)
        import ldpkernels.ops  # noqa: F401  (registers the operation)

        key: torch.Tensor = torch.ops.ldpkernels.fresh_key(device)
        return key
    if isinstance(generator, torch.Generator):
        if generator.initial_seed() == _UNSEEDED:
            raise ValueError(
                "generator was never seeded, and such a torch.Generator is the same everywhere: seed it, or pass none "
                "for a key from the operating system"
            )
        if generator.device.type == "cpu":
            _refuse_capture(device)
        words = torch.randint(
            -(2**63), 2**63 - 1, (PHILOX,), dtype=torch.int64, device=generator.device, generator=generator
        )
        return _to_device(words, device) if words.device.type == "cpu" else words.to(device, non_blocking=True)
    raise TypeError(
        f"generator={_described(generator)} must be None, 'secure', an ldpkernels key, an int64 key tensor or a "
        "torch.Generator"
    )


def host_key(generator: Generator, is_torch: bool) -> bytes:
    """The key for one call on the host, as bytes; a key tensor is not for this."""
    if generator is None or (isinstance(generator, str) and generator == "secure"):
        return secrets.token_bytes(8 * default_size("cpu"))
    if isinstance(generator, Key):
        return generator.little_endian()
    if not is_torch:
        return numpy_key(generator).little_endian()
    import torch

    words: bytes = torch_key(generator, torch.device("cpu")).numpy().tobytes()
    return words


def _to_device(words: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A key of the host's on the device of the call, without waiting for it."""
    import torch

    if device.type != "cuda" or torch.compiler.is_compiling():
        return words.to(device)
    _refuse_capture(device)
    return words.pin_memory().to(device, non_blocking=True)


def _refuse_capture(device: torch.device) -> None:
    """Of a key that is drawn or copied on the host, which every replay of a graph would use again."""
    if gpu.capturing(device):
        raise RuntimeError(
            "every replay of a CUDA graph would use the key of this generator, which is the host's: pass none, for a "
            "fresh key in every replay, or a key tensor on the device, and write a new key there before each"
        )


def refuse_trace(*_: object) -> NoReturn:
    """torch.onnx.export traces so too."""
    raise RuntimeError(
        "torch.jit.trace records no operation of ldpkernels, so that what it makes would leave weights as they are: "
        "use torch.compile or torch.export"
    )


def _described(generator: object) -> str:
    return repr(generator) if isinstance(generator, str) else f"a {type(generator).__name__}"  # a tensor may be a key


def _words(block: Words) -> tuple[int, ...]:
    return tuple(int(w) for w in np.ascontiguousarray(block).astype("<u4").view("<u8"))
