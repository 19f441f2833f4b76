# SPDX-License-Identifier: Apache-2.0
# The Triton twin against the CPU's kernels, bit for bit.
import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native
from ldpkernels.common.dtypes import DTYPES as KINDS
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.clipped_noise import Noise

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


# The interpreter's time goes by operations, not by elements: a row is 40 of them before its first number. So each shape
# is the smallest that has what the test is about, and where tiles are larger, the test makes them smaller.


@pytest.mark.parametrize(("dtype", "cipher"), [*((d, "philox") for d in DTYPES), (torch.float64, "chacha20")])
def test_the_bits_are_those_of_the_cpu(both, dtype, cipher, monkeypatch):
    """Two tensors; columns: several tiles and the tail of one, not a multiple of 16, and once
    more rows than a block of 64.
    """
    from ldpkernels.triton import clipped_noise

    monkeypatch.setattr(clipped_noise, "BLOCKS", 4 if cipher == "chacha20" else 16)  # tiles of 32 columns
    n = 67 if (dtype, cipher) == (torch.float32, "philox") else 5
    x, y = rows(n, 3, 25, dtype=dtype), rows(n, 7, seed=1) * 20
    x[3, 0, 5], y[-1, 2], x[2] = torch.nan, torch.inf, 0
    clipping = "flat" if cipher == "philox" else "per-layer"
    both([x, y], 30.0, 0.7, generator=KEYS[cipher], clipping=clipping)


def test_rows_of_several_stretches(both, monkeypatch):
    """A row of a whole stretch of 2^16 numbers, and of a second that ends inside a piece of 1024."""
    from ldpkernels.triton import clipped_noise

    monkeypatch.setattr(clipped_noise, "BLOCKS", 1 << 12)
    both([rows(2, 66_600)], 3.0, 0.5, generator=KEYS["philox"])


def test_no_rows_and_no_noise(both):
    both([rows(3, 5)], 0.5, 0.0, generator=KEYS["philox"], batch_size=7)
    both([rows(0, 5)], 0.5, 1.0, generator=KEYS["philox"], batch_size=7)


@pytest.mark.parametrize(("dtype", "noise"), [*zip(DTYPES, ["gaussian", "discrete"] * 2, strict=True)])
def test_single_numbers(both, dtype, noise):
    """No rows, a few, a second piece, a second group; some poisoned, some at the bound."""
    for n in (0, 5, 1100, 4200):
        x = rows(n, dtype=dtype, seed=n)
        if n > 1000:
            x[3], x[700], x[900], x[1030] = torch.nan, -torch.inf, 0.5, 60000
        sigma = 1.0 if n == 5 else 0.0  # the noise does not know how many were added
        both([x], 0.7 if n < 4200 else 0.5, sigma, generator=KEYS["philox"], noise=noise, batch_size=9)
    both([rows(70)[:, None]], 0.5, 0.0, generator=KEYS["chacha20"], noise=noise)


