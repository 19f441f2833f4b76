# SPDX-License-Identifier: Apache-2.0
"""Tensors of which every rank has a part."""

import itertools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ldpkernels
from ldpkernels import load, perturb_, ranges, report
from tests.conftest import EPS, KEY
from tests.distributed.case import MECHANISMS, C, R, case, common, everyones, network, placements, tensor_of
from tests.distributed.ranks import refuses


def meshes(ranks):
    yield init_device_mesh("cpu", (ranks,))
    if ranks == 4:
        yield init_device_mesh("cpu", (2, 2))


@case(2, 4)
def parts_have_the_bits_of_the_whole(ranks):
    """Empty parts, single elements, parts that start within a byte of a report, rows cut in pieces."""
    for mesh in meshes(ranks):
        for shape in [(5, 7), (), (0, 3), (1,), (3, 2, 5), (16, 24)][:: mesh.ndim]:
            whole = tensor_of(shape)
            for where, mechanism in itertools.product(placements(len(shape), mesh), MECHANISMS[:2]):
                wanted = perturb_(whole.clone(), C, R, EPS, mechanism=mechanism, generator=KEY)
                part = distribute_tensor(whole, mesh, where)
                before = part.to_local().data_ptr()
                assert perturb_(part, C, R, EPS, mechanism=mechanism, generator=KEY) is part
                assert part.to_local().data_ptr() == before
                assert torch.equal(part.full_tensor(), wanted), (shape, where, mechanism)


@case(2, 4)
def reports_of_parts_are_those_of_the_whole(ranks):
    for mesh in meshes(ranks):
        tensors = {"a": tensor_of((5, 7)), "b": tensor_of((1,), 1), "c": tensor_of((16, 24), 2).double()}
        for mechanism in MECHANISMS:
            wanted = report(tensors, C, {"a": 0.5, "b": 0.2, "c": 0.4}, EPS, mechanism=mechanism, generator=KEY)
            for i in range(3):
                choice = placements(1, mesh)
                parts = {
                    k: distribute_tensor(t, mesh, choice[(i + j) % len(choice)])
                    for j, (k, t) in enumerate(tensors.items())
                }
                found = report(parts, C, {"a": 0.5, "b": 0.2, "c": 0.4}, EPS, mechanism=mechanism, generator=KEY)
                assert found.to_bytes() == wanted.to_bytes(), mechanism


@case(2, 4)
def both_ciphers_dtypes_and_views(ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    secure = ldpkernels.Key((1, 2, 3, 4))
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        whole = tensor_of((9, 5)).to(dtype)
        wanted = perturb_(whole.clone(), C, R, EPS, generator=secure)
        part = distribute_tensor(whole, mesh, [Shard(0)])
        assert torch.equal(perturb_(part, C, R, EPS, generator=secure.tensor()).full_tensor(), wanted)
    local = tensor_of((6, 4)).T  # a part that is not contiguous, and one under autograd
    part = DTensor.from_local(local.clone(memory_format=torch.preserve_format), mesh, [Shard(0)])
    assert not part.to_local().is_contiguous()
    wanted = perturb_(part.full_tensor().contiguous(), C, R, EPS, generator=KEY)
    assert torch.equal(perturb_(part, C, R, EPS, generator=KEY).full_tensor(), wanted)
    leaf = distribute_tensor(torch.ones(8), mesh, [Shard(0)]).requires_grad_()
    squared = (leaf * leaf).sum()
    perturb_(leaf, C, R, EPS)
    refuses(RuntimeError, "modified by an inplace operation", squared.backward)


@case(2, 4)
def sharded_models(ranks):
    """fully_shard, as it is and with copies (HSDP), and beside tensor parallelism, whose parts interleave."""
    wanted, bits = perturb_(network(), C, R, EPS, generator=KEY), report(network(), C, R, EPS, generator=KEY).to_bytes()
    low, high = ranges(network())
    for model in sharded(ranks):
        assert report(model, C, R, EPS, generator=KEY).to_bytes() == bits
        assert ranges(model) == (low, high)
        perturb_(model, C, R, EPS, generator=KEY)
        for a, b in zip(model.parameters(), wanted.parameters(), strict=True):
            assert torch.equal(a.full_tensor(), b)
        if isinstance(model, FSDPModule) and model[0].weight.device_mesh.ndim == 1:
            torch.testing.assert_close(model(torch.ones(2, 5)), wanted(torch.ones(2, 5)))


def sharded(ranks):
    yield fully_shard(network(), mesh=init_device_mesh("cpu", (ranks,)))
    yield distribute_module(network(), init_device_mesh("cpu", (ranks,)))
    if ranks == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        yield fully_shard(network(), mesh=mesh)
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "3": ColwiseParallel()}
        yield fully_shard(parallelize_module(network(), mesh["tensor"], plan), mesh=mesh["data"])


