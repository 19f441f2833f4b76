# SPDX-License-Identifier: Apache-2.0
"""Reads what anyone may have sent, in proportion to its bytes: each question is asked before the work that it saves.

The order: the digest, the header's form, whether it is what was expected, the payload's length, the law, the payload.
"""

from __future__ import annotations

import json
from typing import cast

import numpy as np

from ldpkernels import _native
from ldpkernels.common.arrays import Bytes
from ldpkernels.wire.envelope import DIGEST_BYTES, VERSION, Uploaded, head_of, header_in, opened
from ldpkernels.wire.layout import Layout, layout_of, short

_REMEMBERED = 4  # headers: clients of one round write the same, but for their library and container
_SLACK = 256  # bytes by which a header may be longer than ours: an aggregate's count, another container


class Reader:
    """Reads reports and aggregates of the layout that is expected, or of any."""

    def __init__(self, expected: Layout | None = None) -> None:
        self._expected = expected
        self._longest = None if expected is None else len(json.dumps(expected.header)) + _SLACK
        self.remembered: tuple[tuple[bytes, Layout], ...] = ()  # replaced whole: threads read it as they add

    def report(self, data: Uploaded) -> tuple[Layout, Bytes]:
        """A report's layout, and its weights, which lie in `data`; anything else is a ValueError."""
        text, payload = opened(data, "report", self._longest)
        layout = dict(self.remembered).get(text)
        if layout is None:
            layout = self._checked(layout_of(header_in(text, "report")), "report", len(payload))
            self.remembered = ((text, layout), *self.remembered[: _REMEMBERED - 1])
        elif len(payload) != layout.nbytes:
            raise _wrong_length("report", len(payload), layout.nbytes)
        bits = np.frombuffer(payload, np.uint8)
        layout.check_payload(bits)
        return layout, bits

    def known(self, uploads: tuple[object, ...], threads: int) -> list[tuple[Layout, Bytes] | None]:
        """What `report` says of those with a header that it has read before, all at once; None where it has to look."""
        found: list[tuple[Layout, Bytes] | None] = [None] * len(uploads)
        for text, layout in self.remembered:
            head = head_of(text)
            size = len(head) + layout.nbytes + DIGEST_BYTES[VERSION]
            for i, good in enumerate(_native.uploads_like(uploads, head, size, *layout.unused_bits, threads)):
                if good:
                    found[i] = layout, np.frombuffer(cast("bytes", uploads[i]), np.uint8, layout.nbytes, len(head))
        return found

    def aggregate(self, data: Uploaded) -> tuple[Layout, int, memoryview]:
        """An aggregate's layout, its clients, and its sums, which lie in `data`; anything else is a ValueError."""
        text, payload = opened(data, "aggregate", self._longest)
        header = header_in(text, "aggregate")
        clients = header.pop("clients", None)
        if type(clients) is not int or not 0 < clients < 2**62:
            raise ValueError(f"not an aggregate: it counts {short(clients)} clients")
        return self._checked(layout_of(header), "aggregate", len(payload), clients), clients, payload

    def _checked(self, layout: Layout, kind: str, found: int, clients: int | None = None) -> Layout:
        """The expected layout itself, where the other equals it: what held a client's weights is the client's."""
        if self._expected is not None:
            if layout != self._expected:
                name, theirs, ours = self._expected.difference(layout)
                raise ValueError(f"this is not what is expected: {name} is {theirs}, not {ours}")
            layout = self._expected
        promised = layout.nbytes if clients is None else layout.codec.sums_bytes(layout.sizes, clients)
        if found != promised:
            raise _wrong_length(kind, found, promised)
        if self._expected is None:
            layout.check_law()
        return layout


def _wrong_length(kind: str, found: int, promised: int) -> ValueError:
    return ValueError(f"not {kind} bytes: {found} bytes of weights where the header promises {promised}")
