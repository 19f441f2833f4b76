# SPDX-License-Identifier: Apache-2.0
"""What a training in another process answers, as bytes: metrics, and numbers in the layout of what it received.

The layout is the reader's own, so nothing in a stranger's bytes says how much memory to take: their length is right,
or they are refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import numpy as np

from ldpkernels.releases.layouts import check_trained
from ldpkernels.releases.release import Arrays

MOST_METRICS = 1 << 16  # bytes
_HEAD = 4  # bytes of the length of the metrics
_SMALLEST, _LARGEST = 1e-6, 1e6  # of a metric that is not 0


def most_bytes(received: Arrays) -> int:
    """The length that no answer passes."""
    return _HEAD + MOST_METRICS + _size(received)


def packed(trained: Arrays, received: Arrays, metrics: Mapping[str, object]) -> bytes:
    """An answer, for the process that trains.

    >>> there = {"w": np.ones(3, np.float32)}
    >>> unpacked(packed(there, there, {"loss": 0.12345, "rows": 5}), there, ["loss"])[1]
    {'loss': 0.123}
    """
    check_trained(received, received, trained)
    said = json.dumps(dict(metrics)).encode()
    return b"".join((len(said).to_bytes(_HEAD, "little"), said, *(trained[name].tobytes() for name in received)))


def unpacked(answer: bytes, received: Arrays, names: Collection[str]) -> tuple[Arrays, dict[str, float]]:
    """The numbers, and of the metrics those of these names: each a number of three digits.

    A metric of more digits, or a list, could be the data. One that is not from 1e-6 to 1e6 in size is 0.
    """
    size = int.from_bytes(answer[:_HEAD], "little")
    if size > MOST_METRICS or len(answer) != _HEAD + size + _size(received):
        raise ValueError(f"the app answers {len(answer)} bytes, of which {size} of metrics: that is not an answer")
    try:
        said = json.loads(answer[_HEAD : _HEAD + size])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the app's metrics are not JSON: {error}") from None
    if not isinstance(said, dict):
        raise ValueError("the app's metrics are not names and numbers")
    at, arrays = _HEAD + size, Arrays()
    for name, array in received.items():
        arrays[name] = np.frombuffer(answer, array.dtype, array.size, at).reshape(array.shape)
        at += array.nbytes
    return arrays, {name: _coarse(said[name]) for name in names if name in said}


def _size(received: Arrays) -> int:
    return sum(array.nbytes for array in received.values())


def _coarse(value: object) -> float:
    if type(value) not in (int, float) or not _SMALLEST <= abs(value) <= _LARGEST:  # type: ignore[arg-type]
        return 0.0
    return float(f"{value:.2e}")
