# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks/papers/han_xue.py, from its cells."""

from __future__ import annotations

from typing import Any


def sections(dataset: str, found: list[dict[str, Any]]) -> list[str]:
    return [str(cell) for cell in found]
