# SPDX-License-Identifier: Apache-2.0
"""What a round of very many clients costs, from pieces that are measured here: `python -m benchmarks.scale`.

The pieces are CPU time of one thread. The tables that follow from them are on paper: work and bytes of a complete graph
of n clients, of whom a tenth is lost, of a sparse graph, and of reports that need no secure sum.
"""

import argparse
import secrets
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch

import ldpkernels
from benchmarks import machine
from ldpkernels import Aggregate, secure_key
from ldpkernels.secure_sums import primitives, shamir
from ldpkernels.updates.masks import add_masks

WEIGHTS = 1_000_000
LOST = 0.1  # of the clients, after they shared their secrets
BOX = 90  # bytes of a box with its number
CLIENTS = (1_000, 10_000, 1_000_000)
NEIGHBOURS = 200  # of a sparse graph, for an example


def seconds(call, times, of=5):
    """CPU seconds of one call: the least of several runs of `times` calls."""
    found = []
    for _ in range(of):
        start = time.process_time()
        for _ in range(times):
            call()
        found.append((time.process_time() - start) / times)
    return min(found)


def reports(count):
    """Uploads of one bit a weight; a few are made, and come again."""
    some = [
        ldpkernels.report(np.zeros(WEIGHTS, np.float32), 0.0, 1.0, 4.0, generator=ldpkernels.key(i)).to_bytes()
        for i in range(10)
    ]
    return [some[i % 10] for i in range(count)]


def part(count):
    """What one server of a tree makes: the sum of its clients' reports as bytes, and its CPU seconds."""
    torch.set_num_threads(1)
    uploads, total = reports(count), Aggregate()
    start = time.process_time()
    for at in range(0, count, 30):
        total.add(*uploads[at : at + 30])
    return total.to_bytes(), time.process_time() - start


def pieces():
    """Seconds of each step of a round, once."""
    private, other = secrets.token_bytes(32), primitives.public_key(secrets.token_bytes(32))
    key, text = secrets.token_bytes(32), bytes(2 * shamir.SHARE_BYTES)
    numbers, keys = np.zeros(WEIGHTS, np.uint16), [secure_key("aes") for _ in range(100)]
    upload, threshold = np.zeros(WEIGHTS, np.uint16), 100
    shares = dict(enumerate(shamir.split(private, threshold, threshold, key), 1))
    places, by = list(shares), shamir.weights(list(shares))
    return {
        "agree on a key (X25519)": seconds(lambda: primitives.agreed(private, other), 200),
        "close and open a box": seconds(lambda: primitives.unboxed(key, primitives.boxed(key, text, key), key), 1000),
        "a share of a secret, for each of the threshold's coefficients": seconds(
            lambda: shamir.split(private, threshold, 100, key), 1
        )
        / (threshold * 100),
        "Lagrange's weights, for each pair of shares": seconds(lambda: shamir.weights(places), 1) / threshold**2,
        "open a secret, for each share": seconds(lambda: shamir.joined(shares, places, by), 20) / threshold,
        "a mask of 1,000,000 integers of 16 bits": seconds(lambda: add_masks(numbers, keys, [1] * 100), 1) / 100,
        "add an upload of 1,000,000 integers of 16 bits": seconds(lambda: np.add(numbers, upload, out=numbers), 100),
    }


def tree():
    """Seconds of the pieces of a tree of aggregates, and the bytes that each passes on."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:  # two servers, each of its own clients
        parts = list(pool.map(part, [1000, 1000]))
    data, total = parts[0][0], Aggregate.from_bytes(parts[0][0])
    total.merge(Aggregate.from_bytes(parts[1][0]))
    assert total.clients == 2000
    return {
        "read and add a report of 1,000,000 bits": min(spent for _, spent in parts) / 1000,
        "read and merge a sum of 1,000 clients": seconds(lambda: total.merge(Aggregate.from_bytes(data)), 10),
        "decode the mean": seconds(total.mean, 10),
    }, len(data)


def complete(n, neighbours, one):
    """Of a client: bytes sent, seconds. Of the server: bytes taken in and passed on, seconds."""
    agree, close, share, pair, opened, mask, add = one.values()
    k = min(n - 1, neighbours)
    threshold = 2 * k // 3 + 1
    sent = 2 * WEIGHTS + k * (BOX + 41)
    client = k * (2 * agree + close) + 2 * k * threshold * share + (k + 1) * mask
    masks = n * (1 - LOST) * (1 + LOST * k)
    weights = threshold**2 * pair * (1 if k == n - 1 else n)  # once where all hold all, else for each secret
    server = n * (add + threshold * opened) + masks * mask + LOST * n * k * agree + weights
    return sent, client, n * sent, n * k * BOX, server


def shown(value, units):
    for size, unit in units:
        if value >= size:
            return f"{value / size:,.1f} {unit}" if value / size < 10 else f"{value / size:,.0f} {unit}"
    return f"{value / units[-1][0]:,.1f} {units[-1][1]}"


def as_bytes(value):
    return shown(value, ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")))


def as_time(value):
    return shown(value, ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def main():
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    torch.set_num_threads(1)
    one = pieces()
    many, size = tree()
    print(f"{machine.cpu_name()}, one thread\n\n| piece | CPU time |\n|---|---:|")
    for name, value in {**one, **many}.items():
        print(f"| {name} | {as_time(value)} |")
    print(f"\nA sum of 1,000 clients is {size:,} bytes.\n")
    print(
        "| clients | graph | a client sends | a client | the server takes in | boxes that it passes on | the server |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|")
    for n in CLIENTS:
        for graph, k in (("complete", n), (f"{NEIGHBOURS} neighbours", NEIGHBOURS)):
            sent, client, taken, boxes, server = complete(n, k, one)
            row = (as_bytes(sent), as_time(client), as_bytes(taken), as_bytes(boxes), as_time(server))
            print(f"| {n:,} | {graph} | {' | '.join(row)} |")
    add, merge, _ = many.values()
    print("\n| clients | the servers take in | adding | merging sums of 1,000 | a server's memory |")
    print("|---:|---:|---:|---:|---:|")
    for n in CLIENTS:
        row = (as_bytes(n * WEIGHTS / 8), as_time(n * add), as_time(n / 1000 * merge))
        print(f"| {n:,} | {' | '.join(row)} | {as_bytes(n.bit_length() * WEIGHTS / 8)} |")


if __name__ == "__main__":
    main()
