# SPDX-License-Identifier: Apache-2.0
# A device's own source of keys: docs/rng.md says which block a key is.
import pytest

from ldpkernels import _native

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def test_keys_are_the_blocks_of_the_state_one_after_the_other(device):
    from ldpkernels.ops.keys import new_state
    from ldpkernels.triton.next_key import next_key

    state = new_state(torch.device(device))
    words = state[:4].cpu().numpy().view("<u4")
    keys = [next_key(state).cpu().numpy().view("<u4").tolist() for _ in range(2)]
    assert keys == [_native.keystream(words, 0, n, 1, "scalar")[:8].tolist() for n in range(2)]
    assert int(state[4]) == 2
    state[4] = 2**32 + 7
    wanted = _native.keystream(words, 0, 2**32 + 7, 1, "scalar")[:8].tolist()
    assert next_key(state).cpu().numpy().view("<u4").tolist() == wanted


def test_states_differ():
    from ldpkernels.ops.keys import new_state

    states = [new_state(torch.device("cpu")) for _ in range(20)]
    assert len({tuple(s.tolist()) for s in states}) == 20
    assert all(int(s[4]) == 0 for s in states)
