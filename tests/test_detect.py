# SPDX-License-Identifier: Apache-2.0
"""Which instruction sets are used: by what the processor says, and what the system saves."""

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from ldpkernels import _native
from tests.once import made_once

SOURCE = Path(__file__).parent / "native" / "detect.cpp"
LEAF_1 = {"fma": 12, "osxsave": 27, "avx": 28, "f16c": 29}
LEAF_7 = {"avx2": 5, "avx512f": 16, "avx512dq": 17, "avx512bw": 30, "avx512vl": 31}
SAVED = {"sse": 1, "avx registers": 2, "masks": 5, "upper halves": 6, "upper sixteen": 7}
ALL = {**LEAF_1, **LEAF_7, **SAVED}
FOR_AVX2 = {"osxsave", "avx", "f16c", "avx2", "sse", "avx registers"}


@pytest.fixture(scope="module")
def detect(tmp_path_factory):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")

    def build(path):
        command = [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-o", str(path), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True)

    library = ctypes.CDLL(str(made_once(tmp_path_factory, "detect.so", build)))
    library.isas_of.argtypes = [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64]
    library.aes_of.argtypes = [*library.isas_of.argtypes, ctypes.c_uint32]
    return library


def registers(present):
    return [sum(1 << bit for name, bit in names.items() if name in present) for names in (LEAF_1, LEAF_7, SAVED)]


def isas(detect, present):
    return detect.isas_of(*registers(present))


def test_every_bit_is_needed(detect):
    assert isas(detect, ALL) == 3
    assert isas(detect, FOR_AVX2) == 1
    assert isas(detect, ()) == 0
    for name in ALL:
        assert isas(detect, ALL.keys() - {name}) == (0 if name in FOR_AVX2 else 1), name


def test_the_checksums_instruction(detect):
    assert detect.isas_of(1 << 20, 0, 0) == 4


def test_aes_needs_its_bit_and_the_registers_that_it_works_in(detect):
    """A machine with AVX2 or AVX-512 may have AES at 128 bits alone, or none."""

    def aes(present, aes_bit=1, vaes_bit=1):
        leaf_1, leaf_7, saved = registers(present)
        return detect.aes_of(leaf_1 | aes_bit << 25, leaf_7, saved, vaes_bit << 9)

    assert aes(ALL) == 7
    assert aes(ALL, vaes_bit=0) == aes(FOR_AVX2, vaes_bit=0) == 1
    assert aes(ALL, aes_bit=0) == aes((), vaes_bit=1) == 0
    assert aes(FOR_AVX2) == 3
    for name in ALL:
        assert aes(ALL.keys() - {name}) == (0 if name in FOR_AVX2 else 3), name


def test_no_other_bit_is(detect):
    for bits in range(64):
        others = 1 << bits
        words = [others & ~sum(1 << b for b in names.values()) for names in (LEAF_1, LEAF_7, SAVED)]
        assert detect.isas_of(words[0] & 0xFFEFFFFF, words[1] & 0xFFFFFFFF, words[2]) == 0


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="no x86-64 machine")
def test_this_machine(detect):
    found = detect.isas_here()
    expected = [name for bit, name in ((2, "avx512"), (1, "avx2")) if found & bit] + ["scalar"]
    assert _native.isas() == expected
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        flags = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")).split()
        assert bool(found & 1) == ({"avx2", "f16c"} <= set(flags))
        units = {"vaes512": {"aes", "vaes", "avx512f"}, "vaes256": {"aes", "vaes", "avx2"}, "aes-ni": {"aes", "avx2"}}
        assert _native.aes_units() == [*(unit for unit, needed in units.items() if needed <= set(flags)), "logic"]
        assert bool(found & 2) == ({"avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(flags))
