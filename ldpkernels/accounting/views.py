# SPDX-License-Identifier: Apache-2.0
"""Whom an event's guarantee holds off, and between which neighbours. Only events of one view compose."""

from __future__ import annotations

from ldpkernels.accounting.events import (
    ConcentratedEvent,
    Event,
    SampledGaussianEvent,
    ShuffledEvent,
    SkellamEvent,
)

LOCAL_ADVERSARY = "anyone who sees every report of the client, the server included, and can link them to the client"
LOCAL_NEIGHBOURS = "any two values of the client's whole input (its weights in every round)"


def view_of(event: Event) -> str:
    """Return "local", "shuffled", "sampled" or "aggregated"."""
    if isinstance(event, ConcentratedEvent | SkellamEvent):
        return "aggregated"
    if isinstance(event, ShuffledEvent):
        return "shuffled"
    return "sampled" if isinstance(event, SampledGaussianEvent) else "local"


def adversary_of(event: Event) -> tuple[str, str]:
    """Return the adversary and the neighbouring relation that an event's guarantee speaks of."""
    view = view_of(event)
    if view == "shuffled":
        return (
            "anyone who sees the shuffled reports, and knows the inputs of all the other clients",
            "the inputs of all clients, one client's replaced (replace-one)",
        )
    if view == "aggregated":
        return (
            "anyone who sees the sums that secure aggregation gives, and knows the inputs of all the other clients, but"
            " not the noise of the honest ones",
            "the updates of all clients, one client's replaced by zeros in every round",
        )
    if view == "sampled":
        return (
            "anyone who sees every noisy gradient or model, but not which examples were sampled",
            "training sets that differ by one example added or removed",
        )
    return LOCAL_ADVERSARY, LOCAL_NEIGHBOURS
