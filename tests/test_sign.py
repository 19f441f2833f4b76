# SPDX-License-Identifier: Apache-2.0
# The sign mechanism: its law in exact integers, the same bits on every backend, and what comes out of it.
import itertools
import math
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch

import ldpkernels
import ldpkernels.ops
from ldpkernels import _native, accounting, aggregate, perturb_, report
from ldpkernels.common.dtypes import DTYPES, compute_dtype, power_of_two
from ldpkernels.common.keys import Key
from ldpkernels.laws.registry import law_table, mechanism_named
from ldpkernels.laws.sign import Sign, side_of
from ldpkernels.laws.two_point import TwoPoint, two_point_law
from tests.kernels import unpack
from tests.launches import BITS, GUARD, bits_of, launcher, written
from tests.laws import N, executed, within_exp
from tests.statistics import fits, mean_test, rejected

EPS = [1e-3, 0.05, 1.0, 4.0, 10.0, 22.5]
OUTPUTS = ("values", "bits", "thresholds")
RANGES = [
    *[(0.0, 1.0), (1.0, 0.01), (1.0, 0.001), (-0.37, 0.2), (100.0, 3e-5), (0.1, 0.0), (0.0, 0.0), (0.0, 1e-38)],
    *[(1.0, 1e-12), (-2.5, 1e-300), (2.0**-57, 2.0**-96), (60.0, 5.0), (1 - 2.0**-8, 0.3), (2.0**-149, 1e-30)],
]
TORCH = {name: getattr(torch, name) for name in BITS}


