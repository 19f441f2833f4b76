# SPDX-License-Identifier: Apache-2.0
"""What the kernels reach of a device-to-device copy, on both GPU backends and beside torch; and the latency of calls.

A row is written to bench.jsonl as soon as it is measured, so that nothing is lost to what comes after it; bench.md is
made of the rows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ldpkernels
import ldpkernels.updates
from benchmarks import machine, peers, results
from benchmarks.peers import EPS, C, R
from ldpkernels import launch
from ldpkernels.common import capabilities
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs.spans import span_table

Work = Callable[[], object]
KEYS = {"Philox": ldpkernels.Key((7,)), "ChaCha20": ldpkernels.Key((1, 2, 3, 4))}
METHOD = """\
A row's time is the least of three batches of calls between two CUDA events, each of 20 ms or 50 calls, behind a kernel
that waits while the host queues them. A copy of as many bytes is measured before and after it; "of copy" is the row's
bytes/s over the copy's, where bytes are what the task must read and write. Latencies are of 200 calls by the host's
clock, up to the end of the last. Keys are tensors on the device; "fresh keys" has generator=None.
"""


@dataclass
class Case:
    """Something to measure."""

    group: str
    name: str
    call: Work
    elements: float
    bytes: float
    goal: float | None = None  # of the copy's bandwidth; of samples a second; the most seconds of a latency
    unit: str = "copy"  # what the goal is of: "copy", "rate" or "latency"
    graph: bool = False  # replay it from a CUDA graph


class Device:
    """Where calls run and how they are timed."""

    def __init__(self, rehearsal: bool) -> None:
        self.name = "cpu" if rehearsal else "cuda"
        self.scale = 1 / (1 << 16) if rehearsal else 1.0
        self._rehearsal = rehearsal
        self._copied: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def size(self, n: int) -> int:
        """A number of elements or rows, smaller in a rehearsal."""
        return max(1, int(n * self.scale))

    def copy_seconds(self, nbytes: float) -> float:
        """A copy that reads and writes as many bytes in all."""
        n = max(16, int(nbytes / 2))
        if n not in self._copied:
            a, b = (torch.ones(n, dtype=torch.uint8, device=self.name) for _ in range(2))
            self._copied = {n: (a, b)}
        a, b = self._copied[n]
        return self.seconds(lambda: b.copy_(a))

    def forget(self) -> None:
        self._copied = {}
        if not self._rehearsal:
            torch.cuda.empty_cache()

    def seconds(self, work: Work) -> float:
        """What one call among many takes on the device."""
        if self._rehearsal:
            return self.latency(work, 1)

        began = time.perf_counter()
        work()
        queueing = time.perf_counter() - began

        def batch(calls: int) -> float:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # While it lasts, in cycles, the host queues all calls, so that launches leave no gaps.
            torch.cuda._sleep(round(2e9 * (5e-4 + 1.5 * queueing * calls)))
            start.record()
            for _ in range(calls):
                work()
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end) / 1e3 / calls

        calls = max(1, min(50, round(0.02 / batch(1))))  # a device queues about a thousand launches
        return min(batch(calls) for _ in range(3))

    def latency(self, work: Work, calls: int = 200) -> float:
        """What one call among many takes by the host's clock."""

        def batch() -> float:
            self.wait()
            start = time.perf_counter()
            for _ in range(calls):
                work()
            self.wait()
            return (time.perf_counter() - start) / calls

        return min(batch() for _ in range(1 if self._rehearsal else 3))

    def wait(self) -> None:
        if not self._rehearsal:
            torch.cuda.synchronize()


def forced(backend: str, function: Callable[..., object], *arguments: object, **options: object) -> Work:
    def work() -> object:
        with ldpkernels.backend(backend):
            return function(*arguments, **options)

    return work


def able(kernel: str, device: Device) -> list[str]:
    found = capabilities.able(kernel, device.name, 0 if device.name == "cuda" else None)
    return [name for name in found if name in ("cuda", "triton")]


def cases(device: Device) -> Iterator[Case]:
    """The most wanted first. Where the next cannot be made, calling it says why, and another group follows."""
    groups = (
        partial(weight_cases, device, torch.float32, "fp32", {"Philox": 0.95, "ChaCha20": 0.85, "report": 0.9}),
        partial(weight_cases, device, torch.bfloat16, "bf16", {"Philox": 0.9, "report": 0.9, "piecewise": 0.6}),
        *(partial(group, device) for group in (clipped_cases, cldp_cases, vector_cases, latency_cases, server_cases)),
    )
    for group in groups:
        try:
            yield from group()
        except Exception as error:
            yield Case("What could not be measured", group.func.__name__, partial(_reraise, error), 0.0, 0.0)