@pytest.mark.parametrize(("dtype", "grid"), [(torch.float32, True), (torch.float64, False)])
def test_groups_of_rows_are_added_in_order(device, dtype, grid, monkeypatch):
    """A group of 4096 rows, and a second of more than one block: only then does it matter that groups are added apart.

    The rows between are left out. They hold NaN, which shows that they are not read. Blocks of rows that are added
    beside each other have the bits of the CPU, and a program that adds all of them itself has the same bits: of blocks
    of 16 rows in the interpreter, which takes them one by one.
    """
    from ldpkernels.triton import clipped_noise as kernels

    key = KEYS["philox"].tensor(device)

    def added(size, split):
        n, columns = size**2 + size + 3, 3
        x, scales = rows(n, columns, dtype=dtype), torch.from_numpy(np.random.default_rng(1).uniform(0.1, 1.0, (n, 1)))
        x[size + 3 : -70], scales[size + 3 : -70] = torch.nan, 0.0
        there, factors, found = x.to(device), scales.to(device), torch.empty(columns, dtype=dtype, device=device)
        law, count = Noise(0.0, 2.0**-20 if grid else 0.0, 0), n
        if split:
            there, count = kernels._groups(there, factors, found, kernels._inverse_unit(law), grid)
            assert count == 2
        kernels._release(there, factors, count, found, key, law, 3.0, 0, split)
        return x, scales, law, found.cpu()

    x, scales, law, found = added(64, True)
    expected = torch.empty(3, dtype=dtype)
    spans = span_table([x.data_ptr()], [expected.data_ptr()], [3], [KINDS[str(dtype)[6:]]])
    _native.clipped_sums(spans, scales.numpy(), 0.0, 0.0, 3.0, law.unit, 0, KEYS["philox"].uint32(), "", 1)
    assert torch.equal(found, expected)
    if device == "cpu":
        monkeypatch.setattr(kernels, "ROWS", kernels.tl.constexpr(16))
    size = kernels.ROWS.value
    assert torch.equal(added(size, False)[-1], added(size, True)[-1])


@pytest.mark.parametrize("cipher", ["philox", pytest.param("chacha20", marks=pytest.mark.exhaustive)])
def test_discrete_noise_has_the_bits_of_the_cpu(both, cipher, monkeypatch):
    """Several programs; samplers that draw more words than a block of the cipher has (17 of 16 at most: it is slow)."""
    from ldpkernels.triton import clipped_noise

    monkeypatch.setattr(clipped_noise, "SAMPLERS", 8)
    if cipher == "philox":
        x = rows(4, 9, dtype=torch.float64)
        x[3, 5] = torch.nan
        both([x], 3.0, 0.7, generator=KEYS[cipher], noise="discrete")
    else:
        y = rows(4, 3, dtype=torch.bfloat16)
        y[1, 2] = torch.inf
        key = ldpkernels.Key((2**64 - 1, 5, 151, 2**63))
        both([y], 3.0, 0.7, generator=key, clipping="per-layer", noise="discrete")


def test_sums_on_the_grid_have_the_bits_of_the_cpu(both, monkeypatch):
    """More columns than two programs of samplers have, and more rows than a block."""
    from ldpkernels.triton import clipped_noise

    monkeypatch.setattr(clipped_noise, "SAMPLERS", 8)
    both([rows(66, 20, dtype=torch.float16)], 3.0, 0.0, generator=KEYS["philox"], noise="discrete")


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
    if device != "cpu":
        pytest.skip("arrays lie in host memory, where Triton runs in its interpreter alone")
    x = rows(3, 5).numpy()
    with ldpkernels.backend("triton"):
        found = ldpkernels.clipped_noised_sum(x, 1.0, 1.0, generator=KEYS["philox"])
    assert found.tobytes() == ldpkernels.clipped_noised_sum(x, 1.0, 1.0, generator=KEYS["philox"]).tobytes()


def test_few_columns_are_split_and_many_are_not(both, monkeypatch):
    """They are one program's otherwise: 64 rows are a block, and one more makes two of them."""
    from ldpkernels.triton import clipped_noise

    monkeypatch.setenv("LDPKERNELS_PROVE", "never")  # a device's known answers split columns, too
    split = []
    monkeypatch.setattr(clipped_noise, "_groups", lambda *a, whole=clipped_noise._groups: split.append(a) or whole(*a))
    pairs = rows(66, 2) * 3
    pairs[5], pairs[65] = torch.nan, 0
    both([pairs], 0.5, 0.0, generator=KEYS["philox"])
    assert len(split) == 1
    both([rows(64, 2)], 0.5, 0.0, generator=KEYS["philox"])
    monkeypatch.setattr(clipped_noise, "FEW", 0)
    both([pairs], 0.5, 0.0, generator=KEYS["philox"])
    assert len(split) == 1
