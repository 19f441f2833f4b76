# SPDX-License-Identifier: Apache-2.0
"""One run of an app in Flower's simulation, in a process of its own: the app's folder is on the path."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Message
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from benchmarks.deploy.task import SEED, TASK

DONE = "DONE "  # before what the parent reads


class Counted:
    """A grid that counts what is in the messages, and has a clock for each round."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self.down, self.up = grid, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """To the nodes."""
        sent = list(messages)
        self.down += sum(map(content_bytes, sent))
        return self._grid.push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """From the nodes."""
        found = list(self._grid.pull_messages(message_ids))
        self.up += sum(content_bytes(reply) for reply in found if reply.has_content())
        return found


def content_bytes(message: Message) -> int:
    """Of its records as they travel, without Flower's envelope."""
    return int(recorddict_to_proto(message.content).ByteSize())


def main() -> None:
    from ldp_app import client_app, server_app  # type: ignore[import-not-found]

    seen: list[tuple[float, float, float]] = []  # begun, ended, accuracy
    plain = server_app.task.accuracy

    def watched(model: object) -> float:
        begun = time.monotonic()
        found = plain(model)
        seen.append((begun, time.monotonic(), found))
        print(f"accuracy {found:.4f}", file=sys.stderr, flush=True)
        return float(found)

    server_app.task.accuracy = watched
    server, grids = ServerApp(), []

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        seed = int(os.environ[SEED])
        context.run_config = {"nodes": TASK.clients, "rounds": TASK.rounds, "save": "", "seed": seed}
        grids.append(Counted(grid))
        server_app.app(grids[0], context)

    actors = {"num_cpus": 2, "include_dashboard": False}
    resources = {"init_args": actors, "client_resources": {"num_cpus": 1.0}}
    run_simulation(server, client_app.app, TASK.clients, backend_config=resources)  # type: ignore[arg-type]
    rounds = [after[0] - before[1] for before, after in itertools.pairwise(seen)]
    each = TASK.clients * TASK.rounds
    print(
        DONE
        + json.dumps(
            {
                "accuracies": [found for *_, found in seen],
                "round_seconds": [round(seconds, 2) for seconds in rounds],
                "up": round(grids[0].up / each),
                "down": round(grids[0].down / each),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
