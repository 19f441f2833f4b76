# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch

import ldpkernels
import ldpkernels.ops
from ldpkernels.reference import votes as reference_votes
from tests.statistics import binomial_test, fits, rejected

DTYPES = [np.uint8, np.int32, np.int64]


def paper(ballots, classes):
    """Section 3.3 for one sample, literally: n_j(x) = |{i : f_i(x) = j}|, the argmax, and the two largest counts."""
    n = [len({i for i, f in enumerate(ballots) if f == j}) for j in range(classes)]
    first, second = sorted([*n, 0], reverse=True)[:2]
    return n.index(first), not (first == second or first - second == 1)


def random_votes(parties, samples, classes, dtype, seed=0):
    return np.random.default_rng(seed).integers(0, classes, (parties, samples)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("parties", "samples", "classes"),
    [
        *[(1, 5, 3), (2, 130, 2), (3, 64, 3), (5, 300, 10), (20, 99, 10), (127, 30, 127), (128, 20, 5), (30, 17, 200)],
        *[(1, 3, 1), (2, 3, 1), (200, 3, 1)],
    ],
)
def test_every_backend_is_the_literal_rule(isa, parties, samples, classes, dtype):
    votes = random_votes(parties, samples, classes, dtype)
    vote = ldpkernels.majority_vote(votes, classes)
    assert vote.labels.dtype == dtype
    assert vote.keep.dtype == np.bool_
    expected = [paper(column, classes) for column in votes.T.tolist()]
    assert list(zip(vote.labels.tolist(), vote.keep.tolist(), strict=True)) == expected
    labels, keep = reference_votes.majority_vote(votes, classes)
    assert np.array_equal(vote.labels, labels)
    assert np.array_equal(vote.keep, keep)


def test_all_elections_of_four_parties_and_three_classes(isa):
    votes = np.array(np.meshgrid(*[range(3)] * 4)).reshape(4, -1)
    vote = ldpkernels.majority_vote(votes, 3)
    for column, label, keep in zip(votes.T.tolist(), vote.labels.tolist(), vote.keep.tolist(), strict=True):
        assert (label, keep) == paper(column, 3)


def test_every_length(isa):
    votes = random_votes(7, 200, 4, np.uint8)
    whole = ldpkernels.majority_vote(votes, 4)
    for n in range(200):
        part = ldpkernels.majority_vote(votes[:, :n], 4)  # a view, not contiguous
        assert np.array_equal(part.labels, whole.labels[:n])
        assert np.array_equal(part.keep, whole.keep[:n])


def test_many_samples_on_several_threads():
    threads = torch.get_num_threads()
    votes = random_votes(20, 300_000, 10, np.uint8)
    try:
        torch.set_num_threads(3)
        vote = ldpkernels.majority_vote(votes, 10)
    finally:
        torch.set_num_threads(threads)
    counts = np.sort(np.stack([(votes == c).sum(0) for c in range(10)]), axis=0)
    assert np.array_equal(vote.keep, counts[-1] - counts[-2] > 1)
    assert np.array_equal((votes == vote.labels).sum(0), counts[-1])


def test_an_adversary_may_drop_a_sample_but_not_relabel_it():
    honest = random_votes(6, 2000, 4, np.int64)
    before = ldpkernels.majority_vote(np.vstack([honest, honest[:1]]), 4)
    for seed in range(1, 5):
        lies = random_votes(1, 2000, 4, np.int64, seed)
        after = ldpkernels.majority_vote(np.vstack([honest, lies]), 4)
        both = before.keep & after.keep
        assert both.sum() > 100
        assert np.array_equal(before.labels[both], after.labels[both])


STRANGERS = [(d, v) for d in DTYPES for v in (4, 200, -1, 256, 2**40) if np.iinfo(d).min <= v <= np.iinfo(d).max]


@pytest.mark.parametrize("parties", [3, 130])
@pytest.mark.parametrize(("dtype", "stranger"), STRANGERS)
def test_votes_for_no_class_are_refused(isa, dtype, parties, stranger):
    votes = random_votes(parties, 100, 4, dtype)
    votes[2, 77] = stranger
    with pytest.raises(ValueError, match=f"party 2 votes {stranger} on sample 77: votes are from 0 to 3"):
        ldpkernels.majority_vote(votes, 4)
    with pytest.raises(ValueError, match="party 2 votes"):
        ldpkernels.vote_counts(torch.from_numpy(votes), 4)


