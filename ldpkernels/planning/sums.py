# SPDX-License-Identifier: Apache-2.0
"""Answers of which only a sum is seen: shares of noise, and noise that a trusted server adds."""

from __future__ import annotations

import math
from dataclasses import replace

from ldpkernels.accounting import CENTRAL, SUMMED, GaussianEvent, PrivacyResult, Scope
from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.common.dtypes import FLOAT32
from ldpkernels.laws import clipped_noise
from ldpkernels.laws.adaptive_clipping import AdaptiveClipping
from ldpkernels.laws.central_gaussian import CentralGaussian
from ldpkernels.laws.distributed import DistributedGaussian, DistributedSkellam
from ldpkernels.planning import calibration
from ldpkernels.planning.answer import FOLLOWED, REAL, Answer, Unsuitable, in_rounds
from ldpkernels.planning.deployment import written
from ldpkernels.planning.setting import Setting

BITS, ENOUGH = (16, 32), 1.1  # of an integer in a secure sum
EXACT = "composition of the privacy loss, rounded up"


def shares(setting: Setting, name: str) -> Answer:
    """A share of the noise from each client, by the fewest bits that are nearly the best.

    An adaptive one has a norm that follows the clients' median, by one more integer in the sum.
    """
    kind = DistributedGaussian if name == DistributedGaussian.name else DistributedSkellam
    clipping = None
    if name.startswith("adaptive"):
        found = calibration.renyi_sigma(1.0, setting.rounds, setting.kept_delta, setting.epsilon)
        clipping = _clipping(_enough(found), setting.sure)
    law = _shares(kind, setting, clipping)
    noised: tuple[str, ...] = ()
    code = written(law)
    mean = "secure aggregation adds the integers; ldpkernels.updates.decode(total, law, round_key, clients=...)"
    if clipping is not None:
        noised = (
            f"noise of deviation {math.sqrt(clipping.event.variance):.6g} on each sum of bits, which are 1 or -1",
            "all clip to the norm that was published",
        )
        code = written(law, norm="norm")  # it is the same for every norm, in units of the grid
        mean += (
            f", and an integer modulo 2^32: from norm={setting.ball!r} on, the next is clipping.next_norm(norm,"
            f" total, clients=...) with clipping={written(clipping)}, of each client's clipping.share(length, norm)"
        )
    guarantee = PrivacyResult(
        law.epsilon(setting.kept_delta, setting.rounds, clipping),
        setting.kept_delta,
        SUMMED,
        (
            "a protocol that shows nothing of what clients send but the sum modulo a power of two",
            FOLLOWED,
            f"at least {setting.sure:,} honest clients are in every sum",
            f"{setting.rounds:,} sums, and no other release",
            *noised,
        ),
        "Renyi composition",
    )
    return Answer(
        name,
        law.stddev * law.unit,
        f"ldpkernels.updates.encode(update, {code}, round_key)",
        mean,
        in_rounds(setting, guarantee),
        law.mean_error(setting.clients),
        law.bytes + (4 if clipping else 0),
        setting,
        None if clipping else law,
    )


def _shares(
    kind: type[DistributedGaussian] | type[DistributedSkellam], setting: Setting, clipping: AdaptiveClipping | None
) -> DistributedGaussian | DistributedSkellam:
    """The fewest bits with which rounding is a small part of the error."""
    found: list[DistributedGaussian | DistributedSkellam] = []
    reason = ""
    for bits in BITS:
        try:
            one = kind.calibrated(
                setting.epsilon, setting.kept_delta, dimension=setting.weights, clients=setting.sure, norm=setting.ball,
                bits=bits, rounds=setting.rounds, invited=setting.most, clipping=clipping,
            )  # fmt: skip
            found.append(one)
        except ValueError as refusal:
            reason = str(refusal)
    if not found:
        raise Unsuitable(reason)
    least = min(one.mean_error(setting.clients) for one in found)
    return next(one for one in found if one.mean_error(setting.clients) <= ENOUGH * least)


def central(setting: Setting, name: str) -> Answer:
    """Noise on the sum, by a server that is trusted: in integers, where all take part and a grid has the noise."""
    law = _in_integers(setting) if setting.participation == 1 else None
    if law is None:
        return _in_real_numbers(setting, name)
    noised = f"noise of deviation {law.sigma:.6g} in each of {setting.rounds:,} sums of integers"
    return Answer(
        name,
        law.sigma,
        f"(law := {written(law)}).released(sum(map(law.integers, updates)))",
        f"what the call gives: the sum over {law.clients:,}",
        _noised_sums(setting, law.scope, law.epsilon(setting.delta, setting.rounds), EXACT, noised),
        law.mean_error(setting.clients),
        law.bytes,
        setting,
        law,
    )


