# SPDX-License-Identifier: Apache-2.0
# Published known answers for both ciphers, and one keystream on every instruction set.
import ctypes
from pathlib import Path

import numpy as np
import pytest

from ldpkernels import _native
from ldpkernels.reference import ciphers as reference
from tests import emulation

# Blocks before, at and after the places where a counter word carries, and where a step of 32 blocks ends.
STARTS = [0, 1, 31, 2**32 - 37, 2**32 - 1, 2**32, 2**33 + 5, 2**63 - 3, 2**64 - 80]
PHILOX = np.array([0x89ABCDEF, 0x01234567], np.uint32)
CHACHA = np.arange(8, dtype=np.uint32) * 0x9E3779B9 + 0xDEADBEEF


def vectors(name):
    text = (Path(__file__).parent / "vectors" / f"{name}.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple([int(word, 16) for word in part.split()] for part in line.split("|")) for line in lines]


@pytest.mark.parametrize(("name", "count"), [("philox", 3), ("chacha20", 6)])
def test_known_answers(name, count):
    assert len(vectors(name)) == count
    reference_cipher = {"philox": reference.philox4x32, "chacha20": reference.chacha20}[name]
    for counter, key, block in vectors(name):
        assert _native.cipher_block(np.array(key, np.uint32), np.array(counter, np.uint32)).tolist() == block
        assert reference_cipher(counter, key) == block


def meet_known_answers(name, keystream):
    """The vectors whose last word is domain 0 are blocks of a keystream, which every backend computes in its own way.

    `keystream(key, stream, first_block, blocks)` has its words.
    """
    met = 0
    for counter, key, block in vectors(name):
        if counter[3] == 0:
            at = counter[0] | counter[1] << 32
            first = max(at - 3, 0)
            stream = keystream(np.array(key, np.uint32), counter[2], first, 40).reshape(40, -1)
            assert stream[at - first].tolist() == block
            met += 1
    assert met >= 1


@pytest.mark.parametrize("name", ["philox", "chacha20"])
def test_known_answers_in_a_keystream(name, isa):
    meet_known_answers(name, lambda *arguments: _native.keystream(*arguments, isa))


@pytest.mark.parametrize("name", ["philox", "chacha20"])
def test_known_answers_in_cudas_keystream_on_the_host(name, tmp_path_factory):
    emulate = emulation.compiled("emulate_keystream.cpp", tmp_path_factory)
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    emulate.argtypes = [pointer, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, integer, pointer]

    def keystream(key, stream, first, blocks):
        out = np.zeros(blocks * (4 if len(key) == 2 else 16), np.uint32)
        emulate(key.ctypes.data, len(key), stream, first, blocks, out.ctypes.data)
        return out

    meet_known_answers(name, keystream)
    for key in (PHILOX, CHACHA):
        for start in STARTS:
            assert np.array_equal(keystream(key, 5, start, 67), reference.keystream(key, 5, start, 67))


def test_a_gpu_derives_the_keys_that_the_specification_names(tmp_path_factory):
    derive = emulation.library("emulate_keystream.cpp", tmp_path_factory).derive
    derive.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
    state = np.concatenate([CHACHA, np.zeros(2, np.uint32)])
    for number in (0, 1, 2**32 - 1, 2**32, 2**64 - 1):
        key = np.zeros(8, np.uint32)
        derive(state.ctypes.data, number, key.ctypes.data)
        assert key.tolist() == reference.keystream(CHACHA, 0, number, 1)[:8].tolist()


@pytest.mark.parametrize("key", [PHILOX, CHACHA], ids=["philox", "chacha20"])
@pytest.mark.parametrize("start", STARTS)
def test_keystreams_are_the_reference_on_every_isa(key, start, isa):
    for stream in (0, 1, 2**32 - 1):
        assert np.array_equal(
            _native.keystream(key, stream, start, 67, isa), reference.keystream(key, stream, start, 67)
        )


@pytest.mark.parametrize("key", [PHILOX, CHACHA], ids=["philox", "chacha20"])
def test_a_keystream_does_not_depend_on_where_it_is_cut(key, isa):
    whole = _native.keystream(key, 3, 2**32 - 100, 200, isa).reshape(200, -1)
    for first in range(0, 200, 7):
        for count in (0, 1, 2, 3, 31, 32, 33):
            count = min(count, 200 - first)
            part = _native.keystream(key, 3, 2**32 - 100 + first, count, isa)
            assert np.array_equal(part, whole[first : first + count].ravel())


@pytest.mark.parametrize("key", [PHILOX, CHACHA], ids=["philox", "chacha20"])
def test_keystreams_differ_by_key_stream_and_block(key, isa):
    """No two of 64 neighbours share a block: 2^-64 a pair for Philox."""
    other = key.copy()
    other[-1] ^= 1 << 31
    words = [_native.keystream(k, s, 0, 16, isa).reshape(16, -1) for k in (key, other) for s in (0, 1)]
    assert len({block.tobytes() for part in words for block in part}) == 64


def test_bad_keys_are_refused():
    with pytest.raises(ValueError, match="2 or 8 words"):
        _native.keystream(np.zeros(4, np.uint32), 0, 0, 1, "scalar")
    with pytest.raises(ValueError, match="no 'mmx' kernels"):
        _native.keystream(PHILOX, 0, 0, 1, "mmx")
    with pytest.raises(ValueError, match="4 words"):
        _native.cipher_block(PHILOX, np.zeros(3, np.uint32))
