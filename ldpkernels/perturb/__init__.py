# SPDX-License-Identifier: Apache-2.0
"""The public functions that randomise each weight on its own."""

from ldpkernels.perturb.in_place import Model, Range, perturb_
from ldpkernels.perturb.prepared import Prepared, prepare
from ldpkernels.perturb.reported import report
from ldpkernels.perturb.thresholds import two_point_threshold

__all__ = ["Model", "Prepared", "Range", "perturb_", "prepare", "report", "two_point_threshold"]
