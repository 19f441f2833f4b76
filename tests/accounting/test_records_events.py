# SPDX-License-Identifier: Apache-2.0
"""Records and events: frozen, printable, serializable, and free to import."""

import dataclasses
import json
import math
import subprocess
import sys

import pytest

import ldpkernels.accounting as accounting
from ldpkernels.accounting import (
    ConcentratedEvent,
    GaussianEvent,
    MetricEvent,
    PrivacyResult,
    PureEvent,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    ShuffledEvent,
    SkellamEvent,
    event_from_dict,
    event_of,
)
from ldpkernels.accounting.records import rounded_up

EVENTS = [
    PureEvent(0.5),
    RandomizedResponseEvent(1.0),
    GaussianEvent(2.0),
    SampledGaussianEvent(1.0, 0.01),
    MetricEvent(0.1, "l1", 5.0),
    ShuffledEvent(1.0, 100),
    ConcentratedEvent(0.5),
    SkellamEvent(100.0, 3.0, 9.0),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_events_are_values_that_survive_json(event) -> None:  # type: ignore[no-untyped-def]
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event
    assert hash(event) == hash(event_from_dict(event.to_dict()))
    field = dataclasses.fields(event)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, field, 2.0)


def test_a_randomized_response_is_not_just_any_pure_event() -> None:
    assert PureEvent(1.0) != RandomizedResponseEvent(1.0)


def test_unknown_events_are_refused() -> None:
    with pytest.raises(ValueError, match="event kind 'laplace' is unknown"):
        event_from_dict({"kind": "laplace"})
    with pytest.raises(ValueError, match="don't make a pure event"):
        event_from_dict({"kind": "pure", "epsilon": 1.0})
    with pytest.raises(TypeError, match="neither an event"):
        event_of(accounting.Event())


def test_a_mechanism_is_anything_with_an_event() -> None:
    class Mechanism:
        event = PureEvent(0.25)

    assert event_of(Mechanism()) == PureEvent(0.25)


def test_numbers_are_printed_rounded_up() -> None:
    assert rounded_up(1.0) == "1"
    assert rounded_up(0.1) == "0.1"
    assert rounded_up(1.0000001) == "1.00001"
    assert rounded_up(102690.0001) == "102,691"
    assert rounded_up(1.5e-9) == "1.50e-9"
    assert rounded_up(0.0) == "0"
    assert rounded_up(math.inf) == "infinite"


def test_results_serialize_and_refuse_nonsense() -> None:
    result = PrivacyResult(math.inf, 1e-5, accounting.LOCAL, ("c",))
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["epsilon"] == "infinity"
    for epsilon, delta in ((math.nan, 0.0), (-1.0, 0.0), (1.0, 2.0)):
        with pytest.raises(ValueError, match=r"epsilon|delta"):
            PrivacyResult(epsilon, delta, accounting.LOCAL)
    with pytest.raises(TypeError, match="'the server' is not a Scope"):
        PrivacyResult(1.0, 0.0, "the server", ("any two weights",))  # type: ignore[arg-type]


def test_every_exported_name_exists() -> None:
    for name in accounting.__all__:
        assert getattr(accounting, name) is not None
    assert set(accounting.__all__) <= set(dir(accounting))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        accounting.nothing  # noqa: B018


def test_importing_is_light_and_a_missing_dependency_names_the_cure() -> None:
    code = """
import sys
import ldpkernels.accounting as accounting
heavy = {"torch", "scipy", "dp_accounting"} & set(sys.modules)
assert not heavy, heavy
for name in ("scipy", "scipy.special", "dp_accounting"):
    sys.modules[name] = None
try:
    accounting.local_epsilon(accounting.PureEvent(1.0), d=10)
except ImportError as error:
    assert "pip install 'ldpkernels[accounting]'" in str(error), error
else:
    raise AssertionError("no error")
assert accounting.local_epsilon(accounting.PureEvent(1.0), d=10, method="basic").epsilon == 10.0
assert "torch" not in sys.modules or sys.modules["torch"] is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
