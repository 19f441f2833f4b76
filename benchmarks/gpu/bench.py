# SPDX-License-Identifier: Apache-2.0
"""GPU throughput beside the bandwidth of a device-to-device copy, torch eager and torch.compile; and small launches."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ldpkernels
from benchmarks import machine, peers, results
from benchmarks.peers import EPS, C, R
from benchmarks.results import Row, Target

Work = Callable[[], object]
GENERATORS: dict[str, Any] = {"Philox": ldpkernels.Key((7,)), "ChaCha20": ldpkernels.Key((1, 2, 3, 4))}
SMALL = "small model"
METHOD = """\
Each sweep times every row once: a batch of calls between two CUDA events, long enough for 20 ms, and the least of three
such batches; for the small model, 200 calls by the host's clock up to the end of the last. A row's time is the least of
the sweeps; "varied" gives a ratio's extremes over them, and "spread" says how much slower the slowest sweep was.
bytes/s counts what the task must read and write. Keys are tensors on the device; "generator=None" draws one a call.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("out/gpu"), help="folder for bench.md and bench.json (out/gpu)"
    )
    parser.add_argument("--bytes", type=int, default=1 << 30, help="size of the large tensors (2^30)")
    parser.add_argument("--sweeps", type=int, default=5, help="times to run every row (5)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(3, "no CUDA device\n")
    backends = [name for name in ("cuda", "triton") if name in ldpkernels.backends()]
    rows: list[Row] = []
    for dtype in (torch.float32, torch.bfloat16):
        rows += large_rows(dtype, options.bytes, backends, options.sweeps)
        torch.cuda.empty_cache()
    rows += small_rows(backends, options.sweeps)
    found = targets(rows, backends)
    facts = machine.describe() | {"sweeps": str(options.sweeps)}
    text = report(facts, rows, found)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "bench.md").write_text(text)
    results.write_json(options.out / "bench.json", facts, rows, found)


def forced(backend: str, function: Callable[..., object], *arguments: object, **keywords: object) -> Work:
    def work() -> None:
        with ldpkernels.backend(backend):
            function(*arguments, **keywords)

    return work


def large_rows(dtype: torch.dtype, nbytes: int, backends: list[str], sweeps: int) -> list[Row]:
    w = torch.randn(nbytes // dtype.itemsize, device="cuda", dtype=dtype)
    source, n = w.clone(), w.numel()
    size = f"{nbytes / 2**30:g} GiB {'fp32' if dtype is torch.float32 else 'bf16'}"
    rows: list[tuple[Row, Work]] = []

    def add(task: str, name: str, kind: str, work: Work, nbytes: float = 2.0 * nbytes) -> None:
        rows.append((Row(f"{task}, {size}", name, kind, n, nbytes), work))

    add("perturb_", "copy_, device to device", "floor", lambda: w.copy_(source))
    add("perturb_", "mul_ in place", "floor", lambda: w.mul_(-1.0))
    for backend in backends:
        for name, key in GENERATORS.items():
            on_device = key.tensor("cuda")
            work = forced(backend, ldpkernels.perturb_, w, C, R, EPS, generator=on_device)
            add("perturb_", f"perturb_, {backend} {name}", "ours", work)
            work = forced(backend, ldpkernels.report, w, C, R, EPS, generator=on_device)
            add("report", f"report, {backend} {name}", "ours", work, nbytes + n / 8)
        work = forced(backend, ldpkernels.perturb_, w, C, R, EPS)
        add("perturb_", f"perturb_, {backend} generator=None", "ours", work)
    add("perturb_", "torch eager, bernoulli", "peer", lambda: peers.bernoulli_(w))
    add("perturb_", "torch eager, compare", "peer", lambda: peers.compare_(w))
    compiled = torch.compile(peers.compare_, fullgraph=True)
    add("perturb_", "torch.compile, compare", "peer", lambda: compiled(w))
    add("report", "read the bytes (torch.sum)", "floor", source.sum, nbytes)
    measure(rows, sweeps, device_seconds)
    return [row for row, _ in rows]


def small_rows(backends: list[str], sweeps: int) -> list[Row]:
    model = peers.small_model().cuda()
    parameters = list(model.parameters())
    n = sum(p.numel() for p in parameters)
    rows: list[tuple[Row, Work]] = []

    def add(name: str, kind: str, work: Work) -> None:
        rows.append((Row(f"{SMALL}, {n:,} weights in {len(parameters)} tensors", name, kind, n, 8 * n), work))

    for backend in backends:
        work = forced(backend, ldpkernels.perturb_, model, C, R, EPS, buffers="keep")
        add(f"perturb_, {backend}", "ours", work)
        add(f"perturb_, {backend}, replay of a CUDA graph", "ours", graph(work).replay)
        add(f"report, {backend}", "ours", forced(backend, ldpkernels.report, model, C, R, EPS, buffers="keep"))
    loop = lambda: peers.eager_loop_(model)  # noqa: E731
    add("torch eager, bernoulli in a loop", "peer", loop)
    add("torch eager loop, replay of a CUDA graph", "peer", graph(loop).replay)
    measure(rows, sweeps, host_seconds)
    return [row for row, _ in rows]


def graph(work: Work) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        work()
    return captured


def measure(rows: list[tuple[Row, Work]], sweeps: int, seconds: Callable[[Work], float]) -> None:
    for _, work in rows:
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    for _ in range(sweeps):
        for row, work in rows:
            row.sweeps.append(seconds(work))


def device_seconds(work: Work) -> float:
    def batch(calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1_000_000)  # while it lasts the host queues calls, so that launches leave no gaps
        start.record()
        for _ in range(calls):
            work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3 / calls

    calls = max(1, min(200, round(0.02 / batch(1))))
    return min(batch(calls) for _ in range(3))


def host_seconds(work: Work, calls: int = 200) -> float:
    def batch() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / calls

    return min(batch() for _ in range(3))


def targets(rows: list[Row], backends: list[str]) -> list[Target]:
    found = []
    for group in dict.fromkeys(row.group for row in rows):
        named = {row.name: row for row in rows if row.group == group}
        for backend in backends:
            if group.startswith("perturb_"):
                goal = 0.9 if group.endswith("fp32") else 0.85
                ours, copied = named[f"perturb_, {backend} generator=None"], named["copy_, device to device"]
                text = f"{backend}, {group.removeprefix('perturb_, ')}: bandwidth of the copy"
                found.append(results.bandwidth_ratio(text, goal, ours, copied))
            elif group.startswith(SMALL):
                loop = named["torch eager, bernoulli in a loop"]
                found.append(
                    results.ratio_of(f"{backend}, small model : eager loop", 10, named[f"perturb_, {backend}"], loop)
                )
    return found


def report(facts: dict[str, str], rows: list[Row], found: list[Target]) -> str:
    compared = {
        "copy_": lambda row: row.name.startswith("copy_"),
        "torch eager, bernoulli": lambda row: row.name.startswith("torch eager, bernoulli"),
        "torch.compile": lambda row: row.name.startswith("torch.compile"),
        "read": lambda row: row.name.startswith("read"),
    }
    parts = ["# The two-point mechanism on a GPU", results.facts_table(facts), "## Targets"]
    parts += [results.target_table(found), "## Measured", METHOD.rstrip(), results.group_tables(rows, compared)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
