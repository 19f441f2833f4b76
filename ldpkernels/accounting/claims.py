# SPDX-License-Identifier: Apache-2.0
"""The papers' own privacy claims, under their own names, each next to what is true.

The numbers are the papers'; the records say which steps of their derivations don't hold, and what holds instead.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ldpkernels.accounting.events import RandomizedResponseEvent
from ldpkernels.accounting.local import local_epsilon, sampled_gaussian, subsampled_epsilon
from ldpkernels.accounting.metric import cldp, diameter
from ldpkernels.accounting.neighbours import View
from ldpkernels.accounting.records import Claim, PrivacyResult
from ldpkernels.accounting.shuffle import shuffle_epsilon
from ldpkernels.common import arguments


def ldp_fl_claim(d: int, T: int, n: int, eps: float, *, delta: float = 1e-5) -> Claim:
    """LDP-FL (Sun, Qian and Chen, IJCAI 2021): eps-LDP a weight, and "the privacy budget won't accumulate".

    `honest` holds between any two inputs of a client, against the server, which sees its reports. `also` holds behind a
    shuffler.

    Args:
        d: Weights of the model.
        T: Rounds.
        n: Clients in a round.
        eps: The eps of one weight's report. The paper gives it as the total.
        delta: The probability that the honest bounds exclude.

    >>> claim = ldp_fl_claim(21840, 1, 100, 1.0)
    >>> claim.claimed, f"{claim.honest.epsilon:,.0f}"
    (1.0, '10,648')
    """
    honest = local_epsilon(RandomizedResponseEvent(eps), d=d, rounds=T, delta=delta)
    shuffled = shuffle_epsilon(eps, n, d=d, rounds=T, delta=delta)
    violated: tuple[str, ...] = ()
    if d * T > 1:
        violated = (
            f"The claim counts one report, but a client sends d T = {d:,} x {T:,} = {d * T:,}: that they can't be"
            " linked doesn't stop them from adding up, since an adversary tests a hypothesis about the client's"
            " whole vector.",
            "Random delays and changed addresses are not a shuffler: the central figure needs an ideal one for every"
            " position.",
        )
    violated += (
        "The remark before Corollary 1, that LDP still holds where clients choose their own ranges, is false: the"
        " two output values reveal the range exactly, so ranges must be public.",
    )
    return Claim(
        f"LDP-FL (Theorem 1 and section 4, d = {d:,}, T = {T:,}, n = {n:,})", float(eps), honest, violated, (shuffled,)
    )


def han_xue_eq18(q: float, sigma: float, T: int, delta: float) -> Claim:
    """Han and Xue (2020), Eq. (18): epsilon = 2 q sqrt(T ln(1/delta)) / sigma.

    `honest` is the guarantee of what their Algorithm 1 really protects: the noisy loss values, if it released them. One
    example is added or removed, and the adversary sees all of these values. `also` is the verdict on the model that is
    trained with them.

    Args:
        q: Batch size over the examples of a party.
        sigma: Noise level, in units of the clipping bound.
        T: Steps, which the paper calls epochs.
        delta: The probability that the bound excludes.

    >>> claim = han_xue_eq18(128 / 12000, 1.0, 10000, 1e-5)
    >>> round(claim.claimed, 4), round(claim.honest.epsilon, 2)
    (7.2385, 6.67)
    """
    q, sigma, T = arguments.probability("q", q), arguments.positive("sigma", sigma), arguments.count("T", T)
    delta = arguments.excluded(delta)
    claimed = 2 * q * math.sqrt(T * -math.log(delta)) / sigma
    violated: list[str] = []
    if not claimed < T * q * q:
        violated.append(f"Eq. (14) needs epsilon < T q^2 = {T * q * q:.4g}, but epsilon is {claimed:.4f}.")
    if not q < 1 / (16 * sigma):
        violated.append(f"Theorem 2 needs q < 1/(16 sigma) = {1 / (16 * sigma):.4g}, but q is {q:.4g}.")
    if not sigma >= 1:
        violated.append(f"Theorem 2 needs sigma >= 1, but sigma is {sigma:.4g}.")
    order = -2 * math.log(delta) / claimed if claimed else math.inf
    most = sigma * sigma * -(math.log(q) + math.log(sigma)) if q * sigma < 1 else 0.0
    if math.isinf(order) or not math.ceil(order) <= most:
        violated.append(
            f"Theorem 2 needs a whole lambda <= sigma^2 ln(1/(q sigma)) = {most:.4g}, but Eq. (15) needs lambda >="
            f" {order:.4g}."
        )
    violated.append("Eq. (13) drops the factor (1 + 1/lambda)/(1 - q) of Eq. (11), so it is not an upper bound.")
    violated.append(
        "The noise is added to the loss and doesn't depend on the weights, so it vanishes from the gradient, and the"
        " trained model and its samples are not private."
    )
    violated.append("The votes of local models that were trained without noise leak too.")
    honest = sampled_gaussian(sigma, q, T, delta=delta)
    noisy = PrivacyResult(
        honest.epsilon,
        delta,
        honest.scope,
        (*honest.assumptions, "only the clipped, summed and noised loss of each step is released"),
        honest.method,
        "anyone who sees the noisy loss values, and nothing else of the training",
    )
    model = PrivacyResult(
        math.inf,
        delta,
        honest.scope,
        ("the model is trained on the gradient of the noisy loss, as in Algorithm 1",),
        "no guarantee: the gradient carries no noise",
        "anyone who sees the trained GAN or its synthetic samples",
    )
    return Claim(
        f"Han and Xue, Eq. (18) (q = {q:.4g}, sigma = {sigma:g}, T = {T:,})", claimed, noisy, tuple(violated), (model,)
    )


def ldp_fed_claim(
    alpha: float,
    c: float = 1.0,
    rho: int = 10,
    *,
    rounds: int = 80,
    q: float = 1.0,
    metric: str = "linf",
    size: int = 1,
) -> Claim:
    """LDP-Fed (Truex et al., 2020): alpha-CLDP in total, or q alpha with k of N clients selected (q = k/N).

    `honest` holds between any two inputs of a client, for whoever sees its reports, the server included.

    Args:
        alpha: The total budget.
        c: Values are clipped to [-c, c].
        rho: Digits that are kept after the decimal point.
        rounds: Rounds that share alpha evenly, for the figure with selection.
        q: The selection rate, or 1 if every update is used.
        metric: "linf" or "l1".
        size: Values in a round. It only matters for the diameter in L1.

    >>> claim = ldp_fed_claim(1.0)
    >>> claim.claimed, claim.honest.epsilon
    (1.0, 20000000000.0)
    """
    result = cldp(alpha, c, rho, metric=metric, size=size)
    q, rounds = arguments.probability("q", q), arguments.count("rounds", rounds)
    violated = [
        f"alpha is per unit of distance, 1e-{rho}: two values a whole range apart are"
        f" {diameter(c, rho, metric=metric, size=size):.6g} units apart, and alpha is not an epsilon."
    ]
    also: tuple[PrivacyResult, ...] = ()
    if q < 1:
        each = result.worst_case.epsilon / rounds
        violated += [
            f"Sampling at q = {q:.4g} doesn't multiply a round's alpha_i by q: the true figure at distance x is ln(1"
            " + q (e^(alpha_i x) - 1)).",
            "The amplification needs a trusted selector that hides who was selected; the selector sees every update.",
        ]
        also = (
            PrivacyResult(
                rounds * subsampled_epsilon(each, q),
                0.0,
                replace(result.worst_case.scope, view=View.CENTRAL),
                (
                    f"a trusted selector takes each update with probability q = {q:.4g} and keeps the choice secret",
                    f"{rounds:,} rounds share alpha evenly",
                ),
                "ln(1 + q (e^eps - 1)) a round, in the worst case",
                "the server, which sees the selected updates but not whose they are",
                result.worst_case.differing,
            ),
        )
    return Claim(
        f"LDP-Fed (alpha = {alpha:g}, c = {c:g}, rho = {rho}, q = {q:.4g})",
        q * float(alpha),
        result.worst_case,
        tuple(violated),
        also,
    )
