# SPDX-License-Identifier: Apache-2.0
"""Answers of which only a sum is seen: shares of noise, and noise that a trusted server adds."""

from __future__ import annotations

from dataclasses import replace

from ldpkernels.accounting import CENTRAL, SUMMED, PrivacyResult, Scope
from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.common.dtypes import FLOAT32
from ldpkernels.laws import clipped_noise
from ldpkernels.laws.central_gaussian import CentralGaussian
from ldpkernels.laws.distributed import DistributedGaussian, DistributedSkellam, Shares
from ldpkernels.planning import calibration
from ldpkernels.planning.answer import FOLLOWED, REAL, Answer, Unsuitable, in_rounds
from ldpkernels.planning.deployment import written
from ldpkernels.planning.setting import Setting
from ldpkernels.updates.following import LONGER

BITS, ENOUGH = (16, 32), 1.1  # of an integer in a secure sum
EXACT = "composition of the privacy loss, rounded up"


def shares(setting: Setting, name: str) -> Answer:
    """A share of the noise from each client, by the fewest bits that are nearly the best."""
    kind = DistributedGaussian if name == DistributedGaussian.name else DistributedSkellam
    law = _shares(kind, *_vector(setting, name), setting)
    update, mean = _followed(
        setting, name, law, "ldpkernels.updates.decode(total, law, round_key, clients=...)", "that"
    )
    guarantee = PrivacyResult(
        law.epsilon(setting.kept_delta, setting.rounds),
        setting.kept_delta,
        SUMMED,
        (
            "a protocol that shows nothing of what clients send but the sum modulo a power of two",
            FOLLOWED,
            f"at least {setting.sure:,} honest clients are in every sum",
            f"{setting.rounds:,} sums, and no other release",
        ),
        "Renyi composition",
    )
    return Answer(
        name,
        law.stddev * law.unit,
        f"ldpkernels.updates.encode({update}, {written(law)}, round_key)",
        f"secure aggregation adds the integers; {mean}",
        in_rounds(setting, guarantee),
        law.mean_error(setting.clients) * setting.weights / law.dimension,
        law.bytes,
        setting,
        law,
    )


def _vector(setting: Setting, name: str) -> tuple[int, float]:
    """How many numbers a client's vector has, and its norm: more of both where a number says what was clipped."""
    adaptive = name.startswith("adaptive ")
    return setting.weights + adaptive, setting.ball * (LONGER if adaptive else 1.0)


def _followed(setting: Setting, name: str, law: Shares | CentralGaussian, mean: str, result: str) -> tuple[str, str]:
    """What a client's vector is made of, and the mean of the vectors."""
    if not name.startswith("adaptive "):
        return "update", mean
    return f"ldpkernels.updates.widened(update, norm, {law.norm!r})", (
        f"{mean}; ldpkernels.updates.narrowed({result}, norm, {law.norm!r}) gives the mean and the next norm, of which"
        f" the first is {setting.ball!r}"
    )


def _shares(
    kind: type[DistributedGaussian] | type[DistributedSkellam], dimension: int, norm: float, setting: Setting
) -> DistributedGaussian | DistributedSkellam:
    """The fewest bits with which rounding is a small part of the error."""
    found: list[DistributedGaussian | DistributedSkellam] = []
    reason = ""
    for bits in BITS:
        try:
            one = kind.calibrated(
                setting.epsilon, setting.kept_delta, dimension=dimension, clients=setting.sure, norm=norm, bits=bits,
                rounds=setting.rounds, invited=setting.most,
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
    dimension, norm = _vector(setting, name)

    def law_of(sigma: float) -> CentralGaussian:
        return CentralGaussian(sigma, dimension, norm, setting.clients)

    sigma = None
    if setting.participation == 1:
        sigma = calibration.grid_sigma(law_of, 1.0, norm, setting.rounds, setting.delta, setting.epsilon)
    if sigma is None and dimension == setting.weights:
        return _in_real_numbers(setting, name)
    if sigma is None:
        raise Unsuitable("no grid has its noise, or no bound is proved for it on samples: give participation = 1")
    law = law_of(sigma)
    each, mean = _followed(setting, name, law, f"what the call gives: the sum over {law.clients:,}", "it")
    vectors = "updates" if each == "update" else f"({each} for update in updates)"
    noised = f"noise of deviation {law.sigma:.6g} in each of {setting.rounds:,} sums of integers"
    return Answer(
        name,
        law.sigma,
        f"(law := {written(law)}).released(sum(map(law.integers, {vectors})))",
        mean,
        _noised_sums(setting, law.scope, law.epsilon(setting.delta, setting.rounds), EXACT, noised),
        law.mean_error(setting.clients) * setting.weights / law.dimension,
        law.bytes,
        setting,
        law,
    )


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
