# SPDX-License-Identifier: Apache-2.0
# The thresholds of every bf16 and every fp16 number on every run, of the edges in fp32 and fp64, and of all 2^32 fp32
# numbers by `make exhaustive`.
import time

import ml_dtypes
import numpy as np
import pytest

import ldpkernels
from ldpkernels.reference import two_point as reference
from tests.kernels import FULL, law_of, run
from tests.laws import N, bias_bound, check_thresholds, executed

SETS = [(0.0, 1.0, 1.0), (1.0, 0.001, 4.0), (-0.3, 7.0, 1e-3), (0.1, 1e-6, 10.0), (0.25, 0.0, 2.0), (0.0, 1e-30, 0.1)]
OUTPUTS = ["report", "values"]
PHILOX = ldpkernels.key(1)


def all_patterns(dtype):
    return np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("c", "r", "eps"), SETS)
def test_every_pattern(c, r, eps, dtype, output, isa):
    with np.errstate(invalid="ignore"):  # a conversion of signalling NaNs
        x = all_patterns(dtype)
        law = law_of(c, r, eps, dtype, output)
        thresholds = ldpkernels.two_point_threshold(x, c, r, eps, output=output)
        check_thresholds(x, thresholds, law, c, r, dtype)
        (at_center,) = run("thresholds", np.float32([executed(c, r, dtype)[0]]), law[:5], PHILOX, isa)
        nan = np.isnan(x.astype(np.float32))
    assert nan.sum() == {"bfloat16": 254, "float16": 2046}[dtype]
    assert set(thresholds[nan]) == {at_center}, "a NaN is not reported as C is"
    if output == "report":
        assert at_center == 2**31, "C is no fair coin"
    if r:
        assert {thresholds.min(), thresholds.max()} == {N // 2 + law.k_lo, N // 2 + law.k_hi}, "an end is not attained"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_pattern_is_the_references(dtype, isa):
    with np.errstate(invalid="ignore"):
        for c, r, eps, output in [(0.1, 0.5, 1.0, "report"), (1.0, 0.001, 4.0, "values")]:
            law = law_of(c, r, eps, dtype, output)[:5]
            x = all_patterns(dtype)
            assert np.array_equal(
                run("thresholds", x, law, PHILOX, isa), run("thresholds", x, law, PHILOX, "reference")
            )


def edges(law, compute):
    """Weights whose k lies around every place where the arithmetic could differ between machines."""
    k = np.array([0, 1, 2**15, 2**16, 2**22, 2**23, 2**24, 2**24 + 1, 2**30, 2**31 - 1, law[3], law[4]], np.float64)
    halves = np.concatenate([k, k + 0.5, k - 0.5])
    near = (law[0] + np.concatenate([halves, -halves]) / law[1]).astype(compute)
    huge = np.array(
        [np.inf, np.nan, -np.nan, np.finfo(compute).max, np.finfo(compute).tiny, 5e-324, 0.0, -0.0], compute
    )
    x = np.concatenate([near, huge, -huge])
    for _ in range(3):
        x = np.unique(np.concatenate([x, np.nextafter(x, compute(np.inf)), np.nextafter(x, compute(-np.inf))]))
    return np.concatenate([x, huge])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(("c", "r", "eps"), [*SETS, (0.0, 1.0, 30.0), (3e4, 1.0, 0.5)])
def test_edges_on_every_isa(c, r, eps, output, dtype, isa):
    with np.errstate(over="ignore", under="ignore"):
        law = law_of(c, r, eps, np.dtype(dtype), output)
        x = edges(law, dtype)
        thresholds = run("thresholds", x, law[:5], PHILOX, isa)
        check_thresholds(x, thresholds, law, c, r, np.dtype(dtype).name)
        assert np.array_equal(thresholds, run("thresholds", x, law[:5], PHILOX, "reference"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hand_made_laws_on_every_isa(dtype, isa):
    """Bounds that no fp32 number is, and a single threshold: the clamp is the integer's, whatever the float is."""
    for k_lo, k_hi in [(-(2**31) + 1, 2**31 - 1), (-(2**30) - 7, 2**30 + 9), (-5, 65537), (77777777, 77777777)]:
        for slope in (1.0, 2.0**31, 2.0**-20):
            law = (0.5, slope, 0.25, k_lo, k_hi)
            with np.errstate(over="ignore", under="ignore"):
                x = edges(law, dtype)
                thresholds = run("thresholds", x, law, PHILOX, isa)
                assert thresholds.min() >= N // 2 + k_lo
                assert thresholds.max() <= N // 2 + k_hi
                assert np.array_equal(thresholds, run("thresholds", x, law, PHILOX, "reference"))


def test_the_reference_rounds_ties_to_even():
    k = reference.thresholds(np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.0**40]), dict(zip(NAMES, FULL, strict=True)))
    assert k.tolist() == [0, 2, 2, 0, -2, 2**31 - 1]


NAMES = ("center", "slope", "fallback", "k_lo", "k_hi")
EXHAUSTIVE = [
    (0.0, 1.0, 1.0, "report"),
    (1.0, 0.01, 1.0, "values"),
    (0.1, 0.05, 0.5, "report"),
    (-2.5, 1e-4, 10.0, "values"),
    (0.0, 1e-35, 4.0, "report"),
    (1e-3, 300.0, 1e-4, "report"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("c", "r", "eps", "output"), EXHAUSTIVE)
def test_every_float(c, r, eps, output):
    law = law_of(c, r, eps, "float32", output)
    t_lo, t_hi = N // 2 + law.k_lo, N // 2 + law.k_hi
    center, radius = (float(v) for v in executed(c, r, "float32"))
    step, offset = float(law.upper - law.lower) / N, float((law.lower + law.upper) / 2) - center
    worst, least, most, last, started = 0.0, N, 0, None, time.monotonic()
    chunk, chunks = np.arange(2**20, dtype=np.uint32), 4096
    print(f"\nC={c} R={r} eps={eps} {output}: thresholds {t_lo} to {t_hi}")
    for i in range(chunks):
        x = (chunk + np.uint32(i << 20)).view(np.float32)
        thresholds = ldpkernels.two_point_threshold(x, c, r, eps, output=output)
        nan = np.isnan(x)
        if nan.any():
            assert set(np.unique(thresholds[nan])) == {2**31} or output == "values"
            assert len(np.unique(thresholds[nan])) == 1
            x, thresholds = x[~nan], thresholds[~nan]
        least, most = min(least, int(thresholds.min(initial=N))), max(most, int(thresholds.max(initial=0)))
        assert t_lo <= least <= most <= t_hi, "a threshold out of bounds"
        rises = np.diff(thresholds, prepend=thresholds[:1] if last is None or i == chunks // 2 else last)
        assert (rises >= 0).all() if i < chunks // 2 else (rises <= 0).all(), "thresholds are not monotone"
        last = thresholds[-1:] if len(thresholds) else last
        clipped = np.clip(x.astype(np.float64) - center, -radius, radius)
        worst = max(worst, float(np.abs(offset + step * (thresholds - N // 2) - clipped).max(initial=0)))
        if i % 256 == 255:
            print(
                f"  {(i + 1) / chunks:4.0%}  bias {worst / radius:.2e} r  {time.monotonic() - started:3.0f} s",
                flush=True,
            )
    assert (least, most) == (t_lo, t_hi), "an end is not attained"
    assert worst <= bias_bound(law, "float32")
