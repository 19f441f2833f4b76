# SPDX-License-Identifier: Apache-2.0
"""The mean that a server gets from n clients, of whom only some were trained.

Each of the trained stands for `copies` clients with the same update, whose reports are drawn one by one, or, where a
sum of them has a law of its own, as that sum: the mean has the law that n clients would give it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import ndtri

import ldpkernels
from ldpkernels.common.keys import Key
from ldpkernels.planning import Candidate
from ldpkernels.updates.following import BIT, LONGER, narrowed

Simulator = Callable[[Candidate, np.ndarray, int, Key], np.ndarray]


def mean_of(candidate: Candidate | None, updates: np.ndarray, clients: int, key: Key) -> np.ndarray:
    """The mean that the server gets by a candidate's call; the plain one by none."""
    if candidate is None:
        return updates.mean(0)
    copies, left = divmod(clients, len(updates))
    if left:
        raise ValueError(f"clients={clients} must be a multiple of the {len(updates)} that are trained")
    return SIMULATORS[candidate.name](candidate, updates, copies, key)


def _weightwise(candidate: Candidate, updates: np.ndarray, copies: int, key: Key) -> np.ndarray:
    total = np.zeros(updates.shape[1])
    for i, update in enumerate(updates):
        values = np.repeat(update[None].astype(np.float32), copies, axis=0)
        ldpkernels.perturb_(
            values, 0.0, candidate.setting.box, candidate.parameter, mechanism=candidate.name, generator=key.fold_in(i)
        )
        total += values.sum(0, dtype=np.float64)
    return total / (len(updates) * copies)


def _k_of_d(candidate: Candidate, updates: np.ndarray, copies: int, key: Key) -> np.ndarray:
    setting, d = candidate.setting, updates.shape[1]
    mechanism = ldpkernels.KOfD(candidate.parameter, d, setting.ball, setting.box)
    rng = np.random.default_rng(key.words[0])
    rows = np.repeat(np.arange(len(updates)), copies)
    chosen = rng.integers(d, size=(len(rows), mechanism.k))
    while len(twice := np.flatnonzero((np.diff(np.sort(chosen, 1), axis=1) == 0).any(1))):
        chosen[twice] = rng.integers(d, size=(len(twice), mechanism.k))  # subsets without replacement, by rejection
    values = updates[rows[:, None], chosen]
    coordinate = mechanism.coordinate
    ldpkernels.perturb_(values, 0.0, setting.box, coordinate.eps, mechanism=coordinate.name, generator=key.fold_in(0))
    total = np.bincount(chosen.ravel(), values.ravel(), minlength=d) * d / mechanism.k
    return total / len(rows)


def _privunitg(candidate: Candidate, updates: np.ndarray, copies: int, key: Key) -> np.ndarray:
    """Across the update a report is a Gaussian, and copies of it add up to one; along it they are drawn one by one."""
    d, norm = updates.shape[1], candidate.setting.ball
    mechanism = ldpkernels.PrivUnitG(candidate.parameter, d, norm)
    rng = np.random.default_rng(key.words[0])
    total = np.zeros(d)
    for update in updates:
        length = float(np.linalg.norm(update))
        v = update / length if length else np.eye(1, d)[0]
        signs = np.where(rng.random(copies) < (1 + min(length / norm, 1.0)) / 2, 1.0, -1.0)
        where, in_cap = rng.random(copies), rng.random(copies) < mechanism.p
        along = np.where(in_cap, -ndtri(where * mechanism.q), ndtri(where * (1 - mechanism.q)))
        across = rng.standard_normal(d) * np.sqrt(copies)
        total += across + (float(signs @ along) - float(across @ v)) * v
    return total * norm / mechanism.shrinkage / (len(updates) * copies)


def _gaussian(candidate: Candidate, updates: np.ndarray, copies: int, key: Key) -> np.ndarray:
    """The noise of all is a Gaussian, but for a grid of a four-millionth of it."""
    noise = np.random.default_rng(key.words[0]).standard_normal(updates.shape[1])
    return updates.mean(0) + noise * candidate.parameter / np.sqrt(len(updates) * copies)


def _nearly_normal(candidate: Candidate, updates: np.ndarray, copies: int, key: Key) -> np.ndarray:
    """The noise of all, of the law's mean square on every weight, taken for a Gaussian.

    Of shares it is the sum of hundreds of units of the grid; of codes, that of a thousand reports, each rotated anew.
    """
    noise = np.random.default_rng(key.words[0]).standard_normal(updates.shape[1])
    return updates.mean(0) + noise * np.sqrt(candidate.expected_error / updates.shape[1])


def _central(candidate: Candidate, updates: np.ndarray, copies: int, key: Key) -> np.ndarray:
    """The noise of the sum over all, on the sum over those who were trained."""
    ball = candidate.setting.ball
    noisy = ldpkernels.clipped_noised_sum(updates, ball, candidate.parameter / ball / copies, generator=key)
    return np.asarray(noisy) / len(updates)


SIMULATORS: dict[str, Simulator] = {
    "two-point": _weightwise,
    "piecewise": _weightwise,
    "hybrid": _weightwise,
    "k-of-d": _k_of_d,
    "privunitg": _privunitg,
    "gaussian": _gaussian,
    "projected-code": _nearly_normal,
    "distributed-gaussian": _nearly_normal,
    "skellam": _nearly_normal,
    "adaptive skellam": _nearly_normal,
    "central gaussian": _central,
    "adaptive discrete": _nearly_normal,
}


def at_norm(candidate: Candidate, norm: float) -> Candidate:
    """A candidate whose updates are clipped to another norm: its noise is in proportion to it."""
    setting, ratio = replace(candidate.setting, norm=norm, radius=None), norm / candidate.setting.ball
    return replace(candidate, setting=setting, expected_error=candidate.expected_error * ratio**2)


def next_norm(candidate: Candidate, norm: float, updates: np.ndarray, key: Key) -> float:
    """The norm of the round after one in which clients had these updates, each for as many."""
    noise = np.random.default_rng(key.words[0]).standard_normal() * np.sqrt(candidate.expected_error / updates.shape[1])
    within = np.mean(np.linalg.norm(updates, axis=1) <= norm)
    vector = np.array([(2 * within - 1) * BIT * norm + noise])
    return narrowed(vector / LONGER, norm, norm)[1]


def shrunk(mean: np.ndarray, expected_error: float) -> np.ndarray:
    """Nearer to 0 by what noise alone would make of its length (James and Stein): of the mean, post-processing."""
    square = float(mean @ mean)
    return mean * (max(0.0, 1 - expected_error / square) if square else 0.0)
