# SPDX-License-Identifier: Apache-2.0
"""The cryptography of secure sums, all of it the package cryptography's and the standard library's."""

from __future__ import annotations

import hashlib
import hmac

from ldpkernels.common.optional import require
from ldpkernels.secure_sums.terms import ProtocolError

require("cryptography", "secure", "ldpkernels.secure_sums")

from cryptography.exceptions import InvalidSignature, InvalidTag  # noqa: E402
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey  # noqa: E402
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey  # noqa: E402
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: E402

KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES = 32, 64, 16
_NONCE = bytes(12)  # a box's key is used once


def derived(secret: bytes, label: bytes, salt: bytes = b"") -> bytes:
    """32 bytes by HKDF-SHA256 (RFC 5869), one block of it.

    >>> derived(b"\\x0b" * 22, bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"), bytes(range(13))).hex()[:16]
    '3cb25f25faacd57a'
    """
    extracted = hmac.digest(salt or bytes(32), secret, hashlib.sha256)
    return hmac.digest(extracted, label + b"\x01", hashlib.sha256)


def public_key(private: bytes) -> bytes:
    """The X25519 public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes) -> bytes:
    """What two X25519 keys agree on. A public key of small order, by which anyone would know it, is refused."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("a client's public key is not one that can keep a secret") from None


def boxed(key: bytes, text: bytes, about: bytes) -> bytes:
    """ChaCha20-Poly1305 under a key that is used for this box alone; `about` is bound to it."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, about)


def unboxed(key: bytes, box: bytes, about: bytes) -> bytes | None:
    """What is in a box; None where it was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, about)
    except InvalidTag:
        return None


def verifying_key(private: bytes) -> bytes:
    """The Ed25519 public key of a private one."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def signed(private: bytes, text: bytes) -> bytes:
    """An Ed25519 signature."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(text)


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Whether a signature is this key's, of this text."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
