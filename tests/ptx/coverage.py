# SPDX-License-Identifier: Apache-2.0
"""What the known questions execute of compiled code, and with which answers: the tables of docs/gpu.md.

    python -m tests.ptx.coverage [--arch 90] [--backend cuda] [--kernel NAME ...] [--page docs/gpu.md]

Every question is asked of one backend, whose code is compiled for one architecture. What came of it, and which blocks
of instructions were executed, goes to build/ptx-cache/asked-BACKEND-ARCH.json, where what was asked before of the same
sources is not asked again; the tests of CUDA C++ in this folder add to it what they execute. `--page` asks nothing: it
makes a table of all of these files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from benchmarks import disassembly, results
from ldpkernels.common import capabilities
from ldpkernels.launch.proved import Answer, Subject, ask, subjects
from tests.ptx import cuda
from tests.ptx.machine import Program
from tests.ptx.operations import Values

ARCHES = (80, 90, 100, 120)
# Of CUDA C++: what a kernel's name has, by which it belongs to a mechanism.
NAMES = {
    "two_point": "TwoPoint",
    "sign": "Sign",
    "piecewise": "Piecewise",
    "hybrid": "Hybrid",
    "clipped_noise": "clipped",
}
NAMES |= {name: name for name in ("ordinal_cldp", "next_key", "keystream")}
BACKENDS = {"triton": "Triton", "cuda": "CUDA C++"}


class Triton:
    """Triton's kernels as they are compiled for an architecture."""

    def __init__(self, arch: int) -> None:
        os.environ.pop("TRITON_INTERPRET", None)  # it is read when triton is imported
        os.environ.setdefault("TRITON_CACHE_DIR", str(cuda.CACHE))
        import triton

        from tests.ptx import device

        device.install(arch)
        self.name, self._device = "triton", device
        self.compiler = f"Triton {triton.__version__}"
        self.programs: dict[str, Program] = device.record.programs

    def backends(self) -> AbstractContextManager[object]:
        """The package asks them, while this lasts."""
        return self._device.taking_tensors_of_the_host()


class Cuda:
    """CUDA C++'s."""

    def __init__(self, arch: int) -> None:
        self.name, self._machine = "cuda", cuda.machine(cuda.MODULE, arch)
        said = disassembly.run_tool("nvcc", "--version")
        self.compiler = f"nvcc {said.partition(', V')[2].split()[0]}"
        self.programs = self._machine.programs

    def backends(self) -> AbstractContextManager[object]:
        """The package asks them, while this lasts."""
        return cuda.taking_tensors_of_the_host(self._machine)


def compiled(backend: str, arch: int) -> Triton | Cuda:
    """A backend's code for an architecture: of Triton once in a process."""
    return Triton(arch) if backend == "triton" else Cuda(arch)


def asked(of: Triton | Cuda, subject: Subject) -> Answer | None:
    """What comes of a question; nothing if no kernel of this backend has it."""
    with of.backends():
        if of.name not in capabilities.able(subject.kernel, "cpu"):
            return None
        return ask(of.name, subject, torch.device("cpu"))


class Asked:
    """What is known of a backend's answers for an architecture, and what its code executed; kept in a file."""

    def __init__(self, backend: str, arch: int) -> None:
        self.path = cuda.CACHE / f"asked-{backend}-{arch}.json"
        self.questions: dict[str, str | None] = {}
        self.programs: dict[str, dict[str, Any]] = {}
        self.facts = {"sources": _digest(backend)}
        if self.path.exists():
            found = json.loads(self.path.read_text())
            if found["facts"]["sources"] == self.facts["sources"]:
                self.facts, self.questions, self.programs = found["facts"], found["questions"], found["programs"]

    def ask(self, of: Triton | Cuda, subject: Subject) -> None:
        """Ask and remember."""
        before = {name: one.executed.copy() for name, one in of.programs.items()}
        answer = asked(of, subject)
        if answer is None:
            return
        self.questions[str(subject)] = answer.error
        self.facts |= {"compiler": of.compiler, "date": time.strftime("%Y-%m-%d")}
        self.note(str(subject), of.programs, before)

    def note(self, who: str, programs: dict[str, Program], before: dict[str, Values]) -> None:
        """Remember what programs have executed since then."""
        for name, one in programs.items():
            executed = one.executed - before[name] if name in before else one.executed
            if executed.any():
                self._add(who, one, executed.tolist())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(vars(self) | {"path": self.path.name}) + "\n")

    def _add(self, subject: str, one: Program, executed: list[int]) -> None:
        if subject == "tests":
            subject = next(f"{kernel} tests" for kernel, of in NAMES.items() if of in one.kernel.name)
        code = "\n".join(instruction.text for instruction in one.kernel.instructions)
        name = f"{one.kernel.name} {hashlib.sha256(code.encode()).hexdigest()[:12]}"
        known = self.programs.setdefault(
            name, {"subject": subject, "blocks": [[b.instructions[0].line, 0] for b in one.blocks]}
        )
        for block, more in zip(known["blocks"], executed, strict=True):
            block[1] += more

    def reached(self, kernel: str = "") -> tuple[int, int]:
        """Blocks that were executed, and that there are, of the programs that a kernel's questions launched."""
        of = [p["blocks"] for p in self.programs.values() if p["subject"].startswith(kernel)]
        return sum(n > 0 for blocks in of for _, n in blocks), sum(map(len, of))

    def unreached(self) -> Iterator[tuple[str, str, list[int]]]:
        """Programs, who asked of them first, and the lines at which blocks begin that nothing executed."""
        for name, program in self.programs.items():
            if lines := [line for line, n in program["blocks"] if not n]:
                yield name, program["subject"], lines


