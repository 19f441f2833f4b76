# SPDX-License-Identifier: Apache-2.0
"""Means under shares of noise, masked and in the open."""

import contextlib
import datetime
import itertools
import time

import numpy as np
import torch
import torch.distributed as dist

from ldpkernels import DistributedGaussian, DistributedSkellam, load
from ldpkernels.accounting import BudgetExceeded
from ldpkernels.distributed import mean
from ldpkernels.planning import plan
from ldpkernels.updates import decode, encode
from ldpkernels.updates.rotation import rotation_of
from tests.conftest import EPS, KEY
from tests.distributed.case import C, R, case, common, everyones, network, tensor_of
from tests.distributed.ranks import refuses

ROUND = 3
ROTATION = rotation_of(f"round {ROUND} among ranks")


def update(rank):
    return {"w": tensor_of((5, 7), seed=rank), "b": tensor_of((9,), seed=100 + rank)}


def law(ranks, bits=20, kind=DistributedGaussian, **others):
    plain = {"norm": 1.0, "clients": ranks - 1, "grid_norm": 50.0, "stddev": 5.0, "invited": ranks}
    return kind(44, bits=bits, **{**plain, **others})


def integers(ranks, shares):
    """What each rank's update is before masks."""
    return [encode(update(i), shares, ROTATION, generator=KEY.fold_in(ROUND).fold_in(i)) for i in range(ranks)]


@case(4)
def silos_train_one_model_with_shares_of_noise(ranks):
    """By a plan's lines. Ranks have one model after each step, as far from the clipped mean as all shares' noise is."""
    setting = {"rounds": 2, "examples": 3, "batch": 3, "most": 2, "clients": ranks - 1, "weights": 44}
    one = next(one for one in plan(50.0, unit="person", **setting) if one.law)
    lines = one.deploy.replace('"/var/lib/ldp/silo.ledger"', "None")
    model = torch.nn.Linear(10, 4)
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    names = {"model": model, "loss": lambda out, _: out.sum(), "data": (torch.ones(6, 10), torch.ones(6, 10))}
    names |= {"optimizer": torch.optim.SGD(model.parameters(), lr=1.0), "persons": torch.tensor([0, 0, 1, 2, 2, 2])}
    exec(lines, names)
    exec(lines.splitlines()[-1], names)
    assert "sums" in names["ledger"].result.adversary
    moved = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert all(each == moved.tolist() for each in everyones(moved.tolist()))
    away = moved + 2 * 44**-0.5  # two steps of norm 1
    expected = one.parameter * (2 * ranks / (ranks - 1)) ** 0.5 / (3 * ranks)
    assert 0.5 * expected < float(away.std()) < 1.7 * expected
    assert abs(float(away.mean())) < 6 * expected / 44**0.5
    refuses(BudgetExceeded, "epsilon", lambda: exec(lines.splitlines()[-1], names))
    more = lines.splitlines()[-1].replace(f"sigma={one.parameter!r}", "sigma=60.0")
    refuses(ValueError, "sigma", lambda: exec(more, names))


@contextlib.contextmanager
def reduced():
    """What every rank hands to all_reduce, and what it has from it."""
    seen, original = [], dist.all_reduce

    def all_reduce(numbers, **options):
        before = numbers.clone()
        original(numbers, **options)
        seen.append((before.numpy().view(np.uint32), numbers.numpy().view(np.uint32).copy()))

    dist.all_reduce = all_reduce
    try:
        yield seen
    finally:
        dist.all_reduce = original


@case(2, 4, 8)
def masked_sums_have_the_bits_of_plain_ones(ranks):
    """Among them those of 5 bits, in which the sum wraps."""
    rank = dist.get_rank()
    wide = np.sum(integers(ranks, law(ranks, 32)), axis=0, dtype=np.uint32).view(np.int32)
    assert abs(wide).max() > 2**4
    for bits in (5, 16, 20, 32):
        shares = law(ranks, bits, DistributedSkellam if bits == 16 else DistributedGaussian)
        total = np.sum(integers(ranks, shares), axis=0, dtype=np.uint64)
        wanted = decode(total, shares, ROTATION, clients=ranks, like=update(rank))
        for secure in (True, False):
            found = mean(update(rank), law=shares, secure=secure, round=ROUND, generator=KEY)
            assert all(torch.equal(found[name], wanted[name]) for name in wanted), (bits, secure)


@case(2, 4, 8)
def nothing_but_the_sum_is_seen(ranks):
    """Masks are new in every call and cancel; of a sum that wraps nobody learns how often: it would tell signs."""
    rank, shares = dist.get_rank(), law(ranks, 6)
    own = integers(ranks, shares)[rank] << 26
    with reduced() as seen:
        for secure in (True, True, False):
            mean(update(rank), law=shares, secure=secure, round=ROUND, generator=KEY)
    assert np.array_equal(seen[2][0], own)
    masks = everyones([sent - own for sent, _ in seen[:2]])
    for call in range(2):
        assert not np.sum([one[call] for one in masks], axis=0, dtype=np.uint32).any()
    vectors = [mask for one in masks for mask in one]
    if ranks == 2:  # one takes away what the other adds
        vectors = vectors[:2]
    for one, other in itertools.combinations(vectors, 2):  # of 16 bits each
        assert (one == other).sum() < 8
    for mask in vectors:
        assert len(np.unique(mask)) > 40
    for _, total in seen:
        assert not (total & (2**26 - 1)).any()


