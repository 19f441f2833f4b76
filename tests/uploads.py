# SPDX-License-Identifier: Apache-2.0
"""Reports of a small model, honest and forged."""

import struct

import numpy as np

import ldpkernels
from ldpkernels import _native, report
from ldpkernels.wire.envelope import decode, encode

MODEL = {"w": np.linspace(-1, 1, 15).reshape(3, 5), "b": np.zeros(2, np.float32)}


def upload(client=0, model=MODEL, C=0.0, R=1.0, eps=1.0, **options):
    return report(model, C, R, eps, generator=ldpkernels.key(client), **options)


def same(one, other):
    return list(one) == list(other) and all(np.array_equal(value, other[name]) for name, value in one.items())


def forged(kind=None, payload=None, data=None, **changes):
    """An upload with another header, or other weights, whose digest fits."""
    header, weights = decode(data or upload().to_bytes(), kind or "report")
    return encode({"kind": kind or "report", **header, **changes}, weights if payload is None else payload)


def signed(text, weights=b""):
    """A header as it is written here, whose digest fits."""
    body = struct.pack("<4sBxxxI", b"LDPK", 2, len(text)) + text + weights
    return body + _native.crc32c(body).to_bytes(4, "little")
