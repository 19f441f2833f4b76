# SPDX-License-Identifier: Apache-2.0
# The Triton twin against the CPU's kernels, bit for bit.
import pytest

import ldpkernels

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

KEYS = {"philox": ldpkernels.key(0x0123456789ABCDEF), "chacha20": ldpkernels.Key((2**64 - 1, 5, 0, 2**63))}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture
def both(device):
    def run(x, *arguments, **options):
        there = [t.to(device) for t in x]
        with ldpkernels.backend("triton"):
            out, info = ldpkernels.clipped_noised_mean(there, *arguments, return_info=True, **options)
        expected, known = ldpkernels.clipped_noised_mean(x, *arguments, return_info=True, **options)
        for a, b in zip([*out, info.norms], [*expected, known.norms], strict=True):
            assert a.dtype == b.dtype
            integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
            same = a.cpu().view(integers) == b.view(integers)
            assert bool((same | (a.cpu().isnan() & b.isnan())).all())
        assert (info.poisoned, info.clipped) == (known.poisoned, known.clipped)

    return run


def rows(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("cipher", KEYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_are_those_of_the_cpu(both, dtype, cipher):
    x, y = rows(67, 3, 100, dtype=dtype), rows(67, 7, seed=1) * 20
    x[3, 0, 5], y[66, 2], x[9] = torch.nan, torch.inf, 0
    clipping = "flat" if cipher == "philox" else "per-layer"
    both([x, y], 30.0, 0.7, generator=KEYS[cipher], clipping=clipping)


def test_rows_of_several_stretches_and_groups(both):
    both([rows(2, 66_600)], 3.0, 0.5, generator=KEYS["philox"])
    both([rows(4100)], 0.5, 1.0, generator=KEYS["philox"])
    both([rows(3, 5)], 0.5, 0.0, generator=KEYS["philox"], batch_size=7)
    both([rows(0, 5)], 0.5, 1.0, generator=KEYS["philox"], batch_size=7)


@pytest.mark.parametrize("cipher", KEYS)
def test_discrete_noise_has_the_bits_of_the_cpu(both, cipher, monkeypatch):
    from ldpkernels.triton import clipped_noise

    monkeypatch.setattr(clipped_noise, "SAMPLERS", 16 if cipher == "chacha20" else 64)  # the interpreter is slow
    x, y = rows(67, 100, dtype=torch.float64), rows(67, 3, 7, dtype=torch.bfloat16)
    x[3, 5], y[66, 2, 1] = torch.nan, torch.inf
    if cipher == "philox":
        both([x, y], 3.0, 0.7, generator=KEYS[cipher], noise="discrete")
    else:
        both([y[:, 0]], 3.0, 0.7, generator=KEYS[cipher], clipping="per-layer", noise="discrete")


def test_sums_on_the_grid_have_the_bits_of_the_cpu(both):
    both([rows(4100, 2)], 3.0, 0.0, generator=KEYS["philox"], noise="discrete")
    both([rows(130, 600, dtype=torch.float16)], 3.0, 0.0, generator=KEYS["philox"], noise="discrete")


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
def test_numbers_are_arguments_so_that_nothing_is_copied_in_a_capture(device, noise, monkeypatch):
    from ldpkernels.laws.clipped_noise import noise_of
    from ldpkernels.triton.clipped_noise import clipped_sums

    x, key = [rows(3, 5).to(device)], KEYS["philox"].tensor(device)
    sums = [[torch.empty(5, device=device)] for _ in range(2)]
    arguments = [0.5], noise_of([0.5], 0.0, noise, 3), 3.0, key
    clipped_sums(x, sums[0], *arguments)

    def refuse(*_, **__):
        raise AssertionError("a tensor of host numbers")

    for name in ("tensor", "as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, refuse)
    clipped_sums(x, sums[1], *arguments)
    assert torch.equal(sums[0][0], sums[1][0])


def test_arrays_have_the_same_bits_in_the_interpreter(device):
    x = rows(3, 5).numpy()
    with ldpkernels.backend("triton"):
        found = ldpkernels.clipped_noised_sum(x, 1.0, 1.0, generator=KEYS["philox"])
    assert found.tobytes() == ldpkernels.clipped_noised_sum(x, 1.0, 1.0, generator=KEYS["philox"]).tobytes()
