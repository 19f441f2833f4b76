# SPDX-License-Identifier: Apache-2.0
# Forcing a backend, for a block and for a process.
import os
import subprocess
import sys

import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native, backend, backends
from ldpkernels.common import capabilities


def test_the_list():
    assert backends()[-2:] == ("scalar", "reference")
    assert set(_native.isas()) <= set(backends())
    assert len(set(backends())) == len(backends())


def test_a_block_forces_and_gives_back(monkeypatch):
    monkeypatch.delenv("LDPKERNELS_BACKEND", raising=False)
    fastest = capabilities.chosen("two_point", "cpu")
    assert fastest == _native.isas()[0] == capabilities.host_isa()
    with backend("scalar"):
        assert capabilities.chosen("two_point", "cpu") == capabilities.host_isa() == "scalar"
        with backend("reference"):
            assert capabilities.chosen("two_point", "cpu") == "reference"
            assert capabilities.host_isa() == _native.isas()[0]
        assert capabilities.chosen("two_point", "cpu") == "scalar"
    with pytest.raises(RuntimeError), backend("scalar"):
        raise RuntimeError
    assert capabilities.chosen("two_point", "cpu") == fastest


def test_unknown_backends_and_devices(monkeypatch):
    with pytest.raises(ValueError, match=r"backend 'sse9' is not available here: use one of .*scalar"), backend("sse9"):
        pass
    with pytest.raises(ValueError, match="'mps' are not supported"):
        capabilities.chosen("two_point", "mps")
    with backend("scalar"), pytest.raises((ValueError, RuntimeError), match="cuda"):
        capabilities.chosen("two_point", "cuda")
    monkeypatch.setenv("LDPKERNELS_BACKEND", "mmx")
    x = np.zeros(4)
    with pytest.raises(ValueError, match="backend 'mmx'"):
        ldpkernels.perturb_(x, 0.0, 1.0, 1.0)
    assert not x.any()


def test_a_process_is_forced_by_its_environment():
    script = "from ldpkernels.common import capabilities as b; print(b.chosen('two_point', 'cpu'), b.host_isa())"
    environment = {**os.environ, "LDPKERNELS_BACKEND": "scalar"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["scalar", "scalar"]


def test_the_forced_backend_runs(monkeypatch):
    """Not only named: the reference is seen at work."""
    from ldpkernels.reference import registry

    calls = []
    monkeypatch.setitem(registry.KERNELS, "two_point", lambda *a: calls.append(a[0]))
    x = np.zeros(9)
    with backend("reference"):
        ldpkernels.perturb_(x, 0.0, 1.0, 1.0)
        ldpkernels.report(x, 0.0, 1.0, 1.0)
        ldpkernels.two_point_threshold(x, 0.0, 1.0, 1.0)
    assert calls == ["values", "bits", "thresholds"]


def test_threads_are_bounded_by_the_work():
    from ldpkernels.launch import dispatch

    def wanted(*sizes):
        return dispatch.threads_for(sum(sizes))

    assert wanted(10) == wanted() == wanted(0, 0) == 1
    assert wanted(dispatch.SMALL * 1000) == capabilities.threads() >= 1


def test_kernels_that_cannot_be_loaded_leave_a_gpu_to_triton(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(capabilities.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "ldpkernels._cuda", None)  # its import fails
    with pytest.warns(RuntimeWarning, match="the CUDA C\\+\\+ kernels cannot be loaded: .*_cuda"):
        assert capabilities._found.__wrapped__(False) == ("triton",)


def test_a_device_that_cuda_does_not_run_on_is_served_by_triton(monkeypatch):
    monkeypatch.setattr(capabilities, "_gpu_backends", lambda: ("cuda", "triton"))
    monkeypatch.setattr(capabilities, "_cuda_kernels", lambda: frozenset({"two_point"}))
    monkeypatch.setattr(capabilities, "runs_cuda", lambda index: index == 1)
    assert capabilities.chosen("two_point", "cuda", 1) == "cuda"
    assert capabilities.chosen("two_point", "cuda", 0) == "triton"
    assert capabilities.chosen("piecewise", "cuda", 1) == "triton"
    monkeypatch.setenv("LDPKERNELS_BACKEND", "cuda")
    for kernel, index in (("two_point", 0), ("piecewise", 1)):
        message = f"backend 'cuda' runs no '{kernel}' kernel on 'cuda' here: use one of triton"
        with pytest.raises(ValueError, match=message):
            capabilities.chosen(kernel, "cuda", index)
