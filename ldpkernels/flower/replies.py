# SPDX-License-Identifier: Apache-2.0
"""Replies of nodes as they arrive."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from flwr.app import Message
from flwr.serverapp import Grid

_PAUSE = 0.1  # seconds between two looks


def replies(grid: Grid, messages: list[Message], timeout: float) -> Iterator[Message]:
    """Replies to these messages as they arrive: a server needs no memory for all of them."""
    asked = set(grid.push_messages(messages))
    waiting = set(asked)
    end = time.monotonic() + (timeout or math.inf)
    while waiting and time.monotonic() < end:
        found = 0
        for reply in grid.pull_messages(waiting):
            found += 1
            if reply.metadata.reply_to_message_id not in asked:  # of an earlier step
                continue
            waiting.discard(reply.metadata.reply_to_message_id)
            yield reply
        if not found:
            time.sleep(_PAUSE)
