# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show. Its bits are the CPU's, which the other tests hold to the references."""

import pytest

import ldpkernels
from benchmarks.gpu.operations import KEYS, OPERATIONS, poisoned
from ldpkernels.common import capabilities


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(params=["cuda", "triton"])
def gpu_backend(request):
    """Each of the GPU's backends in turn."""
    if request.param not in ldpkernels.backends():
        pytest.skip(f"the {request.param} backend is not available")
    return request.param


@pytest.fixture(params=KEYS)
def key(request):
    return KEYS[request.param]


@pytest.fixture(params=OPERATIONS)
def operation(request, gpu_backend):
    """Every operation on every backend that has its kernel."""
    found = OPERATIONS[request.param]
    if gpu_backend not in capabilities.able(found.kernel, "cuda"):
        pytest.skip(f"the {gpu_backend} backend has no {found.kernel} kernel")
    return found


@pytest.fixture
def on_gpu(gpu_backend):
    """Call a function on the backend, in memory that does not hold an earlier result."""

    def call(function, *arguments, **options):
        with ldpkernels.backend(gpu_backend), poisoned():
            return function(*arguments, **options)

    return call
