# SPDX-License-Identifier: Apache-2.0
"""Flower in one process: a Grid whose nodes are ClientApps here, and whose messages may be lost or changed."""

import contextlib
import uuid

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid


def _in_run_1():
    """Say who this process is, in versions of Flower that keep it there: a simulation leaves its own number behind."""
    with contextlib.suppress(ImportError):
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


_in_run_1()  # modules of tests make messages too


class LocalGrid(Grid):
    """Messages go through bytes, as they would between machines.

    `dropped(message)` says that a node never answers this message; `tampered(reply)` gives what arrives instead of a
    reply: one message, or several.
    """

    def __init__(self, app, nodes, *, dropped=None, tampered=None, node_config=None):
        _in_run_1()
        self.app, self.dropped, self.tampered = app, dropped or (lambda _: False), tampered or (lambda reply: [reply])
        self.contexts = {
            node: Context(1, node, {"partition-id": i, **(node_config or {})}, RecordDict(), {})
            for i, node in enumerate(nodes)
        }
        self.sent, self.received, self._waiting = [], [], []

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            self.sent.append(message)
            ids.append(message.metadata.message_id)
            if self.dropped(message):
                continue
            self._waiting += self.tampered(self.answer(message))
        return ids

    def answer(self, message):
        try:
            return self.app(travelled(message), self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as Flower answers for an app that raises
            return Message(Error(code=2, reason=str(error)), reply_to=message)

    def pull_messages(self, message_ids):
        found, self._waiting = self._waiting, []
        self.received += found
        return found

    def send_and_receive(self, messages, *, timeout=None):
        self.push_messages(messages)
        return list(self.pull_messages([]))


def travelled(message):
    """The message as its receiver has it: nothing is shared with the sender."""
    if not message.has_content():
        return message
    content = RecordDict.inflate(message.content.deflate(), _children(message.content))
    return Message(content, metadata=message.metadata)


def _children(record):
    found = {}
    for name, child in (record.children or {}).items():
        found[name] = type(child).inflate(child.deflate(), _children(child) if child.children else None)
    return found