def _digest(backend: str) -> str:
    """What answers and counts are of: kernels, questions, and this machine."""
    questions = [f"ldpkernels/ops/{name}.py" for name in ("questions", "known_vectors")]
    machine = [
        f"tests/ptx/{name}.py"
        for name in ("text", "machine", "memory", "operations", "comparisons", "together", "translate")
    ]
    paths = [cuda.ROOT / name for name in (*questions, *machine)]
    paths += sorted(
        (cuda.ROOT / "csrc").rglob("*.*") if backend == "cuda" else (cuda.ROOT / "ldpkernels" / "triton").glob("*.py")
    )
    return hashlib.sha256("\n".join(p.read_text() for p in paths if p.is_file()).encode()).hexdigest()[:32]


def table() -> str:
    """Questions that were answered with the host's bits, and blocks that were executed, by kernel and architecture."""
    rows, words = [], []
    for backend, called in BACKENDS.items():
        found = {arch: Asked(backend, arch) for arch in ARCHES}
        kernels = dict.fromkeys(s.kernel for s in subjects())
        words += [
            f"{called}: {one.facts['compiler']}, {one.facts['date']}." for one in found.values() if one.questions
        ][:1]
        for kernel in (*kernels, ""):
            cells = [_cell(one, kernel) for one in found.values()]
            if any(cells):
                rows.append([f"{called}, {kernel or 'all'}", *(cell or "not run" for cell in cells)])
    head = ["kernels", *(f"sm_{arch}" for arch in ARCHES)]
    return f"{' '.join(words)}\n\n{results.table(head, rows)}"


def _cell(one: Asked, kernel: str) -> str:
    answers = [error for subject, error in one.questions.items() if subject.startswith(f"{kernel} " if kernel else "")]
    if not answers:
        return ""
    equal, (reached, there) = sum(a is None for a in answers), one.reached(f"{kernel} " if kernel else "")
    return f"{equal} of {len(answers)} equal; {reached:,} of {there:,} blocks"


def write_table(page: Path, name: str, said: str) -> None:
    """Put one table, and what is said of it, between its marks on a page."""
    text = results.MARKED.sub(lambda m: f"{m[1]}\n{said}\n\n{m[3]}" if m[2] == name else m[0], page.read_text())
    page.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--arch", type=int, choices=ARCHES, default=90)
    parser.add_argument("--backend", choices=tuple(BACKENDS), default="triton")
    parser.add_argument("--kernel", action="append", help="of these kernels alone")
    parser.add_argument("--dtype", action="append", help="of these dtypes alone")
    parser.add_argument(
        "--page", type=Path, help="write the table of what was asked so far to this page, and ask nothing"
    )
    options = parser.parse_args()
    if options.page:
        write_table(options.page, "executed", table())
        return 0
    known, of = Asked(options.backend, options.arch), compiled(options.backend, options.arch)
    for subject in subjects():
        wanted = (not options.kernel or subject.kernel in options.kernel) and (
            not options.dtype or subject.dtype in options.dtype
        )
        if wanted and str(subject) not in known.questions:
            began = time.process_time()
            known.ask(of, subject)
            if str(subject) in known.questions:
                said = known.questions[str(subject)] or "equal"
                print(f"{subject!s:44} {time.process_time() - began:6.1f} s  {said[:1000]}", flush=True)
    for name, subject, lines in known.unreached():
        print(f"{subject}: {name}: nothing reaches {len(lines)} blocks, at lines {lines}")
    wrong = [subject for subject, error in known.questions.items() if error]
    reached, there = known.reached()
    print(f"{len(known.questions)} questions, {len(wrong)} wrong answers; {reached:,} of {there:,} blocks executed")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
