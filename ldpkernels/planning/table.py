# SPDX-License-Identifier: Apache-2.0
"""What a plan chooses from: an entry for each mechanism and the trusts under which it can run.

An entry turns a setting into a candidate, or raises `Unsuitable` with the reason. It finds its parameter
(calibration.py), asks the accountant for the total of what the call executes, and states the largest expected error of
the mean in closed form.
"""

from __future__ import annotations

from ldpkernels.laws.distributed import DistributedGaussian, DistributedSkellam
from ldpkernels.laws.registry import MECHANISMS
from ldpkernels.planning import reports, sums
from ldpkernels.planning.entry import Entry
from ldpkernels.planning.setting import Trust

MIXED: tuple[Trust, ...] = ("local", "shuffled")
COUNTED: tuple[Trust, ...] = (*MIXED, "secure-aggregation")  # what is counted can be added by a protocol of sums

ENTRIES: tuple[Entry, ...] = (
    *(
        Entry(name, COUNTED if kind.reported == "bits" else MIXED, reports.weightwise(name))
        for name, kind in MECHANISMS.items()
    ),
    Entry("k-of-d", MIXED, reports.k_of_d),
    Entry("privunitg", MIXED, reports.privunitg),
    Entry("projected-code", MIXED, reports.projected_code),
    Entry("gaussian", MIXED, reports.gaussian),
    Entry("distributed-gaussian", ("secure-aggregation",), sums.shares(DistributedGaussian)),
    Entry("skellam", ("secure-aggregation",), sums.shares(DistributedSkellam)),
    Entry("adaptive skellam", ("secure-aggregation",), sums.shares(DistributedSkellam, adaptive=True)),
    Entry("central gaussian", ("central",), sums.central("gaussian")),
    Entry("central discrete", ("central",), sums.central("discrete")),
    Entry("adaptive discrete", ("central",), sums.adaptive),
)
