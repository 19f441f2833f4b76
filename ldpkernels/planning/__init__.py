# SPDX-License-Identifier: Apache-2.0
"""From a total epsilon for one client to calls that keep it: `ldpkernels.plan`."""

from ldpkernels.planning.plan import Candidate, Plan, plan
from ldpkernels.planning.setting import TRUSTS, Setting, Trust
from ldpkernels.planning.silos import SiloCandidate, SiloPlan, SiloSetting

__all__ = ["TRUSTS", "Candidate", "Plan", "Setting", "SiloCandidate", "SiloPlan", "SiloSetting", "Trust", "plan"]
