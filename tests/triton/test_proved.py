# SPDX-License-Identifier: Apache-2.0
"""Known answers at first use, of kernels that are right and of some that were made wrong."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import ldpkernels  # noqa: E402
from ldpkernels.launch import proved  # noqa: E402
from ldpkernels.triton import registry  # noqa: E402


@pytest.fixture(autouse=True)
def _asked_in_this_process(monkeypatch):
    monkeypatch.setenv("LDPKERNELS_PROVE", "always")
    monkeypatch.setattr(proved, "_passed", set())


def perturbed(mechanism="two-point"):
    with ldpkernels.backend("triton"):
        return ldpkernels.perturb_(torch.zeros(5), 0.0, 1.0, 1.0, mechanism=mechanism, generator=ldpkernels.key(1))


def altered(monkeypatch, kernel, change):
    """A kernel that is launched with a table of spans or laws that `change` has been at."""
    launch = registry.LAUNCHERS[kernel]

    def wrong(output, spans, laws, key, out):
        spans, laws = spans.copy(), laws.copy()
        change(spans, laws)
        launch(output, spans, laws, key, out)

    monkeypatch.setitem(registry.LAUNCHERS, kernel, wrong)


def test_a_kernel_is_asked_once_in_a_process(monkeypatch):
    asked, ask = [], proved.ask
    monkeypatch.setattr(proved, "ask", lambda *a: asked.append(str(a[1])) or ask(*a))
    expected = ldpkernels.perturb_(torch.zeros(5), 0.0, 1.0, 1.0, generator=ldpkernels.key(1))
    for _ in range(2):
        assert torch.equal(perturbed(), expected)
    assert asked == ["two_point values float32 philox"]
    monkeypatch.setenv("LDPKERNELS_PROVE", "never")
    perturbed("sign")
    assert len(asked) == 1


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize(
    ("mechanism", "kernel", "field"),
    [("two-point", "two_point", "k_lo"), ("two-point", "two_point", "k_hi"), ("sign", "sign", "below")],
)
def test_a_threshold_that_is_off_by_one_is_caught(monkeypatch, mechanism, kernel, field, by):
    def change(spans, laws):
        laws[field] += by

    altered(monkeypatch, kernel, change)
    with pytest.raises(proved.WrongAnswerError, match=r"of .* known bytes wrong on 'cpu'.*LDPKERNELS_BACKEND"):
        perturbed(mechanism)


def test_a_draw_that_is_shifted_is_caught(monkeypatch):
    def change(spans, laws):
        spans["first"] += 8

    altered(monkeypatch, "piecewise", change)
    with pytest.raises(proved.WrongAnswerError, match="piecewise values float32 philox gives"):
        perturbed("piecewise")


def test_a_fault_is_an_error_that_names_the_kernel(monkeypatch):
    def change(spans, laws):
        raise RuntimeError("an illegal memory access was encountered")

    altered(monkeypatch, "sign", change)
    with pytest.raises(proved.WrongAnswerError, match=r"the triton kernel of sign .* illegal memory access"):
        perturbed("sign")
