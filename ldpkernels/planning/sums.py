# SPDX-License-Identifier: Apache-2.0
"""Answers of which only a sum is seen: shares of noise, and noise that a trusted server adds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ldpkernels.accounting import CENTRAL, SUMMED, GaussianEvent, PrivacyResult, SampledGaussianEvent
from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.accounting.events import Event
from ldpkernels.dtypes import FLOAT32
from ldpkernels.laws import clipped_noise
from ldpkernels.laws.adaptive_clipping import AdaptiveClipping
from ldpkernels.laws.distributed import DistributedGaussian, DistributedSkellam
from ldpkernels.planning import calibration
from ldpkernels.planning.answer import REAL, Answer, Unsuitable, seen
from ldpkernels.planning.setting import Setting

BITS, ENOUGH = (16, 24, 32), 1.1  # of what is sent for a number, under secure aggregation


def shares(setting: Setting, name: str) -> Answer:
    """A share of the noise from each client, by the fewest bits that are nearly the best.

    An adaptive one has a norm that follows the clients' median, by one more integer in the sum.
    """
    kind = DistributedGaussian if name == DistributedGaussian.name else DistributedSkellam
    clipping = None
    if name.startswith("adaptive"):
        found = calibration.renyi_sigma(1.0, setting.rounds, setting.delta, setting.epsilon)
        clipping = _clipping(setting, _enough(found))
    law = _shares(kind, setting, clipping)
    noised: tuple[str, ...] = ()
    norm, beside = repr(setting.ball), ""
    mean = "secure aggregation adds the integers; ldpkernels.updates.decode(total, law, round_key, clients=...)"
    if clipping is not None:
        noised = (
            f"noise of deviation {math.sqrt(clipping.event.variance):.6g} on each sum of bits, which are 1 or -1",
            "all clip to the norm that was published",
        )
        # its law is the same for every norm, in units of the grid
        norm, beside = "norm", f", clipping={_written(clipping)}"
        mean += (
            f", and an integer modulo 2^32: from norm={setting.ball!r} on, the next is clipping.next_norm(norm,"
            " total, clients=...), of each client's clipping.share(length, norm)"
        )
    guarantee = PrivacyResult(
        law.epsilon(setting.delta, setting.rounds, clipping),
        setting.delta,
        SUMMED.adversary,
        SUMMED.neighbouring,
        (
            "a protocol that shows nothing of what clients send but the sum modulo a power of two",
            f"at least {setting.clients:,} honest clients are in every sum",
            f"{setting.rounds:,} sums, and no other release",
            *noised,
            *seen(setting),
        ),
        "Renyi composition",
    )
    calibrated = f"{kind.__name__}.calibrated({setting.epsilon!r}, {setting.delta!r}"
    options = "".join(
        f", {option}={value}" for option, value in {**_size(setting), "norm": norm, "bits": law.bits}.items()
    )
    return Answer(
        name,
        law.stddev * law.unit,
        f"ldpkernels.updates.encode(update, ldpkernels.{calibrated}{options}{beside}), round_key)",
        mean,
        guarantee,
        law.mean_error(setting.clients),
        law.bytes + (4 if clipping else 0),
        setting,
    )


def _shares(
    kind: type[DistributedGaussian] | type[DistributedSkellam], setting: Setting, clipping: AdaptiveClipping | None
) -> DistributedGaussian | DistributedSkellam:
    """The fewest bits with which rounding is a small part of the error."""
    found: list[DistributedGaussian | DistributedSkellam] = []
    reason = ""
    for bits in BITS:
        if len(found) == 2:  # more bits would not be better than the second
            break
        size = _size(setting)
        try:
            found.append(
                kind.calibrated(setting.epsilon, setting.delta, norm=setting.ball, bits=bits, clipping=clipping, **size)
            )
        except ValueError as refusal:
            reason = str(refusal)
    if not found:
        raise Unsuitable(reason)
    least = min(one.mean_error(setting.clients) for one in found)
    return next(one for one in found if one.mean_error(setting.clients) <= ENOUGH * least)


def _size(setting: Setting) -> dict[str, int]:
    return {"dimension": setting.weights, "clients": setting.clients, "rounds": setting.rounds}


def central(setting: Setting, name: str) -> Answer:
    """Noise on the sum, by a server that is trusted."""
    rate, discrete = setting.participation, name == "central discrete"
    sigma = _multiplier(setting, discrete=discrete)
    event = GaussianEvent(sigma, scope=CENTRAL) if rate == 1 else SampledGaussianEvent(sigma, rate, scope=CENTRAL)
    drawn = f"each client is in each round with probability {rate:.6g}, drawn in secret"
    noised = f"noise of {sigma:.6g} times the norm {setting.ball:.6g} in each of {setting.rounds:,} sums"
    return Answer(
        name,
        sigma,
        f"ldpkernels.clipped_noised_sum(updates, C={setting.ball!r}, sigma={sigma!r}"
        + (", noise='discrete')" if discrete else ")"),
        f"the sum over {setting.clients:,}",
        _noised_sums(
            setting,
            [event],
            *((drawn,) if rate < 1 else ()),
            *(() if discrete else (REAL,)),
            noised,
            discrete=discrete,
        ),
        setting.weights * (sigma * setting.ball / setting.clients) ** 2,
        4 * setting.weights,
        setting,
    )


def adaptive(setting: Setting, name: str) -> Answer:
    """Discrete noise with a norm that follows the clients' median, for one more bit a client."""
    law = _clipping(setting, _multiplier(setting, discrete=True))
    z, sigma = law.noise_multiplier, law.update_multiplier
    return Answer(
        name,
        z,
        f"ldpkernels.clipped_noised_sum(updates, C=norm, sigma={_written(law)}.update_multiplier, noise='discrete')",
        f"the sum over {setting.clients:,}; from norm={setting.ball!r} on the next is law.next_norm(norm,"
        f" law.noised(bits), clients={setting.clients}), of each client's law.bit(length, norm)",
        _noised_sums(
            setting,
            [GaussianEvent(sigma, scope=CENTRAL), law.noised_event],
            f"noise of {sigma:.6g} times the norm of the round in each of {setting.rounds:,} sums",
            f"noise of deviation {law.bit_multiplier:.6g} on each sum of bits, which are 1 or -1",
            discrete=True,
        ),
        setting.weights * (sigma * setting.ball / setting.clients) ** 2,
        4 * setting.weights + 1,
        setting,
    )


