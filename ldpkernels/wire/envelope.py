# SPDX-License-Identifier: Apache-2.0
"""The bytes around a report or an aggregate: magic, version, header length, a JSON header, the payload, a digest."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

MAGIC = b"LDPK"
VERSION = 1
DIGEST_BYTES = 16
_PREFIX = struct.Struct("<4sBxxxI")


def encode(header: dict[str, Any], payload: bytes) -> bytes:
    """A header and a payload for the wire."""
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    body = _PREFIX.pack(MAGIC, VERSION, len(text)) + text + payload
    return body + hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


def decode(data: bytes, kind: str) -> tuple[dict[str, Any], bytes]:
    """The header and the payload of bytes of one kind; anything else is a ValueError."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"{kind} bytes are bytes, not a {type(data).__name__}")
    data = bytes(data)
    if len(data) < _PREFIX.size + DIGEST_BYTES:
        raise ValueError(f"not {kind} bytes: {len(data)} bytes are too few")
    magic, version, length = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"not {kind} bytes: they begin with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise ValueError(f"{kind} of format version {version}: this library reads version {VERSION}")
    body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() != digest:
        raise ValueError(f"the {kind} was truncated or altered on its way: its digest does not match")
    if _PREFIX.size + length > len(body):
        raise ValueError(f"not {kind} bytes: the header is longer than the data")
    try:
        header = json.loads(body[_PREFIX.size : _PREFIX.size + length])
    except (ValueError, RecursionError):
        raise ValueError(f"not {kind} bytes: the header is not JSON") from None
    if not isinstance(header, dict) or header.pop("kind", None) != kind:
        raise ValueError(f"not {kind} bytes: they hold something else of this library's")
    return header, body[_PREFIX.size + length :]
