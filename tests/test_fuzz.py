# SPDX-License-Identifier: Apache-2.0
"""The short form of tests/fuzz: the same hundred mutations of each kind of what the library wrote, every time."""

import gzip
import pickle
import random
import struct
import tracemalloc

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.fuzz import targets
from tests.fuzz.targets import TARGETS

NUMBERS = b'-1 0 1e308 1e400 NaN 9223372036854775807 4611686018427387904 null [] ""'.split()


def mutated(seed, rng):
    """One to four changes: a byte, a bit, a cut, a repetition, a piece of another place, a number of JSON."""
    data = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        how = rng.randrange(7)
        if how == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif how == 1 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how == 2:
            del data[at : min(to, at + 20)]
        elif how == 3:
            data[at:at] = data[at : min(to, at + 40)]
        elif how == 4:
            data[at : at + 8] = data[to : to + 8]
        elif how == 5:
            digits = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
            if digits:
                start = rng.choice(digits)
                data[start : start + rng.randint(1, 3)] = rng.choice(NUMBERS)
        else:
            data = data[:at]
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_what_the_library_wrote_is_read(name, tmp_path):
    for seed in TARGETS[name].seeds():
        assert TARGETS[name].run(seed, tmp_path)


FOUND = {
    "a field that no state has": ("checkpoint-pickle", targets.PICKLE.replace(b"weights", b"geights")),
    "a gzip file that is cut off": ("idx", gzip.compress(targets.LABELS, mtime=0)[:-3]),
    "labels of no class": ("idx", targets.idx(np.array([3, 200], np.uint8))),
    "fewer labels than pictures": ("idx", targets.idx(np.array([3], np.uint8))),
    "sizes whose product wraps to nothing": ("idx", b"\0\0\x08\x04" + struct.pack(">4I", *[2**16] * 4) + bytes(64)),
    "pictures of one axis": ("idx", targets.idx(np.zeros(100, np.uint8))),
    "a pickle of something else": ("cifar10", pickle.dumps([1], protocol=3)),
    "a letter of Latin-1": ("adult", targets.ROWS.replace(b"White", b"Wh\xeete")),
}


if "flower-checkpoint" in TARGETS:
    FOUND["an archive that is encrypted"] = ("flower-checkpoint", targets.releases.encrypted_checkpoint())


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found(what, tmp_path):
    name, given = FOUND[what]
    TARGETS[name].run(given, tmp_path)


def test_a_pickle_of_nine_bytes_takes_no_memory(tmp_path):
    """It keeps its empty dict as number 2^24 - 1 of what it may refer to: with 2^28 it takes 4 GB."""
    tracemalloc.start()
    try:
        TARGETS["cifar10"].run(b"\x80\x03}r\xff\xff\xff\x00.", tmp_path)
    except KeyError:  # it is no batch either
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 32 << 20


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_are_read_or_refused_with_a_reason(name, tmp_path):
    target, rng = TARGETS[name], random.Random(name)
    seeds = target.seeds()
    for i in range(100):
        given = mutated(rng.choice(seeds), rng)
        try:
            target.run(given, tmp_path)
        except Exception as error:
            raise AssertionError(f"input {i}: {given!r}") from error
