# SPDX-License-Identifier: Apache-2.0
"""A Flower ClientApp as a function of its node's configuration, for an audit: nothing is connected, nothing is sent."""

from __future__ import annotations

import contextlib
import copy
import uuid
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from ldpkernels.audit.observed import Raised
from ldpkernels.common.arrays import Array
from ldpkernels.flower.strategy import LdpFedAvg
from ldpkernels.releases.release import Reported

Config: TypeAlias = "Mapping[str, bool | float | int | str]"


class _Nodes:
    """A grid of as many nodes as a strategy waits for."""

    def __init__(self, count: int) -> None:
        self._count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, self._count + 1))


def rehearsed(
    app: ClientApp,
    strategy: FedAvg,
    arrays: ArrayRecord,
    *,
    rounds: int = 1,
    run_config: Config | None = None,
) -> Callable[[Config], list[object]]:
    """A function for `ldpkernels.audit.audit_client`: it takes a node's configuration and gives what its app answers.

    Args:
        app: The client.
        strategy: What asks it: `LdpFedAvg` or another strategy of Flower's, as in the ServerApp.
        arrays: The model that it sends, in every round.
        rounds: Messages in a run, all with one context.
        run_config: What the app reads as `context.run_config`.

    A node's configuration is for example {"partition-id": 0}, if the app chooses its data by that. Let the two
    configurations differ in the data alone: anything else that the app sends along, such as its number, is a leak.

    >>> import numpy as np
    >>> from flwr.app import Array, RecordDict
    >>> from ldpkernels.flower import LdpFedAvg, LdpMod
    >>> app = ClientApp(mods=[LdpMod(4.0)])
    >>> @app.train()
    ... def train(message, context):
    ...     step = np.float32(0.1 if context.node_config["partition-id"] else -0.1)
    ...     arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + step)})
    ...     return Message(RecordDict({"arrays": arrays}), reply_to=message)
    >>> client = rehearsed(app, LdpFedAvg(4.0, R=0.1), ArrayRecord({"w": Array(np.zeros(3, np.float32))}))
    >>> [answer] = client({"partition-id": 0})
    >>> list(answer)
    ['type', 'report', 'metrics']
    """
    if isinstance(strategy, LdpFedAvg) and not isinstance(strategy.release, Reported):
        raise ValueError(
            "what leaves a client for a secure sum is masked, and an audit of one client sees nothing: audit the law, "
            "by `ldpkernels audit`, or this app and strategy without the secure sum"
        )
    be_someone()
    nodes = max(strategy.min_train_nodes, strategy.min_available_nodes, 1)
    asked = [
        next(iter(strategy.configure_train(number, arrays, ConfigRecord({}), cast(Grid, _Nodes(nodes)))))
        for number in range(1, rounds + 1)
    ]

    def client(node: Config) -> list[object]:
        context = Context(1, 1, dict(node), RecordDict(), dict(run_config or {}))
        return [_left(app, copy.deepcopy(message), context) for message in asked]

    return client


def be_someone() -> None:
    """Messages are of a task, in versions of Flower that have tasks."""
    with contextlib.suppress(ImportError):
        from flwr.supercore.task_identity import TaskIdentity

        try:
            _ = TaskIdentity.run_id
        except RuntimeError:  # this process is nobody's
            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def _left(app: ClientApp, message: Message, context: Context) -> object:
    """What a server sees of the answer."""
    message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
    try:
        reply = app(message, context)
    except Exception as error:  # in the words in which Flower sends it to the server
        return Raised(f"error 2: {type(error)}:<'{error}'>")
    if reply.has_error():
        return Raised(f"error {reply.error.code}: {reply.error.reason}")
    found: dict[str, object] = {"type": reply.metadata.message_type}
    for name, record in reply.content.items():
        found[name] = {key: _value(value) for key, value in record.items()} if hasattr(record, "items") else record
    return found


def _value(value: object) -> object:
    """An array as numbers, where it is one of NumPy's; bytes and numbers as they are."""
    stype = getattr(value, "stype", None)
    if stype is None:
        return value
    return cast(Array, value.numpy()) if stype == "numpy.ndarray" else value.data  # type: ignore[attr-defined]
