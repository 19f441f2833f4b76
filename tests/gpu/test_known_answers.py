# SPDX-License-Identifier: Apache-2.0
"""The ciphers' published vectors, met by the keystreams that the GPU computes; and that its modules run there."""

import importlib.util

import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels.common import gpu
from ldpkernels.reference import ciphers as reference
from tests.test_ciphers import CHACHA, PHILOX, STARTS, meet_known_answers


def test_the_backends_are_there():
    if importlib.util.find_spec("triton"):
        assert "triton" in ldpkernels.backends()
    if importlib.util.find_spec("ldpkernels._cuda"):
        assert "cuda" in ldpkernels.backends()
        assert all(gpu.runs_cuda(i) for i in range(torch.cuda.device_count()))


def cuda_keystream(key, stream, first, blocks):
    from ldpkernels import _cuda

    words = torch.from_numpy(key.view(np.int32)).cuda()
    out = torch.zeros(blocks * (4 if len(key) == 2 else 16), dtype=torch.int32, device="cuda")
    queue = torch.cuda.current_stream().cuda_stream
    _cuda.keystream(words.data_ptr(), len(key), stream, first, blocks, out.data_ptr(), words.device.index, queue)
    return out.cpu().numpy().view(np.uint32)


def triton_keystream(key, stream, first, blocks):
    from ldpkernels.triton import launch

    words = torch.from_numpy(key.view(np.int64)).cuda()
    return launch.keystream(words, stream, first, blocks).cpu().numpy().view(np.uint32)


@pytest.fixture
def keystream(gpu_backend):
    return {"cuda": cuda_keystream, "triton": triton_keystream}[gpu_backend]


@pytest.mark.parametrize("name", ["philox", "chacha20"])
def test_known_answers_in_a_keystream(name, keystream):
    meet_known_answers(name, keystream)


@pytest.mark.parametrize("words", [PHILOX, CHACHA], ids=["philox", "chacha20"])
@pytest.mark.parametrize("start", STARTS)
def test_keystreams_are_the_reference(words, start, keystream):
    for blocks in (1, 67, 70_001):
        found = keystream(words, 2**32 - 1, start, blocks).reshape(blocks, -1)[-67:]
        first = (start + max(blocks - 67, 0)) % 2**64
        assert np.array_equal(found.ravel(), reference.keystream(words, 2**32 - 1, first, len(found)))
