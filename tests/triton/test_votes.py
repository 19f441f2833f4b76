# SPDX-License-Identifier: Apache-2.0
# The Triton twin against the literal rule.
import numpy as np
import pytest

from ldpkernels.reference import votes as reference_votes

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


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
