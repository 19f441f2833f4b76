# SPDX-License-Identifier: Apache-2.0
"""The bytes around a report or an aggregate: magic, version, header length, a JSON header, the payload, a digest.

The digest finds accidents: a truncated upload, a flipped bit, a bad disk. It is no signature: who can write a report
can write its digest, so authenticate the channel. Version 2 has CRC-32C, which costs no more than adding the report; it
misses one accident in 2^32, and none within 32 bits in a row. Version 1 had BLAKE2b, and is still read.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import NoReturn

from ldpkernels import _native

MAGIC = b"LDPK"
VERSION = 2
DIGEST_BYTES = {1: 16, 2: 4}  # by version
_OF_WHOLE = 0x48674BC7  # the CRC-32C of anything that its own CRC-32C follows
_PREFIX = struct.Struct("<4sBxxxI")

Uploaded = bytes | bytearray | memoryview
Header = dict[str, object]


def encode(header: Mapping[str, object], payload: bytes) -> bytes:
    """A header and a payload for the wire."""
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    body = b"".join((head_of(text), payload))
    return body + _native.crc32c(body).to_bytes(DIGEST_BYTES[VERSION], "little")


def head_of(text: bytes) -> bytes:
    """The bytes before the payload: magic, version and header."""
    return _PREFIX.pack(MAGIC, VERSION, len(text)) + text


def opened(data: Uploaded, kind: str, longest_header: int | None = None) -> tuple[bytes, memoryview]:
    """The text of the header and the payload, whose digest was compared; the payload lies in `data` itself.

    Bytes that their owner may change are copied. Work and memory are in proportion to the bytes.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"{kind} bytes are bytes, not a {type(data).__name__}")
    view = memoryview(data)
    if type(data) is not bytes and not (
        type(view.obj) is bytes and view.c_contiguous and view.format == "B" and view.ndim == 1
    ):
        view = memoryview(bytes(view))
    if len(view) < _PREFIX.size:
        raise ValueError(f"not {kind} bytes: {len(view)} bytes are too few")
    magic, version, length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise ValueError(f"not {kind} bytes: they begin with {magic!r}, not {MAGIC!r}")
    if version not in DIGEST_BYTES:
        raise ValueError(f"{kind} of format version {version}: this library reads versions 1 and {VERSION}")
    end = len(view) - DIGEST_BYTES[version]
    if end < _PREFIX.size:
        raise ValueError(f"not {kind} bytes: {len(view)} bytes are too few")
    if longest_header is not None and length > longest_header:
        raise ValueError(f"not {kind} bytes as expected: a header of {length} bytes, where {longest_header} are enough")
    if version == 1:
        whole = hashlib.blake2b(view[:end], digest_size=DIGEST_BYTES[1]).digest() == bytes(view[end:])
    else:
        whole = _native.crc32c(view) == _OF_WHOLE
    if not whole:
        raise ValueError(f"the {kind} was truncated or altered on its way: its digest does not match")
    start = _PREFIX.size + length
    if start > end:
        raise ValueError(f"not {kind} bytes: the header is longer than the data")
    return bytes(view[_PREFIX.size : start]), view[start:end]


def header_in(text: bytes, kind: str) -> Header:
    """The header of one kind; anything else is a ValueError."""
    try:
        header = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_twice)
    except (ValueError, RecursionError):
        raise ValueError(f"not {kind} bytes: the header is not JSON") from None
    if not isinstance(header, dict) or header.pop("kind", None) != kind:
        raise ValueError(f"not {kind} bytes: they hold something else of this library's")
    return header


def decode(data: Uploaded, kind: str) -> tuple[Header, bytes]:
    """The header and the payload of bytes of one kind; anything else is a ValueError."""
    text, payload = opened(data, kind)
    return header_in(text, kind), bytes(payload)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _refuse_twice(pairs: list[tuple[str, object]]) -> Header:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field appears twice")
    return found
