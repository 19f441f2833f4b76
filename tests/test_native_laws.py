# SPDX-License-Identifier: Apache-2.0
"""Laws computed natively are those of Python's integers, in ranges of every size; what is refused, Python refuses."""

import ctypes
import operator
import random

import numpy as np
import pytest

from ldpkernels import _native
from ldpkernels.dtypes import DTYPES, nearest
from ldpkernels.laws import registry
from ldpkernels.laws.registry import KINDS, law_table
from tests import emulation

SPECIAL = [0.0, -0.0, 2.0**-96, 2.0**-149, 5e-324, 65504.0, 3.4e38, 1.7e308, 1e-300, float("nan"), float("inf"), -1.0]
EPS = {"bits": [1e-4, 0.3, 1.0, 4.0, 8.0, 22.9, 30.0], "cells": [0.7, 4.0]}  # a new circle takes a millisecond


def ranges(rng, count):
    """Of ordinary sizes, of all sizes, far from zero or far narrower than their center, and with what is special."""
    for i in range(count):
        scale = 10.0 ** rng.uniform(-4, 1) if i % 3 else 2.0 ** rng.uniform(-140, 120)
        c, r = rng.gauss(0, scale), abs(rng.gauss(0, scale))
        if i % 5 == 0:
            r *= 2.0 ** rng.uniform(-60, 0)
        if i % 7 == 0:
            c, r = round(c, 2), round(r, 3)
        if i % 31 == 0:
            c, r = rng.choice([c, *SPECIAL]), rng.choice([r, *SPECIAL])
        yield c, r


def by_python(mechanism, c, r, dtype, output):
    """The table of one law, or None where it is refused."""
    try:
        row = mechanism.record(c, r, dtype, output)
    except (ValueError, OverflowError):
        return None
    return np.array([row], _native.LAWS[mechanism.kernel])


@pytest.mark.parametrize("output", ["values", "report"])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_native_laws_are_pythons(kind, name, output):
    answered = ordinary = refused = 0
    rng = random.Random(f"{kind.name} {name} {output}")
    for c, r in ranges(rng, 250):
        mechanism = kind(rng.choice(EPS[kind.reported]))
        found = mechanism.quick_table((c,), (r,), (DTYPES[name],), output)
        expected = by_python(mechanism, c, r, DTYPES[name], output)
        if found is not None:
            assert expected is not None, (mechanism, c, r)
            assert found.dtype == expected.dtype
            assert found.tobytes() == expected.tobytes(), (mechanism, c, r, found, expected)
            answered += 1
        elif 1e-6 < r < 10 and 1e-9 < abs(c) < 10:
            ordinary += expected is not None  # and Python had to do it
        refused += expected is None
    assert answered > 100
    assert ordinary == 0
    assert refused > 0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_table_has_a_law_for_each_range(kind):
    mechanism, rng = kind(2.0), random.Random(3)
    c, r = [rng.gauss(0, 1) for _ in range(40)], [rng.random() for _ in range(40)]
    c[7:9], r[7:9] = [c[6]] * 2, [r[6]] * 2  # the same range in several formats
    dtypes = [rng.choice(list(DTYPES.values())) for _ in range(40)]
    for output in ("values", "report"):
        table = law_table(mechanism, c, r, dtypes, output)
        rows = [by_python(mechanism, *one, output) for one in zip(c, r, dtypes, strict=True)]
        assert table.tobytes() == np.concatenate(rows).tobytes()
        assert not table.flags.writeable


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_one_range_that_is_refused_refuses_the_table(kind):
    mechanism, dtype = kind(2.0), DTYPES["float32"]
    assert mechanism.quick_table((0.0, 0.0), (1.0, -1.0), (dtype,) * 2, "values") is None
    with pytest.raises(ValueError, match=r"R=-1.0 must be"):
        law_table(mechanism, [0.0, 0.0], [1.0, -1.0], [dtype] * 2, "values")
    with pytest.raises(OverflowError, match=r"leaves float32|overflow float32"):
        law_table(mechanism, [0.0, 3e38], [1.0, 1e38], [dtype] * 2, "values")


def test_what_no_table_of_ranges_is_refused():
    with pytest.raises(ValueError, match="one value each for every tensor"):
        _native.one_bit_laws("two_point", (0.0,), (1.0, 1.0), (0,), 1 << 30, False)
    with pytest.raises(ValueError, match="a dtype of weights"):
        _native.one_bit_laws("two_point", (0.0,), (1.0,), (4,), 1 << 30, False)
    with pytest.raises(ValueError, match="below half of the draws"):
        _native.one_bit_laws("two_point", (0.0,), (1.0,), (0,), 1 << 31, False)
    assert _native.one_bit_laws("piecewise", (0.0,), (1.0,), (0,), 1 << 30, False) is None


