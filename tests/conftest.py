# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests: a process's share of the cores, Triton interpreted, and the fixtures of the kernels."""

import importlib
import importlib.util
import os
import re
import secrets
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native

# Several processes share the cores, and torch's threads would wait for each other by spinning on them. Read at import.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
try:
    import torch
except ImportError:  # make numpy: what a client without torch needs
    torch = None

# The compute capability for which Triton's kernels are compiled, to be executed by tests/ptx: `make ptx`.
EXECUTED = int(os.environ.get("LDPKERNELS_TEST_PTX", "0"))
INTERPRETED = (
    torch is not None
    and importlib.util.find_spec("triton") is not None
    and not torch.cuda.is_available()
    and not EXECUTED
)


def _share_the_cores(workers):
    """As many threads as fall to one of several processes, here and in subprocesses; two at least, to have threads."""
    threads = max(2, (os.cpu_count() or 1) // workers)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if torch is not None:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def _interpret_triton():
    """Have all of Triton's functions interpreted, which is decided for each where it is defined.

    torch.compile imports Triton too, so this comes before any test, in every process that runs tests. Afterwards the
    variable is as it was: tests and subprocesses outside tests/triton see a machine on which Triton cannot run.
    """
    assert "triton" not in sys.modules, "triton was imported before the tests, so it is not interpreted"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        importlib.import_module("triton").knobs.runtime.interpret = True
    # Its interpreter wraps all of the language anew for every call of a function, around what earlier calls wrapped.
    interpreter = importlib.import_module("triton.runtime.interpreter")
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": interpreter.tl, "core": interpreter.tl.core}))
    interpreter._patch_lang = lambda function: SimpleNamespace(restore=lambda: None)


if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    _share_the_cores(int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
if INTERPRETED:
    _interpret_triton()

NEEDS_TORCH = re.compile(r"^(import|from) torch\b", re.M)
collect_ignore = ["typing/wrong.py"]  # lines that a type checker flags: importing it would run them
if torch is None:
    collect_ignore.append("gpu")
ISAS = _native.isas()
FLOATS = [getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")] if torch else []
EPS = 0.8
KEY = ldpkernels.key(11)


def outputs(c, r, dtype="float32"):
    """The two values that perturb_ at EPS writes."""
    return set(ldpkernels.TwoPoint(EPS).outputs(c, r, dtype))


def values(tensor):
    """The numbers in a tensor."""
    return set(tensor.detach().double().flatten().tolist())


@pytest.fixture(params=ISAS)
def isa(request):
    """Every instruction set of this machine, in turn, as the forced backend."""
    with ldpkernels.backend(request.param):
        yield request.param


CHACHA20 = (1, 2**64 - 1, 0xA5A5A5A55A5A5A5A, 2**63)
KEYS = {"philox": (0x0123456789ABCDEF,), "aes": CHACHA20[1:3], "chacha20": CHACHA20}


@pytest.fixture(params=KEYS)
def key(request):
    """A fixed key of each cipher."""
    return ldpkernels.Key(KEYS[request.param])


@pytest.fixture(params=["philox", "chacha20"])
def device_key(request):
    """A fixed key of each cipher that a GPU's kernels have."""
    return ldpkernels.Key(KEYS[request.param])


@pytest.fixture
def fixed_keys(monkeypatch):
    """Keys that would come from the operating system are the same in every run."""
    monkeypatch.setattr(secrets, "token_bytes", np.random.default_rng(0).bytes)


@pytest.fixture(scope="session")
def few_cuda():
    """Some kernels of CUDA C++'s module as nvcc compiles them, which tests/ptx executes: half of the work of all."""
    from tests.ptx import cuda as compiled

    if reason := compiled.lacking():
        pytest.skip(reason)
    return compiled.machine(compiled.FEW)


@pytest.fixture(scope="session")
def cuda():
    """All of them. Which blocks of their code the tests execute is added to what the known questions do."""
    from tests.ptx import coverage
    from tests.ptx import cuda as compiled

    if reason := compiled.lacking():
        pytest.skip(reason)
    machine = compiled.machine(compiled.MODULE)
    yield machine
    coverage.Asked("cuda", compiled.ARCH).note("tests", machine.programs, {})


@pytest.fixture(scope="module")
def one_thread():
    """torch on one thread: small networks are no faster on two, which on a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not (torch and torch.cuda.is_available()):
        pytest.skip("needs a CUDA device")


@pytest.hookimpl(trylast=True)  # what a test has replaced is there again
def pytest_runtest_teardown(item):
    """The kernels of a test run before the next begins. A device that has failed answers this process no more, so the
    process ends: pytest-xdist names the test and goes on with a new one."""
    if torch is None or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        with item.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"{item.nodeid}: {error}", file=sys.stderr, flush=True)
        os._exit(70)


def pytest_ignore_collect(collection_path):
    if torch is not None:
        return None
    path = collection_path
    return path.name == "triton" or (path.suffix == ".py" and bool(NEEDS_TORCH.search(path.read_text()))) or None
