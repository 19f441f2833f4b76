# SPDX-License-Identifier: Apache-2.0
"""The one thing that an audit takes from SciPy."""

from __future__ import annotations


def beta_quantile(p: float, a: float, b: float) -> float:
    """Quantile of the beta law."""
    try:
        from scipy.special import betaincinv
    except ImportError:
        raise ImportError("audits need SciPy: pip install 'ldpkernels[accounting]'") from None
    return float(betaincinv(a, b, p))
