# SPDX-License-Identifier: Apache-2.0
"""An uploaded app in a process of its own, and in this one all that decides what leaves: the owner's file and `LdpMod`.

The app is given a round's message, and of its answer numbers of the model's form are taken. So it has no say in what
a report is made with, whatever it contains, and no token, ledger or key: they are in this process alone.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import tomllib
from flwr.app import Context, Message, MetricRecord, RecordDict

from ldpkernels.flower import node, records
from ldpkernels.flower.mod import LdpMod, NodesMod
from ldpkernels.releases import answers
from ldpkernels.releases.apart import Apart

logger = logging.getLogger("ldpkernels.flower")

UNITS = ("client", "person", "example")
_GUEST = "ldpkernels.flower.guest"  # the app's side
_LATER = 1.25  # answers leave so many deadlines after a message came, where the owner doesn't say when


class Bundle(NamedTuple):
    """An app as Flower delivers it."""

    name: str
    version: str
    digest: str
    content: bytes


@dataclass(frozen=True)
class House:
    """A node whose owner's file decides.

    Args:
        file: The owner's TOML file.
        secrets: Paths that the app must not see beside those that the file names.
    """

    file: Path
    secrets: Sequence[str] = ()

    def check(self) -> None:
        """Refuse, before any task, a file or a machine on which no task could be answered."""
        settings, apart = self._read({}, {})
        LdpMod(**settings.settings)  # type: ignore[arg-type]
        apart.check([sys.executable, "-I", "-c", f"import {_GUEST} as guest; guest.greet()"])
        unit = settings.more.get("unit", UNITS[0])
        logger.info("%s: unit = %r: %s", self.file, unit, _meaning(str(unit)))

    def answered(self, message: Message, context: Context, bundle: Bundle) -> Message:
        """The answer that may leave. Why it is an error, or a report of no change, is in this process's log alone."""
        own = {**context.node_config, node.FILE: str(self.file)}
        inside = Context(context.run_id, context.node_id, own, context.state, context.run_config)
        try:
            settings, apart = self._read(own, context.run_config)
            mod = NodesMod({"answer_after": _LATER * apart.deadline})
            visited = _Visit(apart, bundle, tuple(settings.settings.get("metrics", ())))  # type: ignore[arg-type]
            reply = mod(message, inside, visited)
        except Exception:
            logger.exception("this node cannot answer")
            return records.refusal(message, "this node cannot answer; its log says why")
        context.state = inside.state
        return reply

    def _read(self, own: dict[str, object], run: dict[str, object]) -> tuple[node.Settings, Apart]:
        """The owner's settings as this run may have them, and how the app is kept apart."""
        settings = node.settings_of({**own, node.FILE: str(self.file)}, run)
        for name in ("ledger", "budget"):
            if name not in settings.settings:
                raise ValueError(
                    f"{self.file} has no {name}: set it, because only a ledger with a budget binds every run"
                )
        unit = settings.more.get("unit", UNITS[0])
        if unit not in UNITS:
            raise ValueError(f"{self.file}: unit = {unit!r} must be one of {', '.join(UNITS)}")
        table = settings.more.get("app", {})
        try:
            apart = Apart(**table)  # type: ignore[arg-type]
            named = [str(settings.settings[name]) for name in node.PATHS if name in settings.settings]
            folders = [os.path.dirname(path.partition("{")[0]) for path in named]
            return settings, replace(apart, hidden=[*apart.hidden, *folders, *self._files(), *self.secrets])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.file}: [app] = {table!r}: {error}") from error

    def _files(self) -> list[str]:
        """The owner's file, and the private key that it names."""
        identity = tomllib.loads(self.file.read_text(encoding="utf-8")).get("identity", {})
        return [os.path.abspath(self.file), *([str(identity["key"])] if "key" in identity else [])]


@dataclass(frozen=True)
class _Visit:
    """What stands for the app's training: the app itself, in a process of its own, asked once."""

    apart: Apart
    bundle: Bundle
    metrics: tuple[str, ...]

    def __call__(self, message: Message, context: Context) -> Message:
        received = records.arrays_of(message.content, "the message")
        config = {name: value for name, value in context.node_config.items() if name.partition(".")[0] != node.FILE}
        theirs = Context(context.run_id, context.node_id, config, RecordDict(), context.run_config)
        given = pickle.dumps((message, theirs, tuple(self.bundle)))  # which the guest reads; nothing is unpickled here
        answer = self.apart.asked([sys.executable, "-I", "-u", "-m", _GUEST], given, answers.most_bytes(received))
        trained, metrics = answers.unpacked(answer, received, self.metrics)
        content = RecordDict({"arrays": records.record_of(trained), records.METRICS: MetricRecord(dict(metrics))})
        return Message(content, reply_to=message)


def _meaning(unit: str) -> str:
    if unit == "client":
        return "what leaves is private for all that this node has"
    return (
        f"the whole update is clipped and randomised here, which holds for every {unit} too. That an app trains "
        f"privately for each {unit} can't be seen from here, and counts for nothing"
    )
