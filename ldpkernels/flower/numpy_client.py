# SPDX-License-Identifier: Apache-2.0
"""Apps of Flower's older interface, `NumPyClient` and `Client`, behind `LdpMod`."""

from __future__ import annotations

import copy
from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from ldpkernels.flower.records import TERMS
from ldpkernels.flower.sums import SUM

FOUND, SENT = "fitins", "fitres"  # of Flower's records: what `fit` gets, and what it answers


def numpy_client(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A mod for apps with a `client_fn`: what `LdpFedAvg` sends reaches `fit` as its parameters and config.

    It comes after `LdpMod`, next to the app: `ClientApp(client_fn, mods=[LdpMod(4.0), numpy_client])`. Without it such
    an app finds no parameters in the message, and its client reports no change in every round.

    >>> from flwr.clientapp import ClientApp
    >>> from ldpkernels.flower import LdpMod, numpy_client
    >>> def client_fn(context): ...
    >>> app = ClientApp(client_fn, mods=[LdpMod(4.0), numpy_client])
    """
    (arrays,) = message.content.array_records.values()
    own = {name: value for name, value in message.content.config_records.items() if name not in (TERMS, SUM)}
    config = {name: value for record in own.values() for name, value in record.items() if not isinstance(value, list)}
    inner = copy.copy(message)
    inner.content = RecordDict({f"{FOUND}.parameters": arrays, f"{FOUND}.config": ConfigRecord(config)})
    reply = call_next(inner, context)
    if reply.has_error():
        return reply
    status = reply.content.config_records[f"{SENT}.status"]
    if status["code"] != 0:
        raise RuntimeError(f"the client answers status {status['code']}: {status['message']}")
    trained = ArrayRecord(dict(zip(arrays, reply.content.array_records[f"{SENT}.parameters"].values(), strict=True)))
    told = reply.content.config_records[f"{SENT}.metrics"]
    metrics = {name: value for name, value in told.items() if isinstance(value, int | float)}
    return Message(RecordDict({"arrays": trained, "metrics": MetricRecord(metrics)}), reply_to=message)
