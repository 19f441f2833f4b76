# SPDX-License-Identifier: Apache-2.0
"""What a result must say about where and when it was measured."""

from __future__ import annotations

import os
import platform
import resource
import time
from datetime import datetime, timezone
from pathlib import Path


def describe() -> dict[str, str]:
    """The machine, the versions and the date."""
    import numpy
    import torch

    import ldpkernels

    facts = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "ldpkernels": ldpkernels.__version__,
        "CPU": f"{cpu_name()}, {cores()} cores",
        "backends": ", ".join(ldpkernels.backends()),
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "NumPy": numpy.__version__,
        "Python": platform.python_version(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts["GPU"] = (
            f"{properties.name}, {properties.multi_processor_count} multiprocessors, CUDA {torch.version.cuda}"
        )
    return facts


def cpu_name() -> str:
    """The processor's name, with family and model where the name alone says little."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in fields:
        return platform.machine()
    family, model = fields.get("cpu family"), fields.get("model")
    return fields["model name"] + (f" (family {family}, model {model})" if family and model else "")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OthersShare:
    """How much of all cores was not ours to use between two moments: other processes', and the hypervisor's."""

    def __init__(self) -> None:
        self._start = self._now()

    def percent(self) -> float | None:
        """The share since the start, or None where the system does not tell."""
        now = self._now()
        if self._start is None or now is None or now[1] == self._start[1]:
            return None
        others, total = now[0] - self._start[0], now[1] - self._start[1]
        return max(0.0, 100 * others / total)

    @classmethod
    def wait(cls, patience: float) -> None:
        """Return once others used less than a tenth of the cores for a quarter of a second, or patience ends."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            share = cls()
            time.sleep(0.25)
            if (share.percent() or 0.0) < 10:
                return

    @staticmethod
    def _now() -> tuple[float, float] | None:
        try:
            ticks = [int(t) for t in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        except OSError:
            return None
        own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        ours = sum(u.ru_utime + u.ru_stime for u in own) * os.sysconf("SC_CLK_TCK")
        idle = ticks[3] + ticks[4]
        return sum(ticks) - idle - ours, sum(ticks)
