# SPDX-License-Identifier: Apache-2.0
"""Which clients take part in a round: the server's choice, the same for the same seed and round."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ldpkernels.common.keys import key
from ldpkernels.federated.training import Client

_SELECTION = 2**63  # the server's own key, apart from every client's
_DROPOUT = 2**63 + 2  # likewise


def select(clients: Sequence[Client], k: int | None, seed: int, round_: int, *, law: str = "fixed") -> list[Client]:
    """Select clients, in their order.

    Args:
        clients: All that could take part.
        k: How many; None selects all.
        seed: Of the run.
        round_: Of the run.
        law: "fixed" takes exactly k, without replacement; "poisson" takes each with probability k / len(clients).
    """
    k = len(clients) if k is None else k
    if not 1 <= k <= len(clients):
        raise ValueError(f"select={k} must be from 1 to {len(clients)}, the number of clients")
    if law not in ("fixed", "poisson"):
        raise ValueError(f"selection={law!r} must be 'fixed' or 'poisson'")
    chosen = key(seed).fold_in(_SELECTION).fold_in(round_).words[0] % 2**63
    generator = torch.Generator().manual_seed(chosen)
    if law == "poisson":
        accepted = torch.rand(len(clients), generator=generator, dtype=torch.float64) < k / len(clients)
        return [client for client, yes in zip(clients, accepted.tolist(), strict=True) if yes]
    return [clients[i] for i in sorted(torch.randperm(len(clients), generator=generator)[:k].tolist())]


def remaining(clients: Sequence[Client], dropout: float, seed: int, round_: int) -> list[Client]:
    """The clients that do not fail in this round, each with probability 1 - dropout, in their order."""
    if not dropout:
        return list(clients)
    failing = key(seed).fold_in(_DROPOUT).fold_in(round_).words[0] % 2**63
    draws = torch.rand(len(clients), generator=torch.Generator().manual_seed(failing), dtype=torch.float64)
    return [client for client, draw in zip(clients, draws.tolist(), strict=True) if draw >= dropout]