def _reraise(error: Exception) -> None:
    raise error


def weight_cases(device: Device, dtype: torch.dtype, size: str, goals: dict[str, float]) -> Iterator[Case]:
    n = device.size((1 << 30) // dtype.itemsize)
    moved, written = 2.0 * n * dtype.itemsize, n * dtype.itemsize + n / 8
    group, w = f"1 GiB of {size} weights", torch.randn(n, device=device.name, dtype=dtype)

    def case(function: Any, mechanism: Any, backend: str, key: str, goal: str = "") -> Case:
        options = {"mechanism": mechanism, "generator": KEYS[key].tensor(device.name) if key else None}
        work = forced(backend, function, w, C, R, EPS, **options)
        name = f"{function.__name__} {mechanism}, {backend}, {key or 'fresh keys'}"
        return Case(group, name, work, n, moved if function is ldpkernels.perturb_ else written, goals.get(goal))

    def other(name: str, work: Work) -> Case:
        return Case(group, name, work, n, moved)

    yield other("mul_ in place", partial(w.mul_, -1.0))
    for backend in able("two_point", device):
        for key in KEYS:
            yield case(ldpkernels.perturb_, "two-point", backend, key, goal=key)
            yield case(ldpkernels.report, "two-point", backend, key, goal="report" if key == "Philox" else "")
        yield case(ldpkernels.perturb_, "two-point", backend, "")
    for mechanism in ("piecewise", "hybrid", "sign"):
        for backend in able(mechanism, device):
            yield case(ldpkernels.perturb_, mechanism, backend, "Philox", goal=mechanism)
            yield case(ldpkernels.report, mechanism, backend, "Philox")
    yield other("torch eager, bernoulli", partial(peers.bernoulli_, w))
    yield other("torch eager, compare", partial(peers.compare_, w))
    if device.name == "cuda":
        yield other("torch.compile, compare", partial(torch.compile(peers.compare_, fullgraph=True), w))


def clipped_cases(device: Device) -> Iterator[Case]:
    key = KEYS["Philox"].tensor(device.name)
    for all_rows, all_columns in ((64, 1 << 20), (256, 1 << 20), (4096, 30_000), (60_000, 1)):
        rows, columns = (all_rows, all_columns) if device.name == "cuda" else (3, device.size(all_columns))
        group = f"clipped sum of [{rows:,}, {columns:,}] fp32"
        read = 2.0 * 4 * rows * columns  # twice: for the norms, then for the sums
        x = torch.randn(rows, columns, device=device.name)
        for backend in able("clipped_noise", device):
            for noise in ("gaussian", "discrete"):
                goal = 0.85 if noise == "gaussian" and all_columns > 1 else None
                options = {"noise": noise, "generator": key}
                work = forced(backend, ldpkernels.clipped_noised_sum, x, 1.0, 1.0, **options)
                yield Case(group, f"{noise}, {backend}", work, rows * columns, read, goal)
        yield Case(group, "torch eager", partial(_eager_sum, x), rows * columns, read)


def cldp_cases(device: Device) -> Iterator[Case]:
    n = device.size(1 << 26)
    w, key = torch.randn(n, device=device.name), KEYS["Philox"].tensor(device.name)
    for alpha in (1e-4, 1e-3, 1e-1):
        for backend in able("ordinal_cldp", device):
            work = forced(backend, ldpkernels.cldp_, w, alpha, 1.0, 4, generator=key)
            name = f"alpha = {alpha:g}, {backend}"
            yield Case("cldp_, fp32 weights, rho = 4", name, work, n, 8.0 * n, 60e9, "rate")


def vector_cases(device: Device) -> Iterator[Case]:
    """Whole vectors, whose kernels are Triton's. Bytes are what the steps read and write when each has one pass."""
    for backend in able("vectors", device):
        n = 1 << 26 if device.name == "cuda" else 1 << 10
        group, key = f"whole vectors of {n:,} fp32 weights, {backend}", KEYS["Philox"]
        w = torch.randn(n, device=device.name)
        x = torch.randn(n, device=device.name)
        gaussian = {"mechanism": "gaussian", "sigma": 1.0, "norm": 1.0, "generator": key}
        law = ldpkernels.DistributedGaussian.calibrated(8.0, 1e-5, dimension=n, clients=1000, bits=28)
        work = forced(backend, ldpkernels.perturb_vector, w, **gaussian)
        yield Case(group, "perturb_vector, gaussian: norm, integers, noise", work, n, 20.0 * n)
        work = forced(backend, ldpkernels.perturb_vector, w, 8.0, norm=1.0, generator=key)
        yield Case(group, "perturb_vector, privunitg: norm, product, report", work, n, 16.0 * n)
        rotate = forced(backend, launch.rotate, x, key)
        yield Case(group, "rotation", rotate, n, 8.0 * n)
        work = forced(backend, ldpkernels.updates.encode, w, law, ldpkernels.key(1), generator=key)
        yield Case(group, "encode: rotation, norm, integers, noise, and to the host", work, n, 36.0 * n)


def latency_cases(device: Device) -> Iterator[Case]:
    model = peers.small_model().to(device.name)
    parameters = sum(p.numel() for p in model.parameters())
    group, key = f"latency: {parameters:,} weights in 10 tensors", KEYS["Philox"].tensor(device.name)

    def case(name: str, call: Work, goal: float | None = None, graph: bool = False) -> Case:
        return Case(group, name, call, parameters, 8.0 * parameters, goal, "latency", graph)

    tensors = list(model.parameters())
    yield case("mul_ of each tensor", partial(_each_mul, tensors))
    for backend in able("two_point", device):
        keyed = forced(backend, ldpkernels.perturb_, model, C, R, EPS, buffers="keep", generator=key)
        fresh = forced(backend, ldpkernels.perturb_, model, C, R, EPS, buffers="keep")
        reported = forced(backend, ldpkernels.report, model, C, R, EPS, buffers="keep", generator=key)
        yield case(f"perturb_, {backend}, a key tensor", keyed, 12e-6)
        yield case(f"perturb_, {backend}, fresh keys", fresh)
        prepared = forced(backend, ldpkernels.prepare(tensors, C, R, EPS), key)
        yield case(f"a prepared list, {backend}, a key tensor", prepared)
        yield case(f"report, {backend}", reported)
        if device.name == "cuda":
            yield case(f"perturb_, {backend}, replay of a CUDA graph", keyed, 4e-6, graph=True)
    yield case("torch eager, bernoulli in a loop", partial(peers.eager_loop_, model))


def server_cases(device: Device) -> Iterator[Case]:
    """Ranges and sums of reports, which have kernels of Triton alone."""
    if "triton" not in ldpkernels.backends():
        return
    from ldpkernels.triton.quantiles import quantiles
    from ldpkernels.triton.summary import summarize
    from ldpkernels.triton.tally import BitTally, ByteTally

    n, where = device.size(1 << 28), torch.device(device.name, 0 if device.name == "cuda" else None)
    group, w = f"ranges and sums of reports, {n:,} weights", torch.randn(n, device=where)
    spans = span_table([w.data_ptr()], [0], [n], [DTYPES["float32"]])
    layers, finite, q = np.zeros(1, np.int64), np.array([n]), np.array([0.005, 0.995])
    quantile = partial(quantiles, spans, layers, finite, q, where)
    yield Case(group, "summary", partial(summarize, spans, where), n, 4.0 * n)
    yield Case(group, "two quantiles", quantile, n, 4.0 * n)
    for tally, size, name in ((BitTally, max(1, n // 8), "one-bit reports"), (ByteTally, n, "reports of bytes")):
        reports = [torch.ones(size, dtype=torch.uint8, device=where) for _ in range(15)]
        work = partial(tally(size, where).add, reports)
        yield Case(group, f"15 {name}", work, 15.0 * n, 15.0 * size)


def _eager_sum(x: torch.Tensor) -> torch.Tensor:
    scales = 1.0 / x.norm(dim=1).clamp_min(1.0)
    return (x * scales[:, None]).sum(0).add_(torch.randn_like(x[0]))


def _each_mul(tensors: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for t in tensors:
            t.mul_(-1.0)


def replay(work: Work) -> Work:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        work()
    return captured.replay


def measure(case: Case, device: Device) -> dict[str, Any]:
    """A row: what was measured, or the error."""
    row: dict[str, Any] = {"group": case.group, "name": case.name, "goal": case.goal, "unit": case.unit}
    try:
        work = replay(case.call) if case.graph else case.call
        for _ in range(1 if device.name == "cpu" else 3):
            work()
        device.wait()
        if case.unit == "latency":
            row["seconds"] = device.latency(work, 2 if device.name == "cpu" else 200)
        else:
            before = device.copy_seconds(case.bytes)
            row["seconds"] = device.seconds(work)
            row["of copy"] = (before + device.copy_seconds(case.bytes)) / 2 / row["seconds"]
        row |= {"elements": case.elements, "bytes": case.bytes}
    except Exception as error:  # one row: the others are worth having
        row["error"] = f"{type(error).__name__}: {error}"[:500]
    return row


def page(facts: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """The rows as tables."""
    parts = ["# The kernels on a GPU", results.facts_table(facts), METHOD.rstrip()]
    for group in dict.fromkeys(row["group"] for row in rows):
        lines = [_line(row) for row in rows if row["group"] == group]
        parts += [f"## {group}", results.table(["", "time", "elements/s", "bytes/s", "of copy", "goal"], lines)]
    return "\n\n".join(parts) + "\n"


def _line(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["name"], row["error"].replace("\n", " ").replace("|", "/"), "", "", "", ""]
    pretty, seconds = results.pretty, row["seconds"]
    cells = [row["name"], pretty(seconds, "s"), pretty(row["elements"] / seconds), pretty(row["bytes"] / seconds, "B")]
    return [*cells, f"{row['of copy']:.2f}" if "of copy" in row else "", _verdict(row)]


def _verdict(row: dict[str, Any]) -> str:
    goal = row["goal"]
    if goal is None:
        return ""
    if row["unit"] == "latency":
        return f"{results.pretty(goal, 's')}: {'met' if row['seconds'] <= goal else 'missed'}"
    reached = row["of copy"] if row["unit"] == "copy" else row["elements"] / row["seconds"]
    text = f"{goal:.2f}" if row["unit"] == "copy" else results.pretty(goal)
    return f"{text}: {'met' if reached >= goal else 'missed'}"


def draw(kept: Path) -> None:
    """The rows whose time is the device's; what a call costs the host is in the table, which says where that was."""
    from benchmarks.picture import draw as picture
    from benchmarks.suites import Suite

    def kind(name: str) -> str:
        return "floor" if name.startswith("mul_") else "peer" if name.startswith("torch") else "ours"

    cells = [line.split("|") for line in kept.with_suffix(".md").read_text().splitlines() if line.count("|") == 3]
    facts = {name.strip(): value.strip() for _, name, value, _ in cells}
    rows = [row for row in map(json.loads, kept.read_text().splitlines()) if "error" not in row]
    shown = [row for row in rows if row["group"].startswith(("1 GiB", "cldp_", "whole"))]
    numbers = ("group", "name", "elements", "bytes")
    made = [
        results.Row(kind=kind(row["name"]), sweeps=[row["seconds"]], **{n: row[n] for n in numbers}) for row in shown
    ]
    picture(kept, Suite("gpu", "The kernels", lambda _: (), lambda *_: None), facts, made)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/gpu"), help="folder of the results (out/gpu)")
    parser.add_argument("--seconds", type=float, default=330.0, help="begin no row after so many (330)")
    parser.add_argument("--once", action="store_true", help="call each once and measure nothing: for a profiler")
    parser.add_argument("--rehearse", action="store_true", help="small, on the CPU, by Triton's interpreter")
    parser.add_argument(
        "--draw", type=Path, metavar="JSONL", help="measure nothing: a picture beside rows and their .md"
    )
    options = parser.parse_args()
    if options.draw:
        draw(options.draw)
        return 0
    if not torch.cuda.is_available() and not options.rehearse:
        parser.exit(3, "no CUDA device\n")
    began, device = time.monotonic(), Device(options.rehearse)
    rows: list[dict[str, Any]] = []
    facts = machine.describe()
    options.out.mkdir(parents=True, exist_ok=True)
    last = ""
    for case in cases(device):
        if time.monotonic() - began > options.seconds:
            print(f"no time for {case.group}: {case.name} and what follows")
            break
        if case.group != last:
            device.forget()
        last = case.group
        if options.once:
            with contextlib.suppress(Exception):  # as in a row of a measurement
                case.call()
            continue
        rows.append(measure(case, device))
        with (options.out / "bench.jsonl").open("a") as kept:
            kept.write(json.dumps(rows[-1]) + "\n")
        (options.out / "bench.md").write_text(page(facts, rows))
        print(*_line(rows[-1]), sep="  ", flush=True)
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
