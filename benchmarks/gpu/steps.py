# SPDX-License-Identifier: Apache-2.0
"""Commands one after another or side by side, each within a time limit and all within a deadline.

It needs nothing but Python. The summary is written anew whenever a step begins or ends, so that whatever ends the run
leaves the results so far; and no step, however it ends, keeps the next from running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

LEAST = 5.0  # seconds that a step is worth being started for
GRACE = 5.0  # seconds between asking a step to end and ending it
LONGEST_LOG = 1 << 20  # bytes of a step's output that are kept, its end; eight steps share a file


@dataclass
class Step:
    """A command, the seconds that it may take, and the file of the results to which its output goes."""

    name: str
    command: Sequence[str]
    limit: float
    log: str
    environment: Mapping[str, str] = field(default_factory=dict)
    kept: Path | None = None  # a file that the command keeps up to date: behind its output, however it ends
    result: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the command ended with status 0, in time."""
        return self.result == "passed"


class Run:
    """A run's steps, results and time."""

    def __init__(self, out: Path, deadline: float, cwd: Path) -> None:
        self.out, self.cwd, self.facts = out, cwd, dict[str, str]()
        self.steps: list[Step] = []
        self.environment: dict[str, str] = {}
        self._ends, self._lock = time.monotonic() + deadline, threading.Lock()
        self.out.mkdir(parents=True, exist_ok=True)
        self.summarize()

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return self._ends - time.monotonic()

    @property
    def failed(self) -> bool:
        """Whether some step did not pass."""
        return not all(step.passed for step in self.steps)

    def step(self, step: Step) -> bool:
        """Run one step; whether it passed."""
        return self.together([step])

    def together(self, steps: Sequence[Step]) -> bool:
        """Run steps side by side, each watched by a thread; whether all passed."""
        parts = [self.cwd / f"output-{len(self.steps) + i}" for i in range(len(steps))]
        self.steps += steps
        with ThreadPoolExecutor(len(steps)) as watchers:
            list(watchers.map(self._watch, steps, parts))
        return all(step.passed for step in steps)

    def skip(self, name: str, why: str) -> None:
        """Note a step that there is no use in running."""
        self.steps.append(Step(name, (), 0.0, "", result=f"not run: {why}"))
        self.summarize()

    def summarize(self) -> None:
        """Write the summary."""
        lines = ["# GPU run", "", "| | |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in self.facts.items())]
        lines += ["", "| step | | time | output |", "| --- | --- | ---: | --- |"]
        lines += [f"| {s.name} | {s.result} | {s.seconds:.0f} s | {s.log} |" for s in self.steps]
        scratch = self.cwd / "summary.new"
        with self._lock:
            scratch.write_text("\n".join(lines) + "\n")
            (self.out / "summary.md").write_bytes(scratch.read_bytes())

    def _watch(self, step: Step, part: Path) -> None:
        """Run a step to its end or its limit, and keep what it has said."""
        if self.remaining < LEAST:
            step.result = "not run: the deadline"
        else:
            step.result = "running"
            self.summarize()
            began = time.monotonic()
            step.result = self._result_of(step, part, min(step.limit, self.remaining))
            step.seconds = time.monotonic() - began
            if part.exists():
                with self._lock:
                    self._keep(step, part)
        self.summarize()

    def _result_of(self, step: Step, part: Path, limit: float) -> str:
        """How a command ends. It is a process group of its own, so that what it has started ends with it."""
        environment = os.environ | self.environment | dict(step.environment)
        try:
            with part.open("wb") as output:
                process = subprocess.Popen(
                    step.command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.cwd,
                    env=environment, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            part.unlink()
            return f"not run: {error}"
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            _kill(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            return f"out of time ({limit:.0f} s)"
        finally:
            _kill(process, signal.SIGKILL)  # with what it has left behind
            process.wait()
        if status < 0:
            return f"crashed ({signal.Signals(-status).name})"
        return f"failed (status {status})" if status else "passed"

    def _keep(self, step: Step, part: Path) -> None:
        """Put a step's output behind that of the steps before it, and show its end."""
        with part.open("rb") as output:
            output.seek(max(0, part.stat().st_size - LONGEST_LOG))
            text = output.read()
        head = f"== {step.name}: {step.result}, {step.seconds:.1f} s\n"
        with (self.out / step.log).open("ab") as log:
            log.write(f"{head}$ {' '.join(step.command)}\n".encode() + text + b"\n")
            if step.kept is not None and step.kept.is_file():
                log.write(step.kept.read_bytes() + b"\n")
        part.unlink()
        print(head, text[-3000:].decode(errors="replace"), sep="", flush=True)


def _kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the process group of a step; there may be none left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
