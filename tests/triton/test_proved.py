# SPDX-License-Identifier: Apache-2.0
"""Known answers at first use, of kernels that are right and of some that were made wrong."""

import dataclasses
import importlib
import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import ldpkernels  # noqa: E402
from ldpkernels.launch import proved  # noqa: E402
from ldpkernels.ops import known_vectors  # noqa: E402
from ldpkernels.triton import registry, tally  # noqa: E402


@pytest.fixture(autouse=True)
def _asked_in_this_process(monkeypatch):
    monkeypatch.setenv("LDPKERNELS_PROVE", "always")
    monkeypatch.setattr(proved, "_passed", set())


def perturbed(device, mechanism="two-point"):
    x = torch.zeros(5, device=device)
    with ldpkernels.backend("triton"):
        return ldpkernels.perturb_(x, 0.0, 1.0, 1.0, mechanism=mechanism, generator=ldpkernels.key(1)).cpu()


def altered(monkeypatch, kernel, change):
    """A kernel that is launched with a table of spans or laws that `change` has been at."""
    launch = registry.LAUNCHERS[kernel]

    def wrong(output, spans, laws, key, out):
        spans, laws = spans.copy(), laws.copy()
        change(spans, laws)
        launch(output, spans, laws, key, out)

    monkeypatch.setitem(registry.LAUNCHERS, kernel, wrong)


def test_a_kernel_is_asked_once_in_a_process(device, monkeypatch):
    asked, ask = [], proved.ask
    monkeypatch.setattr(proved, "ask", lambda *a: asked.append(str(a[1])) or ask(*a))
    expected = ldpkernels.perturb_(torch.zeros(5), 0.0, 1.0, 1.0, generator=ldpkernels.key(1))
    for _ in range(2):
        assert torch.equal(perturbed(device), expected)
    assert asked == ["two_point values float32 philox"]
    monkeypatch.setenv("LDPKERNELS_PROVE", "never")
    perturbed(device, "sign")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("mechanism", "kernel", "field", "by"),
    [
        ("two-point", "two_point", "k_hi", 1),
        ("sign", "sign", "below", -1),
        pytest.param("sign", "sign", "below", 1, marks=pytest.mark.exhaustive),
        pytest.param("two-point", "two_point", "k_hi", -1, marks=pytest.mark.exhaustive),
        *(pytest.param("two-point", "two_point", "k_lo", by, marks=pytest.mark.exhaustive) for by in (-1, 1)),
    ],
)
def test_a_threshold_that_is_off_by_one_is_caught(device, monkeypatch, mechanism, kernel, field, by):
    def change(spans, laws):
        laws[field] += by

    altered(monkeypatch, kernel, change)
    with pytest.raises(proved.WrongAnswerError, match=f"of .* known bytes wrong on '{device}.*LDPKERNELS_BACKEND"):
        perturbed(device, mechanism)


def test_a_draw_that_is_shifted_is_caught(device, monkeypatch):
    def change(spans, laws):
        spans["first"] += 8

    altered(monkeypatch, "piecewise", change)
    with pytest.raises(proved.WrongAnswerError, match="piecewise values float32 philox gives"):
        perturbed(device, "piecewise")


def test_a_fault_is_an_error_that_names_the_kernel(device, monkeypatch):
    def change(spans, laws):
        raise RuntimeError("an illegal memory access was encountered")

    altered(monkeypatch, "sign", change)
    with pytest.raises(proved.WrongAnswerError, match=r"the triton kernel of sign .* illegal memory access"):
        perturbed(device, "sign")


@pytest.fixture
def answer(device):
    """What comes of one question, asked of Triton."""
    return lambda *subject: proved.ask("triton", proved.Subject(*subject), torch.device(device)).error


def given(name, i, change):
    """A function whose i-th argument is changed."""

    def wrong(whole):
        def call(*arguments, **options):
            arguments = list(arguments)
            arguments[i] = change(arguments[i])
            return whole(*arguments, **options)

        return call

    return name, wrong


def fewer(spans):
    spans = spans.copy()
    spans["numel"][0] -= 1
    return spans


def later(spans):
    spans = spans.copy()
    spans["first"] += 8
    return spans


def raised(table):
    """A table of noise whose entries but the last are one too large."""
    return dataclasses.replace(table, high=table.high + (table.high < table.high[-1]).astype(table.high.dtype))


def next_word(key):
    return key + torch.tensor([1] + [0] * (key.numel() - 1)).to(key.device)


WRONG = [  # `make test` has those of norms, quantiles and keys
    (("vectors", "norm", "float32", "none"), "lattice", given("norm", 0, fewer)),
    (("vectors", "integers", "float32", "philox"), "lattice", given("quantise", 3, lambda stream: stream + 1)),
    (
        ("vectors", "integers", "bfloat16", "none"),
        "lattice",
        given("quantise", 1, lambda scale: math.nextafter(scale, 0)),
    ),
    (("vectors", "noise 0", "uint32", "philox"), "lattice", given("add_noise", 1, raised)),
    (("vectors", "noise 16", "float32", "philox"), "lattice", given("add_noise", 0, later)),
    (("vectors", "rotation", "float32", "philox"), "lattice", given("rotate", 1, next_word)),
    (("normals", "product", "float32", "philox"), "privunitg", given("normal_product", 0, later)),
    (
        ("normals", "moved", "float64", "philox"),
        "privunitg",
        given("moved_normals", 3, lambda x: math.nextafter(x, 1.0)),
    ),
    (("summary", "finite", "float64", "none"), "summary", given("summarize", 0, fewer)),
    (("quantiles", "32 bits", "float32", "none"), "quantiles", given("order_statistics", 2, lambda ranks: ranks + 1)),
    (
        ("next_key", "keys", "int64", "chacha20"),
        "next_key",
        given("next_key", 0, lambda state: state + (torch.arange(5) == 4).to(state.device)),
    ),
]


@pytest.mark.parametrize(
    ("subject", "module", "wrong"),
    [
        pytest.param(
            *case,
            id=" ".join(case[0]),
            marks=[] if {"norm", "quantiles", "next_key"} & set(case[0]) else pytest.mark.exhaustive,
        )
        for case in WRONG
    ],
)
def test_wrong_vectors_and_ranges_are_caught(answer, monkeypatch, subject, module, wrong):
    """Asked as they are, and with one number changed; of one stretch, by which the interpreter's time goes."""
    monkeypatch.setattr(known_vectors, "LONG", 700)
    assert answer(*subject) is None
    kernels, (name, change) = importlib.import_module(f"ldpkernels.triton.{module}"), wrong
    monkeypatch.setattr(kernels, name, change(getattr(kernels, name)))
    assert "known bytes wrong" in answer(*subject)


@pytest.mark.parametrize("kind", ["bits", pytest.param("bytes", marks=pytest.mark.exhaustive)])
def test_a_sum_of_reports_without_one_of_them_is_caught(answer, monkeypatch, kind):
    subject = "tally", kind, "uint8", "none"
    assert answer(*subject) is None
    kernels = tally.BitTally if kind == "bits" else tally.ByteTally
    add = kernels.add
    monkeypatch.setattr(kernels, "add", lambda self, reports: add(self, reports[:-1] + reports[:1]))
    assert "known bytes wrong" in answer(*subject)