def _in_integers(setting: Setting) -> CentralGaussian | None:
    def law_of(sigma: float) -> CentralGaussian:
        return CentralGaussian(sigma, setting.weights, setting.ball, setting.clients)

    sigma = calibration.grid_sigma(law_of, 1.0, setting.ball, setting.rounds, setting.delta, setting.epsilon)
    return None if sigma is None else law_of(sigma)


def _in_real_numbers(setting: Setting, name: str) -> Answer:
    rate = setting.participation
    found = calibration.gaussian_sigma(rate, setting.rounds, setting.delta, setting.epsilon)
    sigma = _runs(setting, _enough(found), "gaussian")
    event = replace(calibration.summed(rate, sigma), scope=CENTRAL)
    total = composed_epsilon([(event, setting.rounds)], setting.delta)
    drawn = f"each client is in each round with probability {rate:.6g}, drawn in secret"
    noised = f"noise of {sigma:.6g} times the norm {setting.ball:.6g} in each of {setting.rounds:,} sums"
    return Answer(
        name,
        sigma,
        f"ldpkernels.clipped_noised_sum(updates, C={setting.ball!r}, sigma={sigma!r})",
        f"the sum over {setting.clients:,}",
        _noised_sums(setting, CENTRAL, total, EXACT, *((drawn,) if rate < 1 else ()), REAL, noised),
        _error(setting, sigma),
        4 * setting.weights,
        setting,
    )


def adaptive(setting: Setting, name: str) -> Answer:
    """Discrete noise with a norm that follows the clients' median, for one more bit a client."""
    if setting.participation < 1:
        raise Unsuitable("nothing is proved here of discrete noise on samples: give participation = 1")

    def total(z: float) -> float:
        """Of updates and bits, with the ends of the bits' table."""
        try:
            law = AdaptiveClipping(z, setting.clients)
        except ValueError:  # no table has such bits
            return math.inf
        round_ = (GaussianEvent(law.update_multiplier, scope=CENTRAL), law.noised_event)
        return composed_epsilon([(event, setting.rounds) for event in round_], setting.delta, "rdp")

    near = _enough(calibration.renyi_sigma(1.0, setting.rounds, setting.delta, setting.epsilon))
    _clipping(near, setting.clients)  # it refuses what no number of bits is worth
    z = calibration.strongest(total, setting.epsilon, calibration.MOST_SIGMA, calibration.LEAST_SIGMA, near)
    law = _clipping(_enough(z), setting.clients)
    sigma = _runs(setting, law.update_multiplier, "discrete")
    return Answer(
        name,
        law.noise_multiplier,
        f"ldpkernels.clipped_noised_sum(updates, C=norm, sigma={written(law)}.update_multiplier, noise='discrete')",
        f"the sum over {setting.clients:,}; from norm={setting.ball!r} on the next is law.next_norm(norm,"
        f" law.noised(bits), clients={setting.clients}), of each client's law.bit(length, norm)",
        _noised_sums(
            setting,
            CENTRAL,
            total(law.noise_multiplier),
            "Renyi composition",
            f"noise of {sigma:.6g} times the norm of the round in each of {setting.rounds:,} sums",
            f"noise of deviation {law.bit_multiplier:.6g} on each sum of bits, which are 1 or -1",
        ),
        _error(setting, sigma),
        4 * setting.weights + 1,
        setting,
    )


def _clipping(z: float, clients: int) -> AdaptiveClipping:
    """Bits and updates that together are worth a multiplier of z."""
    try:
        return AdaptiveClipping(z, clients)
    except ValueError as refusal:
        raise Unsuitable(str(refusal)) from refusal


def _runs(setting: Setting, sigma: float, noise: str) -> float:
    """This multiplier, with which `clipped_noised_sum` runs."""
    try:
        clipped_noise.check([setting.ball], sigma, noise, "flat", [FLOAT32])
        clipped_noise.noise_of([setting.ball], sigma, noise, setting.clients)
    except ValueError as refusal:
        raise Unsuitable(str(refusal)) from refusal
    return sigma


def _enough(sigma: float | None) -> float:
    if sigma is None:
        raise Unsuitable(f"needs more noise than {calibration.MOST_SIGMA:g} times the norm")
    return sigma


def _error(setting: Setting, sigma: float) -> float:
    return setting.weights * (sigma * setting.ball / setting.clients) ** 2


def _noised_sums(setting: Setting, scope: Scope, total: float, method: str, *assumptions: str) -> PrivacyResult:
    """The total of all rounds."""
    return PrivacyResult(
        total,
        setting.delta,
        scope,
        ("the server that adds the noise sees every update, and is trusted", *assumptions),
        method,
    )
