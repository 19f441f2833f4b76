# SPDX-License-Identifier: Apache-2.0
"""The mechanisms that Triton has: a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import torch

from ldpkernels.common.arrays import Laws, Spans
from ldpkernels.triton import ordinal_cldp, piecewise, sign, two_point

# (output, spans, laws, key, out): `out` is the new tensor that the spans' `out` point into, None in place.
Launcher: TypeAlias = Callable[[str, Spans, Laws, torch.Tensor, torch.Tensor | None], None]

LAUNCHERS: Mapping[str, Launcher] = {
    "two_point": two_point.launch,
    "piecewise": partial(piecewise.launch, "piecewise"),
    "hybrid": partial(piecewise.launch, "hybrid"),
    "ordinal_cldp": ordinal_cldp.launch,
    "sign": sign.launch,
}
MECHANISMS = frozenset(LAUNCHERS)


def launch(
    mechanism: str, output: str, spans: Spans, laws: Laws, key: torch.Tensor, out: torch.Tensor | None = None
) -> None:
    """Run a mechanism's kernel over all spans. The key is an int64 tensor of 1 or 4 numbers on the tensors' device."""
    LAUNCHERS[mechanism](output, spans, laws, key, out)