@case(2, 4)
def tied_weights(ranks):
    def tied():
        model = network()
        model[2].weight = model[1].weight = torch.nn.Parameter(tensor_of((3, 7)))
        return model

    sharded_ = fully_shard(tied(), mesh=init_device_mesh("cpu", (ranks,)))
    assert report(sharded_, C, R, EPS, generator=KEY).to_bytes() == report(tied(), C, R, EPS, generator=KEY).to_bytes()
    perturb_(sharded_, C, R, EPS, generator=KEY)
    wanted = perturb_(tied(), C, R, EPS, generator=KEY)
    assert torch.equal(sharded_[2].weight.full_tensor(), wanted[2].weight)
    every = [distribute_tensor(tensor_of((5,)), init_device_mesh("cpu", (ranks,)), [Shard(0)])] * 2
    assert report(every, C, R, EPS).layout.names == ("0",)


@case(2, 4)
def one_key_for_all_ranks_and_a_new_one_each_time(ranks):
    """Copies stay copies, and different parts meet different draws: zeros of 2 x 512 elements, alike once in 2^512."""
    for mesh in meshes(ranks):
        copies = distribute_tensor(torch.zeros(1024), mesh, [Replicate()] * mesh.ndim)
        every = everyones(perturb_(copies, 0.0, R, EPS).to_local())
        assert all(torch.equal(every[0], one) for one in every)
    mesh = init_device_mesh("cpu", (ranks,))
    copies = perturb_(distribute_tensor(torch.zeros(1024), mesh, [Replicate()]), 0.0, R, EPS)
    again = perturb_(distribute_tensor(torch.zeros(1024), mesh, [Replicate()]), 0.0, R, EPS)
    assert not torch.equal(again.to_local(), copies.to_local())
    parts = perturb_(distribute_tensor(torch.zeros(512 * ranks), mesh, [Shard(0)]), 0.0, R, EPS)
    every = everyones(parts.to_local())
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(every, 2))
    one = report(copies, 0.0, R, EPS)
    assert len(set(everyones(one.to_bytes()))) == 1
    assert one.to_bytes() != report(copies, 0.0, R, EPS).to_bytes()


@case(2, 4)
def ranks_that_disagree_on_parts(ranks):
    last = dist.get_rank() == ranks - 1
    mesh = init_device_mesh("cpu", (ranks,))
    part = distribute_tensor(torch.zeros(3 * ranks), mesh, [Shard(0)])
    before = part.to_local().clone()
    for match, options in [
        ("eps is 0.8", {"eps": 2.0}),
        ("C is", {"C": 0.0}),
        ("mechanism is", {"mechanism": "sign"}),
        (f"rank {ranks - 1} has another generator than rank 0", {"generator": ldpkernels.key(12)}),
        (f"rank {ranks - 1} has another generator than rank 0", {"generator": None}),
    ]:
        call = {"model": part, "C": C, "R": R, "eps": EPS, "generator": KEY, **(options if last else {})}
        for function in (perturb_, report):
            text = refuses(ValueError, match, lambda call=call, function=function: function(**call))
            assert "12" not in text.replace("rank", "")
    refuses(ValueError, "another call|the call is", lambda: (perturb_ if last else report)(part, C, R, EPS))
    refuses(ValueError, "eps=0|refused", lambda: perturb_(part, C, R, 0 if last else EPS))
    refuses(ValueError, "growth=0|refused", lambda: ranges(part, growth=0.5 if last else None))
    refuses(
        ValueError,
        "method is",
        lambda: ranges(
            part, **({"method": "noise-subtracted", "previous": (C, R), "eps": 1.0, "clients": 3} if last else {})
        ),
    )
    assert torch.equal(part.to_local(), before)
    perturb_(part, C, R, EPS)


