# SPDX-License-Identifier: Apache-2.0
# What a server counts on a device: reports, byte by byte as the CPU, and votes, by the literal rule.
import numpy as np
import pytest

from ldpkernels import _native
from ldpkernels.reference import votes as reference_votes

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


@pytest.mark.parametrize(("parties", "samples", "classes"), [(1, 3, 2), (5, 300, 4), (20, 40, 10), (4, 0, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_labels_and_keeps_are_those_of_the_reference(device, dtype, parties, samples, classes):
    from ldpkernels.triton import votes as triton_votes

    votes = np.random.default_rng(0).integers(0, classes, (parties, samples)).astype(dtype)
    labels, keep = triton_votes.majority_vote(torch.from_numpy(votes).to(device), classes)
    expected = reference_votes.majority_vote(votes, classes)
    assert labels.cpu().numpy().dtype == dtype
    assert np.array_equal(labels.cpu().numpy(), expected[0])
    assert np.array_equal(keep.cpu().numpy(), expected[1])


def test_a_number_that_is_no_class_is_a_vote_for_nobody(device):
    from ldpkernels.triton import votes as triton_votes

    votes = torch.tensor([[0, 7], [0, -1], [1, 1], [0, 1]], device=device)
    labels, keep = triton_votes.majority_vote(votes, 2)
    assert labels.tolist() == [0, 1]
    assert keep.tolist() == [True, True]
