# SPDX-License-Identifier: Apache-2.0
"""Who sees what, and which inputs are alike: events say it, nothing mixes them, and whatever says an eps says it."""

import importlib
import inspect
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ldpkernels import VectorGaussian
from ldpkernels.accounting import (
    CENTRAL,
    LOCAL,
    SILO,
    ConcentratedEvent,
    Event,
    GaussianEvent,
    Ledger,
    MetricEvent,
    PureEvent,
    RandomizedResponseEvent,
    Relation,
    SampledGaussianEvent,
    Scope,
    ShuffledEvent,
    SkellamEvent,
    Unit,
    View,
    composed_epsilon,
    event_from_dict,
    local_epsilon,
    to_replace_one,
)
from ldpkernels.accounting.events import EARLIER
from ldpkernels.accounting.ledger_file import Header, LedgerFile, chained
from ldpkernels.accounting.shuffle import shuffle_epsilon

DOCS = Path(__file__).parents[2] / "docs"
ONE_OF_EACH = {
    "local view, replace-one of a vector": PureEvent(0.5),
    "local view, replace-one of a weight": RandomizedResponseEvent(0.5),
    "shuffled view, replace-one of a client": ShuffledEvent(0.5, 100),
    "summed view, zero-out of a client": SkellamEvent(100.0, 1.0, 1.0),
    "central view, add/remove of a client": GaussianEvent(5.0, scope=CENTRAL),
    "central view, add/remove of an example": SampledGaussianEvent(5.0, 0.1),
    "silo view, add/remove of a person": SampledGaussianEvent(5.0, 0.1, scope=SILO.per(Unit.PERSON)),
    "central view, replace-one of a client": to_replace_one(GaussianEvent(5.0, scope=CENTRAL)),
    "of no scope": GaussianEvent(5.0),
}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(ONE_OF_EACH, 2)))
def test_what_has_other_neighbours_does_not_compose(one: str, other: str) -> None:
    events = [ONE_OF_EACH[one], ONE_OF_EACH[other]]
    assert [str(event.scope or "of no scope") for event in events] == [one, other]
    terms = [(event, 3) for event in events]
    if (one, other) == tuple(ONE_OF_EACH)[:2]:  # both are parts of one client's input
        assert composed_epsilon(terms, 0.0) == 3.0
        return
    with pytest.raises(ValueError, match="different views or neighbours") as refused:
        composed_epsilon(terms, 1e-5, "rdp")
    for words in (one, other, *(repr(event) for event in events), "to_replace_one"):
        assert words in str(refused.value)
    ledger = Ledger(None, epsilon=1e9, method="rdp")
    ledger.spend(events[0])
    with pytest.raises(ValueError, match=r"different views or neighbours|does not say which neighbours it compares"):
        ledger.spend(events[1])
    assert len(ledger.history) == 1


def test_a_central_gaussian_is_not_counted_as_local() -> None:
    with pytest.raises(ValueError, match=r"GaussianEvent\(noise_multiplier=1.0\) does not say .*scope=LOCAL.*CENTRAL"):
        Ledger(None, epsilon=100.0).spend(GaussianEvent(1.0))
    central = GaussianEvent(1.0, scope=CENTRAL)
    printed = {}
    for event in (central, to_replace_one(central)):
        result = Ledger(None, epsilon=100.0).spend(event)
        assert result.epsilon == local_epsilon(event).epsilon
        assert "central view" in result.adversary
        assert "trusted server" in str(result)
        printed[result.neighbouring.partition(":")[0]] = round(result.epsilon, 3)
    assert printed == {"add/remove": 4.377, "replace-one": 9.997}


