# SPDX-License-Identifier: Apache-2.0
# Published known answers for the ciphers, and one keystream on every instruction set.
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ldpkernels import _native
from ldpkernels.reference import ciphers as reference

# Blocks before, at and after the places where a counter word carries, and where a step of 32 blocks ends.
STARTS = [0, 1, 31, 2**32 - 37, 2**32 - 1, 2**32, 2**33 + 5, 2**63 - 3, 2**64 - 80]
PHILOX = np.array([0x89ABCDEF, 0x01234567], np.uint32)
AES = np.array([0x89ABCDEF, 0x01234567, 0xFFFFFFFF, 0x80000000], np.uint32)
CHACHA = np.arange(8, dtype=np.uint32) * 0x9E3779B9 + 0xDEADBEEF
each_key = pytest.mark.parametrize("key", [PHILOX, AES, CHACHA], ids=["philox", "aes", "chacha20"])


def vectors(name):
    text = (Path(__file__).parent / "vectors" / f"{name}.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple([int(word, 16) for word in part.split()] for part in line.split("|")) for line in lines]


@pytest.mark.parametrize(("name", "count"), [("philox", 3), ("aes128", 13), ("chacha20", 6)])
def test_known_answers(name, count):
    assert len(vectors(name)) == count
    for counter, key, block in vectors(name):
        assert _native.cipher_block(np.array(key, np.uint32), np.array(counter, np.uint32)).tolist() == block
        assert reference.cipher_block(np.array(key, np.uint32), counter) == block
        for unit in _native.aes_units() if name == "aes128" else ():
            assert _native.aes_blocks(np.array(key, np.uint32), np.array(counter, np.uint32), unit).tolist() == block


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


@pytest.mark.parametrize("name", ["philox", "aes128", "chacha20"])
def test_known_answers_in_a_keystream(name, isa):
    meet_known_answers(name, lambda *arguments: _native.keystream(*arguments, isa))


@pytest.mark.parametrize("name", ["philox", "chacha20"])
def test_known_answers_in_cudas_keystream(name, few_cuda):
    """Whose PTX tests/ptx executes."""
    meet_known_answers(name, few_cuda.keystream)
    key = PHILOX if name == "philox" else CHACHA
    for start in STARTS:
        assert np.array_equal(few_cuda.keystream(key, 5, start, 67), reference.keystream(key, 5, start, 67))


def test_a_gpu_derives_the_keys_that_the_specification_names(few_cuda):
    for number in (0, 1, 2**32 - 1, 2**32, 2**64 - 1):
        state, key = np.zeros(5, np.uint64), np.zeros(8, np.uint32)
        state[:4], state[4] = CHACHA.view(np.uint64), number
        few_cuda.next_key(state.ctypes.data, key.ctypes.data)
        assert key.tolist() == reference.keystream(CHACHA, 0, number, 1)[:8].tolist()
        assert int(state[4]) == (number + 1) % 2**64


@each_key
@pytest.mark.parametrize("start", STARTS)
def test_keystreams_are_the_reference_on_every_isa(key, start, isa):
    for stream in (0, 1, 2**32 - 1):
        assert np.array_equal(
            _native.keystream(key, stream, start, 67, isa), reference.keystream(key, stream, start, 67)
        )


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("unit", _native.aes_units())
def test_each_unit_for_aes_is_the_reference(unit, start):
    """By keystream and by blocks in any order, of every number that fills registers or does not."""
    whole = reference.keystream(AES, 3, start, 67).reshape(67, 4)
    for blocks in (0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 67):
        assert np.array_equal(_native.aes_keystream(AES, 3, start, blocks, unit), whole[:blocks].ravel())
        counters = np.zeros((blocks, 4), np.uint32)
        counters[:, :2] = (np.arange(blocks, dtype=np.uint64) + np.uint64(start)).view(np.uint32).reshape(-1, 2)
        counters[:, 2] = 3
        found = _native.aes_blocks(AES, np.ascontiguousarray(counters[::-1]).ravel(), unit)
        assert np.array_equal(found.reshape(-1, 4), whole[:blocks][::-1])


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind")
def test_no_branch_and_no_address_of_aes_depends_on_its_key(tmp_path):
    """Memcheck says where a number that was never set decides, and so it does of a table that a key is looked up in."""
    program, source = tmp_path / "aes", Path(__file__).parent / "native" / "aes.cpp"
    narrow = next((unit for unit in ("aes-ni", "aese") if unit in _native.aes_units()), None)
    flags = {"aes-ni": ["-mavx2", "-maes"], "aese": ["-march=armv8-a+crypto"], None: []}[narrow]
    command = [shutil.which("c++") or "g++", "-std=c++20", "-O2", "-fno-strict-aliasing", *flags, source, "-o", program]
    subprocess.run(command, check=True, capture_output=True)

    def errors(unit):
        checked = ["valgrind", "-q", "--error-exitcode=9", program, unit]
        return subprocess.run(checked, capture_output=True, text=True, check=False)

    for unit in ("logic", narrow) if narrow else ("logic",):
        done = errors(unit)
        assert (done.returncode, done.stdout.strip()) == (0, unit), done.stderr
    assert errors("table").returncode == 9


@each_key
def test_a_keystream_does_not_depend_on_where_it_is_cut(key, isa):
    whole = _native.keystream(key, 3, 2**32 - 100, 200, isa).reshape(200, -1)
    for first in range(0, 200, 7):
        for count in (0, 1, 2, 3, 31, 32, 33):
            count = min(count, 200 - first)
            part = _native.keystream(key, 3, 2**32 - 100 + first, count, isa)
            assert np.array_equal(part, whole[first : first + count].ravel())


@each_key
def test_keystreams_differ_by_key_stream_and_block(key, isa):
    """No two of 64 neighbours share a block: 2^-128 a pair for Philox and AES."""
    other = key.copy()
    other[-1] ^= 1 << 31
    words = [_native.keystream(k, s, 0, 16, isa).reshape(16, -1) for k in (key, other) for s in (0, 1)]
    assert len({block.tobytes() for part in words for block in part}) == 64


def test_bad_keys_are_refused():
    with pytest.raises(ValueError, match="2, 4 or 8 words"):
        _native.keystream(np.zeros(3, np.uint32), 0, 0, 1, "scalar")
    with pytest.raises(ValueError, match="no 'tables' for AES"):
        _native.aes_keystream(AES, 0, 0, 1, "tables")
    with pytest.raises(ValueError, match="4 words"):
        _native.aes_keystream(PHILOX, 0, 0, 1, "logic")
    with pytest.raises(ValueError, match="4 words"):
        _native.aes_blocks(AES, np.zeros(3, np.uint32), "logic")
    with pytest.raises(ValueError, match="no 'mmx' kernels"):
        _native.keystream(PHILOX, 0, 0, 1, "mmx")
    with pytest.raises(ValueError, match="4 words"):
        _native.cipher_block(PHILOX, np.zeros(3, np.uint32))
