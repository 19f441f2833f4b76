# SPDX-License-Identifier: Apache-2.0
"""What ranks do together, all of it; tests/distributed/ranks.py runs it."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ldpkernels.distributed import mean
from ldpkernels.trainers import Upload
from tests.conftest import EPS, KEY
from tests.distributed import means, parts, sums  # noqa: F401  # their cases come first
from tests.distributed.case import CASES, C, R, case, common, everyones, network
from tests.distributed.ranks import refuses
from tests.integrations.pages import blocks


def cases(ranks):
    """By name."""
    return {name: function for name, (function, where) in CASES.items() if ranks in where}


def names(ranks):
    return list(cases(ranks))


@case(2, 4)
def the_page_is_true(_):
    torch.manual_seed(dist.get_rank())
    model = network(seed=dist.get_rank())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01)
    names = {"model": model, "before": before}
    for block in blocks("distributed.md"):
        exec(block, names)
    every = everyones({name: value.tolist() for name, value in names["average"].items()})
    assert all(one == every[0] for one in every)
    assert len(set(everyones(names["upload"]))) == 1


@case(2)
def uploads_of_trained_models(ranks):
    """Parts are reported together, and copies of one model by the first rank alone."""

    def trained(model):
        upload = Upload(C, R, EPS, generator=KEY)
        upload.start(model)
        model(torch.ones(2, 5)).square().sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        upload.finish(model, first=dist.get_rank() == 0)
        return upload.report

    wanted = trained(network()) if dist.get_rank() == 0 else None
    copies = trained(torch.nn.parallel.DistributedDataParallel(network()))
    sharded = trained(fully_shard(network(), mesh=init_device_mesh("cpu", (ranks,))))
    assert (copies is None) == (dist.get_rank() != 0)
    payload = common(None if wanted is None else wanted.payload)
    assert torch.equal(sharded.payload, payload)
    if copies is not None:
        assert copies.to_bytes() == wanted.to_bytes()


# Last: after it a rank is gone


@case(2, 8)
def a_rank_that_dies(ranks):
    """The others raise, and not when their patience ends."""
    own, last = torch.zeros(44), dist.get_rank() == ranks - 1
    call = {"law": sums.law(ranks)} if ranks == 8 else {"C": C, "R": R, "eps": EPS}
    if not last:
        said = refuses(RuntimeError, "the call was lost", lambda: [mean(own, **call) for _ in range(100)])
        assert "timed out" not in said.lower()
