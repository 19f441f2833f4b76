# SPDX-License-Identifier: Apache-2.0
"""What a secure sum costs a client and the server, in CPU time of one thread: `python -m benchmarks.secure_sums`.

One client's five steps and the server's work of a round, in which a tenth of the clients is lost after they shared
their secrets. Other clients' messages are made by the same code and are not counted.
"""

import argparse
import time

import numpy as np

from benchmarks import machine
from ldpkernels.secure_sums import Server, Terms, agree, begin, disclose, mask, new_identity, share


class Clock:
    """CPU seconds of this process in one role."""

    def __init__(self):
        self.seconds = 0.0

    def __enter__(self):
        self.start = time.process_time()
        return self

    def __exit__(self, *_):
        self.seconds += time.process_time() - self.start


def measured(clients, length, bits=16, signed=False):
    """CPU seconds of one client and of the server, and the bytes that the client sends."""
    pairs = {number: new_identity() for number in range(clients)} if signed else {}
    private = {number: pair[0] for number, pair in pairs.items()}
    roster = {number: pair[1] for number, pair in pairs.items()} or None
    threshold = clients * 2 // 3 + 1
    terms = Terms(round=b"1", length=length, bits=bits, threshold=threshold, invited=clients, roster=roster)
    integers = np.arange(length, dtype=np.uint32)
    server, of_client, of_server = Server(terms), Clock(), Clock()
    sent, states, size = {}, {}, 0
    left = range(clients - clients // 10)

    def everyone(numbers, step):
        nonlocal size
        for number in numbers:
            if number:
                states[number], sent[number] = step(number)
                continue
            with of_client:
                states[number], sent[number] = step(number)
            size += len(sent[number])
        return {number: sent[number] for number in numbers}

    announced = everyone(range(clients), lambda n: begin(terms, n, private.get(n)))
    with of_server:
        keys = server.keys(announced)
    shared = everyone(range(clients), lambda n: share(states[n], keys))
    with of_server:
        boxes = server.shares(shared)
    for number in left:
        masked = everyone([number], lambda n: mask(states[n], boxes[n], integers))
        with of_server:
            server.masked(number, masked[number])
    with of_server:
        present = server.present()
    agreed = everyone(left, lambda n: agree(states[n], present, private.get(n)))
    with of_server:
        consents = server.consents(agreed)
    disclosed = everyone(left, lambda n: disclose(states[n], present, consents))
    with of_server:
        total = server.total(disclosed)
    expected = (integers.astype(np.uint64) * len(left) % 2**bits).astype(total.dtype)
    assert np.array_equal(total, expected)
    return of_client.seconds, of_server.seconds, size


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--weights", type=int, nargs="+", default=[100_000, 1_000_000])
    chosen = parser.parse_args()
    print(f"{machine.cpu_name()}, {machine.cores()} cores\n")
    print("| clients | weights | roster | a client, ms | the server, s | a client sends, MB |")
    print("|---:|---:|---|---:|---:|---:|")
    for clients in chosen.clients:
        for weights in chosen.weights:
            for signed in (False, True):
                runs = [measured(clients, weights, signed=signed) for _ in range(3)]
                client, server = min(r[0] for r in runs), min(r[1] for r in runs)
                row = (clients, f"{weights:,}", "yes" if signed else "no", f"{client * 1e3:.0f}", f"{server:.2f}")
                print(f"| {' | '.join(map(str, row))} | {runs[0][2] / 1e6:.2f} |", flush=True)


if __name__ == "__main__":
    main()
