# SPDX-License-Identifier: Apache-2.0
"""Shamir's secret sharing: of n shares any `threshold` give the secret back, and fewer say nothing about it.

A secret of 32 bytes is the constant term of a polynomial over the integers modulo a prime above 2^256; the share of
place x, which counts from 1, is the polynomial's value there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

PRIME = 2**256 + 297  # the least prime above 2^256
SECRET_BYTES = 32
SHARE_BYTES = 33
_COEFFICIENT_BYTES = 48  # a number of so many random bytes is uniform modulo PRIME to within 2^-127


def split(secret: bytes, threshold: int, shares: int, randomness: bytes) -> list[bytes]:
    """The shares of places 1 to `shares`; they follow from the randomness, which must be as secret as the secret.

    >>> parts = split(bytes(31) + b"!", 2, 3, b"not random")
    >>> joined({1: parts[0], 3: parts[2]}, [1, 3])[-1:]
    b'!'
    """
    stream = hashlib.shake_256(randomness).digest(_COEFFICIENT_BYTES * (threshold - 1))
    coefficients = [
        int.from_bytes(stream[at : at + _COEFFICIENT_BYTES], "little") % PRIME
        for at in range(0, len(stream), _COEFFICIENT_BYTES)
    ]
    coefficients.append(int.from_bytes(secret, "little"))  # the highest power comes first
    found = []
    for place in range(1, shares + 1):
        value = 0
        for coefficient in coefficients:
            value = (value * place + coefficient) % PRIME
        found.append(value.to_bytes(SHARE_BYTES, "little"))
    return found


def weights(places: Sequence[int]) -> list[int]:
    """Lagrange's weights: the secret is the sum of the shares of these places, each times its weight."""
    found = []
    for own in places:
        above = below = 1
        for other in places:
            if other != own:
                above = above * other % PRIME
                below = below * (other - own) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def joined(shares: dict[int, bytes], places: Sequence[int], by: Sequence[int] | None = None) -> bytes | None:
    """The secret from the shares of these places, whose weights are `by` if they are known; None where it is none."""
    terms = zip(places, weights(places) if by is None else by, strict=True)
    secret = sum(int.from_bytes(shares[place], "little") * weight for place, weight in terms) % PRIME
    return secret.to_bytes(SECRET_BYTES, "little") if secret < 2**256 else None
