# SPDX-License-Identifier: Apache-2.0
"""Whole updates: the mechanisms of a million weights beside `perturb_`, and beside the papers' way of writing them in
eager torch and in NumPy, with floating-point noise as published code has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

import ldpkernels
from benchmarks.pairs import Pairs
from benchmarks.results import Case, Work
from ldpkernels import DistributedGaussian, DistributedSkellam, ProjectedCode, _native
from ldpkernels.updates import encode, report_code, rotate_
from ldpkernels.updates.masks import add_masks

N = 1 << 20
EPS, DELTA, CLIENTS, BITS = 8.0, 1e-5, 1000, 16
ROUND = ldpkernels.key(3)
GAUSSIAN = DistributedGaussian.calibrated(EPS, DELTA, dimension=N, clients=CLIENTS, bits=BITS)
SKELLAM = DistributedSkellam.calibrated(EPS, DELTA, dimension=N, clients=CLIENTS, bits=BITS)
CODE = ProjectedCode(EPS, N)
SIGNS = torch.randint(0, 2, (N,)).mul_(2).sub_(1).float()
ROWS = torch.randperm(N)[: CODE.projected]


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """A level at a time, as published code has it."""
    n, h = x.numel(), 1
    while h < n:
        pairs = x.view(-1, 2, h)
        x = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), 1).view(-1)
        h *= 2
    return x / math.sqrt(n)


def hadamard_numpy(x: np.ndarray) -> np.ndarray:
    n, h = x.size, 1
    while h < n:
        pairs = x.reshape(-1, 2, h)
        x = np.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), 1).reshape(-1)
        h *= 2
    return x / np.float32(math.sqrt(n))


def clipped(x: torch.Tensor) -> torch.Tensor:
    return x * torch.clamp(1.0 / torch.linalg.vector_norm(x), max=1.0)


def gaussian_torch(x: torch.Tensor) -> torch.Tensor:
    return clipped(x).add_(torch.randn_like(x), alpha=1.2)


def gaussian_numpy(x: np.ndarray) -> np.ndarray:
    scaled = x * min(1.0, 1.0 / float(np.linalg.norm(x)))
    return scaled + 1.2 * np.random.default_rng().standard_normal(x.size, np.float32)


def rounded(x: torch.Tensor, unit: float) -> torch.Tensor:
    scaled = hadamard(clipped(x) * SIGNS) / unit
    while True:
        low = scaled.floor()
        integers = low + (torch.rand_like(x) < scaled - low)
        if integers.square().sum() <= GAUSSIAN.square_bound * 1.01:
            return integers


def encode_torch(x: torch.Tensor) -> torch.Tensor:
    """With rounded normals for discrete ones, which is another law."""
    noised = rounded(x, GAUSSIAN.unit) + (torch.randn_like(x) * GAUSSIAN.stddev).round_()
    return noised.long().remainder_(2**BITS)


def skellam_torch(x: torch.Tensor) -> torch.Tensor:
    rate = torch.full_like(x, SKELLAM.stddev**2 / 2)
    noised = rounded(x, SKELLAM.unit) + torch.poisson(rate) - torch.poisson(rate)
    return noised.long().remainder_(2**BITS)


def projunit_torch(x: torch.Tensor) -> torch.Tensor:
    """ProjUnit's projection to k numbers, renormalised, and PrivUnitG of them."""
    u = hadamard(clipped(x) * SIGNS)[ROWS]
    u /= torch.linalg.vector_norm(u)
    g = torch.randn_like(u)
    return g + (2.7 - torch.dot(g, u)) * u


def projunit_numpy(x: np.ndarray) -> np.ndarray:
    clipped_ = x * min(1.0, 1.0 / float(np.linalg.norm(x)))
    u = hadamard_numpy(clipped_ * SIGNS.numpy())[ROWS.numpy()]
    u /= np.linalg.norm(u)
    g = np.random.default_rng().standard_normal(u.size)
    return g + (2.7 - g @ u) * u


def privunitg_torch(x: torch.Tensor) -> torch.Tensor:
    """A Gaussian vector, moved along the update."""
    v = clipped(x)
    g = torch.randn_like(v)
    return g.add_(v, alpha=2.7 - float(torch.dot(g, v)))


def privunitg_numpy(x: np.ndarray) -> np.ndarray:
    v = x * min(1.0, 1.0 / float(np.linalg.norm(x)))
    g = np.random.default_rng().standard_normal(v.size)
    return g + (2.7 - g @ v) * v


X = torch.randn(N)
A = X.numpy()
NUMBERS = np.zeros(N, np.uint32)
MASKS, SIGNED = 16, [1, -1] * 8
KEYS = {cipher: [ldpkernels.secure_key(cipher) for _ in range(MASKS)] for cipher in ("aes", "chacha20")}


def masks_numpy() -> None:
    """Their own keystreams, which are not secure, as secure aggregations in Python have them: one after the other."""
    for seed in range(MASKS):
        NUMBERS[:] += np.random.default_rng(seed).integers(0, 2**32, N, np.uint32)


