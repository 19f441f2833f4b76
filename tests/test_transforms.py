# SPDX-License-Identifier: Apache-2.0
# Calls inside of torch.func's transforms and torch's recorders, and tensors whose memory is not there.
import warnings

import numpy as np
import pytest

import ldpkernels
from ldpkernels import updates

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

SHARES = ldpkernels.DistributedGaussian.calibrated(8.0, 1e-5, dimension=8, clients=1000, bits=24)
CODE = ldpkernels.ProjectedCode(8.0, dimension=8, bits=3)
ROUND = ldpkernels.key(3)

READERS = {  # they look at numbers on the host
    "perturb_vector": lambda x: ldpkernels.perturb_vector(x, 8.0, norm=1.0),
    "perturb_vector, k-of-d": lambda x: ldpkernels.perturb_vector({"w": x}, 8.0, norm=1.0, mechanism="k-of-d")["w"],
    "perturb_vector, gaussian": lambda x: ldpkernels.perturb_vector(x, norm=1.0, mechanism="gaussian", sigma=1.0),
    "encode": lambda x: updates.encode(x, SHARES, ROUND),
    "report_code": lambda x: updates.report_code(x, CODE, ROUND),
    "ranges": lambda x: ldpkernels.ranges(x),
    "ranges, quantile": lambda x: ldpkernels.ranges({"w": x}, method="quantile"),
}
DRAWERS = {
    "perturb_": lambda x: ldpkernels.perturb_(x, 0.0, 1.0, 1.0),
    "perturb_, mapping": lambda x: ldpkernels.perturb_({"w": x}, 0.0, 1.0, 1.0)["w"],
    "perturb_, list": lambda x: ldpkernels.perturb_([x], 0.0, 1.0, 1.0, generator=ldpkernels.key(0))[0],
    "prepare": lambda x: ldpkernels.prepare(x, 0.0, 1.0, 1.0)(),
    "report": lambda x: ldpkernels.report(x, 0.0, 1.0, 1.0).payload,
    "report, mapping": lambda x: ldpkernels.report({"w": x}, 0.0, 1.0, 1.0).payload,
    "cldp_": lambda x: ldpkernels.cldp_({"w": x}, 0.1, 1.0, 2)["w"],
    "cldp_sample": lambda x: ldpkernels.cldp_sample(x.long(), 0.1, 10),
    "clipped_noised_sum": lambda x: ldpkernels.clipped_noised_sum(x.view(2, 4), 1.0, 1.0),
    "clipped_noised_sum, mapping": lambda x: ldpkernels.clipped_noised_mean({"w": x.view(2, 4)}, 1.0, 1.0)["w"],
    "noisy_vote": lambda x: ldpkernels.noisy_vote(x.view(2, 4).long(), 2, 1.0).labels,
    **{name: call for name, call in READERS.items() if not name.startswith("ranges")},
}


@pytest.mark.parametrize("name", DRAWERS)
@pytest.mark.parametrize("levels", [1, 2])
def test_rows_of_vmap_would_share_their_noise(name, levels):
    rows = torch.zeros(3, 8) if levels == 1 else torch.zeros(2, 3, 8)
    call = DRAWERS[name]
    for _ in range(levels):
        call = torch.vmap(call, randomness="different")
    with pytest.raises(
        RuntimeError, match=rf"^{name.partition(',')[0]} under torch.vmap .* same noise: call it outside"
    ):
        call(rows)
    assert not rows.any()


def test_a_row_that_outlives_its_vmap_is_still_a_row():
    kept = []
    torch.vmap(lambda x: (kept.append(x), x)[1])(torch.zeros(3, 8))
    for call in (DRAWERS["perturb_"], DRAWERS["perturb_vector, gaussian"]):
        with pytest.raises(RuntimeError, match="same noise"):
            call(kept[0])


def faked(call):
    with FakeTensorMode():
        call(torch.zeros(8))


