# SPDX-License-Identifier: Apache-2.0
"""What a mean among ranks of torch.distributed costs beside a plain all_reduce: `python -m benchmarks.ranks`.

All ranks are processes of this machine, of one thread each, on gloo. A row is the least of several calls: the time
until all ranks have the mean, and the CPU time of one rank.
"""

import argparse
import tempfile
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.multiprocessing

import ldpkernels
from benchmarks import machine
from ldpkernels.distributed import mean


def calls(update, ranks):
    """What is compared, by name."""
    law = ldpkernels.DistributedGaussian(update.numel(), 1.0, ranks - 1, 1000.0, 100.0, 16, ranks)
    return {
        "`all_reduce` of fp32": lambda: dist.all_reduce(update.clone()),
        "`mean(update, C, R, eps)`": partial(mean, update, 0.0, 1.0, 4.0),
        "`mean(update, law=law, secure=False)`": partial(mean, update, law=law, secure=False),
        "`mean(update, law=law)`": partial(mean, update, law=law),
    }


def measured(rank, ranks, weights, runs, file, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, store=dist.FileStore(file, ranks))
    rows = []
    for name, call in calls(torch.full((weights,), 1e-4), ranks).items():
        walls, cpus = [], []
        for _ in range(runs):
            dist.barrier()
            start, used = time.perf_counter(), time.process_time()
            call()
            cpus.append(time.process_time() - used)
            dist.barrier()
            walls.append(time.perf_counter() - start)
        rows.append((name, min(walls), min(cpus)))
    if rank == 0:
        results.put(rows)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--weights", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args()
    context = torch.multiprocessing.get_context("spawn")
    print(f"{machine.cpu_name()}, {machine.cores()} cores, {chosen.weights:,} weights\n")
    print("| ranks | call | all ranks, ms | CPU of one rank, ms |")
    print("|---:|---|---:|---:|")
    for ranks in chosen.ranks:
        results = context.SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            arguments = (ranks, chosen.weights, chosen.runs, f"{folder}/store", results)
            torch.multiprocessing.start_processes(measured, arguments, nprocs=ranks, start_method="spawn")
        for name, wall, cpu in results.get():
            print(f"| {ranks} | {name} | {wall * 1e3:.0f} | {cpu * 1e3:.0f} |", flush=True)


if __name__ == "__main__":
    main()