def test_results_say_the_view_and_the_relation() -> None:
    for event in ONE_OF_EACH.values():
        if event.scope is None:
            continue
        shuffled = isinstance(event, ShuffledEvent)
        result = shuffle_epsilon(0.5, 100) if shuffled else local_epsilon(event)
        spent = Ledger(None, epsilon=1e9).spend(event)
        for one in (result, spent):
            assert f"({event.scope.view.value} view)" in str(one)
            assert f"Neighbours: {event.scope.relation.value}: " in str(one)
            assert one.scope == event.scope.composed
            assert Scope.of(one.to_dict()["scope"]) == one.scope
            assert one.adversary == event.scope.adversary
            assert one.neighbouring == event.scope.composed.neighbouring


def test_a_replacement_is_twice_the_distance() -> None:
    twice = to_replace_one(GaussianEvent(4.0, slack=1e-9, scope=CENTRAL.per(Unit.EXAMPLE)))
    assert twice == GaussianEvent(2.0, slack=1e-9, scope=Scope(View.CENTRAL, Relation.REPLACE_ONE, Unit.EXAMPLE))
    rho = to_replace_one(ConcentratedEvent(0.5 / 16))  # a Gaussian of multiplier 4, at its own distance
    assert rho == ConcentratedEvent(0.5 / 4, scope=Scope(View.SUMMED, Relation.REPLACE_ONE, Unit.CLIENT))
    skellam = to_replace_one(SkellamEvent(50.0, 3.0, 5.0))
    assert (skellam.l2, skellam.l1, skellam.variance) == (6.0, 10.0, 50.0)  # type: ignore[attr-defined]
    assert to_replace_one(PureEvent(1.0, scope=CENTRAL)).pure_epsilon == 2.0
    assert to_replace_one(PureEvent(1.0)) == PureEvent(1.0)
    with pytest.raises(ValueError, match=r"2 eps at \(1 \+ e\^eps\) delta"):
        to_replace_one(SampledGaussianEvent(1.0, 0.1))
    with pytest.raises(ValueError, match="no scope"):
        to_replace_one(GaussianEvent(1.0))
    with pytest.raises(TypeError, match="is not a Scope"):
        GaussianEvent(1.0, scope="local")  # type: ignore[arg-type]


OLD = [
    ({"kind": "pure", "eps": 0.5}, PureEvent(0.5)),
    ({"kind": "randomized_response", "eps": 0.5}, RandomizedResponseEvent(0.5)),
    ({"kind": "metric", "alpha": 0.5, "metric": "l1", "diameter": 2.0}, MetricEvent(0.5, "l1", 2.0)),
    ({"kind": "gaussian", "noise_multiplier": 4.0}, GaussianEvent(4.0, slack=EARLIER, scope=LOCAL)),
    ({"kind": "sampled_gaussian", "noise_multiplier": 4.0, "q": 0.1}, SampledGaussianEvent(4.0, 0.1)),
    ({"kind": "concentrated", "rho": 0.01}, ConcentratedEvent(0.01, slack=EARLIER)),
    ({"kind": "skellam", "variance": 90.0, "l2": 1.0, "l1": 1.0}, SkellamEvent(90.0, 1.0, 1.0, slack=EARLIER)),
    ({"kind": "shuffled", "eps": 0.5, "clients": 9, "reports": "pure"}, ShuffledEvent(0.5, 9, "pure")),
]


@pytest.mark.parametrize(("record", "event"), OLD, ids=lambda value: getattr(value, "kind", ""))
def test_a_ledger_of_before_is_read_and_goes_on(tmp_path: Path, record: dict[str, object], event: Event) -> None:
    """Its file is written here as it was then: digests of records without slack and scope."""
    path, header = tmp_path / "old.ledger", Header(50.0, 1e-5, "exact")
    file = LedgerFile(path, begin=True)
    digest = chained(header.digest, 1, record, 3, 0.01, "")
    with file.transaction() as db:
        file.begin(db, header)
        db.execute("INSERT INTO rounds VALUES (1, ?, 3, 0.01, '', ?)", (json.dumps(record), digest))
    assert event_from_dict(record) == event
    with Ledger(path, epsilon=50.0) as ledger:
        assert ledger.digest == digest
        assert ledger.epsilon >= composed_epsilon([(event, 3)], 1e-5)
        assert ("written by an earlier version" in str(ledger.result)) == (event.slack == EARLIER)
        if isinstance(event, GaussianEvent):
            ledger.spend(VectorGaussian(40.0, 10))
            with pytest.raises(ValueError, match="different views or neighbours"):
                ledger.spend(GaussianEvent(40.0, scope=CENTRAL))
        else:
            ledger.spend(event)
    with Ledger(path, epsilon=50.0) as again:
        assert again.digest == ledger.digest


