# SPDX-License-Identifier: Apache-2.0
# Whole vectors in Triton against the CPU's kernels, bit for bit: norms, integers, noise, rotations, and calls.
from functools import partial

import numpy as np
import pytest

import ldpkernels
from ldpkernels import launch
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.inputs import flat
from ldpkernels.inputs.spans import span_table
from ldpkernels.launch import vectors
from ldpkernels.laws.noise_table import gaussian_table, skellam_table, wide_gaussian_table

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from ldpkernels.ops import known_vectors  # noqa: E402
from ldpkernels.triton import lattice, privunitg, rotation  # noqa: E402
from tests.conftest import FLOATS  # noqa: E402

PHILOX, CHACHA20 = ldpkernels.key(5), ldpkernels.Key((1, 2, 3, 4))
KEYS = {"philox": PHILOX, "chacha20": CHACHA20}
FORMATS = ("float32", "float64", "float16", "bfloat16")
LARGE = [257, 4097, 65_537, 100_003, (1 << 20) + 1] if torch.cuda.is_available() else []
OPEN = list(known_vectors.OPEN["philox", 16])  # elements whose draws by PHILOX leave something open


def weights(format_, n, seed=0):
    x = np.random.default_rng(seed).normal(0.0, 2.0, n)
    if format_ == "bfloat16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(format_)


class There:
    """Arrays on the device of the test, and their table."""

    def __init__(self, device, arrays, outs, formats, firsts=None):
        self.device = torch.device(device) if device == "cpu" else torch.device(device, 0)
        self.tensors = [torch.from_numpy(a.copy().view(np.uint8)).to(self.device) for a in arrays]
        self.outs = [torch.from_numpy(a.copy().view(np.uint8)).to(self.device) for a in outs]
        addresses = [[t.data_ptr() for t in both] for both in (self.tensors, self.outs)]
        kinds = [DTYPES[f] for f in formats]
        self.spans = span_table(*addresses, [a.size for a in arrays], kinds)
        if firsts is not None:
            self.spans["first"] = firsts

    def written(self):
        return [t.cpu().numpy().tobytes() for t in self.outs]


def on_host(arrays, outs, formats, firsts=None):
    """The same for the CPU's kernels, in copies."""
    return There("cpu", arrays, outs, formats, firsts)


def test_norms_have_the_bits_of_the_cpu(device):
    """A second stretch of 2^16 numbers, which ends inside a piece, and tensors of every format."""
    arrays = [weights(f, n, n) for f, n in zip(("float32", *FORMATS), (66_600, 17, 0, 1, 700), strict=True)]
    formats = ("float32", *FORMATS)
    there = There(device, arrays, arrays, formats)
    assert lattice.norm(there.spans, there.device) == launch.norm(on_host(arrays, arrays, formats).spans)
    assert lattice.norm(there.spans[2:3], there.device) == 0.0


@pytest.mark.parametrize("cipher", ["none", *KEYS])
def test_integers_and_their_squares_have_the_bits_of_the_cpu(device, cipher):
    """Cut, or rounded by draws; what is not a number or not an int32 becomes an integer that is too large."""
    key, sizes = KEYS.get(cipher), (150, 9, 0, 33) if cipher != "chacha20" else (9, 0, 0, 3)
    arrays = [weights(f, n, n) for f, n in zip(FORMATS, sizes, strict=True)]
    arrays[0][[1, 2, 3, 4, 5]] = np.nan, np.inf, -np.inf, 1e9, -0.0
    outs = [np.full(n, 77, np.int32) for n in sizes]
    there, host = There(device, arrays, outs, FORMATS), on_host(arrays, outs, FORMATS)
    words = key.tensor(device) if key else None
    found = lattice.quantise(there.spans, 12345.678, words, 3, there.device)
    assert found == launch.quantise(host.spans, 12345.678, key, 3) > 2**62
    assert there.written() == host.written()


def noise_of(device, table, key, sizes, firsts=None, **how):
    """Bytes of noised integers, by Triton and by the CPU."""
    kind = np.uint32 if how.get("bits") else np.float32
    formats = ["float32"] * len(sizes)
    arrays = [np.arange(n, dtype=np.int32) - 3 for n in sizes]
    outs = [np.full(n, 7, kind) for n in sizes]
    there, host = (make(*where, arrays, outs, formats, firsts) for make, where in ((There, (device,)), (on_host, ())))
    lattice.add_noise(there.spans, table, key.tensor(device), how.get("bits", 0), how.get("unit", 1.0), there.device)
    launch.add_noise(host.spans, table, key, **how)
    return there.written(), host.written()


