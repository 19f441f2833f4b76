# SPDX-License-Identifier: Apache-2.0
"""What is counted: every kernel at two sizes, so that their difference is elements alone, and small calls."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

SMALL, LARGE = 1 << 13, 1 << 15


Call = Callable[[], Any]


def kernels() -> dict[str, Callable[[int], Call]]:
    """For each kernel, what makes a call on n elements; its cost an element is that of the difference of two sizes."""
    import numpy as np

    import ldpkernels
    from ldpkernels import _native
    from ldpkernels.updates import rotate_
    from ldpkernels.updates.masks import add_masks

    philox, aes, chacha = ldpkernels.key(7), ldpkernels.Key((1, 2)), ldpkernels.Key((1, 2, 3, 4))

    def weights(n: int, dtype: Any = np.float32) -> Any:
        return np.random.default_rng(0).normal(size=n).astype(dtype)

    def of_weights(call: Any, *setting: float, dtype: Any = np.float32, **options: Any) -> Callable[[int], Call]:
        return lambda n: partial(call, weights(n, dtype), *setting, **{"generator": philox, **options})

    perturb = partial(of_weights, ldpkernels.perturb_, 0.0, 1.0, 1.0)
    report = partial(of_weights, ldpkernels.report, 0.0, 1.0, 1.0)
    cldp = partial(of_weights, ldpkernels.cldp_, 1e-3, 1.0, 4)
    vector = partial(of_weights, ldpkernels.perturb_vector, 8.0, norm=1.0)

    def added(mechanism: str, n: int) -> Call:
        w = weights(8 * n if mechanism == "two-point" else n)
        reports = [ldpkernels.report(w, 0.0, 1.0, 2.0, mechanism=mechanism, generator=philox)] * 30
        total = ldpkernels.Aggregate()
        total.add(*reports)
        return partial(total.add, *reports)

    def mean(n: int) -> Call:
        total = ldpkernels.Aggregate()
        total.add(*[ldpkernels.report(weights(n), 0.0, 1.0, 2.0, generator=philox)] * 30)
        return total.mean

    def summed(noise: str, n: int) -> Call:
        gradients = [weights(n).reshape(8, n // 8)]
        return partial(ldpkernels.clipped_noised_sum, gradients, 1.0, 1.0, noise=noise, generator=philox)

    def losses(columns: int, n: int) -> Call:
        rows = 2 * abs(weights(8 * n if columns == 1 else n)).reshape(-1, columns)
        return partial(ldpkernels.clipped_noised_sum, rows, 1.0, 1.0, generator=philox)

    def votes(n: int) -> Call:
        ballots = np.random.default_rng(0).integers(0, 10, (8, n // 8)).astype(np.uint8)
        return partial(ldpkernels.majority_vote, ballots, 10)

    def masked(n: int) -> Call:
        return partial(add_masks, np.zeros(n, np.uint32), [aes], [1])

    return {
        "perturb_, fp32, Philox": perturb(),
        "perturb_, fp32, ChaCha20": perturb(generator=chacha),
        "perturb_, fp32, AES": perturb(generator=aes),
        "perturb_, fp64, Philox": perturb(dtype=np.float64),
        "perturb_, fp16, Philox": perturb(dtype=np.float16),
        "report, Philox": report(),
        "report, ChaCha20": report(generator=chacha),
        "report, AES": report(generator=aes),
        "perturb_, sign": perturb(mechanism="sign"),
        "perturb_, piecewise": perturb(mechanism="piecewise"),
        "perturb_, hybrid": perturb(mechanism="hybrid"),
        "report, piecewise": report(mechanism="piecewise"),
        "report, hybrid": report(mechanism="hybrid"),
        "cldp_, exponential": cldp(mechanism="exponential"),
        "cldp_, laplace": cldp(mechanism="laplace"),
        "two_point_threshold": lambda n: partial(ldpkernels.two_point_threshold, weights(n), 0.0, 1.0, 1.0),
        "Aggregate.add, 30 reports of 8 bits": partial(added, "two-point"),
        "Aggregate.add, 30 reports of bytes": partial(added, "piecewise"),
        "Aggregate.mean, bits": mean,
        "clipped_noised_sum, gaussian, of 8 rows": partial(summed, "gaussian"),
        "clipped_noised_sum, discrete, of 8 rows": partial(summed, "discrete"),
        "clipped_noised_sum, 8 rows of one": partial(losses, 1),
        "clipped_noised_sum, rows of two": partial(losses, 2),
        "ranges, minmax": lambda n: partial(ldpkernels.ranges, {"w": weights(n)}, method="minmax"),
        "majority_vote of 8 parties": votes,
        "digest of 8 bytes": lambda n: partial(_native.crc32c, bytes(8 * n)),
        "add_masks, uint32, AES": masked,
        "rotate_": lambda n: partial(rotate_, weights(n), philox),
        "perturb_vector, gaussian": vector(mechanism="gaussian", delta=1e-5),
        "perturb_vector, privunitg": vector(mechanism="privunitg"),
    }


def calls() -> dict[str, Call]:
    """Calls so small that they are all overhead."""
    import numpy as np

    import ldpkernels

    key = ldpkernels.key(7)
    one = np.zeros(10, np.float32)
    model = {f"layer{i}.weight": np.zeros((4, 4), np.float32) for i in range(10)}
    upload = ldpkernels.report(model, 0.0, 1.0, 1.0, generator=key).to_bytes()
    this_round = ldpkernels.expected(model, 0.0, 1.0, 1.0)
    return {
        "perturb_, one small array": lambda: ldpkernels.perturb_(one, 0.0, 1.0, 1.0, generator=key),
        "perturb_, 10 small arrays": lambda: ldpkernels.perturb_(model, 0.0, 1.0, 1.0, generator=key),
        "report, 10 small arrays": lambda: ldpkernels.report(model, 0.0, 1.0, 1.0, generator=key),
        "to_bytes, 10 small arrays": lambda: ldpkernels.report(model, 0.0, 1.0, 1.0, generator=key).to_bytes(),
        "aggregate, 10 uploads": lambda: ldpkernels.aggregate([upload] * 10),
        "Aggregate(expected).add, an upload": lambda: ldpkernels.Aggregate(this_round).add(upload),
        "cldp_, one small array": lambda: ldpkernels.cldp_(one, 0.1, 1.0, 2, generator=key),
    }


def sections() -> Iterator[tuple[str, Call]]:
    """Everything that is counted, in order: nothing at all, calls, and each kernel at two sizes."""
    yield "nothing", lambda: None
    yield from ((f"call {name}", call) for name, call in calls().items())
    for name, of in kernels().items():
        yield f"small {name}", of(SMALL)
        yield f"large {name}", of(LARGE)


def run_sections() -> None:
    """Under callgrind: each section between two marks, after as many calls as let Python settle."""
    import gc

    mark, names = os.getppid, []
    for name, call in sections():
        for _ in range(20 if name.startswith(("call", "nothing")) else 2):
            call()
        gc.collect()
        gc.disable()
        mark()
        call()
        mark()
        gc.enable()
        names.append(name)
    print(json.dumps(names))