def test_the_reference_refuses_them_too():
    with ldpkernels.backend("reference"), pytest.raises(ValueError, match="party 0 votes 5"):
        ldpkernels.majority_vote(np.array([[5]]), 2)


def test_arguments_are_checked():
    good = np.zeros((3, 4), np.int64)
    cases = [
        (TypeError, [[0, 1]], 2, "votes is a list"),
        (TypeError, good.astype(np.float32), 2, "votes are float32: pass uint8"),
        (TypeError, good.astype(">i8"), 2, "votes are >i8: pass uint8"),
        (ValueError, good[0], 2, r"votes have shape \(4,\): pass \[parties, samples\]"),
        (ValueError, good[:0], 2, r"votes have shape \(0, 4\)"),
        (ValueError, good, 0, "classes=0 must be from 1"),
        (ValueError, good.astype(np.uint8), 256, "classes=256 must be from 1 to 255"),
    ]
    for error, votes, classes, message in cases:
        with pytest.raises(error, match=message):
            ldpkernels.majority_vote(votes, classes)
    with pytest.raises(ValueError, match="sigma=-1"):
        ldpkernels.noisy_vote(good, 2, -1)
    assert ldpkernels.majority_vote(good[:, :0], 2).labels.shape == (0,)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_the_operation_of_torch():
    votes = torch.from_numpy(random_votes(5, 100, 4, np.int64))
    vote = ldpkernels.majority_vote(votes, 4)
    array = ldpkernels.majority_vote(votes.numpy(), 4)
    assert np.array_equal(vote.labels.numpy(), array.labels)
    assert np.array_equal(vote.keep.numpy(), array.keep)
    for sample in (votes.t().contiguous().t(), votes[:, :0]):
        torch.library.opcheck(torch.ops.ldpkernels.majority_vote.default, (sample, 4))


def test_a_noisy_vote_without_noise_is_the_exact_one():
    votes = random_votes(9, 500, 4, np.int64)
    exact, noisy = ldpkernels.majority_vote(votes, 4), ldpkernels.noisy_vote(votes, 4, 0.0)
    assert np.array_equal(exact.keep, noisy.keep)
    assert np.array_equal(exact.labels[exact.keep], noisy.labels[exact.keep])


def test_a_noisy_vote_is_the_same_for_tensors_and_arrays():
    votes, key = random_votes(9, 500, 4, np.int64), ldpkernels.key(3)
    array = ldpkernels.noisy_vote(votes, 4, 2.0, generator=key)
    tensor = ldpkernels.noisy_vote(torch.from_numpy(votes), 4, 2.0, generator=key)
    assert np.array_equal(array.labels, tensor.labels.numpy())
    assert np.array_equal(array.keep, tensor.keep.numpy())
    assert not np.array_equal(array.labels, ldpkernels.noisy_vote(votes, 4, 2.0, generator=ldpkernels.key(4)).labels)


@pytest.mark.parametrize(("claimed", "verdict"), [(3.0, fits), (3.1, rejected)])
def test_the_noise_has_the_claimed_deviation(claimed, verdict):
    """Five votes against none win with probability Phi(5 / (sigma sqrt 2)); a sigma 3 % off has to be noticed."""
    n = 200_000
    vote = ldpkernels.noisy_vote(np.zeros((5, n), np.uint8), 2, 3.0, generator=ldpkernels.key(1))
    wins = 0.5 + 0.5 * math.erf(5 / (claimed * 2))
    verdict(binomial_test(int((vote.labels == 0).sum()), n, wins))


def test_epsilon_is_that_of_one_gaussian_over_all_samples():
    """N samples that change by sqrt 2 each change by sqrt(2 N) together: the exact curve of one Gaussian mechanism."""
    samples, sigma = 500, 60.0
    result = ldpkernels.vote_epsilon(samples, sigma, delta=1e-5)

    def phi(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    mu = math.sqrt(2 * samples) / sigma
    delta = phi(mu / 2 - result.epsilon / mu) - math.exp(result.epsilon) * phi(-mu / 2 - result.epsilon / mu)
    assert 0.97e-5 < delta <= 1e-5 * (1 + 1e-9)
    assert "one record of one party" in result.neighbouring
