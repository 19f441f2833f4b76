# SPDX-License-Identifier: Apache-2.0
"""Votes of parties on samples: the checks of what a caller hands in."""

from __future__ import annotations

import operator

import numpy as np

from ldpkernels.common.arrays import AnyArray
from ldpkernels.common.optional import is_tensor
from ldpkernels.inputs.checks import refuse_freed

_DTYPES = ("uint8", "int32", "int64")


def checked_classes(votes: AnyArray, classes: int) -> int:
    """The number of classes, if votes and classes are such as a kernel can count."""
    if not is_tensor(votes) and not isinstance(votes, np.ndarray):
        raise TypeError(f"votes is a {type(votes).__name__}: pass a tensor or an array of {', '.join(_DTYPES)}")
    name = str(votes.dtype).removeprefix("torch.")
    if name not in _DTYPES or (isinstance(votes, np.ndarray) and not votes.dtype.isnative):
        raise TypeError(f"votes are {name}: pass {', '.join(_DTYPES)}")
    if votes.ndim != 2 or votes.shape[0] < 1:
        raise ValueError(f"votes have shape {tuple(votes.shape)}: pass [parties, samples], with one party or more")
    if is_tensor(votes):
        refuse_freed("votes", votes)
    count = operator.index(classes)
    largest = 255 if name == "uint8" else 2**31 - 1
    if not 1 <= count <= largest:
        raise ValueError(f"classes={classes} must be from 1 to {largest} for votes of {name}")
    return count


def refuse_strangers(votes: AnyArray, classes: int) -> None:
    """An error that names a vote for none of the classes, if there is one."""
    strange = np.argwhere(np.asarray((votes < 0) | (votes >= classes)))
    if len(strange):
        party, sample = (int(i) for i in strange[0])
        raise ValueError(
            f"party {party} votes {int(votes[party, sample])} on sample {sample}: votes are from 0 to {classes - 1},"
            f" or pass more classes than {classes}"
        )
