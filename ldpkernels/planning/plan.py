# SPDX-License-Identifier: Apache-2.0
"""`plan`: the table's entries, each calibrated to one total, in the order of their error."""

from __future__ import annotations

from dataclasses import replace

from ldpkernels.planning.candidate import Candidate, Plan
from ldpkernels.planning.entry import Entry, Unsuitable
from ldpkernels.planning.setting import Setting, Trust
from ldpkernels.planning.table import ENTRIES

SLACKS = (0.0, 1e-6, 1e-4, 1e-2)


def plan(
    epsilon: float,
    delta: float = 1e-5,
    *,
    rounds: int,
    clients: int,
    weights: int,
    trust: Trust,
    radius: float | None = None,
    norm: float | None = None,
    participation: float = 1.0,
) -> Plan:
    """The calls that keep a total epsilon for one client over all rounds, the one of least expected error first.

    The error is that of a round's mean, not of one report; every candidate says what a client sends, against whom its
    total holds, and under which assumptions. Needs SciPy and dp-accounting (`pip install ldpkernels[accounting]`).

    Args:
        epsilon: The total for everything that one client ever sends.
        delta: The probability that the total excludes; 0 only with trust="local".
        rounds: Rounds in which the client takes part, at most.
        clients: How many report in a round, and don't collude: the mean is theirs. With participation below 1, how
            many it takes on average.
        weights: Numbers in an update.
        trust: "local": no one. "shuffled": a shuffler that mixes the reports of every position (or whole reports, of
            mechanisms for vectors). "secure-aggregation": a protocol that shows nothing but sums. "central": a server
            that sees all updates.
        radius: The largest coordinate of an update, to which each is clipped.
        norm: The L2 norm to which an update is clipped. One of the two may be missing. Neither may come from private
            data.
        participation: The probability of taking part in a round, by a fresh draw. It makes the total smaller only where
            the draw is kept secret, with trust="central"; elsewhere the total is that of a client who is always drawn.

    >>> import ldpkernels
    >>> found = ldpkernels.plan(8.0, rounds=10, clients=50_000, weights=2_000, trust="local", radius=0.1, norm=1.0)
    >>> print(found.verdict)
    Use 'privunitg': the error of a round's mean is 0.628 times the largest norm of an update.
    >>> found[0].call, found[0].epsilon <= 8
    ('ldpkernels.perturb_vector(update, 0.80004, norm=1.0)', True)
    """
    return planned(Setting(epsilon, delta, rounds, clients, weights, trust, radius, norm, participation))


def planned(setting: Setting) -> Plan:
    """The same of a setting."""
    found: list[Candidate] = []
    left_out: dict[str, str] = {}
    for entry in ENTRIES:
        if setting.trust in entry.trusts:
            try:
                found.append(_kept(entry, setting))
            except Unsuitable as reason:
                left_out[entry.name] = str(reason)
    return Plan(setting, found, left_out)


def again(setting: Setting, name: str | None) -> Candidate | None:
    """The candidate of a name, or the best, for a setting."""
    if name is None:
        return next(iter(planned(setting)), None)
    entry = next(entry for entry in ENTRIES if entry.name == name)
    try:
        return _kept(entry, setting)
    except Unsuitable:
        return None


def _kept(entry: Entry, setting: Setting) -> Candidate:
    """An entry's candidate, whose total is the accountant's for what is executed, and at most what was asked for.

    What is executed is a little less than what was calibrated; where the accountant's rounding is larger than the
    difference, the target is lowered.
    """
    for slack in SLACKS:
        candidate = entry.candidate(replace(setting, epsilon=setting.epsilon * (1 - slack)))
        if candidate.epsilon <= setting.epsilon:
            return replace(candidate, setting=setting, again=again)
    raise Unsuitable(f"the accountant's figures are too uneven near epsilon = {setting.epsilon:g}")
