# SPDX-License-Identifier: Apache-2.0
"""Laws as plain data, for configurations: a kind and its fields, or what its `calibrated` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from ldpkernels.laws.central_gaussian import CentralGaussian
from ldpkernels.laws.distributed import DistributedGaussian, DistributedSkellam
from ldpkernels.laws.k_of_d import KOfD
from ldpkernels.laws.privunitg import PrivUnitG
from ldpkernels.laws.projected_code import ProjectedCode
from ldpkernels.laws.registry import KINDS
from ldpkernels.laws.vector_gaussian import VectorGaussian

_VECTORS = (VectorGaussian, PrivUnitG, KOfD, ProjectedCode, DistributedGaussian, DistributedSkellam, CentralGaussian)
LAWS = {law.__name__: law for law in (*KINDS, *_VECTORS)}


def law_of(given: Mapping[str, object]) -> object:
    """The law that is written down.

    >>> law_of({"kind": "VectorGaussian", "sigma": 1.5, "dimension": 10})
    VectorGaussian(sigma=1.5, dimension=10, norm=1.0)
    >>> law_of({"kind": "VectorGaussian", "eps": 8.0, "delta": 1e-5, "dimension": 10}).epsilon(1e-5) <= 8.0
    True
    """
    kind = LAWS.get(str(given.get("kind")))
    if kind is None:
        raise ValueError(f"kind={given.get('kind')!r} must be one of {', '.join(LAWS)}")
    arguments = {name: value for name, value in given.items() if name != "kind"}
    own = [one.name for one in fields(kind)]
    calibrated = getattr(kind, "calibrated", None)
    try:
        return kind(**arguments) if calibrated is None or set(arguments) <= set(own) else calibrated(**arguments)
    except TypeError as error:
        more = "" if calibrated is None else ", or with eps, delta and what else its calibrated takes"
        raise ValueError(f"a {kind.__name__} is written with {', '.join(own)}{more}: {error}") from None