def _clipping(setting: Setting, z: float) -> AdaptiveClipping:
    """Bits and updates that together are worth a multiplier of z."""
    try:
        return AdaptiveClipping(z, setting.clients)
    except ValueError as refusal:
        raise Unsuitable(str(refusal)) from refusal


def _written(law: AdaptiveClipping) -> str:
    return f"ldpkernels.AdaptiveClipping({law.noise_multiplier!r}, {law.clients})"


def _multiplier(setting: Setting, *, discrete: bool) -> float:
    """The multiplier of the noise over the norm, in every sum."""
    rate = setting.participation
    if discrete and rate < 1:
        raise Unsuitable("nothing is proved here of discrete noise on samples: give participation = 1")
    calibrate = calibration.renyi_sigma if discrete else calibration.gaussian_sigma
    sigma = _enough(calibrate(rate, setting.rounds, setting.delta, setting.epsilon))
    noise = "discrete" if discrete else "gaussian"
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


def _noised_sums(setting: Setting, round_: Sequence[Event], *assumptions: str, discrete: bool) -> PrivacyResult:
    """The total of all rounds, of which each has these events."""
    total = composed_epsilon(
        [(event, setting.rounds) for event in round_], setting.delta, "rdp" if discrete else "exact"
    )
    if math.isinf(total):
        raise Unsuitable("e^epsilon times the distance of its noise from its law passes delta")
    return PrivacyResult(
        total,
        setting.delta,
        CENTRAL.adversary,
        CENTRAL.neighbouring,
        ("the server that adds the noise sees every update, and is trusted", *assumptions),
        "Renyi composition" if discrete else "composition of the privacy loss, rounded up",
    )
