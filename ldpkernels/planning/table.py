# SPDX-License-Identifier: Apache-2.0
"""What a plan chooses from: an entry for each mechanism and the trusts under which it can run.

An entry turns a setting into a candidate, or raises `Unsuitable` with the reason. It finds its parameter
(calibration.py), asks the accountant for the total of what the call executes, and states the largest expected error of
the mean in closed form.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from ldpkernels.accounting import GaussianEvent, PrivacyResult, PureEvent, SampledGaussianEvent, local_epsilon
from ldpkernels.accounting.composition import composed_epsilon
from ldpkernels.accounting.events import Mechanism, event_of
from ldpkernels.accounting.shuffle import shuffle_epsilon
from ldpkernels.accounting.views import adversary_of
from ldpkernels.laws import clipped_noise
from ldpkernels.laws.distributed import DistributedGaussian, DistributedSkellam
from ldpkernels.laws.k_of_d import KOfD
from ldpkernels.laws.privunitg import PrivUnitG
from ldpkernels.laws.registry import MECHANISMS, mechanism_named
from ldpkernels.laws.vector_gaussian import VectorGaussian
from ldpkernels.laws.vector_law import VectorLaw
from ldpkernels.planning import calibration
from ldpkernels.planning.candidate import Candidate
from ldpkernels.planning.setting import Setting, Trust

MIXED: tuple[Trust, ...] = ("local", "shuffled")
COUNTED: tuple[Trust, ...] = (*MIXED, "secure-aggregation")  # what is counted can be added by a protocol of sums
BIASED = 1e-3  # of the range: more than rounding
LEAST_NOISE, MOST_NOISE = 2.0**-8, 2.0**21  # of a whole update, in units of its norm: grids have them
BITS, ENOUGH = (16, 24, 32), 1.1  # of what is sent for a number, under secure aggregation
REAL = "real arithmetic: for its floating-point numbers nothing is proved"


class Unsuitable(Exception):
    """Why a mechanism is no candidate for a setting."""


@dataclass(frozen=True)
class Entry:
    """A mechanism, the trusts under which it can run, and how it answers."""

    name: str
    trusts: tuple[Trust, ...]
    candidate: Callable[[Setting], Candidate]


def _weightwise(name: str) -> Callable[[Setting], Candidate]:
    def candidate(setting: Setting) -> Candidate:
        positions = setting.weights
        eps = _report_eps(setting, positions, two_outcomes=MECHANISMS[name].reported == "bits")
        variances = MECHANISMS[name].report_variances(eps)
        if abs(mechanism_named(name, 1.0).bias(0.25, 0.0, 1.0)) > BIASED:
            raise Unsuitable("biased: the mean of its reports is not the mean of the weights")
        if variances is None:
            raise Unsuitable(f"its cells are too few for eps = {eps:g} a report")
        mechanism = mechanism_named(name, eps)
        if mechanism.name != name:
            raise Unsuitable(f"at eps = {eps:g} a report it is the {mechanism.name} mechanism")
        worst, center = variances
        # of a coordinate, nearly linear in its square between the center and an end
        variance = center + max(0.0, worst - center) * setting.spread
        size = setting.weights if mechanism.reported == "cells" else -(-setting.weights // 8)
        if setting.trust == "secure-aggregation":
            size = -(-setting.weights * setting.clients.bit_length() // 8)  # an integer modulo a power of two
        named = "" if name == "two-point" else f", mechanism={name!r}"
        return Candidate(
            name,
            eps,
            f"ldpkernels.report(update, C=0.0, R={setting.box!r}, eps={eps!r}{named})",
            "secure aggregation adds the reports' bits, position by position"
            if setting.trust == "secure-aggregation"
            else "ldpkernels.aggregate(reports)",
            _guarantee(setting, mechanism, positions),
            setting.weights * setting.box**2 * variance / setting.clients,
            size,
            setting,
        )

    return candidate


def _k_of_d(setting: Setting) -> Candidate:
    eps = _report_eps(setting, 1, two_outcomes=False)
    law = KOfD(eps, setting.weights, setting.ball, setting.box)
    call = f"{eps!r}, mechanism='k-of-d', norm={setting.ball!r}, bound={setting.box!r}"
    found = _of_vectors(setting, "k-of-d", eps, call, law)
    # of each number that isn't 0: 4 bytes, and as many bits as its place takes
    size = -(-law.k * (32 + (setting.weights - 1).bit_length()) // 8)
    return dataclasses.replace(found, bytes=size, mean=f"their mean: all but {law.k:,} of the numbers are 0")


def _privunitg(setting: Setting) -> Candidate:
    eps = _report_eps(setting, 1, two_outcomes=False)
    law = PrivUnitG(eps, setting.weights, setting.ball)
    return _assuming(_of_vectors(setting, "privunitg", eps, f"{eps!r}, norm={setting.ball!r}", law), REAL)


def _gaussian(setting: Setting) -> Candidate:
    if setting.delta == 0:
        raise Unsuitable("it needs a delta above 0")
    norm = setting.ball

    def law(sigma: float) -> VectorGaussian:
        return VectorGaussian(sigma, setting.weights, norm)

    def total(sigma: float) -> float:
        """Of all rounds: the event's, and the distance of the noise's table from its law, in a part of delta."""
        try:
            one = law(sigma)
        except ValueError:  # no grid has it
            return math.inf
        spent = 1e-6 * setting.delta
        epsilon = composed_epsilon([(one.event, setting.rounds)], setting.delta - spent)
        distance = setting.rounds * setting.weights * (one.table.distance + 2.0**-90)
        return epsilon if (1 + math.exp(min(epsilon, 700.0))) * distance <= spent else math.inf

    near = calibration.gaussian_sigma(1.0, setting.rounds, setting.delta, setting.epsilon)
    sigma = near and calibration.strongest(
        total, setting.epsilon, MOST_NOISE * norm, LEAST_NOISE * norm, 2 * near * norm
    )
    if not sigma:
        raise Unsuitable("its noise would be too large beside the norm, or its table not near enough to its law")
    arguments = f"mechanism='gaussian', norm={norm!r}, sigma={sigma!r}"
    found = _of_vectors(setting, "gaussian", sigma, arguments, law(sigma))
    return dataclasses.replace(found, guarantee=dataclasses.replace(found.guarantee, epsilon=total(sigma)))


def _of_vectors(setting: Setting, name: str, parameter: float, arguments: str, law: VectorLaw) -> Candidate:
    """By a law of whole updates, of which each client sends one report in a round."""
    return Candidate(
        name,
        parameter,
        f"ldpkernels.perturb_vector(update, {arguments})",
        "their mean",
        _guarantee(setting, law, 1),
        law.mean_error(setting.clients),
        law.bytes,
        setting,
    )


def _shares(kind: type[DistributedGaussian] | type[DistributedSkellam]) -> Callable[[Setting], Candidate]:
    def candidate(setting: Setting) -> Candidate:
        size = {"dimension": setting.weights, "clients": setting.clients, "rounds": setting.rounds}
        found: list[DistributedGaussian | DistributedSkellam] = []
        reason = ""
        for bits in BITS:
            if len(found) == 2:  # more bits would not be better than the second
                break
            try:
                found.append(kind.calibrated(setting.epsilon, setting.delta, norm=setting.ball, bits=bits, **size))
            except ValueError as refusal:
                reason = str(refusal)
        if not found:
            raise Unsuitable(reason)
        # the fewest bits with which rounding is a small part of the error
        least = min(one.mean_error(setting.clients) for one in found)
        law = next(one for one in found if one.mean_error(setting.clients) <= ENOUGH * least)
        adversary, neighbours = adversary_of(law.event)
        guarantee = PrivacyResult(
            law.epsilon(setting.delta, setting.rounds),
            setting.delta,
            adversary,
            neighbours,
            (
                "a protocol that shows nothing of what clients send but the sum modulo a power of two",
                f"at least {setting.clients:,} honest clients are in every sum",
                f"{setting.rounds:,} sums, and no other release",
                *_seen(setting),
            ),
            "Renyi composition",
        )
        calibrated = f"{kind.__name__}.calibrated({setting.epsilon!r}, {setting.delta!r}"
        options = "".join(
            f", {name}={value}" for name, value in {**size, "norm": setting.ball, "bits": law.bits}.items()
        )
        return Candidate(
            kind.name,
            law.stddev * law.unit,
            f"ldpkernels.updates.encode(update, ldpkernels.{calibrated}{options}), round_key)",
            "secure aggregation adds the integers; ldpkernels.updates.decode(total, law, round_key, clients=...)",
            guarantee,
            law.mean_error(setting.clients),
            law.bytes,
            setting,
        )

    return candidate


def _central(noise: str) -> Callable[[Setting], Candidate]:
    def candidate(setting: Setting) -> Candidate:
        rate, discrete = setting.participation, noise == "discrete"
        if discrete and rate < 1:
            raise Unsuitable("nothing is proved here of discrete noise on samples: give participation = 1")
        calibrate = calibration.renyi_sigma if discrete else calibration.gaussian_sigma
        sigma = calibrate(rate, setting.rounds, setting.delta, setting.epsilon)
        if sigma is None:
            raise Unsuitable(f"needs more noise than {calibration.MOST_SIGMA:g} times the norm")
        try:
            clipped_noise.check([setting.ball], sigma, noise, "flat", 1)
            clipped_noise.noise_of([setting.ball], sigma, noise, setting.clients)
        except ValueError as refusal:
            raise Unsuitable(str(refusal)) from refusal
        event = GaussianEvent(sigma) if rate == 1 else SampledGaussianEvent(sigma, rate)
        method = "rdp" if discrete else "exact"
        total = composed_epsilon([(event, setting.rounds)], setting.delta, method)
        guarantee = PrivacyResult(
            total,
            setting.delta,
            "anyone who sees the noisy sums" + (", but not who was in them" if rate < 1 else ""),
            "the clients of the run, one added or removed",
            (
                "the server that adds the noise sees every update, and is trusted",
                *((f"each client is in each round with probability {rate:.6g}, drawn in secret",) if rate < 1 else ()),
                *(() if discrete else (REAL,)),
                f"noise of {sigma:.6g} times the norm {setting.ball:.6g} in each of {setting.rounds:,} sums",
            ),
            "Renyi composition" if discrete else "composition of the privacy loss, rounded up",
        )
        return Candidate(
            f"central {noise}",
            sigma,
            f"ldpkernels.clipped_noised_sum(updates, C={setting.ball!r}, sigma={sigma!r}"
            + (", noise='discrete')" if discrete else ")"),
            f"the sum over {setting.clients:,}",
            guarantee,
            setting.weights * (sigma * setting.ball / setting.clients) ** 2,
            4 * setting.weights,
            setting,
        )

    return candidate


def _report_eps(setting: Setting, positions: int, *, two_outcomes: bool) -> float:
    """The largest eps of a report, for so many of them in every round."""
    reports = positions * setting.rounds
    # whoever sees the reports mixed or added sees no more than who sees them one by one
    found = calibration.local_eps(reports, setting.delta, setting.epsilon)
    if setting.trust != "local":
        method = "exact" if two_outcomes else "stronger_clones"
        mixed = calibration.shuffled_eps(setting.clients, reports, setting.delta, setting.epsilon, method)
        found = max(found or 0.0, mixed or 0.0)
    if not found:
        raise Unsuitable(f"needs an eps below {calibration.LEAST_EPS:g} a report, which no threshold of 32 bits has")
    return found


def _guarantee(setting: Setting, mechanism: Mechanism, positions: int) -> PrivacyResult:
    """The total of what is executed, in the view that the trust leaves."""
    result = local_epsilon(mechanism, d=positions, rounds=setting.rounds, delta=setting.delta)
    if setting.trust != "local" and isinstance(event_of(mechanism), PureEvent):
        mixed = shuffle_epsilon(mechanism, setting.clients, d=positions, rounds=setting.rounds, delta=setting.delta)
        if mixed.epsilon < result.epsilon:
            result = mixed
            if setting.trust == "secure-aggregation":
                result = dataclasses.replace(mixed, adversary=SUMS_ADVERSARY, assumptions=_of_sums(setting, mixed))
            elif positions == 1:
                reports = f"{setting.rounds:,} reports of each client in all"
                kept = (WHOLE, mixed.assumptions[1], reports, mixed.assumptions[3])
                result = dataclasses.replace(mixed, assumptions=kept)
    return dataclasses.replace(result, assumptions=(*result.assumptions, *_seen(setting)))


def _seen(setting: Setting) -> tuple[str, ...]:
    if setting.participation == 1:
        return ()
    return ("who takes part is seen: the total is that of a client who takes part in every round",)


SUMS_ADVERSARY = "anyone who sees the sums, the server included, and knows the inputs of all the other clients"
WHOLE = "an ideal shuffler of whole reports, which can't be told apart nor linked from round to round"


def _of_sums(setting: Setting, mixed: PrivacyResult) -> tuple[str, ...]:
    sums = "a protocol that shows nothing of the reports but, at each position, how many ones there are"
    return (
        sums,
        *mixed.assumptions[1:3],
        f"the reports of at least {setting.clients:,} honest clients are in every sum",
    )


def _assuming(candidate: Candidate, assumption: str) -> Candidate:
    guarantee = candidate.guarantee
    more = dataclasses.replace(guarantee, assumptions=(*guarantee.assumptions, assumption))
    return dataclasses.replace(candidate, guarantee=more)


ENTRIES: tuple[Entry, ...] = (
    *(
        Entry(name, COUNTED if kind.reported == "bits" else MIXED, _weightwise(name))
        for name, kind in MECHANISMS.items()
    ),
    Entry("k-of-d", MIXED, _k_of_d),
    Entry("privunitg", MIXED, _privunitg),
    Entry("gaussian", MIXED, _gaussian),
    Entry("distributed-gaussian", ("secure-aggregation",), _shares(DistributedGaussian)),
    Entry("skellam", ("secure-aggregation",), _shares(DistributedSkellam)),
    Entry("central gaussian", ("central",), _central("gaussian")),
    Entry("central discrete", ("central",), _central("discrete")),
)