WAYS = {
    "functionalized": lambda call: torch.func.functionalize(lambda x: (call(x), x)[1])(torch.zeros(8)),
    "standing for another": lambda call: call(torch._to_functional_tensor(torch.zeros(8))),
    "differentiated": lambda call: torch.func.grad(lambda x: (call(x), x.sum())[1])(torch.zeros(8)),
    "faked": faked,
    "recorded": lambda call: make_fx(lambda x: (call(x), x)[1])(torch.zeros(8)),
    "traced": lambda call: torch.jit.trace(lambda x: (call(x), x + 1)[1], (torch.zeros(8),), check_trace=False),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", READERS)
def test_the_host_reads_no_numbers_that_are_not_there_and_leaves_none_in_a_record(name, way):
    """Before, three of these crashed the interpreter, and records held one call's result for ever."""
    with pytest.raises(
        RuntimeError, match=f"^{name.partition(',')[0]} cannot be transformed or recorded|^torch.jit.trace records"
    ):
        WAYS[way](READERS[name])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["perturb_vector", "report_code", "ranges", "report"])
def test_the_work_of_the_host_breaks_a_graph_and_is_not_exported(name):
    call = {**READERS, **DRAWERS}[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    compiled, x = torch.compile(lambda x: (call(x + 1), x * 2)[0], backend="eager"), torch.linspace(-1, 1, 8)
    found = compiled(x)
    assert type(found) is type(call(x + 1))

    class Module(torch.nn.Module):
        def forward(self, x):
            return call(x)

    with pytest.raises(RuntimeError, match=f"^{name} cannot be transformed or recorded, as what torch.export makes"):
        torch.export.export(Module(), (x,), strict=False)


def test_clipped_sums_are_differentiated_backwards_alone():
    """Forward mode was told that nothing changes."""
    x = torch.ones(4, 3)
    for shape in ((4, 3), (12,)):

        def total(x, shape=shape):
            return ldpkernels.clipped_noised_sum(x.view(shape), 1.0, 0.0).sum()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(RuntimeError, match=r"torch\.autograd only"):
                torch.func.jvp(total, (x,), (x,))
            with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match=r"torch\.autograd only"):
                total(torch.autograd.forward_ad.make_dual(x, x))
        with pytest.raises(RuntimeError, match=r"torch\.autograd only"):
            torch.func.grad(total)(x)


def test_mappings_pass_gradients_through_as_tensors_do():
    x = torch.linspace(-1, 1, 8)
    for call in (DRAWERS["perturb_"], DRAWERS["perturb_, mapping"]):
        gradient = torch.func.grad(lambda x, call=call: call(x.clone()).sum())(x)
        assert torch.equal(gradient, torch.ones(8))


HOLES = {
    **DRAWERS,
    **READERS,
    "cldp_sample": lambda x: ldpkernels.cldp_sample(x.view(torch.int64), 0.1, 10),
    "noisy_vote": lambda x: ldpkernels.noisy_vote(x.view(torch.int64).view(2, -1), 2, 1.0),
    "majority_vote": lambda x: ldpkernels.majority_vote(x.view(torch.int64).view(2, -1), 2),
    "clipped_noised_sum, info": lambda x: ldpkernels.clipped_noised_sum(x, 1.0, 1.0, return_info=True),
    "clipped_noised_sum, narrow": lambda x: ldpkernels.clipped_noised_sum(x, 1.0, 1.0),
    "two_point_threshold": lambda x: ldpkernels.two_point_threshold(x, 0.0, 1.0, 1.0),
    "load": lambda x: ldpkernels.load(x, np.ones(x.shape)),
    "load from it": lambda x: ldpkernels.load(torch.zeros(x.shape), x),
    "perturb_, module": lambda x: ldpkernels.perturb_(module_of(x), 0.0, 1.0, 1.0),
    "key": lambda x: ldpkernels.perturb_(torch.zeros(8), 0.0, 1.0, 1.0, generator=x.view(torch.int64)),
}


def module_of(x):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(x)
    return module


@pytest.mark.parametrize("left", ["nothing", "a part", "all but the offset"])
@pytest.mark.parametrize("name", HOLES)
def test_a_storage_made_smaller_is_refused_and_nothing_behind_it_is_touched(name, left):
    """Of 18 calls that were tried so, 16 ended the interpreter, and others read or wrote what lay behind."""
    base = torch.zeros(16)
    x = base[8:] if left == "all but the offset" else base[:8]
    x.untyped_storage().resize_({"nothing": 0, "a part": 8, "all but the offset": 32}[left])
    with pytest.raises(ValueError, match=r"has no memory: its storage was freed or made smaller \(\d+ bytes"):
        HOLES[name](x)
