# SPDX-License-Identifier: Apache-2.0
"""Subsampling: what a secret random choice of participants buys, and what it costs to claim more."""

from __future__ import annotations

import math

from ldpkernels.accounting import arguments
from ldpkernels.accounting.composition import composed
from ldpkernels.accounting.events import PureEvent, SampledGaussianEvent
from ldpkernels.accounting.records import PrivacyResult
from ldpkernels.accounting.views import adversary_of


def subsampled_epsilon(eps: float, q: float) -> float:
    """Return ln(1 + q (e^eps - 1)), the true figure for an eps-DP step on a sample of rate q.

    It is not q * eps: for small eps it comes close, for large eps it is eps - ln(1/q).

    >>> [round(subsampled_epsilon(eps, 0.18), 3) for eps in (1.0, 20.0)]
    [0.269, 18.285]
    """
    eps, q = arguments.non_negative("eps", eps), arguments.probability("q", q)
    if q == 1:
        return eps
    if eps < 700:
        value = math.log1p(q * math.expm1(eps))
    else:
        # ln(e^a + e^b), of which e^b may be no number
        a, b = math.log1p(-q), math.log(q) + eps
        value = max(a, b) + math.log1p(math.exp(-abs(a - b)))
    return min(eps, value * (1 + 1e-15))


def subsample_pure(
    eps: float, q: float, *, rounds: int = 1, delta: float = 0.0, method: str = "basic"
) -> PrivacyResult:
    """Return the guarantee of eps-DP rounds on secret random samples, over rounds.

    Args:
        eps: The epsilon of one round for those who are in it.
        q: The sampling rate.
        rounds: Rounds, each with a fresh sample.
        delta: 0 for the basic figure; above 0 for a sharper composition.
        method: "basic", "advanced", "rdp" or "exact".

    >>> print(subsample_pure(1.0, 0.18).epsilon)  # doctest: +ELLIPSIS
    0.2694...
    """
    one = subsampled_epsilon(eps, q)
    rounds = arguments.count("rounds", rounds)
    epsilon, used = composed([(PureEvent(one), rounds)], delta, method)
    return PrivacyResult(
        epsilon,
        0.0 if used == "basic" else float(delta),
        "anyone who sees the outputs of the rounds, but not who was sampled",
        "one member added or removed (Poisson sampling), or replaced (samples of a fixed size)",
        (
            f"each round draws a fresh sample at rate q = {q:.6g}, by a party who keeps it secret",
            f"a round is {eps:.6g}-DP for its sample under the same relation; the selector itself sees the unsampled"
            " reports",
            f"{rounds:,} rounds",
        ),
        f"ln(1 + q (e^eps - 1)) a round, {used} composition",
    )


def sampled_gaussian(
    noise_multiplier: float, q: float, steps: int, *, delta: float = 1e-5, method: str = "pld"
) -> PrivacyResult:
    """Return the guarantee of DP-SGD: Poisson-sampled, clipped gradients with Gaussian noise, over steps.

    Args:
        noise_multiplier: Standard deviation of the noise over the clipping norm.
        q: The Poisson sampling rate, batch size over examples.
        steps: Steps.
        delta: The probability that the bound excludes, above 0.
        method: "pld" (privacy loss distribution, pessimistic) or "rdp".

    >>> print(round(sampled_gaussian(5.0, 128 / 12000, 10000).epsilon, 2))
    0.79
    """
    arguments.choice("method", method, ("pld", "rdp"))
    delta = arguments.excluded(delta)
    event = SampledGaussianEvent(noise_multiplier, q)
    steps = arguments.count("steps", steps)
    epsilon, used = composed([(event, steps)], delta, "exact" if method == "pld" else "rdp")
    words = {"exact": "dp-accounting, PLD", "rdp": "dp-accounting, RDP", "everyone": "as if every step took everyone"}
    adversary, neighbouring = adversary_of(event)
    return PrivacyResult(
        epsilon,
        delta,
        adversary,
        neighbouring,
        (
            f"every example joins every batch independently with probability q = {q:.6g}; shuffled fixed batches are"
            " not this",
            f"each example's contribution is clipped, and the noise is {noise_multiplier:.6g} times the clipping norm",
            f"{steps:,} steps",
        ),
        words[used],
    )
