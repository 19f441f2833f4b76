# SPDX-License-Identifier: Apache-2.0
"""Wheels that need no compiler, for CPython 3.10 to 3.14 on Linux: `make dist`.

    python -m release.wheels [--out dist] [--python PATH ...] [--arch x86_64 aarch64] [--once]

Zig's package is the compiler: it brings the C library's symbols of any year and compiles for the other processor. What
is committed is built, each wheel twice, in folders and caches of their own, and must be the same bytes; auditwheel says
whether it runs on every Linux since 2014; and the wheels of this machine's processor are installed alone, with NumPy,
and run tests/smoke.py, which asks for every instruction set that the processor has. A wheel needs an interpreter of its
version to be built: those on PATH, in pyenv's folder and given by --python are used, and what is missing is named.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = "2.17"  # of manylinux2014, and of the oldest systems that have wheels of NumPy
LONGEST_SENTENCE = 2000


def main() -> None:
    """Build, check, test; then name what lies in the folder and what could not be built."""
    parser = argparse.ArgumentParser(prog="python -m release.wheels", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="the folder of the wheels (default: dist)")
    parser.add_argument(
        "--python", nargs="*", default=[], help="interpreters beside those on PATH and in pyenv's folder"
    )
    parser.add_argument("--arch", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    parser.add_argument("--version", nargs="+", choices=VERSIONS, default=VERSIONS)
    parser.add_argument("--once", action="store_true", help="build once, and do not compare")
    args = parser.parse_args()
    if platform.system() != "Linux":
        sys.exit("wheels of Linux are built on Linux; .github/workflows/wheels.yml builds those of other systems")
    found = {v: python for v, python in interpreters(args.python).items() if v in args.version}
    if not found:
        sys.exit(f"no CPython of {', '.join(args.version)} found: put one on PATH or name it by --python")
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ldpkernels-wheels-") as folder:
        work = Path(folder)
        tools = environment(sys.executable, work / "tools", "-r", str(ROOT / "release" / "requirements.txt"))
        source = work / "source"
        source.mkdir()
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
        for python in found.values():
            for arch in args.arch:
                made = [build(source, tools, python, arch, work / f"{n}") for n in range(1 if args.once else 2)]
                if len({digest(wheel) for wheel in made}) != 1:
                    sys.exit(f"{made[0].name} was built twice, and the bytes differ")
                wheel = Path(shutil.copy2(made[0], args.out))
                tested = (
                    smoke(python, wheel, work / "clean") if arch == platform.machine() else "not run: another processor"
                )
                print(f"{wheel.name}  {digest(wheel)[:16]}  {wheel.stat().st_size / 1e6:.2f} MB  {tested}", flush=True)
    if missing := [v for v in args.version if v not in found]:
        print(f"no wheel for CPython {', '.join(missing)}: no such interpreter here; --python names one")


def interpreters(named: Iterable[str]) -> dict[str, str]:
    """The interpreter of each version: those named first, then PATH's, then pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [*named, *(found for v in VERSIONS if (found := shutil.which(f"python{v}")))]
    candidates += [str(p) for v in VERSIONS for p in sorted(pyenv.glob(f"{v}.*/bin/python"), reverse=True)]
    question = "import sys; print(sys.implementation.name, '%d.%d' % sys.version_info[:2])"
    found: dict[str, str] = {}
    for candidate in candidates:
        try:
            asked = subprocess.run([candidate, "-c", question], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            if candidate in named:
                sys.exit(f"--python {candidate} does not run")
            continue  # pyenv's shim of a version that is not installed
        answer = asked.stdout.split()
        if answer[:1] == ["cpython"] and answer[1] in VERSIONS:
            found.setdefault(answer[1], candidate)
    return {v: found[v] for v in VERSIONS if v in found}


def environment(python: str, folder: Path, *requirements: str) -> Path:
    """A clean environment of `python` with these packages and no more; its interpreter."""
    run([python, "-m", "venv", "--clear", "--without-pip", str(folder)])
    inside = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(inside), "--quiet", "--disable-pip-version-check"]
    run([*pip, "install", "--only-binary", ":all:", *requirements])
    return inside