@pytest.mark.parametrize(
    "table", [wide_gaussian_table(1), wide_gaussian_table(16), gaussian_table(3.3), skellam_table(4.0)]
)
def test_noise_has_the_bits_of_the_cpu(device, table):
    """With shift 1 a -0 is drawn again in one draw of 300. Tiles of 256, the second of which is not whole."""
    found, expected = noise_of(device, table, PHILOX, (300, 5), bits=31)
    assert found == expected
    assert len(set(expected[0])) > 2


@pytest.mark.exhaustive
def test_draws_that_leave_something_open(device):
    table = wide_gaussian_table(16)
    found, expected = noise_of(device, table, PHILOX, [8] * len(OPEN), [e // 8 * 8 for e in OPEN], unit=0.123)
    assert found == expected
    with ldpkernels.backend("reference"):
        _, twins = noise_of(device, table, PHILOX, [8] * len(OPEN), [e // 8 * 8 for e in OPEN], unit=0.123)
    assert expected == twins


@pytest.mark.parametrize(("inverse", "cipher"), [(False, "philox"), (True, "chacha20")])
def test_rotations_have_the_bits_of_the_cpu(device, cipher, inverse, monkeypatch):
    """One number, fewer than a word of signs, and passes of 5, 2, 2 and 1 levels; minus zero, too."""
    if device == "cpu":
        monkeypatch.setattr(rotation, "FIRST", 5)
        monkeypatch.setattr(rotation, "LATER", 2)
        assert rotation.passes(10) == [5, 1, 2, 2]
    for n in (1, 2, 16, 1 << 10, *(1 << levels for levels in (11, 12, 13, 17, 20, 24) if LARGE)):
        x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        x[n // 2] = -0.0
        there = torch.from_numpy(x.copy()).to(device)
        rotation.rotate(there, KEYS[cipher].tensor(device), inverse)
        launch.rotate(x, KEYS[cipher], inverse=inverse)
        assert there.cpu().numpy().tobytes() == x.tobytes()


def test_passes_take_all_levels():
    for levels in range(31):
        passes = rotation.passes(levels)
        assert sum(passes) == levels
        assert passes[0] == min(levels, rotation.FIRST)
        assert all(1 <= count <= rotation.LATER for count in passes[1:])


@pytest.mark.parametrize("cipher", KEYS)
def test_normals_have_the_bits_of_the_cpu(device, cipher):
    """Two stretches, of which the second ends inside a piece; tensors of every format, anywhere in the stream."""
    formats, sizes = ("float32", *FORMATS), (65_536 + 30, 17, 0, 1, 33) if cipher == "philox" else (0, 0, 20, 0, 0)
    arrays = [weights(f, n, n) for f, n in zip(formats, sizes, strict=True)]
    outs = [np.full(n, 7, np.float64 if f == "float64" else np.float32) for f, n in zip(formats, sizes, strict=True)]
    there, host = There(device, arrays, outs, formats), on_host(arrays, outs, formats)
    for spans in (there.spans, host.spans):
        spans["first"] += 2**33 + 40
    words, law = KEYS[cipher].tensor(device), (1, 0.0123, 4.56)
    found = privunitg.normal_product(there.spans, words, 1, there.device)
    assert found == launch.normal_product(host.spans, KEYS[cipher], 1) != 0.0
    privunitg.moved_normals(there.spans[1:], words, *law, there.device)
    launch.moved_normals(host.spans[1:], KEYS[cipher], *law)
    assert there.written() == host.written()


@pytest.mark.parametrize("aligned", [True, False])
def test_moved_normals_of_whole_tiles(device, aligned):
    x = weights("float32", 901)[0 if aligned else 1 :]
    there, host = (make([x], [np.zeros(x.size, np.float32)], ["float32"]) for make in (partial(There, device), on_host))
    for spans, shift in ((there.spans, 0 if aligned else 4), (host.spans, 0 if aligned else 4)):
        spans["data"] += shift
        spans["out"] += shift
        spans["numel"] -= shift
    privunitg.moved_normals(there.spans, PHILOX.tensor(device), 1, -0.3, 0.2, there.device)
    launch.moved_normals(host.spans, PHILOX, 1, -0.3, 0.2)
    assert there.written() == host.written()


def update(device):
    """fp32, fp64 and 16-bit parts, one of them transposed, and one without weights."""
    x = [torch.from_numpy(weights("float32", 60).reshape(6, 10)), torch.from_numpy(weights("float64", 7))]
    x += [torch.zeros(0), torch.from_numpy(weights("float16", 33))]
    x += [torch.from_numpy(weights("float32", n)).to(kind) for kind in FLOATS for n in LARGE]
    return [t.to(device) for t in (x[0].T, *x[1:])]


@pytest.mark.parametrize("mechanism", [{"mechanism": "gaussian", "sigma": 0.7}, {"eps": 8.0}], ids=["gaussian", "cap"])
@pytest.mark.parametrize("broken", [False, True])
def test_perturb_vector_leaves_its_report_on_the_device(device, broken, mechanism):
    """An update that holds a NaN and an infinity is cleaned on the host, and its report lies there too."""
    x = update(device)
    if broken:
        x[0][2, 3], x[1][4] = torch.nan, torch.inf
    options = mechanism | {"norm": 1.0, "generator": PHILOX}
    expected = ldpkernels.perturb_vector([t.cpu() for t in x], **options)
    with ldpkernels.backend("triton"):
        found = ldpkernels.perturb_vector(x, **options)
    assert {t.device.type for t in found} == {device}
    assert all(torch.equal(a.cpu(), b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("broken", [False, True])
def test_what_updates_send_is_the_same(device, broken):
    x = update(device)
    if broken:
        x[3][:2] = torch.tensor([torch.inf, torch.nan])
    host = [t.cpu() for t in x]
    shared = ldpkernels.key(9)
    size = sum(t.numel() for t in x)
    for kind in (ldpkernels.DistributedGaussian, ldpkernels.DistributedSkellam):
        law = kind.calibrated(8.0, 1e-5, dimension=size, clients=1000, bits=28)
        with ldpkernels.backend("triton"):
            integers = ldpkernels.updates.encode(x, law, shared, generator=PHILOX)
        assert (integers == ldpkernels.updates.encode(host, law, shared, generator=PHILOX)).all()
        assert integers.dtype == np.uint32
    pytest.importorskip("scipy", reason="a code's law needs it")
    code = ldpkernels.ProjectedCode(8.0, dimension=size, bits=5)
    with ldpkernels.backend("triton"):
        reported = ldpkernels.updates.report_code(x, code, shared, generator=PHILOX)
    assert reported == ldpkernels.updates.report_code(host, code, shared, generator=PHILOX)


@pytest.mark.parametrize("broken", [False, True])
def test_k_of_d_copies_its_coordinates(device, broken, monkeypatch):
    """And the update where there is something to clean; the report lies in host memory."""
    x = update(device)
    if broken:
        x[0][2, 3], x[1][4] = torch.nan, torch.inf
    options = {"mechanism": "k-of-d", "norm": 1.0, "generator": PHILOX}
    expected = ldpkernels.perturb_vector([t.cpu() for t in x], 8.0, **options)
    if not broken:
        monkeypatch.setattr(flat, "float64s", None)
    if device != "cpu":
        monkeypatch.setattr(flat, "in_host_memory", None if not broken else flat.in_host_memory)
    with ldpkernels.backend("triton"):
        found = ldpkernels.perturb_vector(x, 8.0, **options)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_capture_is_refused_before_anything_is_launched(device, monkeypatch):
    monkeypatch.setattr(vectors, "capturing", lambda _: True)
    with ldpkernels.backend("triton"), pytest.raises(RuntimeError, match="outside of it"):
        ldpkernels.perturb_vector(update(device), mechanism="gaussian", sigma=0.7, norm=1.0)


def test_arrays_have_the_same_bits_in_the_interpreter(device):
    if device != "cpu":
        pytest.skip("arrays lie in host memory, where Triton runs in its interpreter alone")
    options = {"mechanism": "gaussian", "sigma": 0.7, "norm": 1.0, "generator": PHILOX}
    x = weights("float32", 40)
    with ldpkernels.backend("triton"):
        found = ldpkernels.perturb_vector(x, **options)
    assert found.tobytes() == ldpkernels.perturb_vector(x, **options).tobytes()
