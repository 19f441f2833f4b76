# SPDX-License-Identifier: Apache-2.0
"""What a server spends on a round of many clients: `python benchmarks/server.py [clients] [weights]`.

Uploads come one after the other from a few clients' bytes, so that the sender's work is no part of it.
"""

from __future__ import annotations

import itertools
import resource
import sys
import time

import numpy as np

import ldpkernels

BATCH = 30


def main(clients: int = 10_000, weights: int = 1_000_000) -> None:
    """Print the table."""
    model = np.zeros(weights, np.float32)
    uploads = [ldpkernels.report(model, 0.0, 1.0, 4.0, generator=ldpkernels.key(i)).to_bytes() for i in range(60)]
    reports = [ldpkernels.Report.from_bytes(upload) for upload in uploads]
    print(f"{clients} clients, {weights} weights, {len(uploads[0])} bytes an upload, {ldpkernels.backends()[0]}")
    for name, items in (("bytes", uploads), ("reports in memory", reports)):
        total = ldpkernels.Aggregate(ldpkernels.expected(model, 0.0, 1.0, 4.0), on_bad="skip")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        arriving = itertools.islice(itertools.cycle(items), clients)
        while batch := list(itertools.islice(arriving, BATCH)):
            total.add(*batch)
        adding = time.perf_counter() - start
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        start = time.perf_counter()
        mean = total.mean()
        decoding = time.perf_counter() - start
        speed = clients * weights / adding / 1e9
        print(f"{name:18} {adding:7.3f} s, {1e6 * adding / clients:6.1f} us each, {speed:6.1f} G weights/s; ", end="")
        print(
            f"the mean {1e3 * decoding:.2f} ms; sums {total.clients.bit_length() * weights // 8 / 1e6:.2f} MB, ", end=""
        )
        print(f"grown by {grown / 1e3:.1f} MB; |mean| {np.abs(mean).max():.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