@case(2)
def a_key_has_other_noise_in_another_round(ranks):
    """An update of zeros leaves the noise alone: the same in two rounds, it left the difference of updates bare."""
    with reduced() as seen:
        for round_ in (1, 2, 2):
            mean(np.zeros(44), law=law(ranks, 32), secure=False, round=round_, generator=KEY)
    first, second, again = (sent for sent, _ in seen)
    assert (first == second).mean() < 0.5
    assert np.array_equal(second, again)


@case(4)
def shares_of_an_update_as_it_comes(ranks):
    shares = DistributedGaussian(99, 1.0, 3, 50.0, 5.0, 20, ranks)
    model = network(seed=dist.get_rank())
    found = mean(model, law=shares, round=1)
    assert list(found) == [name for name, _ in model.named_parameters()]
    load(model, found)
    one = mean(np.full((11, 9), 0.01), law=shares)
    assert isinstance(one, np.ndarray)
    assert one.shape == (11, 9)
    assert len({value.tobytes() for value in everyones(one)}) == 1
    part = dist.new_group([1, 2, 3])
    few = DistributedGaussian(99, 1.0, 2, 50.0, 5.0, 20, 3)
    if dist.get_rank():
        assert mean(torch.zeros(99), law=few, group=part).shape == (99,)


@case(4)
def ranks_of_other_laws(ranks):
    """Every rank raises and says which differs, and all are in step afterwards."""
    rank = dist.get_rank()
    last, good = rank == ranks - 1, {"law": law(ranks), "round": ROUND}
    for named, options in [
        (r"law.stddev is 5.0 on rank 0 and 6.0 on rank 3", {"law": law(ranks, stddev=6.0)}),
        (r"law.bits is 20 on rank 0 and 16 on rank 3", {"law": law(ranks, 16)}),
        (r"law is 'distributed-gaussian' on rank 0 and 'skellam'", {"law": law(ranks, kind=DistributedSkellam)}),
        (r"round is 3 on rank 0 and 4 on rank 3", {"round": 4}),
        (r"secure is True on rank 0 and False on rank 3", {"secure": False}),
        (r"colluders is 0 on rank 0 and 1", {"law": law(ranks, clients=2), "colluders": 1}),
    ]:
        first = {"law": law(ranks, clients=2)} if "colluders" in options else {}
        call = {**good, **first, **(options if last else {})}
        refuses(ValueError, f"the ranks disagree: {named}", lambda call=call: mean(update(rank), **call))
    swapped = dict(reversed(update(rank).items())) if last else update(rank)
    refuses(ValueError, "the ranks disagree: names is ", lambda: mean(swapped, **good))
    short = torch.zeros(43) if last else torch.zeros(44)
    refuses(ValueError, "43 weights, and the law is of 44", lambda: mean(short, **good))
    mean(update(rank), **good)


@case(2, 4)
def laws_that_the_ranks_cannot_keep(ranks):
    """Whoever reads the sum knows its own noise and its colluders'."""
    own = update(dist.get_rank())
    for match, options in [
        (rf"law.clients={ranks} .*{ranks - 1} are left", {"law": law(ranks, clients=ranks)}),
        (rf"colluders=1, so {ranks - 2} are left", {"law": law(ranks), "colluders": 1}),
        (rf"calibrate with invited={ranks}", {"law": law(ranks, clients=1, invited=ranks - 1)}),
        ("colluders = -1", {"law": law(ranks), "colluders": -1}),
        ("round = -1", {"law": law(ranks), "round": -1}),
        ("leave out C, R, eps", {"law": law(ranks), "C": C, "R": R, "eps": EPS}),
        ("secure=True.* are for shares", {"C": C, "R": R, "eps": EPS, "secure": True}),
    ]:
        refuses(ValueError, match, lambda options=options: mean(own, **options))
    refuses(TypeError, "missing C, R and eps, or law", lambda: mean(own))


@case(4)
def a_rank_that_does_not_come(ranks):
    """The others raise when the group's time-out ends, say at what they were, and none hangs."""
    rank, original = dist.get_rank(), dist.all_reduce
    for step in ("compared what they pass", "added their integers: charge"):
        group = dist.new_group(timeout=datetime.timedelta(seconds=2))
        start = time.monotonic()
        if rank == ranks - 1:
            if step.startswith("added"):
                dist.all_reduce = lambda *_, **__: time.sleep(4)
                with contextlib.suppress(Exception):
                    mean(update(rank), law=law(ranks), group=group)
                dist.all_reduce = original
        else:
            match = rf"the call was lost on rank {rank} of 4 ranks while they {step}"
            refuses(RuntimeError, match, lambda group=group: mean(update(rank), law=law(ranks), group=group))
            assert time.monotonic() - start < 10
        common(None)
