# SPDX-License-Identifier: Apache-2.0
# The Walsh-Hadamard transform with signs: the definition, its inverse, one order of additions on every backend.
import math

import numpy as np
import pytest
from scipy.linalg import hadamard

import ldpkernels
from ldpkernels import _native
from ldpkernels.reference.ciphers import keystream
from ldpkernels.updates import rotate_, rotate_back_

KEYS = [ldpkernels.key(5), ldpkernels.Key((1, 2)), ldpkernels.Key((1, 2, 3, 4))]
SIZES = [1, 2, 4, 8, 16, 32, 64, 512, 4096, 8192, 1 << 15]


def bits(x):
    return x.view(np.uint32).tolist()


def signs_of(key, n):
    words = keystream(key.uint32(), 0, 0, n // 32 + 1)
    return 1.0 - 2.0 * np.array([words[i // 32] >> (i % 32) & 1 for i in range(n)], np.float64)


@pytest.mark.parametrize("key", KEYS, ids=["philox", "aes", "chacha"])
@pytest.mark.parametrize("n", [1, 2, 8, 64, 1024])
def test_it_is_the_matrix_of_the_document(n, key):
    x = np.random.default_rng(n).standard_normal(n)
    matrix = hadamard(n) * signs_of(key, n) / math.sqrt(n)
    assert np.allclose(rotate_(x.astype(np.float32), key), matrix @ x, atol=1e-5)
    assert np.allclose(rotate_back_(x.astype(np.float32), key), matrix.T @ x, atol=1e-5)


@pytest.mark.parametrize("key", KEYS, ids=["philox", "aes", "chacha"])
@pytest.mark.parametrize("n", SIZES)
def test_every_backend_has_the_same_bits(n, key):
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    x[n // 2] = -0.0
    for turn in (rotate_, rotate_back_):
        found = []
        for backend in (*_native.isas(), "reference"):
            with ldpkernels.backend(backend):
                found.append(bits(turn(x.copy(), key)))
        assert all(one == found[0] for one in found)


@pytest.mark.parametrize("n", [1 << 20, 1 << 22])
def test_threads_and_passes_change_no_bit(n, monkeypatch):
    """From 2^22 on there are three passes over memory; the reference has one level after another."""
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    found = {}
    for threads in (1, 3):
        monkeypatch.setattr("ldpkernels.common.capabilities.threads", lambda threads=threads: threads)
        found[threads] = rotate_(x.copy(), KEYS[0])
    assert (found[1].view(np.uint32) == found[3].view(np.uint32)).all()
    with ldpkernels.backend("reference"):
        assert (rotate_(x.copy(), KEYS[0]).view(np.uint32) == found[1].view(np.uint32)).all()


@pytest.mark.parametrize("n", SIZES)
def test_it_can_be_undone_and_keeps_the_norm(n):
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    rotated = rotate_(x.copy(), KEYS[0])
    assert abs(np.linalg.norm(rotated.astype(np.float64)) / np.linalg.norm(x.astype(np.float64)) - 1) < 1e-6
    assert np.allclose(rotate_back_(rotated, KEYS[0]), x, atol=1e-5)


def test_any_vector_becomes_flat():
    """A coordinate is sub-Gaussian with |x|^2 / n: none beyond 7 of its deviations, but for 2 n e^(-24.5)."""
    n = 1 << 14
    spikes = np.zeros(n, np.float32)
    spikes[:3] = 1.0
    for x in (spikes, np.ones(n, np.float32), np.arange(n, dtype=np.float32)):
        length = float(np.linalg.norm(x))
        assert np.abs(rotate_(x.copy(), KEYS[1])).max() < 7 * length / math.sqrt(n)


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (np.zeros(3, np.float32), ValueError, "pad it with zeros"),
        (np.zeros(0, np.float32), ValueError, "pad it with zeros"),
        (np.zeros(4), TypeError, "float32"),
        (np.zeros((2, 2), np.float32), TypeError, "one-dimensional"),
        (np.zeros(8, np.float32)[::2], TypeError, "in one piece"),
        (np.frombuffer(bytes(16), np.float32), ValueError, "read-only"),
    ],
)
def test_what_cannot_be_rotated_is_refused(x, error, words):
    with pytest.raises(error, match=words):
        rotate_(x, KEYS[0])


def test_a_key_is_everyones():
    with pytest.raises(TypeError, match="everyone knows"):
        rotate_(np.zeros(4, np.float32), None)
