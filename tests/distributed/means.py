# SPDX-License-Identifier: Apache-2.0
"""The mean of all ranks."""

import itertools

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import ldpkernels
from ldpkernels import report
from ldpkernels.distributed import mean
from tests.conftest import EPS, KEY
from tests.distributed.case import MECHANISMS, C, R, case, everyones, network, tensor_of
from tests.distributed.ranks import refuses


@case(2, 4)
def means_have_the_bits_of_aggregate(ranks):
    rank = dist.get_rank()
    for mechanism in MECHANISMS:
        updates = [network(seed=i) for i in range(ranks)]
        reports = [
            report(update, C, R, EPS, mechanism=mechanism, generator=KEY.fold_in(i)) for i, update in enumerate(updates)
        ]
        wanted = ldpkernels.aggregate(reports)
        found = mean(updates[rank], C, R, EPS, mechanism=mechanism, generator=KEY)
        assert list(found) == list(wanted)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), mechanism
        ldpkernels.load(updates[rank], found)


@case(2, 4)
def means_come_as_the_model_did(ranks):
    rank = dist.get_rank()
    arrays = [np.full((3, 5), 0.1 * i) for i in range(ranks)]
    wanted = ldpkernels.aggregate([report(a, C, R, EPS, generator=KEY.fold_in(i)) for i, a in enumerate(arrays)])
    found = mean(arrays[rank], C, R, EPS, generator=KEY)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float64
    assert (found == wanted).all()
    assert isinstance(mean([torch.zeros(3)], C, R, EPS), list)
    assert mean(torch.zeros(3, dtype=torch.bfloat16), C, R, EPS).dtype == torch.float32


@case(2, 4)
def ranks_draw_noise_of_their_own(ranks):
    """Whatever the generator: else differences of updates would be in the clear. 4096 bits, equal once in 2^4096."""
    weights = torch.zeros(4096)
    drawn = []
    original = dist.all_reduce
    dist.all_reduce = lambda numbers, **_: drawn.append(numbers.clone())
    try:
        for generator in (None, "secure", KEY, KEY.tensor(), torch.Generator().manual_seed(5)):
            mean(weights, 0.0, R, EPS, generator=generator)
        mean(weights.numpy(), 0.0, R, EPS, generator=np.random.default_rng(5))
    finally:
        dist.all_reduce = original
    assert len(drawn) == 6
    for numbers in drawn:
        every = everyones(numbers)
        assert not any(torch.equal(a, b) for a, b in itertools.combinations(every, 2))


@case(4)
def means_of_a_part_of_the_ranks(_):
    rank = dist.get_rank()
    groups = [dist.new_group([0, 3]), dist.new_group([1, 2])]
    mine = groups[rank in (1, 2)]
    first = 0 if rank in (0, 3) else 1
    pair = [first, 3 - first]
    wanted = ldpkernels.aggregate(
        [report(tensor_of(9, seed=r), C, R, EPS, generator=KEY.fold_in(i)) for i, r in enumerate(pair)]
    )
    assert torch.equal(mean(tensor_of(9, seed=rank), C, R, EPS, generator=KEY, group=mine), wanted)
    if rank == 1:
        refuses(ValueError, "not in the group", lambda: mean(torch.zeros(2), C, R, EPS, group=groups[0]))


@case(2, 4)
def means_of_ranks_that_disagree(ranks):
    """Every rank raises, and all are in step afterwards."""
    last = dist.get_rank() == ranks - 1
    good = {"weight": torch.zeros(8, 3), "bias": torch.zeros(3)}
    for named, options in [
        ("eps is 0.8 on rank 0 and 2.0", {"eps": 2.0}),
        ("C is ", {"C": 0.0}),
        ("R is ", {"R": {"weight": 0.4, "bias": 0.3}}),
        ("mechanism is 'two-point' on rank 0 and 'piecewise'", {"mechanism": "piecewise"}),
        ("shapes is ", {"model": {**good, "bias": torch.zeros(2)}}),
        ("names is ", {"model": {"weight": torch.zeros(8, 3), "other": torch.zeros(3)}}),
        ("dtypes is ", {"model": {k: v.double() for k, v in good.items()}}),
    ]:
        call = {"model": good, "C": C, "R": R, "eps": EPS, **(options if last else {})}
        refuses(ValueError, f"the ranks disagree: {named}", lambda call=call: mean(**call))
    mixed = {"weight": torch.zeros(8, 3), "bias": distribute_tensor(torch.zeros(3), init_device_mesh("cpu", (ranks,)))}
    for error, match, options in [
        (ValueError, "eps=-1", {"eps": -1}),
        (ValueError, "C names 'x'", {"C": {"weight": 0.1, "bias": 0.1, "x": 0.1}}),
        (TypeError, "dtype torch.int64", {"model": {"weight": torch.zeros(8, 3, dtype=torch.int64)}}),
        (TypeError, "generator=a str|generator='x'", {"generator": "x"}),
        (ValueError, "statistics", {"model": torch.nn.BatchNorm1d(3)}),
        (TypeError, "holds DTensors", {"model": mixed}),
    ]:
        call = {"model": good, "C": C, "R": R, "eps": EPS, **(options if last else {})}
        if last:
            refuses(error, match, lambda call=call: mean(**call))
        else:
            refuses(ValueError, f"rank {ranks - 1} refused: .*", lambda call=call: mean(**call))
    mean(good, C, R, EPS)


@case(2, 4)
def a_sharded_model_is_no_update_of_a_rank(ranks):
    whole = distribute_tensor(torch.zeros(4), init_device_mesh("cpu", (ranks,)), [Shard(0)])
    refuses(TypeError, r"holds DTensors.*report\(model", lambda: mean(whole, C, R, EPS))
