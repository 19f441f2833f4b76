# SPDX-License-Identifier: Apache-2.0
"""Who sees what, and which two inputs can't be told apart: the two halves of a guarantee that are no number.

An event has a `Scope`, and only events of one scope compose: figures of different scopes neither add up nor compare.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class View(Enum):
    """What the adversary sees."""

    LOCAL = "local"
    SHUFFLED = "shuffled"
    SUMMED = "summed"
    SILO = "silo"
    CENTRAL = "central"


class Relation(Enum):
    """How two neighbouring inputs differ. Nobody who sees what is released can tell the one from the other."""

    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add/remove"


class Unit(Enum):
    """What is protected: how much of the input two neighbours differ in."""

    WEIGHT = "weight"
    VECTOR = "vector"
    CLIENT = "client"
    EXAMPLE = "example"
    PERSON = "person"


SEES = {
    View.LOCAL: "anyone who sees every report of the client, the server included, and can link them to the client",
    View.SHUFFLED: "anyone who sees the shuffled reports, and knows the inputs of all the other clients",
    View.SUMMED: "anyone who sees the sums that secure aggregation gives, and knows the inputs of all the other"
    " clients, but not the noise of the honest ones",
    View.SILO: "anyone who sees what leaves the silo, the federation's server included, but neither its noise nor whom"
    " it sampled",
    View.CENTRAL: "anyone who sees what a trusted server releases, but neither its noise nor whom it sampled",
}
DIFFER = {
    Relation.REPLACE_ONE: "any two values of {}",
    Relation.ZERO_OUT: "{}, and zeros in its place",
    Relation.ADD_REMOVE: "{}, and nothing in its place",
}
IN = {
    Unit.WEIGHT: "one weight in one round",
    Unit.VECTOR: "a client's whole update in one round",
    Unit.CLIENT: "a client's whole input (its weights in every round)",
    Unit.EXAMPLE: "one training example",
    Unit.PERSON: "a person, with all records of it, which are in one silo",
}


@dataclass(frozen=True)
class Scope:
    """The view, the relation and the unit of a guarantee.

    >>> print(LOCAL)
    local view, replace-one of a vector
    >>> LOCAL.neighbouring
    "replace-one: any two values of a client's whole update in one round"
    """

    view: View
    relation: Relation
    unit: Unit

    @property
    def adversary(self) -> str:
        """Who is held off, in words."""
        return f"{SEES[self.view]} ({self.view.value} view)"

    @property
    def neighbouring(self) -> str:
        """Which two inputs can't be told apart, in words."""
        return f"{self.relation.value}: {self.differing}"

    @property
    def differing(self) -> str:
        """The two inputs, in words."""
        return DIFFER[self.relation].format(IN[self.unit])

    @property
    def composed(self) -> Scope:
        """The scope of many releases together.

        Two inputs of a client may differ in every weight of every round. Each release distinguishes its own part of
        them by no more than its event allows. So events of weights and of vectors compose to a client's whole input.
        """
        return self.per(Unit.CLIENT) if self.unit in (Unit.WEIGHT, Unit.VECTOR) else self

    def per(self, unit: Unit) -> Scope:
        """The same view and relation for another unit."""
        return replace(self, unit=unit)

    def __str__(self) -> str:
        article = "an" if self.unit is Unit.EXAMPLE else "a"
        return f"{self.view.value} view, {self.relation.value} of {article} {self.unit.value}"

    def to_list(self) -> list[str]:
        """Plain data, which `Scope.of` reads back."""
        return [self.view.value, self.relation.value, self.unit.value]

    @classmethod
    def of(cls, data: object) -> Scope:
        """Read what `to_list` wrote.

        >>> Scope.of(SUMMED.to_list()) == SUMMED
        True
        """
        if not isinstance(data, list) or len(data) != 3:
            raise ValueError(f"scope = {data!r} is not a view, relation and unit")
        return cls(View(data[0]), Relation(data[1]), Unit(data[2]))


LOCAL = Scope(View.LOCAL, Relation.REPLACE_ONE, Unit.VECTOR)
"""The scope against whoever sees every report of a client."""
SHUFFLED = Scope(View.SHUFFLED, Relation.REPLACE_ONE, Unit.CLIENT)
"""The scope against whoever sees the reports of all clients, shuffled."""
SUMMED = Scope(View.SUMMED, Relation.ZERO_OUT, Unit.CLIENT)
"""The scope against whoever sees a secure sum of the clients' numbers."""
SILO = Scope(View.SILO, Relation.ADD_REMOVE, Unit.EXAMPLE)
"""The scope against whoever sees what leaves a silo that adds noise itself."""
CENTRAL = Scope(View.CENTRAL, Relation.ADD_REMOVE, Unit.CLIENT)
"""The scope against whoever sees what a trusted server releases."""
