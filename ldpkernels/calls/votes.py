# SPDX-License-Identifier: Apache-2.0
"""Labels by majority vote: the rule of Han and Xue, and the noisy vote (GNMax) that is differentially private."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Generic, NamedTuple, SupportsFloat, overload

import numpy as np

from ldpkernels import launch
from ldpkernels.calls.clipped_noise import clipped_noised_sum
from ldpkernels.common.arguments import number
from ldpkernels.common.arrays import AnyArray, Array, Integers, Value
from ldpkernels.common.keys import Generator
from ldpkernels.common.optional import is_compiling, is_tensor
from ldpkernels.inputs.ballots import checked_classes, refuse_strangers
from ldpkernels.inputs.transforms import refuse_rows

if TYPE_CHECKING:
    import torch

    from ldpkernels.accounting import PrivacyResult


if TYPE_CHECKING:  # a generic NamedTuple needs Python 3.11

    class Vote(NamedTuple, Generic[Value]):
        """Tensors for tensors, arrays for arrays."""

        labels: Value
        keep: Value
else:

    class Vote(NamedTuple):
        """The label of each sample, in the dtype of the votes, and whether the sample is kept, as booleans."""

        labels: AnyArray
        keep: AnyArray


@overload
def majority_vote(votes: torch.Tensor, classes: int) -> Vote[torch.Tensor]: ...


@overload
def majority_vote(votes: Array, classes: int) -> Vote[Array]: ...


def majority_vote(votes: AnyArray, classes: int) -> Vote[torch.Tensor] | Vote[Array]:
    """Label each sample with the class that most parties voted for; drop it if that was close.

    Han and Xue (section 3.3) remove a sample whose first and second counts differ by at most one. By that rule one
    party alone keeps nothing (one vote against none), and two or three parties must all agree. If counts are equal, the
    label is the lowest class, but such a sample is dropped. **The labels are exact: what the parties' models leak,
    labels leak.** `noisy_vote` does not.

    Args:
        votes: [parties, samples], a tensor or an array of uint8, int32 or int64, each from 0 to classes - 1. On a GPU
            other numbers are votes for nobody, because to check them would synchronise.
        classes: How many classes there are.

    >>> import numpy as np, ldpkernels
    >>> votes = np.array([[1, 0, 2], [1, 0, 1], [1, 1, 0], [2, 1, 2]])
    >>> vote = ldpkernels.majority_vote(votes, classes=3)
    >>> vote.labels, vote.keep
    (array([1, 0, 2]), array([ True, False, False]))
    """
    classes = checked_classes(votes, classes)
    if is_tensor(votes):
        from ldpkernels.ops.votes import majority_vote as operation

        return Vote(*operation(votes, classes))
    ballots = np.ascontiguousarray(votes)
    found = launch.majority_vote(ballots, classes, "cpu")
    if found is None:
        refuse_strangers(ballots, classes)
    return Vote(*(np.asarray(one) for one in found or ()))


@overload
def noisy_vote(
    votes: torch.Tensor, classes: int, sigma: SupportsFloat, *, generator: Generator = ...
) -> Vote[torch.Tensor]: ...


@overload
def noisy_vote(votes: Array, classes: int, sigma: SupportsFloat, *, generator: Generator = ...) -> Vote[Array]: ...


def noisy_vote(
    votes: AnyArray, classes: int, sigma: SupportsFloat, *, generator: Generator = None
) -> Vote[torch.Tensor] | Vote[Array]:
    """`majority_vote` on counts with normal noise of deviation sigma (GNMax, Papernot et al. 2018).

    The noisy counts alone decide, also about which samples are dropped, so that everything is post-processing of one
    Gaussian mechanism. `vote_epsilon` has its guarantee: a record is added, removed or replaced, for whoever sees the
    labels.

    Args:
        votes, classes: As in `majority_vote`.
        sigma: The standard deviation of the noise on each count; 0 for no noise and no privacy.
        generator: As in `ldpkernels.perturb_`.

    >>> import numpy as np, ldpkernels
    >>> votes = np.zeros((40, 3), np.int64)
    >>> ldpkernels.noisy_vote(votes, classes=2, sigma=2.0, generator=ldpkernels.key(0)).labels
    array([0, 0, 0])
    """
    size = number("sigma", sigma)
    if not 0 <= size < float("inf"):
        raise ValueError(f"sigma={sigma} must be 0 or more and finite: the deviation of the noise on a count")
    if is_tensor(votes):
        return _noisy_tensors(votes, classes, size, generator)
    counts = vote_counts(votes, classes)
    noisy = counts + clipped_noised_sum(np.empty((0, *counts.shape)), 1.0, size, generator=generator)
    ordered = np.sort(noisy, axis=1)
    first, second = ordered[:, -1], ordered[:, -2] if classes > 1 else ordered[:, -1]
    return Vote(noisy.argmax(1).astype(votes.dtype), first - (second if classes > 1 else 0 * second) > 1)


def _noisy_tensors(votes: torch.Tensor, classes: int, sigma: float, generator: Generator) -> Vote[torch.Tensor]:
    import torch

    if not is_compiling():
        refuse_rows("noisy_vote", [votes])
    counts = vote_counts(votes, classes)
    nothing = torch.empty((0, *counts.shape), dtype=torch.float64, device=votes.device)
    noisy = counts + clipped_noised_sum(nothing, 1.0, sigma, generator=generator)
    most = noisy.topk(min(2, classes), dim=1)
    labels, first, second = most.indices[:, 0].to(votes.dtype), most.values[:, 0], most.values[:, -1]
    return Vote(labels, first - (second if classes > 1 else 0 * second) > 1)


@overload
def vote_counts(votes: torch.Tensor, classes: int) -> torch.Tensor: ...


@overload
def vote_counts(votes: Array, classes: int) -> Integers: ...


def vote_counts(votes: AnyArray, classes: int) -> AnyArray:
    """How many parties voted for each class, as int64 [samples, classes]."""
    classes = checked_classes(votes, classes)
    if is_tensor(votes):
        import torch

        if votes.device.type == "cpu":
            refuse_strangers(votes.numpy(), classes)
        return torch.stack([(votes == c).sum(0) for c in range(classes)], 1)
    refuse_strangers(votes, classes)
    return np.stack([(votes == c).sum(0) for c in range(classes)], 1)


def vote_epsilon(samples: int, sigma: float, *, delta: float = 1e-5) -> PrivacyResult:
    """The guarantee of `noisy_vote` on so many samples, which may be chosen adaptively.

    One record of one party may change that party's model in any way, and with it its vote on every sample. A changed
    vote moves two counts by one, which is sqrt(2) in L2. So each sample is a Gaussian mechanism of noise multiplier
    sigma / sqrt(2), and samples compose. The bound does not look at the votes. It holds whenever a record is added,
    removed or replaced, for whoever sees the labels.

    >>> print(round(vote_epsilon(100, 40.0).epsilon, 2))
    1.36
    """
    from ldpkernels.accounting import GaussianEvent, Scope, local_epsilon

    event = GaussianEvent(number("sigma", sigma) / 2**0.5, scope=Scope.of(["central", "replace-one", "example"]))
    composed = local_epsilon(event, d=samples, delta=delta)
    return replace(
        composed,
        assumptions=(
            f"{composed.assumptions[0].split()[0]} samples are labelled, each with fresh noise of {sigma:.6g} on every"
            " count, in exact arithmetic",
            "the samples depend on the parties' data only by private releases, which are accounted for separately",
            "a record is held by one party",
        ),
        seen="anyone who sees the labels, and which samples were dropped",
        differing="the parties' data sets, one record of one party added, removed or replaced",
    )
