# SPDX-License-Identifier: Apache-2.0
"""The ciphers' published vectors, met by the keystreams that the GPU computes."""

import numpy as np
import pytest
import torch

from ldpkernels.reference import ciphers as reference
from tests.test_ciphers import CHACHA, PHILOX, STARTS, meet_known_answers

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def cuda_keystream(key, stream, first, blocks):
    cuda = pytest.importorskip("ldpkernels._cuda")
    words = torch.from_numpy(key.view(np.int32)).cuda()
    out = torch.zeros(blocks * (4 if len(key) == 2 else 16), dtype=torch.int32, device="cuda")
    queue = torch.cuda.current_stream().cuda_stream
    cuda.keystream(words.data_ptr(), len(key), stream, first, blocks, out.data_ptr(), words.device.index, queue)
    return out.cpu().numpy().view(np.uint32)


@pytest.mark.parametrize("name", ["philox", "chacha20"])
def test_known_answers_in_a_keystream(name):
    meet_known_answers(name, cuda_keystream)


@pytest.mark.parametrize("key", [PHILOX, CHACHA], ids=["philox", "chacha20"])
@pytest.mark.parametrize("start", STARTS)
def test_keystreams_are_the_reference(key, start):
    for blocks in (1, 67, 70_001):
        words = cuda_keystream(key, 2**32 - 1, start, blocks).reshape(blocks, -1)[-67:]
        first = (start + max(blocks - 67, 0)) % 2**64
        assert np.array_equal(words.ravel(), reference.keystream(key, 2**32 - 1, first, len(words)))
