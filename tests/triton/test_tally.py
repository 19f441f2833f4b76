# SPDX-License-Identifier: Apache-2.0
# Reports that are added where they are: the CPU's counters, byte by byte.
import numpy as np
import pytest

from ldpkernels import _native

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from ldpkernels.triton import tally  # noqa: E402
from ldpkernels.triton.tally import BitTally, ByteTally  # noqa: E402

SIZES = [3, 64, 2053, *([3_000_001] if torch.cuda.is_available() else [])]


def some(count, size, device, offset=0):
    """Reports as arrays, and on the device; their memory begins `offset` bytes behind an aligned address."""
    arrays = list(np.random.default_rng(count).integers(0, 256, (count, size), dtype=np.uint8))
    padded = [torch.from_numpy(np.concatenate([np.zeros(offset, np.uint8), a])).to(device) for a in arrays]
    return arrays, [t[offset:] for t in padded]


@pytest.mark.parametrize("size", SIZES)
def test_bits_are_counted_as_on_the_cpu(device, size):
    ours, native = BitTally(size, torch.device(device)), _native.Tally(size, "scalar")
    for count, offset in ((1, 0), (15, 0), (17, 0), (31, 0), (2, 1)):
        arrays, reports = some(count, size, device, offset)
        ours.add(reports)
        native.add(arrays, 1)
        np.testing.assert_array_equal(ours.sums(), native.planes())
    assert ours.count == native.count


@pytest.mark.parametrize("size", SIZES)
def test_bytes_are_added_as_on_the_cpu(device, size):
    ours, sums = ByteTally(size, torch.device(device)), np.zeros(size, np.uint32)
    for count, offset in ((1, 0), (15, 0), (17, 0), (2, 1)):
        arrays, reports = some(count, size, device, offset)
        ours.add(reports)
        _native.add_bytes(sums, arrays, 1)
        np.testing.assert_array_equal(ours.sums(), sums)


def test_sums_grow_to_64_bits_before_they_overflow(device):
    tally, most = ByteTally(2, torch.device(device)), 2**31 // 255
    tally.count, tally._sums = most, torch.tensor([255 * most, 0], dtype=torch.int32, device=device)
    tally.add([torch.full((2,), 255, dtype=torch.uint8, device=device)])
    assert tally.sums().tolist() == [255 * (most + 1), 255]
    tally.count, tally._sums = 2**25, torch.tensor([255 * 2**25, 1], device=device)
    assert tally.sums().dtype == np.uint64
    assert tally.sums().tolist() == [255 * 2**25, 1]


@pytest.mark.parametrize("kind", [BitTally, ByteTally])
def test_what_is_no_report_is_refused(device, kind):
    tally, whole = kind(4, torch.device(device)), torch.zeros(4, dtype=torch.uint8, device=device)
    for wrong in (whole[:3], whole.to(torch.int8), whole.new_zeros(8)[::2], whole.new_zeros(2, 2)):
        with pytest.raises(ValueError, match="a report"):
            tally.add([whole, wrong])
    assert tally.count == 0


@pytest.mark.parametrize("kind", [BitTally, ByteTally])
def test_a_capture_is_refused_and_counts_nothing(device, kind, monkeypatch):
    ours = kind(8, torch.device(device))
    _, reports = some(2, 8, device)
    ours.add(reports[:1])
    before = ours.sums()
    with monkeypatch.context() as patch:
        patch.setattr(tally, "capturing", lambda _: True)
        with pytest.raises(RuntimeError, match="addresses of these reports"):
            ours.add(reports)
    assert ours.count == 1
    np.testing.assert_array_equal(ours.sums(), before)