def cipher_alone(key: ldpkernels.Key) -> None:
    """As many bytes as the masks have, by one thread, in the cache."""
    for first in range(0, MASKS * N // 4, 1 << 12):
        _native.keystream(key.uint32(), 0, first, 1 << 12, "")


PERTURB = lambda: ldpkernels.perturb_(X.clone(), 0.0, 1.0, 1.0)  # noqa: E731
WORKS: dict[str, dict[str, Work]] = {
    "clipped and noised": {
        "perturb_": PERTURB,
        "gaussian": lambda: ldpkernels.perturb_vector(A, EPS, delta=DELTA, mechanism="gaussian", norm=1.0),
        "torch eager": lambda: gaussian_torch(X),
        "NumPy": lambda: gaussian_numpy(A),
    },
    "rotated": {
        "rotate_": lambda: rotate_(A.copy(), ROUND),
        "copy, read and write": lambda: X.clone(),
        "torch eager": lambda: hadamard(X * SIGNS),
        "NumPy": lambda: hadamard_numpy(A * SIGNS.numpy()),
    },
    "a share for a secure sum": {
        "discrete gaussian": lambda: encode(A, GAUSSIAN, ROUND),
        "skellam": lambda: encode(A, SKELLAM, ROUND),
        "torch eager, rounded normals": lambda: encode_torch(X),
        "torch eager, Poissons": lambda: skellam_torch(X),
    },
    "16 masks of a secure sum": {
        "add_masks, AES": lambda: add_masks(NUMBERS, KEYS["aes"], SIGNED),
        "add_masks, ChaCha20": lambda: add_masks(NUMBERS, KEYS["chacha20"], SIGNED),
        "NumPy": masks_numpy,
    },
    "a few bits": {
        "projected-code, 11 bits": lambda: report_code(A, CODE, ROUND),
        "privunitg, 32 M bits": lambda: ldpkernels.perturb_vector(A, EPS, norm=1.0),
        "k-of-d": lambda: ldpkernels.perturb_vector(A, EPS, mechanism="k-of-d", norm=1.0),
        "torch eager, ProjUnit": lambda: projunit_torch(X),
        "NumPy, ProjUnit": lambda: projunit_numpy(A),
        "torch eager, PrivUnitG": lambda: privunitg_torch(X),
        "NumPy, PrivUnitG": lambda: privunitg_numpy(A),
    },
}
PEERS = ("torch eager", "NumPy")


def cases(elements: int) -> Iterator[Case]:
    """Everything that is measured, of a million weights."""
    for group, rows in WORKS.items():
        for row, work in rows.items():
            kind = "floor" if row.startswith("copy") else "peer" if row.startswith(PEERS) else "ours"
            yield Case(f"{group}, 1 M fp32", row, kind, lambda work=work: work, elements=N, bytes=8.0 * N)


def targets(pairs: Pairs, elements: int) -> None:
    """Within 20 times `perturb_`, rotation at half of the speed of memory; and the authors' ways.

    A million numbers lie in the caches, where `mul_` is not at the speed of memory: copying 16 million is.
    """
    for group in ("clipped and noised", "a share for a secure sum", "a few bits"):
        for row, work in WORKS[group].items():
            if not row.startswith((*PEERS, "perturb_")):
                pairs.add(f"{row} : perturb_", 0.05, work, PERTURB)
    big = np.random.default_rng(0).standard_normal(1 << 24).astype(np.float32)
    twin = torch.from_numpy(big)
    pairs.add("rotate_, 16 M : mul_ in place", 0.5, lambda: rotate_(big, ROUND), lambda: twin.mul_(-1.0))
    pairs.add("rotate_, 1 M : mul_ in place", 0.5, lambda: rotate_(A, ROUND), lambda: X.mul_(-1.0))
    copied, sixteen = torch.empty_like(twin), lambda: [rotate_(A, ROUND) for _ in range(16)]
    pairs.add("rotate_, 1 M, 16 times : copy_ of 16 M", 0.5, sixteen, lambda: copied.copy_(twin))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the keystream alone has
    masked = WORKS["16 masks of a secure sum"]["add_masks, AES"]
    pairs.add("add_masks, AES : its keystream", 0.9, masked, lambda: cipher_alone(KEYS["aes"][0]))
    torch.set_num_threads(threads)
    for group, ours, theirs in (
        ("16 masks of a secure sum", "add_masks, AES", "NumPy"),
        ("16 masks of a secure sum", "add_masks, ChaCha20", "NumPy"),
        ("clipped and noised", "gaussian", "torch eager"),
        ("clipped and noised", "gaussian", "NumPy"),
        ("rotated", "rotate_", "torch eager"),
        ("rotated", "rotate_", "NumPy"),
        ("a share for a secure sum", "discrete gaussian", "torch eager, rounded normals"),
        ("a share for a secure sum", "skellam", "torch eager, Poissons"),
        ("a few bits", "projected-code, 11 bits", "torch eager, ProjUnit"),
        ("a few bits", "projected-code, 11 bits", "NumPy, ProjUnit"),
        ("a few bits", "privunitg, 32 M bits", "torch eager, PrivUnitG"),
        ("a few bits", "privunitg, 32 M bits", "NumPy, PrivUnitG"),
    ):
        pairs.add(f"{ours} : {theirs}, {group}", 1, WORKS[group][ours], WORKS[group][theirs])
