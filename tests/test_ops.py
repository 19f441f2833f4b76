# SPDX-License-Identifier: Apache-2.0
# torch.ops.ldpkernels: schemas and fakes as torch wants them, and torch.compile without a graph break.
import pytest
import torch

import ldpkernels
import ldpkernels.ops
from ldpkernels import perturb_, report, two_point_threshold
from ldpkernels.laws.registry import KINDS, NAMES

KEY = torch.tensor([7], dtype=torch.int64)
CHACHA = torch.tensor([1, -2, 3, -(2**63)], dtype=torch.int64)
AES = CHACHA[:2].clone()
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*TF32.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # torch 2.15
]


def tensors(requires_grad=False):
    torch.manual_seed(0)
    a, b, c = torch.randn(5, 7), torch.randn(33, dtype=torch.float64), torch.randn(4, 3, dtype=torch.bfloat16)
    return [t.requires_grad_(requires_grad) for t in (a, b, c, torch.randn(()).half())]


@pytest.mark.parametrize("output", ["", "report"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_opcheck(kind, output):
    """Of every mechanism, each tensor with a range of its own; two-point with a key of every cipher."""
    op, x = getattr(torch.ops.ldpkernels, f"{kind.kernel}_{output}"), tensors()
    for sample in (x, [x[0].t(), x[1][::2], x[2][:0]]):
        numbers = [0.1] * len(sample), [0.5 + i for i in range(len(sample))]
        for key in (KEY, AES, CHACHA) if kind.kernel == "two_point" else (KEY,):
            torch.library.opcheck(op.default, (sample, key, *numbers, 1.0))
        if kind.name == "hybrid":
            torch.library.opcheck(op.default, (sample, KEY, *numbers, 0.3))  # where two-point is executed


@pytest.mark.parametrize("output", ["report", "values"])
def test_opcheck_of_thresholds(output):
    for x in (*tensors(), tensors()[0].t()[1:], tensors(requires_grad=True)[0]):
        torch.library.opcheck(torch.ops.ldpkernels.two_point_threshold.default, (x, 0.1, 0.5, 1.0, output))


def test_opcheck_with_leaves_that_require_gradients():
    torch.library.opcheck(
        torch.ops.ldpkernels.two_point_report.default, (tensors(True), KEY, [0.0] * 4, [1.0] * 4, 1.0)
    )


def test_meta_tensors_pass_through_the_operations():
    x = torch.empty(9, device="meta")
    key = torch.empty(1, dtype=torch.int64, device="meta")
    assert torch.ops.ldpkernels.two_point_report([x], key, [0.0], [1.0], 1.0).shape == (2,)


X = torch.zeros(9)
RAW = {
    "two_point_": lambda key: torch.ops.ldpkernels.two_point_([X], key, [0.0], [1.0], 1.0),
    "two_point_report": lambda key: torch.ops.ldpkernels.two_point_report([X], key, [0.0], [1.0], 1.0),
    "piecewise_": lambda key: torch.ops.ldpkernels.piecewise_([X], key, [0.0], [1.0], 1.0),
    "hybrid_report": lambda key: torch.ops.ldpkernels.hybrid_report([X], key, [0.0], [1.0], 1.0),
    "ordinal_cldp_": lambda key: torch.ops.ldpkernels.ordinal_cldp_([X], key, [0.1], 1.0, 2, "exponential", "nearest"),
    "ordinal_cldp_sample": lambda key: torch.ops.ldpkernels.ordinal_cldp_sample(X.long(), key, 0.1, 9, "exponential"),
    "clipped_noised_sum": lambda key: torch.ops.ldpkernels.clipped_noised_sum(
        [X], key, [1.0], 1.0, 1.0, "gaussian", "global"
    ),
}


@pytest.mark.parametrize("name", RAW)
def test_a_key_without_data_does_not_run_the_fake(name):
    """torch takes the fake as soon as one argument is on "meta": weights would be returned as they were."""
    with pytest.raises(ValueError, match="the key is on meta and the tensors are on cpu"):
        RAW[name](torch.empty(1, dtype=torch.int64, device="meta"))


def same(a, b):
    return all(
        torch.equal(x.detach().view(-1).view(torch.uint8), y.detach().view(-1).view(torch.uint8))
        for x, y in zip(a, b, strict=True)
    )


@pytest.fixture(scope="module", autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_compiled_tensors_have_the_eager_bits():
    """One graph for a tensor's perturbation, its report and its thresholds, with the key as an argument."""

    def step(x, key):
        y = x * 2
        thresholds = two_point_threshold(y, 0.1, 0.5, 1.0)
        bits = torch.ops.ldpkernels.two_point_report([y], key, [0.1], [0.5], 1.0)
        perturb_(y, 0.1, 0.5, 1.0, generator=key)
        return y + 1, bits, thresholds

    compiled = torch.compile(step, fullgraph=True)
    x = torch.randn(1000)
    for key in (KEY, KEY + 1, CHACHA):
        assert same(compiled(x, key), step(x, key))
    assert not torch.equal(compiled(x, KEY)[0], compiled(x, KEY + 1)[0])


@pytest.mark.parametrize("mechanism", NAMES)
def test_every_mechanism_is_compiled_to_its_eager_bits(mechanism):
    def step(x, key):
        return perturb_(x * 2, 0.1, 0.5, 1.0, mechanism=mechanism, generator=key) + 1

    compiled, x = torch.compile(step, fullgraph=True, backend="aot_eager"), torch.linspace(-1, 1, 100)
    for key in (KEY, KEY + 1):
        assert torch.equal(compiled(x, key), step(x, key))


def test_a_report_breaks_the_graph():
    model = torch.nn.Linear(40, 30)

    def step(x, generator=None):
        return report(model, 0.0, 1.0, 1.0, generator=generator), x + 1

    compiled, x = torch.compile(step, backend="eager"), torch.zeros(3)
    found, after = compiled(x, ldpkernels.key(3))
    assert found.to_bytes() == step(x, ldpkernels.key(3))[0].to_bytes()
    assert torch.equal(after, x + 1)
    assert compiled(x)[0].to_bytes() != compiled(x)[0].to_bytes()  # of 1230 bits
    with pytest.raises(torch._dynamo.exc.Unsupported, match="disable"):
        torch.compile(lambda: report(model, 0.0, 1.0, 1.0), backend="eager", fullgraph=True)()


def test_a_compiled_module_draws_anew_each_time_whatever_was_seeded():
    m = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 5))
    before = [p.detach().clone() for p in m.parameters()]

    def step(model):
        perturb_(model, 0.0, {"0": 0.5, "1": 0.25}, 1.0)
        return model[0].weight.sum()

    def run(function, seed=None):
        with torch.no_grad():
            for p, b in zip(m.parameters(), before, strict=True):
                p.copy_(b)
        if seed is not None:
            torch.manual_seed(seed)
        function(m)
        return [p.detach().clone() for p in m.parameters()]

    compiled = torch.compile(step, fullgraph=True)
    first, second = run(compiled), run(compiled)
    assert not same(first, second), "the key became a constant of the graph"
    assert not same(first, before)
    assert not same(run(compiled, 5), run(compiled, 5))
    assert all(len(p.unique()) <= 2 for p in second)
    with torch.no_grad():
        for p, b in zip(m.parameters(), before, strict=True):
            p.copy_(b)
    perturb_(m, 0.0, {"0": 0.5, "1": 0.25}, 1.0, generator=ldpkernels.key(3))
    eager = [p.detach().clone() for p in m.parameters()]
    key = ldpkernels.key(3).tensor()
    keyed = torch.compile(lambda: perturb_(m, 0.0, {"0": 0.5, "1": 0.25}, 1.0, generator=key), fullgraph=True)
    assert same(run(lambda _: keyed()), eager)


def test_ranges_and_eps_may_change_from_call_to_call():
    """Adaptive ranges are other numbers each round; the second makes them symbols of the graph."""

    def step(x, C, R, eps):
        return perturb_({"a.w": x * 2, "b": x + 1}, C, R, eps, generator=KEY)

    compiled, x = torch.compile(step, fullgraph=True), torch.randn(100)
    for C, R, eps in [
        (0.0, {"a": 1.0, "b": 2.0}, 1.0),
        (0.5, {"a": 1.5, "b": 2.5}, 2.0),
        (1, {"a": 3.0, "b": 2.75}, 4),
    ]:
        assert same(compiled(x, C, R, eps).values(), step(x, C, R, eps).values())
    with pytest.raises(ValueError, match="eps=-1"):
        compiled(x, 0.25, {"a": 3.5, "b": 1.75}, -1.0)
