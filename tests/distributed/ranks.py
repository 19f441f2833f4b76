# SPDX-License-Identifier: Apache-2.0
"""Cases that several processes run together: a process takes seconds to start, so all cases share them.

A case is a function that tests/distributed/cases.py knows; its argument is the number of ranks. It passes where it
returns on every rank. What one rank raises is kept, and where the ranks are no longer in step the next cases fail too.
"""

import contextlib
import datetime
import faulthandler
import importlib
import json
import os
import tempfile
import traceback
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

# What torch and the library import late: a rank inherits it.
LATE = ["torch._dynamo", "functorch.compile", "scipy.special", "ldpkernels.secure_sums"]
SECONDS = 120  # for which a rank waits for another: a case that would hang fails


def outcomes(path, ranks):
    """Run all cases for so many ranks; writes to `path` what each rank said of each case, and how it ended."""
    folder = Path(tempfile.mkdtemp(dir=path.parent))
    context = torch.multiprocessing.get_context("forkserver")  # what imports cost is paid once, and not by each rank
    context.set_forkserver_preload(["tests.conftest", "tests.distributed.cases", *LATE])
    processes = [context.Process(target=_run, args=(rank, ranks, folder)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    said = {}
    for rank in range(ranks):
        for line in (folder / f"{rank}.jsonl").read_text().splitlines():
            name, outcome = json.loads(line)
            said.setdefault(name, {})[rank] = outcome
    ends = [f"rank {i}: exit code {p.exitcode}\n{(folder / f'{i}.fault').read_text()}" for i, p in enumerate(processes)]
    path.write_text(json.dumps({"said": said, "ends": ends}))


def _run(rank, ranks, folder):
    warnings.simplefilter("ignore")
    os.environ["TORCH_LOGS"] = "-all"
    torch.set_num_threads(1)
    with open(folder / f"{rank}.jsonl", "w") as file, open(folder / f"{rank}.fault", "w") as fault:
        faulthandler.enable(fault)
        store, patience = dist.FileStore(str(folder / "store"), ranks), datetime.timedelta(seconds=SECONDS)
        dist.init_process_group("gloo", rank=rank, world_size=ranks, store=store, timeout=patience)

        def say(name, outcome):
            file.write(json.dumps([name, outcome]) + "\n")
            file.flush()

        importlib.import_module("tests.conftest")  # before torch imports Triton
        cases = importlib.import_module("tests.distributed.cases").cases(ranks)
        for name, case in cases.items():
            try:
                case(ranks)
            except BaseException:
                say(name, traceback.format_exc())
            else:
                say(name, "passed")
        if "a_rank_that_dies" not in cases:
            _meet(store, rank, ranks)
    os._exit(0)  # a case may have lost a rank: nothing waits for it


def _meet(store, rank, ranks):
    """Ranks leave together: gloo's thread of a rank that is in its last exchange would see others' connections end."""
    store.set(f"{rank} has ended", "")
    with contextlib.suppress(RuntimeError):  # one has died: the others have said what they saw of it
        store.wait([f"{other} has ended" for other in range(ranks)], datetime.timedelta(seconds=10))


def refuses(error, match, call):
    """A call that is refused; the message."""
    with pytest.raises(error, match=match) as found:
        call()
    return str(found.value)
