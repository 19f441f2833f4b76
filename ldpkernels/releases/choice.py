# SPDX-License-Identifier: Apache-2.0
"""From a law, or an eps and a mechanism's name, to what a client releases: the one place that tells laws apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ldpkernels.laws.central_gaussian import CentralGaussian
from ldpkernels.laws.distributed import Shares
from ldpkernels.laws.hybrid import Hybrid
from ldpkernels.laws.k_of_d import KOfD
from ldpkernels.laws.piecewise import Piecewise
from ldpkernels.laws.privunitg import PrivUnitG
from ldpkernels.laws.projected_code import ProjectedCode
from ldpkernels.laws.registry import KINDS, MECHANISMS, MechanismName, mechanism_named
from ldpkernels.laws.two_point import TwoPoint
from ldpkernels.laws.vector_gaussian import VectorGaussian
from ldpkernels.releases.codes import Codes
from ldpkernels.releases.release import EachWeight, Release, Reported
from ldpkernels.releases.summed import SharesOfNoise, SummedReports
from ldpkernels.releases.vectors import VECTORS, ClippedUpdate, WholeVector

Law = TwoPoint | Piecewise | Hybrid | PrivUnitG | KOfD | VectorGaussian | ProjectedCode | Shares


def released(
    eps: float | None = None,
    mechanism: str = "two-point",
    *,
    law: Law | None = None,
    central: CentralGaussian | None = None,
    norm: float | None = None,
    bound: float | None = None,
    delta: float = 1e-5,
    threshold: int | None = None,
    colluders: int = 1,
    roster: Mapping[int, bytes] | None = None,
    adaptive: bool = False,
) -> Release:
    """What these settings release: by eps and a mechanism's name, by a law, or to a server that is trusted.

    >>> released(4.0).terms
    {'eps': 4.0, 'mechanism': 'two-point'}
    >>> released(law=VectorGaussian(1.5, dimension=10)).terms
    {'mechanism': 'gaussian', 'norm': 1.0, 'sigma': 1.5, 'dimension': 10}
    """
    if law is not None or central is not None:
        if (law is not None and central is not None) or eps is not None or norm is not None or bound is not None:
            raise ValueError("a law has its own eps and norm: pass law, or central, without eps, norm or bound")
    elif eps is None:
        raise ValueError("pass eps, or a law (with its threshold, if it is for a sum), or central")
    if adaptive and not (central or isinstance(law, Shares)):
        raise ValueError("adaptive is for noise on a sum of updates: pass central, or a law of shares")
    if roster is not None and threshold is None:
        raise ValueError("roster is for secure sums: pass threshold, the fewest clients whose sum is opened")
    if central is not None:
        if not isinstance(central, CentralGaussian):
            raise TypeError(f"central={central!r} is not a law of a trusted server: pass a CentralGaussian")
        if threshold is not None:
            raise ValueError(f"threshold={threshold} is for secure sums: a trusted server sees every update")
        return ClippedUpdate(central, adaptive)
    if isinstance(law, Shares):
        if threshold is None:
            raise ValueError("a law of shares is private only in a sum: pass law and threshold")
        return SharesOfNoise(threshold, colluders, roster, law=law, adaptive=adaptive)
    release = _by_name(cast(float, eps), mechanism, norm, bound, delta) if law is None else _of_law(law)
    if threshold is None:
        return release
    if not isinstance(release, EachWeight):
        raise ValueError(
            f"threshold={threshold} is for secure sums, which add integers: pass 'two-point', 'sign', 'piecewise' or "
            "'hybrid', or a law of shares"
        )
    return SummedReports(threshold, colluders, roster, each=release)


def reported(release: Release, how: str) -> Reported:
    """The release, if its reports may be seen one by one; `how` says by what they leave."""
    if not isinstance(release, Reported):
        raise ValueError(f"{how} sends reports one by one, and these must leave through a secure sum: use LdpMod")
    return release


def _of_law(law: object) -> Release:
    if isinstance(law, KINDS):
        return EachWeight(law.eps, cast(MechanismName, law.name))
    if isinstance(law, PrivUnitG | KOfD | VectorGaussian):
        return WholeVector.of(law)
    if isinstance(law, ProjectedCode):
        return Codes(law)
    cure = "central=" if isinstance(law, CentralGaussian) else "one of ldpkernels' laws for weights or updates"
    raise TypeError(f"law={law!r} is not one that a client releases: pass {cure}")


def _by_name(eps: float, mechanism: str, norm: float | None, bound: float | None, delta: float) -> Release:
    if mechanism in VECTORS:
        if norm is None:
            raise ValueError(f"mechanism={mechanism!r} needs norm: the length to which an update is clipped")
        excluded = float(delta) if mechanism == "gaussian" else None
        whole = WholeVector(mechanism, float(norm), float(eps), bound, excluded)
        whole.sampler(1)  # it refuses what is not an eps, norm or bound
        return whole
    if mechanism.lower().replace("_", "-").startswith(("code", "projected", "projectedcode")):
        raise ValueError(f"mechanism={mechanism!r} needs the number of weights: pass law=ProjectedCode(eps, dimension)")
    if mechanism not in MECHANISMS:
        raise ValueError(f"mechanism={mechanism!r} must be one of {', '.join([*MECHANISMS, *VECTORS])}")
    if norm is not None or bound is not None:
        raise ValueError(f"norm and bound are for {' and '.join(VECTORS)}: leave them out with {mechanism!r}")
    each = EachWeight(float(eps), cast(MechanismName, mechanism))
    mechanism_named(each.mechanism, each.eps)
    return each