@case(2, 4)
def ranges_of_parts(ranks):
    """Extremes are exact; sums differ from the whole's by rounding, and are the same on all ranks."""
    whole = {"a.w": tensor_of((5, 7)), "a.b": tensor_of((3,), 1), "b.w": tensor_of((1, 1), 2), "c.w": torch.empty(0)}
    whole["a.w"][0, 0] = torch.nan
    options = {"method": "noise-subtracted", "previous": (0.0, 1.0), "eps": 4.0, "clients": 10}
    for mesh in meshes(ranks):
        for where in placements(1, mesh):
            parts = {name: distribute_tensor(t, mesh, where) for name, t in whole.items()}
            for by in ("module", "tensor", "model"):
                assert ranges(parts, by=by) == ranges(whole, by=by)
            found, wanted = ranges(parts, **options), ranges(whole, **options)
            assert len(set(map(repr, everyones(found)))) == 1
            for one, other in zip(found, wanted, strict=True):
                assert all(abs(one[name] - other[name]) < 1e-12 for name in other)
    refuses(ValueError, r"'quantile' needs all.*full_tensor\(\)", lambda: ranges(parts, method="quantile"))
    parts["a.w"].to_local().fill_(torch.inf)
    refuses(ValueError, "layer 'a.w' has no finite weight", lambda: ranges(parts, by="tensor"))


@case(2, 4)
def averages_are_loaded_into_parts(ranks):
    other = network(seed=3)
    average = ldpkernels.aggregate([report(other, C, R, EPS)])
    average = common(average)
    for model in sharded(ranks):
        assert load(model, average) is model
        for name, p in model.named_parameters():
            assert torch.equal(p.full_tensor(), average[name])
    refuses(ValueError, "has shape", lambda: load(model, {**average, "0.bias": torch.zeros(3)}))
    total = ldpkernels.Aggregate(ldpkernels.expected(model, C, R, EPS))
    total.add(report(other, C, R, EPS))
    assert list(total.mean()) == list(average)


@case(2, 4)
def what_is_refused_of_parts(ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    part = distribute_tensor(torch.zeros(4, 4), mesh, [Shard(0)])
    plain = torch.zeros(3)
    for call in (lambda m: perturb_(m, C, R, EPS), lambda m: report(m, C, R, EPS), ranges):
        refuses(
            TypeError,
            "'b' is a Tensor among DTensors.*distribute_module",
            lambda call=call: call({"a": part, "b": plain}),
        )
        unsummed = DTensor.from_local(torch.zeros(2), mesh, [Partial()])
        refuses(ValueError, "tensor '' is .*redistribute", lambda call=call, unsummed=unsummed: call(unsummed))
        if ranks == 4:
            elsewhere = distribute_tensor(torch.zeros(4), init_device_mesh("cpu", (2, 2)), [Shard(0), Replicate()])
            astray = distribute_tensor(torch.zeros(4), DeviceMesh("cpu", [[3, 1], [0, 2]]), [Shard(0), Replicate()])
            refuses(ValueError, "in another order", lambda call=call, astray=astray: call(astray))
            refuses(ValueError, "mesh", lambda call=call, elsewhere=elsewhere: call([part, elsewhere]))
    for call in (
        lambda: ldpkernels.clipped_noised_sum(part, 1.0, 1.0),
        lambda: ldpkernels.clipped_noised_mean({"w": part}, 1.0, 1.0),
        lambda: ldpkernels.cldp_(part, 1.0, 0.5, 2),
        lambda: ldpkernels.perturb_vector(part, 1.0, norm=1.0),
        lambda: ldpkernels.two_point_threshold(part, 0.0, 1.0, 1.0),
        lambda: perturb_((p for p in [part]), C, R, EPS),
    ):
        refuses(TypeError, r"DTensor.*full_tensor\(\)", call)
    model = fully_shard(network(), mesh=mesh)
    model.unshard()
    report(model, C, R, EPS)  # what is gathered may be reported
    refuses(ValueError, r"gathered, and reshard\(\) brings back", lambda: perturb_(model, C, R, EPS))
    model.reshard()
    perturb_(model, C, R, EPS)
    refuses(
        TypeError, "dp_sgd_step takes whole models", lambda: ldpkernels.dp_sgd_step(model, None, 1.0, 1.0, batch_size=1)
    )
    inner = network()
    fully_shard(inner[0], mesh=mesh)
    fully_shard(inner, mesh=mesh)
    inner[0].unshard()
    refuses(
        TypeError,
        r"'0.weight' is a Parameter among DTensors of fully_shard.*reshard\(\)",
        lambda: perturb_(inner, C, R, EPS),
    )
    model[0].secret = torch.ones(3)
    refuses(ValueError, "attribute '0.secret'", lambda: perturb_(model, C, R, EPS))
    store = torch.ones(6)
    view = DTensor.from_local(store[:4], mesh, [Shard(0)])
    refuses(ValueError, "part of tensor '' is a view", lambda: perturb_(view, C, R, EPS))
    compiled = torch.compile(lambda m: perturb_(m, C, R, EPS), backend="eager")
    before = part.to_local().clone()
    refuses(Exception, "", lambda: compiled(part))
    assert torch.equal(part.to_local(), before)
