# SPDX-License-Identifier: Apache-2.0
# The Triton kernels of piecewise and hybrid against the native ones, bit for bit; interpreted where there is no GPU.
from functools import partial

import numpy as np
import pytest

import ldpkernels
from ldpkernels import _native
from tests.bfloat16 import BFLOAT16
from tests.cells import MECHANISMS, cells_of, record

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
KEYS = {"philox": [0x0123456789ABCDEF], "chacha20": [-1, 2**62 + 12345, 0, 0x0706050403020100]}
OUTPUTS = ["values", "cells", "turns"]
LAWS = [(0.1, 0.7, 0.8), (1.0, 0.01, 4.0), (0.0, 1.0, 10.0), (-2.5, 0.0, 1.0)]


def kind_of(dtype):
    """NumPy's type of a name."""
    if dtype == "bfloat16" and BFLOAT16 is None:
        pytest.skip("ml_dtypes is not installed")
    return BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)


def weights(dtype, n, c, r, seed):
    x = np.random.default_rng(seed).normal(c, r + 0.1, n)
    x[: min(n, 4)] = [np.nan, np.inf, -np.inf, c][:n]
    return x.astype(kind_of(dtype))


def run(kernel, mechanism, output, parts, device, key, shift=0):
    """Tensors of one call, each with its law, one after another in the stream, `shift` elements from aligned places."""
    size = sum(8 * x.size + 32 for x, _ in parts)
    buffers = [torch.full((size,), 0x5A, dtype=torch.uint8, device=device)]
    spans, laws, first, start = [], [], 24, 0
    for x, cells in parts:
        lead = shift * x.itemsize
        data = torch.from_numpy(np.concatenate([np.full(lead, 0xA5, np.uint8), x.view(np.uint8)])).to(device)
        buffers.append(data)
        code = list(DTYPES).index(x.dtype.name)
        out = buffers[0].data_ptr() + start + shift * (1 if output == "cells" else 8)
        spans.append((data.data_ptr() + lead, out, x.size, first, code))
        start += 8 * x.size + 32
        laws.append(record("piecewise" if output == "turns" else mechanism, cells))
        first += -(-x.size // 8) * 8
    kernel(output, np.array(spans, _native.SPAN), np.concatenate(laws), key, buffers[0])
    return [b.cpu().numpy() for b in buffers]


def check(mechanism, output, parts, cipher, device, shift=0):
    from ldpkernels.triton import registry

    name = "piecewise" if output == "turns" else mechanism

    def native(output, spans, laws, key, _):
        _native.launch(name, output, spans, laws, key, "", 1)

    kernel, key = partial(registry.launch, mechanism), torch.tensor(KEYS[cipher], device=device)
    ours = run(kernel, mechanism, output, parts, device, key, shift)
    words = np.array(KEYS[cipher], np.int64).view(np.uint32)
    for a, b in zip(ours, run(native, mechanism, output, parts, "cpu", words, shift), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("mechanism", "dtype", "output"),
    [
        *zip([*MECHANISMS] * 2, DTYPES, ["values", "cells"] * 2, strict=True),
        ("hybrid", "float32", "values"),
        ("piecewise", "bfloat16", "turns"),
    ],
)
def test_same_bits(device, mechanism, dtype, output):
    kind = kind_of(dtype)
    parts = [
        (
            weights(dtype, 260, c, r, i),
            cells_of(mechanism, c, r, eps, kind, "values" if output == "values" else "report"),
        )
        for i, (c, r, eps) in enumerate(LAWS)
    ]
    check(mechanism, output, parts, "philox", device)


@pytest.mark.parametrize("cipher", KEYS)
def test_any_number_of_tensors_of_any_size(device, cipher):
    parts = []
    sizes = [1, 0, 7, 8, 9, 255, 257, 1025] if cipher == "philox" else [9, 0, 1025]
    for i, n in enumerate(sizes):
        dtype = list(DTYPES)[i % 4]
        kind = kind_of(dtype)
        parts.append((weights(dtype, n, 0.1, 0.7, i), cells_of("hybrid", 0.1, 0.7, 0.8, kind, "values")))
    check("hybrid", "values", parts, cipher, device)


@pytest.mark.parametrize("output", OUTPUTS)
def test_tensors_and_outputs_at_any_address(device, output):
    kind, which = np.dtype(np.float32), "values" if output == "values" else "report"
    parts = [(weights("float32", n, 0.1, 0.7, n), cells_of("piecewise", 0.1, 0.7, 0.8, kind, which)) for n in (300, 41)]
    for shift in (1, 2, 3):
        check("piecewise", output, parts, "philox", device, shift)


def test_an_output_that_no_new_tensor_is_is_refused(device):
    from ldpkernels.triton import registry

    x, cells = weights("float32", 9, 0.1, 0.7, 0), cells_of("piecewise", 0.1, 0.7, 0.8, np.dtype(np.float32), "report")
    data, out = torch.from_numpy(x).to(device), torch.zeros(32, dtype=torch.uint8, device=device)[1:]
    spans = np.array([(data.data_ptr(), out.data_ptr(), 9, 0, 0)], _native.SPAN)
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        registry.launch("piecewise", "cells", spans, record("piecewise", cells), torch.zeros(1, dtype=torch.int64), out)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_public_functions(device, mechanism):
    x = torch.linspace(-1, 1, 500)
    options = {"mechanism": mechanism, "generator": ldpkernels.key(3)}
    expected = ldpkernels.perturb_(x.clone(), 0.0, 1.0, 1.0, **options)
    report = ldpkernels.report(x, 0.0, 1.0, 1.0, **options)
    with ldpkernels.backend("triton"):
        on_device = x.clone().to(device)
        assert torch.equal(ldpkernels.perturb_(on_device, 0.0, 1.0, 1.0, **options).cpu(), expected)
        assert np.array_equal(ldpkernels.report(x.to(device), 0.0, 1.0, 1.0, **options).bits, report.bits)
