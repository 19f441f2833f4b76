# SPDX-License-Identifier: Apache-2.0
"""What a user writes, as type checkers see it. tests/test_typing.py has it checked, and runs it."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

import ldpkernels
from ldpkernels import Aggregate, ClippedInfo, Key, Report, TwoPoint, Vote


def clients(model: torch.nn.Module) -> Iterator[Report | bytes]:
    """Reports, some as they travel."""
    for seed in range(4):
        one: Report = ldpkernels.report(model, C=0.0, R=0.5, eps=1.0, generator=ldpkernels.key(seed))
        yield one.to_bytes() if seed % 2 else one


def torch_user() -> None:
    """Containers come back as they went in."""
    model = torch.nn.Linear(3, 2)
    same: torch.nn.Linear = ldpkernels.perturb_(model, 0.0, {"weight": 0.5, "bias": 0.25}, eps=1.0)
    x: torch.Tensor = ldpkernels.perturb_(torch.zeros(5), 0.0, 1.0, 2.0, mechanism="hybrid")
    seeded = torch.Generator().manual_seed(5)
    several: list[torch.Tensor] = ldpkernels.perturb_([x, x + 1], [0.0, 1.0], 1.0, 1.0, generator=seeded)
    named: dict[str, torch.Tensor] = ldpkernels.perturb_({"a": x}, 0.0, 1.0, 1.0, generator="secure")
    ldpkernels.aggregate(clients(same))
    ldpkernels.perturb_(model, *ldpkernels.ranges(model), eps=1.0, buffers="keep")
    assert len(several) == len(named) + 1


def numpy_user() -> None:
    """Arrays, and scalars of NumPy for every number."""
    c, r, eps = np.float32(0.0), np.float64(0.5), np.float32(1.0)
    w: NDArray[np.float32] = np.zeros(9, np.float32)
    out: NDArray[np.float32] = ldpkernels.perturb_(w, c, r, eps, generator=np.random.default_rng(0))
    ldpkernels.perturb_([w, w.copy()], [c, c], [r, r], eps, mechanism="sign")
    one = ldpkernels.report({"w": out}, c, r, eps, mechanism="piecewise")
    total = Aggregate()
    total.add(one, one.to_bytes())
    count: int = total.clients
    key: Key = ldpkernels.key(count).fold_in(3)
    ldpkernels.report(w, 0, 1, 1, generator=key)  # whole numbers are numbers


def ranges_and_vectors() -> None:
    """What comes out is of the container and the library that went in."""
    model, x, a = torch.nn.Linear(3, 2), torch.tensor([1.0, 2.0]), np.array([1.0, 2.0])
    by_module: tuple[dict[str, float], dict[str, float]] = ldpkernels.ranges(model)
    ldpkernels.ranges(model, method="noise-subtracted", previous=by_module, eps=np.float32(1.0), clients=900)
    by_place: tuple[list[float], list[float]] = ldpkernels.ranges([a, a + 1], by="tensor")
    one: tuple[float, float] = ldpkernels.ranges({"a": x}, by="model", method="quantile", quantile=0.9)
    alone: tuple[float, float] = ldpkernels.ranges(x)
    chosen: list[Literal["module", "tensor"]] = ["module", "tensor"]
    named = {by: ldpkernels.ranges({"a": a}, by=by) for by in chosen}
    assert one[0] == alone[0] == by_place[0][0] == named["tensor"][0]["a"] == 1.5

    sent: dict[str, torch.Tensor] = ldpkernels.perturb_vector(model, 8.0, norm=1.0)
    ldpkernels.load(model, sent)
    arrays: dict[str, NDArray[np.float64]] = ldpkernels.perturb_vector({"a": a}, 8.0, norm=1.0, mechanism="k-of-d")
    tensors: list[torch.Tensor] = ldpkernels.perturb_vector([x, x + 1], 8.0, norm=1.0, generator=ldpkernels.key(0))
    tensor: torch.Tensor = ldpkernels.perturb_vector(x, 8.0, norm=1.0)
    array: NDArray[np.float64] = ldpkernels.perturb_vector(a, 8.0, norm=1.0, bound=None)
    assert tensors[1].shape == tensor.shape == array.shape == arrays["a"].shape


def sums_and_votes() -> None:
    """Sums are like a row; what is asked for beside them is typed, too."""
    x, a = torch.ones(4, 3), np.ones((4, 3), np.float32)
    total: torch.Tensor = ldpkernels.clipped_noised_sum(x, 1.0, 1.0, noise="discrete")
    mean: NDArray[np.float32] = ldpkernels.clipped_noised_mean(a, 1, np.float32(1.0), batch_size=np.float64(4))
    info: ClippedInfo[torch.Tensor]
    layers, info = ldpkernels.clipped_noised_sum([x, x], [1.0, 2.0], 0.0, clipping="per-layer", return_info=True)
    first: torch.Tensor = layers[0]
    named, exact = ldpkernels.clipped_noised_mean({"w": a}, 1.0, 0.0, return_info=True)
    row: NDArray[np.float32] = named["w"]
    norms: NDArray[np.float64] = exact.norms
    assert total.shape == first.shape == row.shape == mean.shape
    assert info.clipped == len(norms) == 4

    votes = torch.zeros(3, 5, dtype=torch.int64)
    vote: Vote[torch.Tensor] = ldpkernels.majority_vote(votes, classes=2)
    labels, keep = ldpkernels.noisy_vote(votes.numpy(), 2, 1.0, generator=ldpkernels.key(0))
    kept: NDArray[np.int64] = labels[keep]
    counts: torch.Tensor = ldpkernels.vote_counts(votes, 2)
    assert counts[:, 0].eq(3).all()
    assert vote.labels.numel() == 5 >= len(kept)


def claims() -> None:
    """Laws and what they say."""
    mechanism = TwoPoint(1.0)
    number: float = mechanism.variance(0.25, c=0.0, r=1.0) + mechanism.effective_eps
    tensor: torch.Tensor = mechanism.bias(torch.zeros(3), c=0.0, r=number)
    best: str = ldpkernels.best_mechanism(4.0).name
    assert tensor.numel() == 3
    assert best == "hybrid"
    with ldpkernels.backend("reference"):
        array: NDArray[np.int64] = ldpkernels.two_point_threshold(np.zeros(3), 0.0, 1.0, 1.0, output="values")
        tensor = ldpkernels.two_point_threshold(tensor, 0.0, np.float32(1.0), 1.0)
    assert array.tolist() == tensor.tolist() == [2**31] * 3


if __name__ == "__main__":
    torch_user()
    numpy_user()
    ranges_and_vectors()
    sums_and_votes()
    claims()
