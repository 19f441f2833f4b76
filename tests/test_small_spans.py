# SPDX-License-Identifier: Apache-2.0
# Small tensors of one launch share keystream: the bits are those of launches of one tensor each.
import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native
from ldpkernels.common.dtypes import FLOAT16, FLOAT32, FLOAT64
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.registry import MECHANISMS, law_table

KEYS = {"philox": ldpkernels.key(3), "aes": ldpkernels.Key((1, 2)), "chacha20": ldpkernels.Key((1, 2, 3, 2**63))}
SIZES = {
    "small": [1, 7, 8, 9, 31, 255, 256, 3, 40, 200, 200, 200, 200, 1, 1] * 5,
    "with large ones between": [10, 257, 10, 10, 5000, 70000, 8, 0, 0, 256, 256, 256, 256, 256, 300, 1],
    "empty ones": [0, 0, 5, 0, 5, 0],
}


def launched(arrays, outs, firsts, mechanism, output, key, isa, together, threads=1):
    dtypes = [{2: FLOAT16, 4: FLOAT32, 8: FLOAT64}[a.itemsize] for a in arrays]
    spans = span_table([a.ctypes.data for a in arrays], [o.ctypes.data for o in outs], [a.size for a in arrays], dtypes)
    spans["first"] = firsts
    laws = law_table(mechanism, [0.1] * len(arrays), [0.9] * len(arrays), dtypes, output)
    kind = "values" if output == "values" else mechanism.reported
    for part in [slice(None)] if together else [slice(i, i + 1) for i in range(len(arrays))]:
        _native.launch(mechanism.kernel, kind, spans[part], laws[part], key.uint32(), isa, threads)


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("cipher", KEYS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", MECHANISMS)
def test_small_spans_have_the_bits_of_their_own_launches(name, sizes, cipher, isa):
    random, mechanism = np.random.default_rng(0), MECHANISMS[name](1.5).executed
    dtypes = ["float32", "float64", "float16"]
    made = [random.uniform(-1, 1, size).astype(dtypes[i % 3]) for i, size in enumerate(SIZES[sizes])]
    follow = np.cumsum([0, *[(a.size + 7) // 8 * 8 for a in made]])[:-1]
    apart = follow + np.arange(len(made)) * 1000
    backward = follow[::-1].copy()
    near_the_end = follow + 2**32 - 64  # of what a block's number holds in one word
    for firsts in (follow, apart, backward, near_the_end):
        for output in ("values", "report"):
            results = []
            for together in (True, False):
                arrays, outs = [a.copy() for a in made], [np.zeros(a.size, np.uint8) for a in made]
                launched(arrays, outs, firsts, mechanism, output, KEYS[cipher], isa, together)
                results.append([a.tobytes() for a in (*arrays, *outs)])
            assert results[0] == results[1]
            assert results[0] != [a.tobytes() for a in (*made, *[np.zeros(a.size, np.uint8) for a in made])]


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("name", ["two-point", "hybrid"])
def test_a_task_of_a_thread_ends_anywhere_in_a_span(name, isa):
    """Tasks have 2^16 elements: the first two end in the middle of a small span, the third in a large one."""
    random, mechanism = np.random.default_rng(0), MECHANISMS[name](1.5).executed
    made = [random.uniform(-1, 1, size).astype(np.float32) for size in [0, *[245] * 600, 0, 70_001, 3]]
    firsts = np.cumsum([0, *[(a.size + 7) // 8 * 8 for a in made]])[:-1]
    for output in ("values", "report"):
        results = []
        for together, threads in ((False, 1), (True, 1), (True, 3)):
            arrays, outs = [a.copy() for a in made], [np.zeros(a.size, np.uint8) for a in made]
            launched(arrays, outs, firsts, mechanism, output, KEYS["philox"], isa, together, threads)
            results.append([a.tobytes() for a in (*arrays, *outs)])
        assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("isa", _native.isas())
def test_one_law_serves_all_spans(isa):
    arrays = [np.linspace(-1, 1, n, dtype=np.float32) for n in (5, 300, 9)]
    mechanism = MECHANISMS["two-point"](1.0)
    spans = span_table([a.ctypes.data for a in arrays], [0] * 3, [a.size for a in arrays], [FLOAT32] * 3)
    one = law_table(mechanism, [0.0], [1.0], [FLOAT32], "values")
    results = []
    for laws in (one, np.concatenate([one] * 3)):
        for array in arrays:
            array[:] = np.linspace(-1, 1, array.size)
        _native.launch("two_point", "values", spans, laws, KEYS["philox"].uint32(), isa, 1)
        results.append([a.tobytes() for a in arrays])
    assert results[0] == results[1]
    with pytest.raises(ValueError, match="one law for each span"):
        _native.launch("two_point", "values", spans, np.concatenate([one] * 2), KEYS["philox"].uint32(), isa, 1)