def thresholds_of(c, r, eps, dtype, output):
    """T below, at and above the center, from the law that the kernels execute."""
    _, _, at, below, above, _, _ = Sign(eps).record(c, r, DTYPES[dtype], output)
    return [N // 2 + at + k for k in (below, 0, above)]


@pytest.mark.parametrize("output", ["report", "values"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", EPS)
def test_all_three_thresholds(eps, dtype, output):
    """Any two are within e^eps in integers, and each decodes to its side of the range within a step and a half."""
    for c, r in RANGES:
        found = thresholds_of(c, r, eps, dtype, output)
        assert 0 < found[0] <= found[1] <= found[2] < N
        worst = max(max(Fraction(a, b), Fraction(N - a, N - b)) for a, b in itertools.product(found, repeat=2))
        assert within_exp(worst, eps)
        mechanism, law = Sign(eps), two_point_law(c, r, eps, DTYPES[dtype], output)
        claimed = mechanism.executed_eps(c, r, dtype) if output == "values" else mechanism.effective_eps
        assert within_exp(worst, claimed), "the claim understates what is executed"
        assert claimed <= mechanism.effective_eps <= eps
        center, radius = executed(c, r, dtype)
        assert law.lower <= center - radius <= center + radius <= law.upper
        if output == "values":
            assert DTYPES[dtype].holds(law.lower), "an output is not a number of the dtype"
            assert DTYPES[dtype].holds(law.upper), "an output is not a number of the dtype"
        step = (law.upper - law.lower) / N
        for threshold, side in zip(found, (-1, 0, 1), strict=True):
            assert abs(law.lower + step * threshold - (center + side * radius)) <= step * Fraction(3, 2)


@pytest.mark.parametrize("eps", EPS)
def test_a_report_is_exact(eps):
    """At the center a fair coin; on either side the lowest threshold and its mirror, unless the range is empty."""
    lowest = TwoPoint(eps).lowest_threshold
    for dtype, (c, r) in itertools.product(DTYPES, RANGES):
        assert thresholds_of(c, r, eps, dtype, "report") == ([lowest, N // 2, N - lowest] if r else [N // 2] * 3)


def test_no_difference_is_too_small_for_the_kernel():
    """Its line is so steep that the least difference of two numbers is beyond every threshold."""
    for dtype in DTYPES.values():
        compute = compute_dtype(dtype)
        steep = Fraction(Sign(1.0).record(0.0, 1.0, dtype, "report")[1])
        assert compute.holds(steep)
        assert power_of_two(compute.min_exponent - compute.precision + 1) * steep**2 > 2**32


def weights(dtype, c):
    """Every number of a format of 16 bits; of the others some, with all that lie around c."""
    kind = BITS[dtype]
    if kind is np.uint16:
        return np.arange(2**16, dtype=kind)
    rng, size = np.random.default_rng(3), kind().itemsize
    some = rng.integers(0, 2 ** (8 * size), 3000, dtype=kind)
    number = np.float32 if size == 4 else np.float64
    beside = [number(c)]
    for end in (np.inf, -np.inf):
        x = number(c)
        for _ in range(5):
            x = np.nextafter(x, number(end))
            beside.append(x)
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(number).max, -np.finfo(number).max]
    special += [np.finfo(number).smallest_subnormal, -np.finfo(number).smallest_subnormal]
    return np.concatenate([some, np.array([*beside, *special], number).view(kind)])


def numbers(bits, dtype):
    """In the format in which they are compared."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(dtype).astype(np.float32) if dtype == "float16" else bits.view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_weight_has_the_threshold_of_its_side(dtype):
    for c, r, output in ((0.0, 1.0, "report"), (1.0, 0.01, "values"), (-6e-8, 1e-9, "values")):
        bits = weights(dtype, c)
        laws = law_table(Sign(1.0), [c], [r], [DTYPES[dtype]], output)
        x, center = numbers(bits, dtype), numbers(bits, dtype).dtype.type(float(executed(c, r, dtype)[0]))
        side = 1 + (x > center).astype(int) - (x < center).astype(int)
        expected = np.array(thresholds_of(c, r, 1.0, dtype, output))[side]
        every = {backend: 1 for backend in (*_native.isas(), "reference")} | {"triton": 29}
        for backend, step in every.items():  # what is interpreted gets some, and a prime apart: all low and high bits
            some = bits[len(bits) % step :: step].copy() if len(bits) == 2**16 else bits
            _, found = written(launcher(backend, "sign", Key((0,))), "thresholds", [(dtype, some, 0)], laws)
            part = expected[len(bits) % step :: step] if len(bits) == 2**16 else expected
            assert np.array_equal(np.frombuffer(found, np.int64)[GUARD // 8 :][: some.size], part), backend


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_backend_has_the_same_bits(output, key):
    """Short tensors of every format and a long one, far into the stream; some of them for Triton's interpreter."""
    rng = np.random.default_rng(5)
    tensors = []
    for name, n in [*itertools.product(DTYPES, (1, 7, 8, 33)), ("bfloat16", 900)]:
        special = weights(name, 0.25)[-20:]
        bits = bits_of(0.25 + rng.normal(size=n) * 0.01, name)
        bits[: min(n, 3)] = special[: min(n, 3)]
        tensors.append((name, bits, 0))
    kind = "values" if output == "values" else "report"
    everywhere = len(key.words) != 2  # AES has no kernels beyond the CPU's
    for some, backends in ((tensors, _native.isas()), (tensors[3::4], ("triton",) * everywhere)):
        ranges = [0.25] * len(some), [0.1] * len(some), [DTYPES[name] for name, *_ in some]
        arguments = output, some, law_table(Sign(0.8), *ranges, kind), 2**32 * 8 - 8 * 40
        expected = written(launcher("reference", "sign", key), *arguments)
        for backend in backends:
            assert written(launcher(backend, "sign", key), *arguments) == expected, backend


SAMPLES = 1 << 19


def sample(w, c, r, eps, dtype, key):
    x = perturb_(torch.full((SAMPLES,), w, dtype=TORCH[dtype]), c, r, eps, mechanism="sign", generator=key)
    return x.double().numpy()


@pytest.mark.parametrize("w", [-3.0, 0.0625, 0.125, 0.25])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mean_is_the_end_of_the_range_on_the_weights_side(dtype, w, key):
    """And a mechanism that is scaled by 2%, or that kept the weight's size, would be seen."""
    c, r, eps = 0.125, 0.375, 1.2
    mechanism, x = Sign(eps), sample(w, c, r, eps, dtype, key)
    mean, variance = c + r * float(np.sign(w - c)), mechanism.variance(w, c, r, dtype)
    assert mechanism.bias(w, c, r) == pytest.approx(mean - w)
    fits(mean_test(x, mean, variance))
    if w != c:
        rejected(mean_test(c + 1.02 * (x - c), mean, variance))
        if abs(w - c) < r:
            rejected(mean_test(x, w, variance))


@pytest.mark.parametrize(("c", "r"), [(1.0, 0.01), (1.0, 0.001), (-2.0, 0.03)])
def test_coarse_outputs_do_not_move_the_mean(c, r, key):
    """bfloat16, where c - rB and c + rB rounded to nearest would be off the same way for a whole layer."""
    for w in (c - r, c, c + r):
        rounded = float(torch.tensor(w, dtype=torch.bfloat16))
        mean = float(executed(c, r, "bfloat16")[0]) + float(np.float32(r)) * float(np.sign(rounded - c))
        fits(mean_test(sample(w, c, r, 2.0, "bfloat16", key), mean, Sign(2.0).variance(rounded, c, r, "bfloat16")))


def test_a_client_whose_weight_is_no_number_tosses_a_fair_coin():
    bits = report(np.full(SAMPLES, math.nan), 0.0, 1.0, 4.0, mechanism="sign", generator=ldpkernels.key(1)).bits
    fits(mean_test(unpack(bits, SAMPLES), 0.5, 0.25))


def test_reports_add_up_to_signs():
    w = {"a": np.array([[-0.5, 0.0], [0.01, 3.0]], np.float32), "b": torch.zeros(3).numpy() - 1e-30}
    clients = [report(w, 0.0, 1.0, 2.0, mechanism="sign", generator=ldpkernels.key(i)) for i in range(4000)]
    assert clients[0].nbytes == 2
    mean = aggregate(one.to_bytes() for one in clients)
    deviation = math.sqrt(Sign(2.0).variance(0.0, 0.0, 1.0) / 4000)
    for name, value in w.items():
        assert abs(mean[name] - np.sign(value)).max() < 6 * deviation
    other = report(w, 0.0, 1.0, 2.0)
    with pytest.raises(ValueError, match="mechanism is 'two-point' in one and 'sign' in the others"):
        aggregate([clients[0], other])


def test_it_claims_what_the_two_point_mechanism_claims():
    sign, other = Sign(1.5), TwoPoint(1.5)
    assert mechanism_named("sign", 1.5) == sign != other
    assert sign.effective_eps == other.effective_eps
    assert accounting.local_epsilon(sign.event) == accounting.local_epsilon(other.event)
    assert Sign.report_variances(1.5) is None
    assert "sign" not in str(ldpkernels.best_mechanism(1.5))
    for x in (np.array([-2.0, 0.5, 0.75]), torch.tensor([-2.0, 0.5, 0.75], dtype=torch.float64)):
        assert side_of(x, 0.5).tolist() == [-1.0, 0.0, 1.0]
        assert sign.bias(x, 0.5, 2.0).tolist() == [0.5, 0.0, 1.75]
        end = (2.0 * other.scale) ** 2 - 4.0
        assert sign.variance(x, 0.5, 2.0).tolist() == pytest.approx([end, end + 4.0, end])
    assert sign.bias(np.float32(1.0), 0.5, 2.0) == 1.5


def test_the_law_of_the_kernels_has_the_documents_numbers():
    record = Sign(1.0).record(1.0, 0.01, DTYPES["bfloat16"], "values")
    lower, upper = (struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in record[-2:])
    assert (lower, upper) == TwoPoint(1.0).outputs(1.0, 0.01, "bfloat16") == (0.9765625, 1.0234375)
