# SPDX-License-Identifier: Apache-2.0
# One bit a weight: what a report holds, and what the sum of many is, in integers.
import gc
import math
import weakref
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import Aggregate, Report, TwoPoint, _native, aggregate, report
from tests.kernels import draws, unpack
from tests.statistics import fits, mean_test, rejected

EPS, C, R = 1.0, 0.25, 0.5
SIZES = [(3, 5), (), (17,), (0, 4), (2, 2, 33)]


def weights(client=0, dtype=np.float64):
    rng = np.random.default_rng(client)
    return {f"layer.{i}": rng.uniform(-0.5, 1.0, s).astype(dtype) for i, s in enumerate(SIZES)}


def reports(clients, **options):
    return [report(weights(i), C, R, EPS, generator=ldpkernels.key(i), **options) for i in range(clients)]


def decoded_bits(one):
    """A report's bits, tensor by tensor, as 0 and 1."""
    bits, at = [], 0
    for shape, size in zip(one.layout.shapes, one.layout.sizes, strict=True):
        bits.append(unpack(one.bits[at : at + (size + 7) // 8], size).reshape(shape).astype(int))
        at += (size + 7) // 8
    return bits


def test_bits_are_draws_against_thresholds(key, isa):
    w = weights()
    one, first = report(w, C, R, EPS, generator=key), 0
    for x, found in zip(w.values(), decoded_bits(one), strict=True):
        k = ldpkernels.two_point_threshold(x, C, R, EPS) - 2**31
        assert np.array_equal(found.ravel(), draws(key, first, x.size) < k.ravel())
        first += (x.size + 7) // 8 * 8
    assert one.nbytes == len(one.bits) == first // 8


def test_the_same_bytes_on_every_isa_and_for_every_library(key):
    w = {k: v.astype(np.float32) for k, v in weights().items()}
    found = set()
    for isa in _native.isas():
        with ldpkernels.backend(isa):
            one = report(w, C, R, EPS, generator=key)
            tensors = report({k: torch.from_numpy(np.array(v)) for k, v in w.items()}, C, R, EPS, generator=key)
            assert np.array_equal(one.bits, tensors.bits)
            found |= {one.to_bytes()[:-4], tensors.to_bytes()[:-4].replace(b'"torch"', b'"numpy"')}
    assert len(found) == 1


def test_the_model_is_not_changed_and_any_dtype_reports():
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
        w = weights(dtype=dtype)
        before = {k: v.tobytes() for k, v in w.items()}
        one = report(w, C, R, EPS)
        assert {k: v.tobytes() for k, v in w.items()} == before
        assert set(one.layout.dtypes) == {"float64" if dtype is np.float64 else "float32"}
    m = torch.nn.Linear(5, 3)
    version = m.weight._version
    report(m, C, R, EPS)
    assert m.weight._version == version


def test_views_report_their_elements_in_order(key):
    base = torch.linspace(-1, 1, 240).reshape(6, 40)
    for view in (base.t(), base[::2, 3::5], base[1], base[2, 3]):
        wanted = report(view.clone(memory_format=torch.contiguous_format), 0.0, 1.0, EPS, generator=key)
        assert report(view, 0.0, 1.0, EPS, generator=key).to_bytes() == wanted.to_bytes()


@pytest.mark.parametrize("clients", [*range(1, 35), 45, 60, 61, 63, 64, 65, 127, 128, 130, 300])
def test_an_aggregate_is_the_exact_mean(clients):
    """Counts as integers, decoded in exact rationals; the library rounds once or twice in fp64."""
    sent = reports(clients)
    mean = aggregate(sent)
    counts = [sum(parts) for parts in zip(*map(decoded_bits, sent), strict=True)]
    reach = Fraction(R) * Fraction(2**31, TwoPoint(EPS).half_range)
    assert list(mean) == list(weights())
    for found, count in zip(mean.values(), counts, strict=True):
        exact = [float(Fraction(C) + reach * (Fraction(2 * int(n), clients) - 1)) for n in count.ravel()]
        assert found.shape == count.shape
        assert np.allclose(found.ravel(), exact, rtol=0, atol=1e-15)


def test_order_batches_bytes_and_isas_do_not_matter():
    sent = reports(77)
    wanted = {k: v.tobytes() for k, v in aggregate(sent).items()}

    def same(mean):
        assert {k: v.tobytes() for k, v in mean.items()} == wanted

    same(aggregate(reversed(sent)))
    same(aggregate(one.to_bytes() for one in sent))
    same(aggregate(memoryview(one.to_bytes()) for one in sent))
    for isa in _native.isas():
        with ldpkernels.backend(isa):
            total = Aggregate()
            for one in sent:
                total.add(one)
            same(total.mean())
            total = Aggregate()
            total.add(*sent[:3])
            total.add(*sent[3:40])
            total.add()
            total.add(*sent[40:])
            same(total.mean())


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise"])
def test_partial_aggregates_merge_and_travel(mechanism):
    sent = reports(100, mechanism=mechanism)
    whole = aggregate(sent)
    parts = [Aggregate() for _ in range(4)]
    for one, part in zip(sent, [0] * 1 + [1] * 64 + [2] * 15 + [3] * 20, strict=True):
        parts[part].add(one)
    total = Aggregate()
    total.merge(Aggregate())
    for part in parts:
        back = Aggregate.from_bytes(part.to_bytes())
        assert back.clients == part.clients
        assert all(np.array_equal(a, b) for a, b in zip(back.mean().values(), part.mean().values(), strict=True))
        total.merge(back)
    assert total.clients == 100
    assert all(np.array_equal(v, whole[k]) for k, v in total.mean().items())
    total.add(*sent)
    assert total.clients == 200
    assert all(np.array_equal(v, whole[k]) for k, v in total.mean().items())
    with pytest.raises(ValueError, match="into itself"):
        total.merge(total)
    assert total.clients == 200


def test_millions_of_clients():
    """Partial sums that double: the counters grow to 22 bits, and the mean stays what it was."""
    total = Aggregate()
    total.add(*reports(3))
    wanted = total.mean()
    for doubling in range(1, 21):
        total.merge(Aggregate.from_bytes(total.to_bytes()))
        assert total.clients == 3 * 2**doubling
    for name, found in total.mean().items():
        assert np.allclose(found, wanted[name], rtol=0, atol=1e-14)
    total.add(reports(1)[0])
    assert total.clients == 3 * 2**20 + 1


def test_several_threads_add_and_decode_the_same():
    n, before = 2**20 + 3, torch.get_num_threads()
    sent = [report(torch.zeros(n), 0.0, 1.0, EPS, generator=ldpkernels.key(i)) for i in range(18)]
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(aggregate(sent))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
    counts = sum(unpack(one.bits, n).astype(int) for one in sent)
    scale = TwoPoint(EPS).scale
    assert np.allclose(found[0], scale * (2 * counts / 18 - 1), atol=1e-6)


@pytest.mark.parametrize("make", [list, tuple, dict, "tensor", "module", np.asarray])
def test_the_mean_has_the_shape_of_the_model(make):
    m = torch.nn.Linear(4, 3)
    if make == "module":
        mean = aggregate([report(m, 0.0, 1.0, EPS) for _ in range(3)])
        assert list(mean) == ["weight", "bias"]
        missing = m.load_state_dict(mean, strict=False)
        assert not missing.missing_keys
        assert not missing.unexpected_keys
        assert torch.equal(m.bias, mean["bias"])
    elif make == "tensor":
        mean = aggregate([report(torch.zeros(2, 3), 0.0, 1.0, EPS)])
        assert (type(mean), mean.shape, mean.dtype) == (torch.Tensor, (2, 3), torch.float32)
    elif make is np.asarray:
        mean = aggregate([report(np.zeros((2, 3)), 0.0, 1.0, EPS)])
        assert (type(mean), mean.shape, mean.dtype) == (np.ndarray, (2, 3), np.float64)
    else:
        tensors = [torch.zeros(2), torch.zeros(3, 1).double()]
        model = {"a": tensors[0], "b": tensors[1]} if make is dict else make(tensors)
        mean = aggregate([report(model, 0.0, 1.0, EPS)])
        found = list(mean.values()) if make is dict else mean
        assert type(mean) is (dict if make is dict else list)
        assert [(t.shape, t.dtype) for t in found] == [((2,), torch.float32), ((3, 1), torch.float64)]


DIFFERENT = {
    "eps": lambda: report({"w": np.zeros(9)}, 0.0, 1.0, 2.0),
    "c": lambda: report({"w": np.zeros(9)}, 0.1, 1.0, EPS),
    "r": lambda: report({"w": np.zeros(9)}, 0.0, 1.5, EPS),
    "names": lambda: report({"v": np.zeros(9)}, 0.0, 1.0, EPS),
    "shapes": lambda: report({"w": np.zeros((3, 3))}, 0.0, 1.0, EPS),
    "dtypes": lambda: report({"w": np.zeros(9, np.float32)}, 0.0, 1.0, EPS),
}


@pytest.mark.parametrize("field", DIFFERENT)
def test_mixed_reports_are_refused_and_none_is_added(field):
    one, other = report({"w": np.zeros(9)}, 0.0, 1.0, EPS), DIFFERENT[field]()
    total = Aggregate()
    total.add(one)
    before = total.to_bytes()
    partial = Aggregate()
    partial.add(other)
    for call in (
        lambda: total.add(other),
        lambda: total.add(one, other, one),
        lambda: total.add(one, other.to_bytes()),
        lambda: total.merge(partial),
        lambda: aggregate([one, other]),
    ):
        with pytest.raises(ValueError, match=f"different kinds.*{field}"):
            call()
    assert total.to_bytes() == before


def test_clients_with_torch_and_with_numpy_are_added_and_the_first_says_what_the_mean_is():
    model = torch.nn.Linear(3, 2).double()
    arrays = {name: p.detach().numpy() for name, p in model.named_parameters()}
    reports = [report(m, 0.0, 1.0, EPS, generator=ldpkernels.key(i)) for i, m in enumerate((model, arrays) * 2)]
    assert reports[0].layout == reports[1].layout
    by_torch, by_numpy = aggregate(reports), aggregate([one.to_bytes() for one in reports[::-1]])
    assert all(isinstance(m, torch.Tensor) for m in by_torch.values())
    model.load_state_dict(by_torch)
    assert all(type(m) is np.ndarray and np.array_equal(m, by_torch[name]) for name, m in by_numpy.items())
    partials = [Aggregate(), Aggregate()]
    partials[0].add(*reports[1::2])
    partials[1].add(*reports[::2])
    partials[0].merge(Aggregate.from_bytes(partials[1].to_bytes()))
    assert Aggregate.from_bytes(partials[0].to_bytes()).layout.library == "numpy"
    merged = partials[0].mean()
    assert all(type(m) is np.ndarray and np.array_equal(m, by_torch[name]) for name, m in merged.items())


def test_nothing_to_average():
    for call in (lambda: aggregate([]), lambda: Aggregate().mean(), lambda: Aggregate().to_bytes()):
        with pytest.raises(ValueError, match="add at least one report"):
            call()
    one = report(np.zeros(3), 0.0, 1.0, EPS)
    for wrong in (one, one.to_bytes()):
        with pytest.raises(TypeError, match="as a list"):
            aggregate(wrong)
    with pytest.raises(TypeError, match="cannot add a ndarray"):
        aggregate([np.zeros(3)])


def test_an_iterable_of_any_length_holds_a_few_reports():
    alive, most = weakref.WeakSet(), 0

    def clients():
        nonlocal most
        for i in range(120):
            one = report(np.zeros(64), 0.0, 1.0, EPS, generator=ldpkernels.key(i))
            alive.add(one)
            if i % 50 == 0:
                gc.collect()
            most = max(most, len(alive))
            yield one
            del one

    mean = aggregate(clients())
    assert mean.shape == (64,)
    assert most <= 70, f"{most} reports were alive at once"
    total = Aggregate()
    for i in range(3):
        total.add(report(np.zeros(64), 0.0, 1.0, EPS, generator=ldpkernels.key(i)))
    assert len(total.to_bytes()) < 400, "an aggregate is a counter of two bits a weight and a header"


def test_the_mean_is_unbiased_and_2_percent_would_show(key):
    n, clients, w = 50_000, 64, 0.6
    sent = (report(np.full(n, w), C, R, EPS, generator=key.fold_in(i)) for i in range(clients))
    mean = aggregate(sent)
    variance = float(TwoPoint(EPS).variance(w, C, R)) / clients
    fits(mean_test(mean, w, variance))
    rejected(mean_test(C + (mean - C) * 1.02, w, variance))
    assert mean.var() == pytest.approx(variance, rel=6 * math.sqrt(2 / n))


def test_a_report_says_what_it_is():
    one = report({"w": np.zeros((3, 5))}, 0.0, 1.0, EPS)
    assert repr(one) == "Report(1 tensors, 15 weights, eps=1.0)"
    assert isinstance(Report.from_bytes(one.to_bytes()), Report)
    assert one.layout.threshold == TwoPoint(EPS).lowest_threshold


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("planes", [1, 5, 7, 8, 9, 17])
def test_counts_leave_their_planes_as_they_entered(isa, planes):
    """Every number of planes around a byte of them, every rest of the 64 elements that leave at once."""
    random = np.random.default_rng(planes)
    counts = random.integers(0, 2**planes, 8 * 100)
    tally = _native.Tally(100, isa)
    tally.restore(2**planes - 1, np.array([np.packbits(counts >> p & 1, bitorder="little") for p in range(planes)]))
    for first, size in ((0, 800), (8, 64), (16, 63), (24, 65), (392, 408), (792, 8), (0, 520), (0, 1), (8, 7)):
        expected = 0.25 + 1e-3 * counts[first : first + size]
        narrow, wide = np.empty(size, np.float32), np.empty(size)
        tally.decode_f32(first, 0.25, 1e-3, narrow, 1)
        tally.decode_f64(first, 0.25, 1e-3, wide, 2)
        assert (narrow == expected.astype(np.float32)).all()
        assert (wide == expected).all()
