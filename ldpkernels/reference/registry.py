# SPDX-License-Identifier: Apache-2.0
"""The reference's kernels by name: one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ldpkernels.common.arrays import Laws, Spans, Words
from ldpkernels.reference.hybrid import hybrid
from ldpkernels.reference.ordinal_cldp import ordinal_cldp
from ldpkernels.reference.piecewise import piecewise
from ldpkernels.reference.sign import sign
from ldpkernels.reference.two_point import two_point

Kernel: TypeAlias = Callable[[str, Spans, Laws, Words], None]
KERNELS: dict[str, Kernel] = {
    "two_point": two_point,
    "piecewise": piecewise,
    "hybrid": hybrid,
    "ordinal_cldp": ordinal_cldp,
    "sign": sign,
}


def launch(kernel: str, output: str, spans: Spans, laws: Laws, key: Words) -> None:
    """Run one kernel over all spans."""
    KERNELS[kernel](output, spans, laws, key)