def build(source: Path, tools: Path, python: str, arch: str, work: Path) -> Path:
    """One wheel of a folder of sources, tagged by auditwheel."""
    version = run([python, "-c", "import sys; print('%d%d' % sys.version_info[:2])"]).strip()
    tag = f"cp{version}-{arch}"
    builder = work / f"builder-{version}"
    if not builder.exists():
        needed = [line for line in requirements() if line.startswith(("scikit-build-core", "pybind11"))]
        environment(python, builder, *needed)
    folder = work / tag
    folder.mkdir()
    settings = {
        "build-dir": str(folder / "cmake"),
        "cmake.define.LDPKERNELS_CUDA": "OFF",
        "cmake.define.CMAKE_SYSTEM_NAME": "Linux",  # said even where it is the machine's own: then both are built alike
        "cmake.define.CMAKE_SYSTEM_PROCESSOR": arch,
    }
    zig = run([str(tools), "-c", "import ziglang; print(ziglang.__path__[0])"]).strip()
    compiler = f"{zig}/zig c++ -target {arch}-linux-gnu.{GLIBC} -ffile-prefix-map={source}=."
    set_up = {
        "PATH": os.pathsep.join([str(tools.parent), os.environ["PATH"]]),
        "CXX": compiler,
        "LDFLAGS": "-s",
        "SOURCE_DATE_EPOCH": run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]).strip(),
        # What Zig makes of its own C++ library, which takes minutes, may be kept; what it makes of ours is made anew.
        "ZIG_GLOBAL_CACHE_DIR": os.environ.get("ZIG_GLOBAL_CACHE_DIR", str(work.parent / "zig")),
        "ZIG_LOCAL_CACHE_DIR": str(work / "zig"),
        # What distutils calls the platform, of the interpreter that runs and not of the target.
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version}-{arch}-linux-gnu.so",
    }
    pip = [sys.executable, "-m", "pip", "--python", str(builder / "bin" / "python"), "--quiet"]
    options = [f"--config-settings={key}={value}" for key, value in settings.items()]
    wheel = [*pip, "wheel", str(source), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), *options]
    run(wheel, set_up)
    made = next(folder.glob("*.whl"))
    module = f"ldpkernels/_native.cpython-{version}-{arch}-linux-gnu.so"
    if module not in zipfile.ZipFile(made).namelist():
        sys.exit(f"{made.name} has no {module}")
    # "auto": auditwheel takes no name of another processor's platform, and reads the wheel instead.
    out = folder / "out"
    run([str(tools), "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(out), str(made)], set_up)
    wheel = next(out.glob("*.whl"))
    if f"manylinux_{GLIBC.replace('.', '_')}_{arch}" not in wheel.name:
        sys.exit(f"auditwheel calls it {wheel.name}: that is not glibc {GLIBC} on {arch}")
    return wheel


def requirements() -> list[str]:
    """The pinned packages that build."""
    lines = (ROOT / "release" / "requirements.txt").read_text().splitlines()
    return [line for line in lines if re.match(r"\w", line)]


def smoke(python: str, wheel: Path, folder: Path) -> str:
    """What tests/smoke.py says of the wheel in an environment that has nothing but it and what it requires."""
    inside = environment(python, folder, str(wheel))
    return run([str(inside), "-I", str(ROOT / "tests" / "smoke.py")]).strip()


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(command: list[str], set_up: dict[str, str] | None = None) -> str:
    """The output of a command; its last words where it fails."""
    done = subprocess.run(command, env={**os.environ, **(set_up or {})}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-LONGEST_SENTENCE:]}")
    return done.stdout


if __name__ == "__main__":
    main()
