# SPDX-License-Identifier: Apache-2.0
"""From a total epsilon for one client to calls that keep it: `ldpkernels.plan`.

A mechanism is an entry of `plan.ENTRIES`. Its parameter is found by bisection against the accountant, on numbers of
five digits, and the total that is stated is the accountant's for what the call executes.
"""

from ldpkernels.planning.plan import Candidate, Plan, plan
from ldpkernels.planning.setting import TRUSTS, Setting, Trust
from ldpkernels.planning.silos import SiloCandidate, SiloPlan, SiloSetting

__all__ = ["TRUSTS", "Candidate", "Plan", "Setting", "SiloCandidate", "SiloPlan", "SiloSetting", "Trust", "plan"]
