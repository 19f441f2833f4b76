# SPDX-License-Identifier: Apache-2.0
# The streams as mechanisms use them, by tests whose power is shown on generators that are nearly right. The long one is
# `make battery`.
import numpy as np
import pytest

from tests.statistics import Verdict, binomial_test, chi_square, fits, rejected
from tests.streams.sources import SOURCES, words

N = 1 << 19  # words of a stream


def bytes_test(x):
    """All 256 bytes alike."""
    counts = np.bincount(x.view(np.uint8), minlength=256)
    return chi_square(counts, np.full(256, x.nbytes / 256))


def bits_test(x):
    """Each of the 32 bits is one half of the time, and independent of the same bit of the next word."""
    bits = (x[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    ones, changes = bits.sum(0), (bits[1:] ^ bits[:-1]).sum(0)
    verdicts = [binomial_test(int(hits), len(x), 0.5) for hits in ones]
    verdicts += [binomial_test(int(hits), len(x) - 1, 0.5) for hits in changes]
    return next((v for v in verdicts if v.rejects), verdicts[0])


def pairs_test(x):
    """The high six bits of consecutive words, all 4096 pairs alike."""
    high = (x >> 26).astype(np.int64)
    counts = np.bincount(high[::2] * 64 + high[1::2], minlength=4096)
    return chi_square(counts, np.full(4096, len(x) // 2 / 4096))


def collisions_test(x):
    """Equal words among the first 2^17: about two are expected, and 24 come once in a million."""
    sample = x[: 1 << 17]
    found = len(sample) - len(np.unique(sample))
    return Verdict(found > 24, f"{found} words are seen twice among {len(sample)}, two expected")


def ranks_test(x):
    """Square matrices of 32 words: how many have full rank, which is .2888 of random ones."""
    rows = x[: 32 * 4096].reshape(-1, 32).astype(np.uint64)
    full = np.ones(len(rows), bool)
    for bit in range(32):
        has = (rows[:, bit:] >> np.uint64(bit)) & np.uint64(1)
        pivot = has.argmax(1) + bit
        full &= has.any(1)
        index = np.arange(len(rows))
        rows[index, pivot], rows[:, bit] = rows[:, bit].copy(), rows[index, pivot].copy()
        below = (rows >> np.uint64(bit)) & np.uint64(1)
        below[:, : bit + 1] = 0
        rows ^= below * rows[:, bit][:, None]
    return binomial_test(int(full.sum()), len(rows), 0.2887880951538411)


TESTS = {
    "bytes": bytes_test,
    "bits": bits_test,
    "pairs": pairs_test,
    "collisions": collisions_test,
    "ranks": ranks_test,
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_stream_looks_random(source):
    x = words(source, 1 << 17 if source == "fresh" else N)
    for test in TESTS.values():
        fits(test(x))


def test_no_two_sources_are_one_stream():
    assert len({words(source, 64).tobytes() for source in SOURCES}) == len(SOURCES)


def rounds_of_philox(n, rounds):
    """The cipher with fewer rounds, on consecutive counters."""
    a, b, c, d = (np.zeros(n, np.uint64) for _ in range(4))
    a[:] = np.arange(n)
    k0, k1, low = 0x89ABCDEF, 0x01234567, np.uint64(0xFFFFFFFF)
    for _ in range(rounds):
        p0, p1 = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (
            (p1 >> np.uint64(32)) ^ b ^ np.uint64(k0),
            p1 & low,
            (p0 >> np.uint64(32)) ^ d ^ np.uint64(k1),
            p0 & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return np.stack([a, b, c, d], 1).astype(np.uint32).ravel()


def test_each_test_has_power():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**32, N, dtype=np.uint32)
    for test in TESTS.values():
        fits(test(x))
    rejected(bytes_test(np.where(rng.random(N) < 0.02, x & 0xFFFFFF0F, x)))  # one nibble, two words in a hundred
    rejected(bits_test(np.where(rng.random(N) < 0.02, x | 8, x)))
    sticky = x.copy()
    sticky[1:] ^= np.where(rng.random(N - 1) < 0.02, (sticky[1:] ^ sticky[:-1]) & 1, 0).astype(np.uint32)
    rejected(bits_test(sticky))
    twin = x.copy()
    twin[1::2] = np.where(rng.random(N // 2) < 0.02, twin[::2], twin[1::2])
    rejected(pairs_test(twin))
    rejected(collisions_test(x & 0xFFFFFFF0))
    rejected(ranks_test(np.where(np.arange(N) % 128 == 31, np.roll(x, 1), x)))
    for rounds in (1, 2, 3):
        y = rounds_of_philox(N // 4, rounds)
        assert any(test(y).rejects for test in TESTS.values()), f"{rounds} rounds of Philox pass for random"
