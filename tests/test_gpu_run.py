# SPDX-License-Identifier: Apache-2.0
# The run on a GPU without one: deadlines, crashes, results that survive, and a rehearsal with Triton's interpreter.
import ast
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import steps
from benchmarks.gpu.operations import KEYS, OPERATIONS, poisoned, same
from benchmarks.gpu.run import sources_digest
from benchmarks.gpu.steps import Run, Step
from ldpkernels import _native

ROOT = Path(__file__).resolve().parents[1]


def shell(program, name="step", limit=60.0, log="build.log", **options):
    return Step(name, ["sh", "-c", program], limit, log, **options)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "tree").mkdir()
    return Run(tmp_path / "out", 60.0, tmp_path / "tree")


def summary(run):
    return (run.out / "summary.md").read_text()


def test_a_step_that_crashes_keeps_no_other_from_running(run):
    assert run.step(shell("echo fine", "first"))
    assert not run.step(shell("echo half; exit 3", "second"))
    assert not run.step(shell("kill -SEGV $$", "third"))
    assert not run.step(Step("fourth", ["no-such-program"], 9.0, "build.log"))
    assert run.step(shell("echo last", "fifth", log="other.log"))
    assert [s.result for s in run.steps][:3] == ["passed", "failed (status 3)", "crashed (SIGSEGV)"]
    assert run.steps[3].result.startswith("not run: ")
    assert run.failed
    assert "| third | crashed (SIGSEGV) |" in summary(run)
    text = (run.out / "build.log").read_text()
    assert text.index("fine") < text.index("== second: failed (status 3)") < text.index("half")
    assert sorted(p.name for p in run.out.iterdir()) == ["build.log", "other.log", "summary.md"]


def test_steps_out_of_time_end_together_with_all_that_they_have_started(run, tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "GRACE", 1.0)
    kept = tmp_path / "rounds.csv"
    stubborn = f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/$0; echo began; while :; do sleep 1; done"
    todo = [Step(str(i), ["sh", "-c", stubborn, str(i)], 1.0, "build.log") for i in range(5)]
    began = time.monotonic()
    assert not run.together([*todo, shell(f"echo 1,2 > {kept}; sleep 60", "willing", 1.0, "other.log", kept=kept)])
    assert time.monotonic() - began < 5.5  # one after the other: 1 + 5 * 1
    assert {step.result for step in run.steps} == {"out of time (1 s)"}
    assert (run.out / "build.log").read_text().count("\nbegan\n") == 5
    assert "1,2" in (run.out / "other.log").read_text()
    children = [int((tmp_path / step.name).read_text()) for step in todo]
    while any(map(alive, children)) and time.monotonic() - began < 20:
        time.sleep(0.05)  # they are killed, and may take a moment to die
    assert not any(map(alive, children))


def alive(process):
    """A process that has ended may wait for its parent to ask."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_deadline_holds_for_all_steps_together(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "LEAST", 0.5)
    run = Run(tmp_path / "out", 1.5, tmp_path)
    assert not run.step(shell("sleep 60", "long"))
    assert not run.step(shell("echo never", "late"))
    assert run.steps[0].result.startswith("out of time (")
    assert "| late | not run: the deadline |" in summary(run)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_kernel_that_writes_nothing_would_be_seen(name):
    """Whatever it should write then is an input as it was, or new memory."""
    operation = OPERATIONS[name]
    for dtype in operation.dtypes:
        inputs, before = operation.make(dtype), operation.make(dtype)
        found = operation.call(inputs, KEYS["philox"])
        places = [t.data_ptr() for t in inputs]
        with poisoned():
            left = [
                before[places.index(f.data_ptr())] if f.data_ptr() in places else torch.empty_like(f) for f in found
            ]
        assert any(f.numel() for f in found)
        assert not any(same(a, b) for a, b in zip(left, found, strict=True) if a.numel())


def test_poison_ends_with_its_block():
    with poisoned():
        assert torch.empty(3).isnan().all()
        assert (torch.empty(3, dtype=torch.uint8) == 255).all()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.fixture
def modules(tmp_path):
    """This environment's compiled modules, as make gpu-build would leave them."""
    folder = tmp_path / "prebuilt"
    folder.mkdir()
    shutil.copy(_native.__file__, folder)
    (folder / "sources.sha256").write_text(sources_digest(ROOT) + "\n")
    return folder


def rehearse(tmp_path, modules, *arguments):
    command = [sys.executable, "-m", "benchmarks.gpu.run", "--rehearse", "--out", str(tmp_path / "out")]
    command += ["--prebuilt", str(modules), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done, {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}


def test_a_rehearsal_leaves_the_rows_so_far(tmp_path, modules):
    """Its benchmark ends after some rows."""
    pytest.importorskip("triton")
    done, files = rehearse(tmp_path, modules, "--only", "bandwidth")
    assert done.returncode == 0, done.stdout
    assert len(files) <= 8
    assert "prebuilt: _native" in files["summary.md"]
    for step in ("check", "bench"):
        assert f"| {step} | passed |" in files["summary.md"]
    rows = [json.loads(line) for line in files["bench.jsonl"].splitlines()]
    assert rows
    assert all(row["name"] in files["bench.md"] for row in rows)


def test_modules_of_other_sources_are_not_used(tmp_path, modules, monkeypatch):
    (modules / "sources.sha256").write_text("0" * 64)
    monkeypatch.setenv("PATH", str(tmp_path))  # no CMake either, so that nothing is built
    done, files = rehearse(tmp_path, modules)
    assert done.returncode == 2
    assert "prebuilt/ is of other sources" in files["summary.md"]
    assert "make gpu-build" in done.stderr


def test_a_bare_machine_has_what_is_imported_there():
    """It has NumPy, torch, Triton and pytest; ml_dtypes, SciPy and the like may be missing, and are asked for."""
    todo, seen, others = [*(ROOT / "tests/gpu").glob("*.py"), *(ROOT / "tests/triton").glob("*.py")], set(), {}
    todo += [*(ROOT / "benchmarks/gpu").glob("*.py"), ROOT / "tests/conftest.py"]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                top = name.partition(".")[0]
                if top in ("tests", "benchmarks"):
                    place = ROOT / name.replace(".", "/")
                    todo += [one for one in (place.with_suffix(".py"), place / "__init__.py") if one.exists()]
                elif top not in sys.stdlib_module_names | {"ldpkernels", "numpy", "torch", "triton", "pytest"}:
                    others[top] = path.name
    assert not others
    assert len(seen) > 25
