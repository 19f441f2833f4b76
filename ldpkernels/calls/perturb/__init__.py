# SPDX-License-Identifier: Apache-2.0
"""The public functions that randomise each weight on its own."""

from ldpkernels.calls.perturb.in_place import Model, Range, perturb_
from ldpkernels.calls.perturb.prepared import Prepared, prepare
from ldpkernels.calls.perturb.reported import report
from ldpkernels.calls.perturb.thresholds import two_point_threshold

__all__ = ["Model", "Prepared", "Range", "perturb_", "prepare", "report", "two_point_threshold"]
