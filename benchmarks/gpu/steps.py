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
import time
from collections.abc import Mapping, Sequence
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
        return self.result == "passed"


class Run:
    """A run's steps, results and time."""

    def __init__(self, out: Path, deadline: float, cwd: Path) -> None:
        self.out, self.cwd, self.facts = out, cwd, dict[str, str]()
        self.steps: list[Step] = []
        self.environment: dict[str, str] = {}
        self._ends = time.monotonic() + deadline
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
        """Run steps side by side; whether all passed."""
        self.steps += steps
        running: list[tuple[Step, subprocess.Popen[bytes], Path, float, float]] = []
        for i, step in enumerate(steps):
            if self.remaining < LEAST:
                step.result = "not run: the deadline"
                continue
            part = self.cwd / f"output-{len(self.steps) - len(steps) + i}"
            began, limit = time.monotonic(), min(step.limit, self.remaining)
            try:
                with part.open("wb") as output:
                    process = subprocess.Popen(
                        step.command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.cwd,
                        env=os.environ | self.environment | dict(step.environment), start_new_session=True,
                    )  # fmt: skip
            except OSError as error:
                step.result = f"not run: {error}"
                continue
            step.result = "running"
            running.append((step, process, part, began, limit))
        self.summarize()
        while running:
            late = [e for e in running if e[1].poll() is None and time.monotonic() - e[3] >= e[4]]
            for _, process, *_ in late:  # all are asked before the first is waited for
                _kill(process, signal.SIGTERM)
            for entry in list(running):
                step, process, part, began, limit = entry
                step.seconds = time.monotonic() - began
                if entry in late:
                    step.result = _end(process, began, limit)
                elif process.poll() is not None:
                    step.result = _result(process.returncode)
                else:
                    continue
                _kill(process, signal.SIGKILL)  # what it has left behind
                self._keep(step, part)
                running.remove(entry)
                self.summarize()
            time.sleep(0.05)
        self.summarize()
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
        scratch.write_text("\n".join(lines) + "\n")
        (self.out / "summary.md").write_bytes(scratch.read_bytes())

    def _keep(self, step: Step, part: Path) -> None:
        """A step's output behind that of the steps before it; and shown."""
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


def _result(status: int) -> str:
    if status == 0:
        return "passed"
    return f"failed (status {status})" if status > 0 else f"crashed ({signal.Signals(-status).name})"


def _end(process: subprocess.Popen[bytes], began: float, limit: float) -> str:
    """Of a process that was asked to end."""
    try:
        process.wait(max(0.0, began + limit + GRACE - time.monotonic()))
    except subprocess.TimeoutExpired:
        _kill(process, signal.SIGKILL)
        process.wait()
    return f"out of time ({limit:.0f} s)"


def _kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """A step is a process group of its own, so that what it has started ends with it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
