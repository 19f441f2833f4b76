# SPDX-License-Identifier: Apache-2.0
"""Every kernel on many threads, and from many threads at once: what ThreadSanitizer watches (tests/sanitize/run).

NumPy alone: torch's own threads synchronise by means that a sanitizer does not see. Results are those of one call after
another, so without a sanitizer this is a test as well.
"""

import functools
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import ldpkernels
from ldpkernels import _native
from ldpkernels.common import capabilities
from ldpkernels.updates import rotate_

KEYS = {"philox": ldpkernels.key(7), "aes": ldpkernels.Key((1, 2)), "chacha20": ldpkernels.Key((1, 2, 3, 4))}
SIZE = 1 << 19  # work for four threads
CALLERS = 4


def weights():
    rng = np.random.default_rng(0)
    return {"a": rng.normal(size=SIZE).astype(np.float32), "b": rng.normal(size=(3, 1001)), "c": np.zeros(0)}


def perturbed(mechanism, key):
    w = weights()
    ldpkernels.perturb_(w, 0.0, 1.0, 1.0, mechanism=mechanism, generator=key)
    return b"".join(x.tobytes() for x in w.values())


def reported(mechanism, key):
    one = ldpkernels.report(weights(), 0.0, 1.0, 1.0, mechanism=mechanism, generator=key)
    total = ldpkernels.Aggregate()
    for _ in range(20):
        total.add(one)
    return one.to_bytes() + total.to_bytes() + b"".join(x.tobytes() for x in total.mean().values())


def ordinal(key):
    v = np.random.default_rng(1).integers(-1000, 1000, SIZE // 8)
    w = {"a": weights()["a"][: SIZE // 8].copy()}
    ldpkernels.cldp_(w, 0.01, 1.0, 2, generator=key)
    return ldpkernels.cldp_sample(v, 0.01, 1000, generator=key).tobytes() + w["a"].tobytes()


def clipped(noise, key):
    x = np.random.default_rng(2).normal(size=(40, SIZE // 40)).astype(np.float32)
    return ldpkernels.clipped_noised_sum(x, 1.0, 0.5, noise=noise, generator=key).tobytes()


def voted():
    votes = np.random.default_rng(3).integers(0, 10, (5, SIZE))
    return b"".join(x.tobytes() for x in ldpkernels.majority_vote(votes, 10))


def ranged():
    return repr(ldpkernels.ranges(weights())).encode()


def whole_vectors(key):
    w = weights()["a"]
    sent = ldpkernels.perturb_vector(w, 8.0, delta=1e-5, mechanism="gaussian", norm=1.0, generator=key)
    along = ldpkernels.perturb_vector(w, 8.0, norm=1.0, generator=key)
    return rotate_(w, key).tobytes() + sent.tobytes() + along.tobytes()


def main():
    assert capabilities.threads() > 1, "one core: nothing would run at the same time"
    work = [voted, ranged]
    for key in KEYS.values():
        for mechanism in ("two-point", "piecewise", "hybrid", "sign"):
            work += [functools.partial(f, mechanism, key) for f in (perturbed, reported)]
        work += [functools.partial(ordinal, key), functools.partial(clipped, "gaussian", key)]
        work.append(functools.partial(whole_vectors, key))
    work.append(functools.partial(clipped, "discrete", KEYS["philox"]))
    for name in _native.isas():
        with ldpkernels.backend(name):
            expected = [f() for f in work]
        with ThreadPoolExecutor(CALLERS) as pool:
            found = list(pool.map(lambda f, name=name: under(name, f), work * CALLERS))
        for i, f in enumerate(work * CALLERS):
            assert found[i] == expected[i % len(work)], f"{name}: {f}"
        print(f"{name}: {len(work)} calls, and {len(found)} from {CALLERS} threads", flush=True)
    shared()


def under(name, function):
    with ldpkernels.backend(name):
        return function()


def shared():
    """One aggregate that many threads add to."""
    one = ldpkernels.report(weights(), 0.0, 1.0, 1.0, generator=KEYS["philox"])
    alone, together = ldpkernels.Aggregate(), ldpkernels.Aggregate()
    for _ in range(80):
        alone.add(one)
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(together.add, [one] * 80))
    assert together.to_bytes() == alone.to_bytes(), "an aggregate lost reports"
    print("one aggregate, 80 reports from 4 threads")


if __name__ == "__main__":
    main()
    assert "torch" not in sys.modules