def test_a_circle_that_breaks_eps_has_no_law(monkeypatch):
    """The proof of a circle is asked for natively too, and an error of Python's passes."""
    from ldpkernels.laws import piecewise

    monkeypatch.setattr(piecewise, "_of_circle", lambda circle, eps: False)
    circles = piecewise.proved_circles.__wrapped__(1.75)
    with pytest.raises(ArithmeticError, match="a bug"):
        _native.piecewise_laws((0.0,), (1.0,), (0,), False, circles)


def test_law_tables_are_native_where_they_can_be(monkeypatch):
    """No law of an ordinary range is Python's."""
    dtypes = list(DTYPES.values())
    for kind in KINDS:
        monkeypatch.setattr(kind, "record", None)
        for output in ("values", "report"):
            assert len(registry.law_table(kind(1.25), [0.125] * 4, [0.75] * 4, dtypes, output)) == 4


OPERATIONS = {  # in the order of tests/native/wide.cpp
    "sum": operator.add,
    "difference": operator.sub,
    "product": operator.mul,
    "quotient": operator.floordiv,
    "remainder": operator.mod,
    "nearest": nearest,
    "shifted": operator.lshift,
    "order": lambda a, b: (a > b) - (a < b),
}


def integers(rng):
    """Of every length; of words that are all zeros or all ones, or nearly."""
    while True:
        words = rng.randint(0, 8)
        edge = [0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1]
        n = sum((rng.choice(edge) if rng.random() < 0.6 else rng.getrandbits(64)) << 64 * i for i in range(words))
        yield (n >> rng.choice([0, 0, rng.randint(0, 511)])) * rng.choice([1, -1])


def hard_divisions():
    """What makes a digit of a quotient be guessed too high, once and twice (Knuth, 4.3.1, exercises 21 and 22)."""
    b = 2**64
    half = b // 2
    yield half * b**2 + (b - 1) * b, half * b + 1  # the second digit's look corrects the guess
    yield (half - 1) * b**3 + (b - 1) * b**2, half * b**2 + 1
    yield half * b**3, half * b**2 + 1  # all of it must be added back
    yield half * b**4 + 3, (half * b**2 + 1) * b
    yield (b**3 - 1) * (b**4 - 1) - 1, b**4 - 1
    yield b**7, b**3 + 1
    yield (half * b**2 + 1) * (b - 1) - 1, half * b**2 + 1


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    library = emulation.library("../native/wide.cpp", tmp_path_factory)
    eight, nine = ctypes.c_uint64 * 8, ctypes.c_int64 * 9
    library.wide.argtypes = [ctypes.c_int, eight, ctypes.c_bool, eight, ctypes.c_bool, nine]

    def run(number, a, b):
        out = nine()
        digits = [eight(*(abs(n) >> 64 * i & 2**64 - 1 for i in range(8))) for n in (a, b)]
        found = library.wide(number, digits[0], a < 0, digits[1], b < 0, out)
        size = sum(digit << 62 * i for i, digit in enumerate(out))
        return None if found < 0 else -size if found else size

    return run


@pytest.mark.parametrize("name", OPERATIONS)
def test_wide_integers_are_pythons(name, wide):
    number, rng = list(OPERATIONS).index(name), random.Random(name)
    some = integers(rng)
    pairs = [(next(some), next(some)) for _ in range(1500)]
    if name in ("quotient", "remainder", "nearest"):
        pairs = [(n, abs(d) >> 64 * rng.randint(0, 4)) for n, d in pairs]
        pairs += [(sign * n * k, d * k) for n, d in hard_divisions() for sign in (1, -1) for k in (1, 3)]
    if name == "shifted":
        pairs = [(n, rng.randint(-2, 520)) for n, _ in pairs]
    answered = 0
    for a, b in pairs:
        found = wide(number, a, b)
        if found is None:
            short = abs(a) < 2**200 and 0 < abs(b) < 2**200 and not (name == "shifted" and not 0 <= b < 300)
            assert not short, (a, b)
            continue
        answered += 1
        assert found == OPERATIONS[name](a, b), (a, b)
    assert answered > 500
