# SPDX-License-Identifier: Apache-2.0
# Exceptions at any moment: a signal's handler during a call, an import that fails.
import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import Aggregate, cldp_, perturb_, report
from tests.conftest import EPS, KEY

SIZE, RAW = 1 << 18, 0.123
WHERE = (__file__, os.path.dirname(ldpkernels.__file__), torch._ops.__file__)


class Interrupt(Exception):
    pass


@contextlib.contextmanager
def alarms(interval=0.0, most=1):
    """A function that has a handler raise after so many seconds and at each interval, `most` times in all.

    In the package and in this file only: in a destructor of somebody else's, say, no exception can leave.
    """
    raised = [0]

    def handler(_, frame):
        while frame is not None and frame.f_code is handler.__code__:  # a signal during this function itself
            frame = frame.f_back
        if raised[0] >= most or frame is None:
            return
        if frame.f_code.co_filename.startswith(WHERE):
            raised[0] += 1
            raise Interrupt
        signal.setitimer(signal.ITIMER_REAL, 1e-4, interval)

    def alarm(delay):
        raised[0] = most if delay == 0 else 0
        signal.setitimer(signal.ITIMER_REAL, delay, interval)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield alarm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def model(library):
    """A contiguous tensor and two views, all of the same numbers."""
    made = [np.full(SIZE, RAW, np.float32), np.full((2, SIZE), RAW, np.float32).T, np.full(2 * SIZE, RAW)[::2]]
    return [torch.from_numpy(a) for a in made] if library == "torch" else made


def state(tensors):
    """Whether each is untouched. No output is the number that all of them held."""
    untouched = []
    for t in tensors:
        a = np.asarray(t)
        raw = a == a.dtype.type(RAW)
        assert raw.all() or not raw.any(), "a tensor is half perturbed"
        untouched.append(bool(raw.all()))
    return untouched


CALLS = {
    "perturb_": lambda m: perturb_(m, 0.0, 1.0, EPS, generator=KEY),
    "piecewise": lambda m: perturb_(m, 0.0, 1.0, EPS, mechanism="piecewise", generator=KEY),
    "cldp_": lambda m: cldp_(m, 0.3, 1.0, 2, generator=KEY),
}


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_call_perturbs_all_or_nothing(library, name):
    call, rng = CALLS[name], random.Random(0)
    call(model(library))
    seen, outcomes, duration = 0, set(), 0.01
    with alarms() as alarm:
        for _ in range(4000):
            tensors = model(library)
            start = time.perf_counter()
            try:
                alarm(rng.uniform(0.02, 1.0) * duration)
                call(tensors)
                alarm(0.0)
                duration = time.perf_counter() - start  # of the last whole call: a machine may be busy
            except Interrupt:
                seen += 1
                untouched = state(tensors)
                assert len(set(untouched)) == 1, f"untouched: {untouched}"
                outcomes.add(untouched[0])
                duration *= 1.02
            if seen >= 50 and False in outcomes:
                break
    assert seen >= 50, "too few calls were interrupted for this to mean anything"
    assert False in outcomes, "no call was interrupted between its writes"


IMPORTS = """
import builtins, os, sys, torch

import ldpkernels
x = [torch.zeros(50), torch.zeros(50, 2).T]

def fault(n, where, owner, name):
    '''Fail at the n-th call of owner.name from now on, before it or after it.'''
    original, calls = getattr(owner, name), [0]
    def failing(*arguments, **options):
        calls[0] += where != "import" or any("ldpkernels" in str(a) for a in arguments[:1])
        if calls[0] == n and where != "after":
            calls[0] += 1
            raise KeyboardInterrupt
        result = original(*arguments, **options)
        if calls[0] == n and where == "after":
            calls[0] += 1
            raise KeyboardInterrupt
        return result
    setattr(owner, name, failing)
    return calls

def attempt():
    ldpkernels.perturb_(x, 0.0, 1.0, 1.0)
    ldpkernels.cldp_(x, 0.1, 1.0, 2)
    ldpkernels.clipped_noised_sum(torch.ones(4, 3), 1.0, 1.0)
    from ldpkernels.ops import __all__ as names
    assert len(names) > 5

failures = 0
for owner, name, where, points in [
    (torch.library.Library, "define", "before", range(1, 12, 4)),
    (torch.library.Library, "define", "after", range(1, 12, 4)),
    (torch.library.Library, "impl", "before", range(1, 40, 12)),
    (torch.library.Library, "impl", "after", range(1, 40, 12)),
    (torch.library, "register_fake", "before", range(1, 12, 4)),
    (torch.library, "register_fake", "after", range(1, 12, 4)),
    (builtins, "__import__", "import", range(1, 60, 10)),
]:
    for n in points:
        child = os.fork()
        if child == 0:
            code = 0
            try:
                calls = fault(n, where, owner, name)
                try:
                    attempt()
                    code = 3  # the fault was never met
                except KeyboardInterrupt:
                    attempt()
            except BaseException as error:
                print(name, where, n, repr(error)[:300], flush=True)
                code = 1
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 3:
            failures += 1
        assert code in (0, 3), (name, where, n, code)
print("survived", failures)
"""


def test_an_import_of_the_operations_that_fails_can_be_tried_again():
    """Wherever it fails: at each of the modules, and before and after each registration."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 15, "too few faults were met"


@pytest.mark.parametrize("grow", ["add", "merge"])
def test_an_interrupted_sum_of_bytes_is_that_of_its_clients(grow):
    one = report(np.zeros(1 << 20), 0.0, 1.0, EPS, mechanism="piecewise", generator=KEY)
    other, seen, expected = Aggregate(), 0, one.bits[:8].astype(np.int64)
    other.add(one)
    with alarms() as alarm:
        for i in range(60):
            total = Aggregate()
            total.add(one)
            try:
                alarm(2e-4 + 2e-5 * i)
                for _ in range(200):
                    getattr(total, grow)(one if grow == "add" else other)
                alarm(0.0)
            except Interrupt:
                seen += 1
            data = total.to_bytes()
            sums = np.frombuffer(data, "<u4", count=8, offset=len(data) - 4 - 4 * one.nbytes)  # before the digest
            assert (sums == expected * total.clients).all()
    assert seen >= 50
