# SPDX-License-Identifier: Apache-2.0
"""The app's side of `hosting`: a process that has a round's message and an uploaded app, and nothing to decide.

Whatever the app does here, patches this module or writes to the pipe itself, is an answer of the right form or none.
"""

from __future__ import annotations

import os
import pickle
import sys

from flwr.app import Context, Message
from flwr.cli.install import install_from_fab
from flwr.clientapp.utils import get_load_client_app_fn

from ldpkernels.flower import mod, records
from ldpkernels.flower.rehearsal import be_someone
from ldpkernels.releases import answers
from ldpkernels.releases.apart import framed


def greet() -> None:
    """Answer two bytes, as a trial of how a process is kept apart."""
    sys.stdout.buffer.write(framed(sys.stdin.buffer.read(2)))


def main() -> None:
    """Read a message and an app, train, and answer."""
    out = os.dup(1)
    os.dup2(2, 1)  # what the app prints is said, and no answer
    message, context, (name, version, digest, content) = pickle.load(sys.stdin.buffer)
    received = records.arrays_of(message.content, "the message")
    be_someone()
    _stand_aside()
    install_from_fab(content, skip_prompt=True)
    app = get_load_client_app_fn("", None, True)(name, version, digest)
    reply = app(message=message, context=context)
    if reply.has_error():
        raise RuntimeError(f"the app answers with error {reply.error.code}: {reply.error.reason}")
    said = {name: value for record in reply.content.metric_records.values() for name, value in record.items()}
    answer = answers.packed(records.arrays_of(reply.content, "the app's reply"), received, said)
    with os.fdopen(out, "wb") as pipe:
        pipe.write(framed(answer))


def _stand_aside() -> None:
    """Have an app's own mods let everything through: the node's owner perturbs, and nothing is perturbed twice."""

    def passed(_: object, message: Message, context: Context, call_next: mod.CallNext) -> Message:
        print("ldpkernels: the app's own mod stands aside, as this node's owner perturbs", file=sys.stderr)
        return call_next(message, context)

    for kind in (mod.LdpMod, mod.NodesMod):
        kind.__call__ = passed  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    main()
