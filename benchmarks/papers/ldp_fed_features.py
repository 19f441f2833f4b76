# SPDX-License-Identifier: Apache-2.0
"""LDP-Fed's Table 2, the features of the methods, and the eps that is "equivalent" to an alpha."""

from __future__ import annotations

import math
from collections.abc import Callable

from benchmarks.papers.common import markdown_table
from benchmarks.papers.ldp_fed_runs import EQUIVALENT_SIGMA, FED, RHO, Run

# A method, the paper's ticks as its text has them, what ours sends and what it costs, whose choice the noise is, and
# the run that was made of it.
FEATURES: list[tuple[str, str, str, str, Run | None]] = [
    ("SMC", "∼ · ✗ ✗ ✓", "8 bytes a value, masks with everybody", "nobody's: there is none", Run("smc")),
    ("ε-DP parameter sharing", "∼ · ✓ ✓ ✓", "not implemented", "", None),
    (
        "local optimizer: DP-SGD",
        "∼ · ✓ ✓ ✗",
        "4 bytes a value, gradients of examples",
        "each one's",
        Run("dpsgd", sigma=EQUIVALENT_SIGMA),
    ),
    (
        "Hybrid-One",
        "∼ · ✗ ✗ ✓",
        "8 bytes a value, masks, gradients of examples",
        "of all together",
        Run("hybrid-one", sigma=EQUIVALENT_SIGMA),
    ),
    ("continuous ε-LDP", "✓ ✓ ✓ ✗", "LDP-FL's piecewise mechanism, another page", "each one's", None),
    ("LDP-Fed", "✓ ✓ ✓ ✓", "5 bytes a value, one layer a round", "each one's", FED),
]


def table(accuracy: Callable[[Run], str], epsilon: Callable[[Run], str]) -> str:
    """The paper's ticks, and what is behind them here."""
    body = [
        [name, ticks, sent, choice, "" if run is None else epsilon(run), "" if run is None else accuracy(run)]
        for name, ticks, sent, choice, run in FEATURES
    ]
    heads = ["method", "paper", "efficient", "locally defined", "protection: honest eps", "29,034 weights: accuracy"]
    return markdown_table(heads, body)


def certainty(alpha: float, M: int) -> float:
    """How sure an adversary is of a value at most, who held all of -M .. M for equally likely and saw it under alpha.

    The exponential mechanism's weights are b^|y - v| / Z(v) with b = e^(-alpha / 2), and the surest place is an end of
    the range, where Z is least. The sum ends where its terms no longer count.
    """
    b, size = math.exp(-alpha / 2), 2 * M + 1
    far = min(size, math.ceil(80 / alpha))

    def mass(v: int) -> float:
        return (1 + b - b ** (v + 1) - b ** (size - v)) / (1 - b)

    return 1 / mass(0) / math.fsum(b**v / mass(v) for v in range(far))


def equivalent_epsilon(alpha: float, M: int) -> float:
    """The eps at which randomised response over -M .. M leaves an adversary as sure of a value as alpha-CLDP does.

    >>> round(equivalent_epsilon(1.0, 10**10), 1)
    23.6
    """
    sure = certainty(alpha, M)
    return math.log(sure / (1 - sure) * 2 * M)  # from sure = e^eps / (e^eps + 2 M)


EQUIVALENT = equivalent_epsilon(1.0, 10**RHO)
WORDS = f"""\
The paper's Table 2 is one of ticks, for: efficient, locally defined privacy, protection from inference attacks, complex
models. The text that was read here has four for each method, but does not say in which column the "∼" of the first four
is: it stands in front. Beside the ticks is what they mean here, in bytes and figures.

The paper sets the eps of DP-SGD and Hybrid-One "equivalent to alpha = 1" by the conversion of Gursoy et al. (2019), and
prints no number. That paper was not read here; as others implement it, an eps and an alpha are equivalent where an
adversary who held all values for equally likely is as sure of one value at most under the one (randomised response)
as under the other. For 2 * 10^{RHO} + 1 values and alpha = 1 that is eps = {EQUIVALENT:.1f}, of one value with all of
alpha for itself. How well two values are told apart it does not say: the honest eps is 2e10 all the same, and so it is
by LDP-FL's conversion, eps = alpha 2c 10^rho. DP-SGD and Hybrid-One have the noise here at which DP-SGD's eps is 23.6
or just below (sigma = {EQUIVALENT_SIGMA}). Hybrid-One claims the same; what stands there is by a participant's own
noise."""
