# SPDX-License-Identifier: Apache-2.0
"""Masks between each pair of ranks, of keys that serve one call. It needs the package cryptography."""

from __future__ import annotations

import torch

from ldpkernels.common.arrays import Words
from ldpkernels.common.keys import Key
from ldpkernels.distributed.group import WORD, Place
from ldpkernels.inputs.agreement import gathered
from ldpkernels.laws.distributed import Shares
from ldpkernels.secure_sums import Terms, begin
from ldpkernels.secure_sums.client import mask_pairs
from ldpkernels.secure_sums.messages import written
from ldpkernels.updates.masks import lifted


class PairMasks:
    """A rank's masks for one call: the steps of a secure sum that are left where no rank may be lost."""

    def __init__(self, law: Shares, rotation: Key, place: Place, colluders: int, round_: int) -> None:
        self._place = place
        self._terms = Terms.of(
            law, rotation, round=f"ranks, round {round_}".encode(), threshold=place.ranks, invited=place.ranks,
            colluders=colluders + 1,
        )  # fmt: skip
        self._state, self._hello = begin(self._terms, place.rank)

    def applied(self, integers: Words) -> Words:
        """Exchange keys with all ranks and mask this rank's integers, as words that all_reduce adds.

        A rank that answers with the keys of other terms is refused by its number.
        """
        mine = torch.frombuffer(bytearray(self._hello), dtype=torch.uint8)
        every = gathered(mine, self._place.group, "exchanged keys; nothing of an update had left")
        keys = written({rank: bytes(one.tolist()) for rank, one in enumerate(every)})
        self._state, masked = mask_pairs(self._state, keys, integers)
        return lifted(masked, self._terms.width, WORD)
