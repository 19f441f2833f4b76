# SPDX-License-Identifier: Apache-2.0
"""Everything that needs a GPU, in one run within a deadline: `python3 -m benchmarks.gpu.run`, or `make gpu`.

The machine may be offline and bare: python3 with torch, NumPy and pytest; for the CUDA C++ kernels either modules that
`make gpu-build` has put into prebuilt/, or a C++ compiler, CMake and nvcc. Without those Triton's kernels run alone.
Nothing is left in the source tree. At most eight files come out: summary.md (rewritten after every step), build.log,
correctness.log, sanitize.log, bench.jsonl (a row at a time), bench.md, profile.log and papers.log.

exit status: 0 if every step passed, 1 if one did not, 2 for bad arguments or a missing tool, 3 for no CUDA device.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from benchmarks.gpu.steps import Run, Step

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("correctness", "sanitize", "bandwidth", "profile", "papers")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TREE = ("ldpkernels", "tests", "benchmarks", "csrc", "CMakeLists.txt", "pyproject.toml")
# No compiler that Triton starts is watched. The tool would give up after 10 s, which importing torch may take. What the
# driver answers is checked where it is called: some of torch's calls are questions, to which "no" is no error.
SANITIZING = ("--target-processes", "application-only", "--launch-timeout", "0", "--report-api-errors", "no")
PROFILED = ("chunk", "two_point", "piecewise", "ordinal_cldp", "clipped_squares", "clipped_sums", "summary")
# What a CPU cannot do in an hour: LDP-FL on CIFAR-10 at the paper's scale and its twin without noise, Han and Xue's
# images in full. By name: the folder of the data, and the command.
CIFAR = ("ldp-fl", "--dataset", "cifar10", "--clients", "500", "--rounds", "15", "--epochs", "5")
PAPERS = {
    "cifar10-no-noise": ("cifar-10-batches-*", (*CIFAR, "--no-noise")),
    "cifar10-adaptive": ("cifar-10-batches-*", (*CIFAR, "--eps", "10", "--adaptive")),
    "han-xue-mnist": ("MNIST", ("han-xue", "--dataset", "mnist", "--generators", "gan")),
    "han-xue-fashion-mnist": ("FashionMNIST", ("han-xue", "--dataset", "fashion-mnist", "--generators", "gan")),
}
# The same in seconds, of the digits, that need no file: for a rehearsal.
SMALL = {
    "ldp-fl": ("--dataset", "digits", "--clients", "4", "--rounds", "2", "--epochs", "1"),
    "han-xue": ("--dataset", "digits", "--models", "logistic", "--steps", "3", "--epochs", "1", "--local-epochs", "1"),
}


def main() -> int:
    options = _options()
    work = Path(tempfile.mkdtemp(prefix="ldpkernels-gpu-"))
    try:
        if options.prebuild:
            return _prebuild(work, options.prebuilt, options.python or sys.executable)
        return _run(options, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.gpu.run",
        description=(__doc__ or "").split("\n\n")[0],
        epilog=(__doc__ or "").split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="these parts alone (default: all, papers where there is --data)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "out" / "gpu")), help="default: $OUT, or out/gpu"
    )
    parser.add_argument("--deadline", type=float, default=560.0, metavar="S", help="seconds for everything (560)")
    papers = "datasets for the papers, which need tqdm and matplotlib: torchvision's root"
    parser.add_argument("--data", type=Path, metavar="DIR", help=papers)
    parser.add_argument("--runs", type=Path, metavar="DIR", help="keep the papers' checkpoints there, to go on from")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="processes that test (8)")
    parser.add_argument(
        "--rehearse", action="store_true", help="without a device, by Triton's interpreter: the run itself"
    )
    parser.add_argument("--prebuild", action="store_true", help="compile the modules into prebuilt/, and nothing else")
    parser.add_argument(
        "--prebuilt", type=Path, default=ROOT / "prebuilt", metavar="DIR", help="compiled modules (prebuilt/)"
    )
    parser.add_argument("--python", help="with --prebuild: the interpreter that they are for (default: this one)")
    options = parser.parse_args()
    options.out = options.out.resolve()
    if options.deadline <= 0:
        parser.error(f"--deadline {options.deadline} must be positive")
    return options


def _run(options: argparse.Namespace, work: Path) -> int:
    if missing := [name for name in ("torch", "numpy", "pytest") if not importlib.util.find_spec(name)]:
        print(f"this python3 ({sys.executable}) has no {', '.join(missing)}", file=sys.stderr)
        return 2
    tree = work / "tree"
    _lay_out(tree)
    run = Run(options.out, options.deadline, tree)
    run.environment = {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    run.environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else every process that tests starts one for each core
    if options.rehearse:
        run.environment["TRITON_INTERPRET"] = "1"
    if not (_take_prebuilt(run, options.prebuilt, tree) or _build(run, work, tree)):
        run.summarize()
        return 2
    check = Step("check", _python("benchmarks.gpu.check", *(["--rehearse"] * options.rehearse)), 120, "build.log")
    if not run.step(check):
        return 3 if "status 3" in check.result else 1
    run.facts |= json.loads((tree / "facts.json").read_text())
    parts = options.only or [p for p in PARTS if p != "papers" or options.data]
    for part in PARTS:
        if part in parts:
            {
                "correctness": _correctness,
                "sanitize": _sanitize,
                "bandwidth": _bandwidth,
                "profile": _profile,
                "papers": _papers,
            }[part](run, options)
    return int(run.failed)


def _lay_out(tree: Path) -> None:
    """A copy of the sources, where compiled modules lie beside them."""
    tree.mkdir(parents=True)
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "results"))
        else:
            shutil.copy(ROOT / name, tree / name)


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


# The compiled modules


def sources_digest(root: Path) -> str:
    """What a build is of: everything that is compiled."""
    digest = hashlib.sha256()
    for path in sorted([root / "CMakeLists.txt", *(root / "csrc").rglob("*")]):
        if path.is_file():
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _take_prebuilt(run: Run, prebuilt: Path, tree: Path) -> bool:
    """Use modules that were compiled before, if they are of these sources and this Python loads them."""
    suffix, note = sysconfig.get_config_var("EXT_SUFFIX"), prebuilt / "sources.sha256"
    modules = sorted(prebuilt.glob(f"*{suffix}"))
    if not modules:
        run.facts["modules"] = f"none in {prebuilt.name}/ for {suffix}: built here"
        return False
    if not note.exists() or note.read_text().strip() != sources_digest(ROOT):
        run.facts["modules"] = f"{prebuilt.name}/ is of other sources: built here"
        return False
    for module in modules:
        shutil.copy(module, tree / "ldpkernels")
    program = "import ldpkernels; from ldpkernels import " + ", ".join(m.name.partition(".")[0] for m in modules)
    loaded = subprocess.run([sys.executable, "-c", program], cwd=tree, capture_output=True, text=True, check=False)
    if loaded.returncode:
        why = loaded.stderr.strip().splitlines()[-1]
        run.facts["modules"] = f"{prebuilt.name}/ does not load here ({why}): built here"
        for module in modules:
            (tree / "ldpkernels" / module.name).unlink()
        return False
    run.facts["modules"] = "prebuilt: " + ", ".join(m.name for m in modules)
    return True


def _build(run: Run, work: Path, tree: Path) -> bool:
    if not shutil.which("cmake"):
        print("needs CMake, or modules in prebuilt/ (make gpu-build)", file=sys.stderr)
        return False
    built = work / "build"
    configure = Step("configure", _configure(built, sys.executable), 60, "build.log")
    compile_ = Step("build", ["cmake", "--build", str(built), "--parallel", str(os.cpu_count())], 300, "build.log")
    if not (run.step(configure) and run.step(compile_)):
        return False
    for module in built.glob("_*.so"):
        shutil.copy(module, tree / "ldpkernels")
    return True


def _configure(built: Path, python: str) -> list[str]:
    headers = next(
        (Path(origin).parent / "include" for name in ("pybind11", "torch") if (origin := _origin(name))), None
    )
    command = ["cmake", "-S", str(ROOT), "-B", str(built), f"-DPython_EXECUTABLE={shutil.which(python)}"]
    if headers is not None:
        command.append(f"-DPYBIND11_INCLUDE_DIR={headers}")
    if _nvcc():
        arch = os.environ.get("CUDA_ARCHITECTURES") or "90-real"
        command += ["-DLDPKERNELS_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={arch}", f"-DCMAKE_CUDA_COMPILER={_nvcc()}"]
    else:
        command.append("-DLDPKERNELS_CUDA=OFF")
    return [*command, "-G", "Ninja"] if shutil.which("ninja") else command


def _origin(module: str) -> str | None:
    found = importlib.util.find_spec(module)
    return found.origin if found else None


def _nvcc() -> str | None:
    return shutil.which("nvcc") or shutil.which("nvcc", path=f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin")


def _prebuild(work: Path, prebuilt: Path, python: str) -> int:
    for command in (_configure(work / "build", python), ["cmake", "--build", str(work / "build"), "--parallel"]):
        if subprocess.run(command, check=False).returncode:
            return 1
    shutil.rmtree(prebuilt, ignore_errors=True)
    prebuilt.mkdir(parents=True)
    for module in sorted((work / "build").glob("_*.so")):
        shutil.copy(module, prebuilt)
        print(f"{prebuilt.name}/{module.name}: {module.stat().st_size / 1e6:.1f} MB")
    (prebuilt / "sources.sha256").write_text(sources_digest(ROOT) + "\n")
    return 0


# The parts


def _pytest(*arguments: str) -> list[str]:
    """What this project's configuration makes errors of warnings is for the versions that it pins."""
    return [sys.executable, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", *arguments]


def _correctness(run: Run, options: argparse.Namespace) -> None:
    """Known answers first; then every test of every operation on both backends; then all questions in one process."""
    known = "tests/gpu/test_known_answers.py"
    run.step(Step("known answers", _pytest("-x", known), 120, "correctness.log"))
    plugins = ["--timeout=200", "--timeout-method=thread"] if importlib.util.find_spec("pytest_timeout") else []
    if importlib.util.find_spec("xdist") and options.workers > 1:
        plugins += ["--numprocesses", str(options.workers), "--dist", "worksteal"]
    chosen = ["tests/gpu", f"--ignore={known}", "tests/triton", "--ignore=tests/triton/test_static.py"]
    if options.rehearse:
        chosen = ["tests/gpu", f"--ignore={known}", "tests/triton/test_tally.py"]
    plugins += ["--continue-on-collection-errors", "--durations=10", "-rfE"]
    run.step(Step("tests", _pytest(*chosen, *plugins), 300, "correctness.log"))
    if not options.rehearse:
        run.step(Step("questions", _python("ldpkernels", "verify", "--device", "cuda"), 120, "correctness.log"))


def _sanitize(run: Run, options: argparse.Namespace) -> None:
    """Watch with each of the sanitizer's tools every operation of each backend, all side by side."""
    if options.rehearse:
        command = _python("benchmarks.gpu.sanitize", "triton", "--rehearse")
        run.step(Step("operations, triton", command, 300, "sanitize.log"))
        return
    if not shutil.which("compute-sanitizer"):
        run.skip("compute-sanitizer", "it is not on this machine")
        return
    steps = []
    for backend in filter(None, run.facts["GPU backends"].split(", ")):
        watched = _sanitizer_options() if backend == "cuda" else []
        for i, tool in enumerate(TOOLS):
            command = ["compute-sanitizer", "--error-exitcode", "9", "--tool", tool, *SANITIZING]
            command += ["--port", str(49152 + 16 * len(steps))]  # it takes one of ten from there on
            if tool != "initcheck":  # which takes what other kernels have written for uninitialised if it skips them
                command += watched
            command += _python("benchmarks.gpu.sanitize", backend, "--start", f"{i}/{len(TOOLS)}")
            environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
            steps.append(Step(f"{tool}, {backend}", command, 240, "sanitize.log", environment))
    run.together(steps)


def _sanitizer_options() -> list[str]:
    """Only the kernels in our namespace, where the tool can tell: its option for that was renamed.

    The tool's help says so. A trial run does not: the tool fails on every program that does not use CUDA.
    """
    told = subprocess.run(["compute-sanitizer", "--help"], capture_output=True, text=True, check=False).stdout
    known = [name for name in ("--kernel-name", "--kernel-regex") if re.search(rf"^\s*{name}\s", told, re.M)]
    return [known[0], "kns=ldpk"] if known else []


def _bandwidth(run: Run, options: argparse.Namespace) -> None:
    """Times beside a copy's and torch's."""
    seconds = 3.0 if options.rehearse else min(330.0, run.remaining - 10)
    arguments = ["--out", str(options.out), "--seconds", f"{seconds:.0f}", *(["--rehearse"] * options.rehearse)]
    run.step(Step("bench", _python("benchmarks.gpu.bench", *arguments), 360, "build.log"))


def _profile(run: Run, options: argparse.Namespace) -> None:
    """The counters of some kernels."""
    if options.rehearse or not shutil.which("ncu"):
        run.skip("profile", "ncu is not on this machine, or this is a rehearsal")
        return
    names = "|".join(f"{name}_kernel" for name in PROFILED)
    command = ["ncu", "--clock-control", "none", "--kernel-name", f"regex:{names}", "--section", "SpeedOfLight"]
    command += ["--section", "LaunchStats", "--section", "Occupancy"]
    # It writes its pages when the program ends, and may not if it is ended itself.
    command += _python("benchmarks.gpu.bench", "--once", "--seconds", "60")
    run.step(Step("profile", command, 120, "profile.log"))


def _papers(run: Run, options: argparse.Namespace) -> None:
    """A step has its share of what is left. The rounds so far are in its log; with --runs another call goes on."""
    todo = dict(PAPERS)
    missing = [package for package in ("tqdm", "matplotlib") if not importlib.util.find_spec(package)]
    for name, (folder, _) in PAPERS.items():
        if missing:
            run.skip(name, f"this python3 has no {', '.join(missing)}")
            del todo[name]
        elif not options.rehearse and not (options.data and any(options.data.glob(folder))):
            run.skip(name, f"--data has no {folder}" if options.data else "--data is missing")
            del todo[name]
    runs = (options.runs or run.cwd / "runs").resolve()
    for i, (name, (_, command)) in enumerate(todo.items()):
        arguments = ["fl", *command, "--out", str(runs / name), "--resume", "--quiet", "--json"]
        if options.rehearse:
            arguments += SMALL[command[0]]
        else:
            arguments += ["--device", "cuda", "--data", str(options.data.resolve())]
        share = run.remaining / (len(todo) - i)
        run.step(Step(name, _python("ldpkernels", *arguments), share, "papers.log", kept=runs / name / "metrics.csv"))


if __name__ == "__main__":
    sys.exit(main())
