# SPDX-License-Identifier: Apache-2.0
"""Instructions and cache misses of every kernel and call, counted by callgrind, held to a table: `make cost`.

    python -m benchmarks.cost [--update | --short] [--table FILE]

Beside them the machine code of the CUDA kernels for sm_90, instructions an element on the hot path, where nvcc is found
(benchmarks/static_cost.py). Counts have no noise: a kernel that costs 2% more than benchmarks/cost.json says ends with
status 1, on a busy machine as on a quiet one. They are of AVX2, which is what valgrind knows, in one thread, with a
cache of 32 KiB that every machine simulates alike. Kernels' counts are of the compiler, calls' also of Python and
NumPy, machine code's of nvcc: what others made is shown and not judged. `--update` writes the table; the change of
figures is then part of the commit. `--short` counts the kernels of one bit, by the native module alone: in seconds, as
a test of `make test` where valgrind is (tests/test_cost.py).
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import static_cost

TABLE = Path(__file__).parent / "cost.json"
WITHIN = 0.02
# Of calls that allocate, the last thousand instructions are the allocator's; of kernels, a hundredth an element.
SLACK = {"kernels": 0.05, "calls": 400.0, "sm_90": 0.05, "misses": 0.01}
DEPENDS = {"kernels": ("compiler",), "calls": ("compiler", "python", "numpy"), "sm_90": ("nvcc",)}  # on which facts
SMALL, LARGE = 1 << 13, 1 << 15
CACHE = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64"]
MARK = "getppid"  # of libc, which nothing else calls: callgrind writes its counts whenever it is entered


def kernels() -> dict[str, Callable[[int], Callable[[], Any]]]:
    """For each kernel, what makes a call on n elements; its cost an element is that of the difference of two sizes."""
    import numpy as np

    import ldpkernels
    from ldpkernels import _native
    from ldpkernels.updates import rotate_

    philox, chacha = ldpkernels.key(7), ldpkernels.Key((1, 2, 3, 4))

    def weights(n: int, dtype: Any = np.float32) -> Any:
        return np.random.default_rng(0).normal(size=n).astype(dtype)

    def perturb(**options: Any) -> Callable[[int], Callable[[], Any]]:
        dtype = options.pop("dtype", np.float32)
        options = {"generator": philox, **options}

        def of(n: int) -> Callable[[], Any]:
            w = weights(n, dtype)
            return lambda: ldpkernels.perturb_(w, 0.0, 1.0, 1.0, **options)

        return of

    def report(**options: Any) -> Callable[[int], Callable[[], Any]]:
        def of(n: int) -> Callable[[], Any]:
            w = weights(n)
            return lambda: ldpkernels.report(w, 0.0, 1.0, 1.0, **{"generator": philox, **options})

        return of

    def cldp(mechanism: str) -> Callable[[int], Callable[[], Any]]:
        def of(n: int) -> Callable[[], Any]:
            w = weights(n)
            return lambda: ldpkernels.cldp_(w, 1e-3, 1.0, 4, mechanism=mechanism, generator=philox)

        return of

    def threshold(n: int) -> Callable[[], Any]:
        w = weights(n)
        return lambda: ldpkernels.two_point_threshold(w, 0.0, 1.0, 1.0)

    def added(mechanism: str) -> Callable[[int], Callable[[], Any]]:
        def of(n: int) -> Callable[[], Any]:
            reports = [ldpkernels.report(weights(n), 0.0, 1.0, 2.0, mechanism=mechanism, generator=philox)] * 30
            total = ldpkernels.Aggregate()
            total.add(*reports)
            return lambda: total.add(*reports)

        return of

    def mean(n: int) -> Callable[[], Any]:
        total = ldpkernels.Aggregate()
        total.add(*[ldpkernels.report(weights(n), 0.0, 1.0, 2.0, generator=philox)] * 30)
        return total.mean

    def summed(noise: str) -> Callable[[int], Callable[[], Any]]:
        def of(n: int) -> Callable[[], Any]:
            gradients = [weights(8 * n // 8).reshape(8, n // 8)]
            return lambda: ldpkernels.clipped_noised_sum(gradients, 1.0, 1.0, noise=noise, generator=philox)

        return of

    def losses(columns: int) -> Callable[[int], Callable[[], Any]]:
        def of(n: int) -> Callable[[], Any]:
            rows = 2 * abs(weights(n)).reshape(n // columns, columns)
            return lambda: ldpkernels.clipped_noised_sum(rows, 1.0, 1.0, generator=philox)

        return of

    def ranges(n: int) -> Callable[[], Any]:
        w = {"w": weights(n)}
        return lambda: ldpkernels.ranges(w, method="minmax")

    def votes(n: int) -> Callable[[], Any]:
        ballots = np.random.default_rng(0).integers(0, 10, (8, n // 8)).astype(np.uint8)
        return lambda: ldpkernels.majority_vote(ballots, 10)

    def vector(mechanism: str, **options: Any) -> Callable[[int], Callable[[], Any]]:
        def of(n: int) -> Callable[[], Any]:
            w = weights(n)
            options_ = {"generator": philox, "norm": 1.0, "mechanism": mechanism, **options}
            return lambda: ldpkernels.perturb_vector(w, 8.0, **options_)

        return of

    def rotation(n: int) -> Callable[[], Any]:
        w = weights(n)
        return lambda: rotate_(w, philox)

    def digest(n: int) -> Callable[[], Any]:
        data = bytes(8 * n)
        return lambda: _native.crc32c(data)

    return {
        "perturb_, fp32, Philox": perturb(),
        "perturb_, fp32, ChaCha20": perturb(generator=chacha),
        "perturb_, fp64, Philox": perturb(dtype=np.float64),
        "perturb_, fp16, Philox": perturb(dtype=np.float16),
        "report, Philox": report(),
        "report, ChaCha20": report(generator=chacha),
        "perturb_, sign": perturb(mechanism="sign"),
        "perturb_, piecewise": perturb(mechanism="piecewise"),
        "perturb_, hybrid": perturb(mechanism="hybrid"),
        "report, piecewise": report(mechanism="piecewise"),
        "report, hybrid": report(mechanism="hybrid"),
        "cldp_, exponential": cldp("exponential"),
        "cldp_, laplace": cldp("laplace"),
        "two_point_threshold": threshold,
        "Aggregate.add, 30 reports of bits": added("two-point"),
        "Aggregate.add, 30 reports of bytes": added("piecewise"),
        "Aggregate.mean, bits": mean,
        "clipped_noised_sum, gaussian, of 8 rows": summed("gaussian"),
        "clipped_noised_sum, discrete, of 8 rows": summed("discrete"),
        "clipped_noised_sum, rows of one": losses(1),
        "clipped_noised_sum, rows of two": losses(2),
        "ranges, minmax": ranges,
        "majority_vote of 8 parties": votes,
        "digest of 8 bytes": digest,
        "rotate_": rotation,
        "perturb_vector, gaussian": vector("gaussian", delta=1e-5),
        "perturb_vector, privunitg": vector("privunitg"),
    }


def calls() -> dict[str, Callable[[], Any]]:
    """Calls so small that they are all overhead."""
    import numpy as np

    import ldpkernels

    key = ldpkernels.key(7)
    one = np.zeros(10, np.float32)
    model = {f"layer{i}.weight": np.zeros((4, 4), np.float32) for i in range(10)}
    upload = ldpkernels.report(model, 0.0, 1.0, 1.0, generator=key).to_bytes()
    this_round = ldpkernels.expected(model, 0.0, 1.0, 1.0)
    return {
        "perturb_, one small array": lambda: ldpkernels.perturb_(one, 0.0, 1.0, 1.0, generator=key),
        "perturb_, 10 small arrays": lambda: ldpkernels.perturb_(model, 0.0, 1.0, 1.0, generator=key),
        "report, 10 small arrays": lambda: ldpkernels.report(model, 0.0, 1.0, 1.0, generator=key),
        "to_bytes, 10 small arrays": lambda: ldpkernels.report(model, 0.0, 1.0, 1.0, generator=key).to_bytes(),
        "aggregate, 10 uploads": lambda: ldpkernels.aggregate([upload] * 10),
        "Aggregate(expected).add, an upload": lambda: ldpkernels.Aggregate(this_round).add(upload),
        "cldp_, one small array": lambda: ldpkernels.cldp_(one, 0.1, 1.0, 2, generator=key),
    }


def bare_kernels(path: str) -> dict[str, Callable[[int], Callable[[], Any]]]:
    """Some of `kernels` by the module at `path` alone: under callgrind, most of the time is the package's import."""
    import numpy as np

    loader = importlib.machinery.ExtensionFileLoader("ldpkernels._native", path)
    native = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(native)
    lowest = 1155094610  # eps = 1, as everywhere here

    def launched(output: str, key: bytes) -> Callable[[int], Callable[[], Any]]:
        def of(n: int) -> Callable[[], Any]:
            w, out = np.random.default_rng(0).normal(size=n).astype(np.float32), np.empty(n, np.int64)
            spans = np.array([(w.ctypes.data, out.ctypes.data, n, 0, 0)], native.SPAN)
            laws = native.one_bit_laws("two_point", (0.0,), (1.0,), (0,), lowest, output != "values")
            return lambda: (native.launch("two_point", output, spans, laws, key, "avx2", 1), w, out)

        return of

    def added(n: int) -> Callable[[], Any]:
        reports, tally = [np.random.default_rng(0).bytes(n // 8)] * 30, native.Tally(n // 8, "avx2")
        arrays = [np.frombuffer(report, np.uint8) for report in reports]
        tally.add(arrays, 1)
        return lambda: tally.add(arrays, 1)

    def decoded(n: int) -> Callable[[], Any]:
        tally, out = native.Tally(n // 8, "avx2"), np.empty(n, np.float32)
        tally.add([np.zeros(n // 8, np.uint8)] * 30, 1)
        return lambda: tally.decode_f32(0, 0.0, 1.0, out, 1)

    def digest(n: int) -> Callable[[], Any]:
        data = bytes(8 * n)
        return lambda: native.crc32c(data)

    philox, chacha = struct.pack("<Q", 7), struct.pack("<4Q", 1, 2, 3, 4)
    return {
        "perturb_, fp32, Philox": launched("values", philox),
        "perturb_, fp32, ChaCha20": launched("values", chacha),
        "report, Philox": launched("bits", philox),
        "report, ChaCha20": launched("bits", chacha),
        "two_point_threshold": launched("thresholds", philox),
        "Aggregate.add, 30 reports of bits": added,
        "Aggregate.mean, bits": decoded,
        "digest of 8 bytes": digest,
    }


def sections(native: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Everything that is counted, in order: nothing at all, calls, and each kernel at two sizes."""
    yield "nothing", lambda: None
    if not native:
        yield from ((f"call {name}", call) for name, call in calls().items())
    for name, of in (bare_kernels(native) if native else kernels()).items():
        yield f"small {name}", of(SMALL)
        yield f"large {name}", of(LARGE)


def run_sections(native: str) -> None:
    """Under callgrind: each section between two marks, after as many calls as let Python settle."""
    import gc

    mark, names = os.getppid, []
    for name, call in sections(native):
        for _ in range(20 if name.startswith(("call", "nothing")) else 2):
            call()
        gc.collect()
        gc.disable()
        mark()
        call()
        mark()
        gc.enable()
        names.append(name)
    print(json.dumps(names))


def facts() -> dict[str, str]:
    """What counts depend on: the compiler, as it signed the module, and Python and NumPy."""
    import numpy as np

    from ldpkernels import _native

    signed = re.search(rb"(GCC: \([^)]*\) [\d.]+|clang version [\d.]+)", Path(_native.__file__).read_bytes())
    python = f"{platform.python_version()}, {platform.python_compiler()}"
    return {"compiler": signed[1].decode() if signed else "?", "python": python, "numpy": np.__version__}


def lacking() -> str:
    """Why nothing can be counted here; nothing if it can."""
    if missing := [tool for tool in ("valgrind", "setarch") if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not found (on Debian: apt install valgrind util-linux)"
    if subprocess.run(["setarch", "-R", "true"], capture_output=True, check=False).returncode:
        return "setarch -R is not permitted here, and counts would depend on where things lie in memory"
    return ""


def counted(short: bool = False) -> dict[str, Any]:
    """Counts of all sections: instructions, and misses of the first-level data cache."""
    from ldpkernels import _native

    if reason := lacking():
        sys.exit(reason)
    native = _native.__file__ if short else ""
    set_up = {
        "PYTHONHASHSEED": "0",
        "OPENBLAS_NUM_THREADS": "1",
        "LDPKERNELS_BACKEND": "avx2",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "32768",
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts"
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", f"--dump-before={MARK}"]
        valgrind += [] if short else CACHE
        program = [sys.executable, "-m", "benchmarks.cost", f"--sections={native}"]
        command = ["setarch", "-R", *valgrind, *program]
        done = subprocess.run(command, env={**os.environ, **set_up}, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"callgrind failed:\n{(done.stdout + done.stderr)[-3000:]}")
        names = json.loads(done.stdout.splitlines()[-1])
        # The dump at a section's second mark holds what lies between its two.
        dumps = [totals(out.with_name(f"counts.{2 * i + 2}")) for i in range(len(names))]
    found = dict(zip(names, dumps, strict=True))
    nothing = found["nothing"]
    kernels_, calls_ = {}, {}
    for name, one in found.items():
        kind, _, rest = name.partition(" ")
        if kind == "call":
            calls_[rest] = {"instructions": one["Ir"] - nothing["Ir"]}
        elif kind == "large":
            before = found[f"small {rest}"]
            each = {event: (one[event] - before[event]) / (LARGE - SMALL) for event in one}
            kernels_[rest] = {"instructions": round(each["Ir"], 3)}
            if not short:
                kernels_[rest]["misses"] = round(each["D1mr"] + each["D1mw"], 4)
    code = machine_code() if not short else {"nvcc": "not asked", "kernels": {}}
    facts_ = {**facts(), "nvcc": code["nvcc"]}
    return {"facts": facts_, "kernels": kernels_, "calls": calls_, "sm_90": code["kernels"]}


def machine_code() -> dict[str, Any]:
    """nvcc's version, and instructions an element on the hot path of each CUDA kernel of two-point; none without it."""
    if any(static_cost.find_tool(tool) is None for tool in ("nvcc", "cuobjdump")):
        return {"nvcc": "none", "kernels": {}}
    version = re.search(r"release [\d.]+, V([\d.]+)", static_cost.run_tool("nvcc", "--version"))
    with tempfile.TemporaryDirectory() as folder:
        cubin = static_cost.compile_kernels("sm_90", Path(folder), dtypes=static_cost.DTYPES)
        counts = {
            f"two-point, {result} {dtype}, {cipher}": {
                "instructions": static_cost.kernel_cost(cubin, cipher, result, dtype).instructions_per_element
            }
            for cipher in static_cost.CIPHERS
            for result in static_cost.RESULTS
            for dtype in static_cost.DTYPES
        }
    return {"nvcc": version[1] if version else "?", "kernels": counts}


def totals(path: Path) -> dict[str, int]:
    """The events of one dump."""
    text = path.read_text()
    events = re.search(r"^events: (.*)$", text, re.M)
    counts = re.search(r"^(?:summary|totals): (.*)$", text, re.M)
    if not events or not counts:
        raise ValueError(f"{path} is no dump of callgrind")
    numbers = [int(n) for n in counts[1].split()]
    names = events[1].split()
    return dict(zip(names, numbers + [0] * (len(names) - len(numbers)), strict=True))


def dearer(found: dict[str, Any], table: dict[str, Any]) -> list[str]:
    """What costs more than the table says, or is not in it, of what the same compiler (and Python, NumPy) made."""
    words = []
    for group, needed in DEPENDS.items():
        if any(found["facts"][fact] != table["facts"][fact] for fact in needed):
            continue
        if lost := table[group].keys() - found[group].keys():
            words.append(f"{', '.join(sorted(lost))}: in the table, and not counted")
        for name, counts in found[group].items():
            for event, count in counts.items():
                said = table[group].get(name, {}).get(event)
                slack = SLACK["misses" if event == "misses" else group]
                if said is None:
                    words.append(f"{name}: not in the table; --update adds it")
                elif count > said * (1 + WITHIN) + slack:
                    words.append(f"{name}: {count:,.10g} {event}, where the table has {said:,.10g}")
    return words


def shortened(table: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What a table says of what `--short` found."""
    kernels_ = {name: {"instructions": table["kernels"][name]["instructions"]} for name in found["kernels"]}
    return {**table, "kernels": kernels_, "calls": {}, "sm_90": {}}


def main() -> None:
    """Count, show, compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--update", action="store_true", help="write the table")
    parser.add_argument("--short", action="store_true", help="the kernels of one bit alone, and no misses")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--sections", metavar="NATIVE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sections is not None:
        return run_sections(args.sections)
    if args.short and args.update:
        parser.error("--update counts everything: leave --short out")
    found = counted(args.short)
    table = json.loads(args.table.read_text()) if args.table.exists() else found
    if args.short:
        table = shortened(table, found)
    print(f"{found['facts']['compiler']}; Python {found['facts']['python']}; NumPy {found['facts']['numpy']}")
    for group, what in (("kernels", "an element"), ("calls", "a call"), ("sm_90", "an element")):
        for name, counts in found[group].items():
            said = table[group].get(name, {}).get("instructions", float("nan"))
            misses = f", {counts['misses']:.3f} misses" if "misses" in counts else ""
            print(f"{name:42}{counts['instructions']:>12,.10g} instructions {what} (table: {said:,.10g}){misses}")
    if args.update:
        args.table.write_text(json.dumps(found, indent=1) + "\n")
        return None
    for fact, here in found["facts"].items():
        if here != table["facts"][fact]:
            groups = ", ".join(group for group, needed in DEPENDS.items() if fact in needed)
            print(f"{fact} is {here} here and {table['facts'][fact]} in the table: not judged are {groups}")
    if words := dearer(found, table):
        sys.exit("dearer than the table:\n" + "\n".join(words))
    return None


if __name__ == "__main__":
    main()
