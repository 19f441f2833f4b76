# SPDX-License-Identifier: Apache-2.0
"""Answers of which each client sends a report of its own, whoever sees it."""

from __future__ import annotations

import dataclasses

from ldpkernels.laws.k_of_d import KOfD
from ldpkernels.laws.privunitg import PrivUnitG
from ldpkernels.laws.projected_code import ProjectedCode
from ldpkernels.laws.registry import MECHANISMS, mechanism_named
from ldpkernels.laws.vector_gaussian import VectorGaussian
from ldpkernels.laws.vector_law import VectorLaw
from ldpkernels.planning import calibration
from ldpkernels.planning.answer import REAL, Answer, Unsuitable, assuming, guarantee_of, report_eps
from ldpkernels.planning.setting import Setting

BIASED = 1e-3  # of the range: more than rounding
CODES = (5, 8, 10, 11, 12, 13)  # bits of a code: which are best depends on eps and on the weights
SEED = 8  # bytes
PUBLIC_KEY = "a public key for each client and round, new and chosen without looking at the update"
SENT_SEED = "a code goes with its seed, 64 bits drawn anew for every report, without looking at the update"


def weightwise(setting: Setting, name: str) -> Answer:
    """A report of every weight."""
    positions = setting.weights
    two_outcomes = MECHANISMS[name].reported == "bits"
    eps = report_eps(setting, positions, lambda eps: mechanism_named(name, eps), two_outcomes=two_outcomes)
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
        size = -(-setting.weights * setting.most.bit_length() // 8)  # an integer modulo a power of two
    named = "" if name == "two-point" else f", mechanism={name!r}"
    return Answer(
        name,
        eps,
        f"ldpkernels.report(update, C=0.0, R={setting.box!r}, eps={eps!r}{named})",
        "secure aggregation adds the reports' bits, position by position"
        if setting.trust == "secure-aggregation"
        else "ldpkernels.aggregate(reports)",
        guarantee_of(setting, mechanism, positions),
        setting.weights * setting.box**2 * variance / setting.clients,
        size,
        setting,
        mechanism,
    )


def k_of_d(setting: Setting, name: str) -> Answer:
    """A report of some of the coordinates."""

    def law_of(eps: float) -> KOfD:
        return KOfD(eps, setting.weights, setting.ball, setting.box)

    eps = report_eps(setting, 1, law_of, two_outcomes=False)
    law = law_of(eps)
    call = f"{eps!r}, mechanism='k-of-d', norm={setting.ball!r}, bound={setting.box!r}"
    found = _of_vectors(setting, name, eps, call, law)
    # of each number that isn't 0: 4 bytes, and as many bits as its place takes
    size = -(-law.k * (32 + (setting.weights - 1).bit_length()) // 8)
    return dataclasses.replace(found, bytes=size, mean=f"their mean: all but {law.k:,} of the numbers are 0")


def privunitg(setting: Setting, name: str) -> Answer:
    """A report of the whole update, with the least error of all."""
    eps = report_eps(setting, 1, lambda eps: PrivUnitG(eps, setting.weights, setting.ball), two_outcomes=False)
    law = PrivUnitG(eps, setting.weights, setting.ball)
    return assuming(_of_vectors(setting, name, eps, f"{eps!r}, norm={setting.ball!r}", law), REAL)


def projected_code(setting: Setting, name: str) -> Answer:
    """A code of the whole update, in the bits of least error."""

    def law_of(eps: float) -> ProjectedCode:
        try:
            laws = [ProjectedCode(eps, setting.weights, setting.ball, bits) for bits in CODES]
        except ValueError as refusal:
            raise Unsuitable(str(refusal)) from refusal
        return min(laws, key=lambda law: law.worst_error)

    eps = report_eps(setting, 1, law_of, two_outcomes=False)
    law = law_of(eps)
    mixed = setting.trust == "shuffled"
    key = "ldpkernels.key(seed)" if mixed else "round_key.fold_in(client)"
    found = Answer(
        name,
        eps,
        f"ldpkernels.updates.report_code(update, ldpkernels.ProjectedCode({eps!r}, {setting.weights},"
        f" norm={setting.ball!r}, bits={law.bits}), {key})",
        "ldpkernels.updates.mean_of_codes(codes, law, keys), with the key of each code",
        guarantee_of(setting, law, 1),
        law.mean_error(setting.clients),
        law.bytes + (SEED if mixed else 0),
        setting,
        law,
    )
    return assuming(found, SENT_SEED if mixed else PUBLIC_KEY)


def gaussian(setting: Setting, name: str) -> Answer:
    """Noise on the whole update; its total grows with the root of the rounds."""
    if setting.delta == 0:
        raise Unsuitable("it needs a delta above 0")
    norm = setting.ball

    def law_of(sigma: float) -> VectorGaussian:
        return VectorGaussian(sigma, setting.weights, norm)

    sigma = calibration.grid_sigma(law_of, 2.0, norm, setting.rounds, setting.kept_delta, setting.epsilon)
    if not sigma:
        raise Unsuitable("its noise would be too large for the norm, or its table too far from its law")
    law = law_of(sigma)
    return _of_vectors(setting, name, sigma, f"mechanism='gaussian', norm={norm!r}, sigma={sigma!r}", law)


def _of_vectors(setting: Setting, name: str, parameter: float, arguments: str, law: VectorLaw) -> Answer:
    """The answer of a law of whole updates, of which each client sends one report in a round."""
    return Answer(
        name,
        parameter,
        f"ldpkernels.perturb_vector(update, {arguments})",
        "their mean",
        guarantee_of(setting, law, 1),
        law.mean_error(setting.clients),
        law.bytes,
        setting,
        law,
    )
