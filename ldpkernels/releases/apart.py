# SPDX-License-Identifier: Apache-2.0
"""A stranger's program in a process of its own: it is given bytes, and bytes are taken from it, and nothing else.

Where Linux has namespaces it sees no network, no process but its own, and a file system that it cannot write to; it
dies with all that it started. What it answers is a length and so many bytes, which are never unpickled.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ldpkernels.common import arguments
from ldpkernels.releases import walls

logger = logging.getLogger("ldpkernels.apart")

SANDBOXES = ("namespaces", "none")
_LENGTH = 8  # bytes of the length before an answer
_CHUNK = 1 << 20
_KEPT = 1 << 13  # bytes of what a program last said


@dataclass(frozen=True)
class Apart:
    """How a program is kept apart.

    Args:
        deadline: Seconds after which it is killed.
        sandbox: "namespaces" (Linux, by `unshare` and `setpriv`), or "none": a process of its own that has the
            network and the user's files. "none" is for machines that keep it apart in another way.
        user: Whom it runs as, where this process is root's; None is "nobody". Without root it has no capabilities in
            a user namespace of its own, and reads what this user reads.
        hidden: Files and folders that it does not see.
        environment: Variables that it has beside PATH, HOME, TMPDIR and LANG.

    >>> Apart(deadline=60.0, sandbox="none").command(["true"])
    ['true']
    """

    deadline: float
    sandbox: str = "namespaces"
    user: str | None = None
    hidden: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arguments.positive("deadline", self.deadline)
        arguments.choice("sandbox", self.sandbox, SANDBOXES)
        if self.user is not None and (os.geteuid() != 0 or self.sandbox == "none"):
            raise ValueError(f"user={self.user!r} is for a root's process and namespaces: leave it out")
        if not all(isinstance(value, str) for value in self.environment.values()):
            raise ValueError(f"environment={dict(self.environment)!r} has a value that is not text: put it in quotes")
        self.command([])  # which refuses a user
        for path in self.hidden:
            if not os.path.isabs(path):
                raise ValueError(f"hidden={path!r} is not an absolute path")
            if needed := _needed_in(path):
                raise ValueError(f"{path} is hidden from the app, and has {needed[0]} in it: keep them apart")

    def command(self, program: Sequence[str]) -> list[str]:
        """The program's command within its namespaces."""
        if self.sandbox == "none":
            return list(program)
        new = ["setpriv", "--pdeathsig=KILL", "unshare", "--fork", "--kill-child", "--mount-proc"]
        new += ["--net", "--pid", "--ipc", "--uts", "--mount"]
        drop = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        if os.geteuid() == 0:
            try:
                who = pwd.getpwnam(self.user or "nobody")
            except KeyError:
                raise ValueError(f"user={self.user!r} is not a user of this machine: name another, or add it") from None
            if who.pw_uid == 0:
                raise ValueError(f"user={self.user!r} is root, whom nothing can isolate: name another")
            drop += [f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--init-groups"]
        else:
            new += ["--user", "--map-root-user"]
        hidden = json.dumps([os.path.realpath(path) for path in self.hidden])
        return [*new, sys.executable, "-I", "-S", str(walls.__file__), hidden, *drop, *program]

    def check(self, echo: Sequence[str]) -> None:
        """Refuse a machine on which a program that echoes two bytes can't be kept apart like this."""
        if self.sandbox == "none":
            logger.warning(
                "sandbox = 'none': the app is in a process of its own, and has the network and this user's files. "
                "Nothing here keeps it from sending data by itself"
            )
        for folder in walls.OPEN if self.sandbox == "namespaces" else ():
            if needed := _needed_in(folder):
                raise RuntimeError(
                    f"{needed[0]} is in {folder}, which apps do not see: install Python and its packages elsewhere"
                )
        try:
            found = self.asked(echo, b"ok", 2)
        except (OSError, RuntimeError) as error:
            raise RuntimeError(
                f"apps can't be kept apart here ({error}): allow user namespaces (sysctl user.max_user_namespaces, "
                "kernel.apparmor_restrict_unprivileged_userns), or run as root with CAP_SYS_ADMIN, or keep this node "
                "in a machine without other networks and say sandbox = 'none'"
            ) from error
        if found != b"ok":
            raise RuntimeError(f"{' '.join(echo)} answers {found!r}")

    def asked(self, program: Sequence[str], given: bytes, most: int) -> bytes:
        """What a program answers on its standard output to what it reads: a length of 8 bytes, and so many.

        A RuntimeError says why there is no answer; it ends with what the program said last on its standard error.
        """
        end = time.monotonic() + self.deadline
        home = tempfile.mkdtemp() if self.sandbox == "none" else "/tmp"
        own = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home}
        command, pipe = self.command(program), subprocess.PIPE
        try:
            with subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd=home, start_new_session=True,
                env={**own, **self.environment},
            ) as process:  # fmt: skip
                try:
                    return _exchanged(process, given, most, end)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
        finally:
            if self.sandbox == "none":
                shutil.rmtree(home, ignore_errors=True)


def _needed_in(folder: str) -> list[str]:
    """What lies in a folder and a program needs."""
    needed = (sys.prefix, sys.base_prefix, __file__)
    return [path for path in needed if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))]


def _exchanged(process: subprocess.Popen[bytes], given: bytes, most: int, end: float) -> bytes:
    """Write and read until the answer is there, or nothing can come any more."""
    left, answer, said = memoryview(given), bytearray(), b""
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_WRITE if pipe is process.stdin else selectors.EVENT_READ, pipe)
        while {process.stdout, process.stderr} & {key.data for key in selector.get_map().values()}:
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready or time.monotonic() > end:
                raise _failed("it was killed at its deadline", said)
            for key, _ in ready:
                if key.data is process.stdin:
                    try:
                        left = left[os.write(key.fd, left[:_CHUNK]) :]
                    except BrokenPipeError:  # what has not read it all may answer
                        left = left[:0]
                    over = not left
                else:
                    data = os.read(key.fd, _CHUNK)
                    over = not data
                    if key.data is process.stdout:
                        answer += data
                    else:
                        said = (said + data)[-_KEPT:]
                if over:
                    selector.unregister(key.fileobj)
                    key.data.close()
            length = int.from_bytes(answer[:_LENGTH], "little") if len(answer) >= _LENGTH else 0
            if length > most:
                raise _failed(f"its answer has {length} bytes, and {most} are the most that are read", said)
            if len(answer) >= _LENGTH + length:
                if said:
                    logger.info("the app says: %s", _text(said))
                return bytes(answer[_LENGTH : _LENGTH + length])
    raise _failed("it ended without an answer", said)


def framed(answer: bytes) -> bytes:
    """An answer as it is written."""
    return len(answer).to_bytes(_LENGTH, "little") + answer


def _failed(why: str, said: bytes) -> RuntimeError:
    return RuntimeError(f"{why}; it said last: {_text(said)}" if said else why)


def _text(said: bytes) -> str:
    """A stranger's words, of which none moves a terminal's cursor, and no line looks like one of the log's own."""
    lines = said.decode("utf-8", "replace").splitlines()
    return "\n  | ".join("".join(c if c.isprintable() else "?" for c in line) for line in lines)