# What says an eps says whom it holds off, and between which inputs; or that a scope says both.
CLAIMS = r"\beps\b|epsilon|\bε|-LDP|-DP\b|zCDP"
DIFFER = r"any (two|other)|replace-one|replaced|zeros|added,? (or|and)? ?removed|adding or removing"
SEES = r"\bsees?\b|against the server|to the server|whoever|anyone|adversary"
MODULES = ("", ".accounting", ".audit", ".distributed", ".planning", ".trainers", ".updates")
MODULES += tuple(f".federated.{name}" for name in ("ldp_fl", "ldp_fed", "han_xue", "han_xue_world"))
MODULES += tuple(f".laws.{name}" for name in ("sign", "distributed", "vector_law", "weightwise"))
MODULES += (".flower", ".nvflare")  # where they are installed
# They take an eps or name one, and claim none.
USED = {
    "Aggregate", "Claim", "Config", "Hybrid.executed", "KOfD.coordinate", "LdpMod.from_node", "PureVectorLaw",
    "Piecewise.report_variances", "PrivUnitG.threshold", "PrivacyResult.to_dict", "Weightwise", "Weightwise.executed",
    "Weightwise.lowest_threshold", "World.examples", "best_mechanism", "checked_eps", "ranges",
}  # fmt: skip
PAGES = {"calls.md", "design.md", "reading.md", "federated/training.md"}  # likewise


def documented() -> Iterator[tuple[str, str]]:
    """Public functions, classes and their members, with what their docstrings say but for the examples."""
    for name in MODULES:
        try:
            module = importlib.import_module("ldpkernels" + name)
        except ImportError:
            continue
        for thing in (getattr(module, key) for key in dir(module) if key[0] != "_"):
            if not (inspect.isclass(thing) or inspect.isfunction(thing)) or "ldpkernels" not in thing.__module__:
                continue
            members = [key for key in vars(thing) if key[0] != "_"] if inspect.isclass(thing) else []
            for one in (thing, *(getattr(thing, key) for key in members)):
                function = getattr(one, "fget", one)
                if hasattr(function, "__qualname__"):
                    text = re.sub(r"(?m)^ *>>>.*(\n(?! *>>>).+)*", "", inspect.getdoc(function) or "")
                    yield function.__qualname__, text


def said(text: str) -> bool:
    text = " ".join(text.split())
    return bool(re.search(DIFFER, text, re.I) and re.search(SEES, text, re.I))


def test_a_docstring_that_says_an_eps_says_against_whom() -> None:
    found = {(name, text) for name, text in documented() if re.search(CLAIMS, text, re.I)}
    assert len(found) > 70
    silent = {name for name, text in found if not (said(text) or "scope" in text)}
    assert silent <= USED, silent - USED


def test_a_page_that_says_an_eps_says_against_whom() -> None:
    pages = {path.relative_to(DOCS).as_posix(): path.read_text() for path in DOCS.rglob("*.md")}
    pages |= {name: (DOCS.parent / name).read_text() for name in ("README.md", "SECURITY.md")}
    pages = {name: text for name, text in pages.items() if not name.startswith("reference/")}  # docstrings
    assert {name for name, text in pages.items() if re.search(CLAIMS, text, re.I) and not said(text)} == PAGES


def test_saying_nothing_is_noticed() -> None:
    assert not said("The eps of so many reports at delta, rounded up.")
    assert not said("The eps of so many reports between any two inputs.")
    assert not said("The eps of so many reports, against whoever sees them.")
