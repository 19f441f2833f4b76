# SPDX-License-Identifier: Apache-2.0
"""Modules, keys, errors, devices, streams, graphs and compilation."""

import concurrent.futures
import contextlib
import copy

import pytest
import torch

import ldpkernels
import ldpkernels.ops
from benchmarks.gpu.operations import DTYPES, EPS, KEYS, OPERATIONS, C, R, on, same, weights

# Modules, keys and errors


def test_a_module_stays_where_it_is(on_gpu, key):
    cpu = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(9, 5))
    gpu = copy.deepcopy(cpu).cuda()
    with pytest.raises(ValueError, match="running_mean"):
        on_gpu(ldpkernels.perturb_, gpu, C, R, EPS)
    centers = {"": C, "1.running_var": 10.0}
    assert on_gpu(ldpkernels.perturb_, gpu, centers, R, EPS, generator=key, buffers="perturb") is gpu
    ldpkernels.perturb_(cpu, centers, R, EPS, generator=key, buffers="perturb")
    for name, tensor in gpu.state_dict().items():
        assert tensor.is_cuda
        assert same(tensor, cpu.state_dict()[name])
    assert all(p.requires_grad and p.grad_fn is None for p in gpu.parameters())


def test_k_of_d_reports_in_host_memory(key):
    update = torch.linspace(-1, 1, 1001)
    options = {"mechanism": "k-of-d", "norm": 1.0, "generator": key}
    found = ldpkernels.perturb_vector(update.cuda(), 8.0, **options)
    assert found.device.type == "cpu"
    assert torch.equal(found, ldpkernels.perturb_vector(update, 8.0, **options))


def test_a_report_of_a_vector_stays_on_the_device_where_triton_is(key):
    x = torch.linspace(-1, 1, 10_001)
    options = {"mechanism": "gaussian", "sigma": 0.8, "norm": 1.0, "generator": key}
    found = ldpkernels.perturb_vector({"w": x.cuda()}, **options)["w"]
    assert found.is_cuda == ("triton" in ldpkernels.backends())
    assert same(found, ldpkernels.perturb_vector({"w": x}, **options)["w"])


def test_keys(on_gpu):
    def draw(generator=None):
        return on_gpu(ldpkernels.perturb_, torch.zeros(1000, device="cuda"), C, R, EPS, generator=generator)

    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert not any(torch.equal(a, b) for a, b in ((first, second), (first, draw()), (draw(), draw())))
    twins = [torch.Generator(device="cuda").manual_seed(5) for _ in range(2)]
    assert torch.equal(draw(twins[0]), draw(twins[1]))
    assert not torch.equal(draw("secure"), draw("secure"))
    assert torch.equal(draw(KEYS["chacha20"]), draw(KEYS["chacha20"].tensor("cuda")))


def test_what_cannot_be_reached_is_refused_untouched(on_gpu):
    x = torch.zeros(100, device="cuda")
    with pytest.raises(ValueError, match="the key is on cpu"):
        on_gpu(ldpkernels.perturb_, x, C, R, EPS, generator=KEYS["philox"].tensor())
    with pytest.raises(ValueError, match="cuda"):
        on_gpu(ldpkernels.perturb_, {"a": x, "b": torch.zeros(3)}, C, R, EPS)
    with pytest.raises(ValueError, match="share memory"):
        on_gpu(ldpkernels.perturb_, [x[:60], x[40:]], C, R, EPS)
    with pytest.raises(ValueError, match=r"'scalar' runs no '.*' kernel on 'cuda'"), ldpkernels.backend("scalar"):
        ldpkernels.perturb_(x, C, R, EPS)
    assert not x.any()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_another_device_than_the_current_one(operation, key, on_gpu):
    dtype = operation.dtypes[0]
    found = on_gpu(operation.call, on("cuda:1", operation.make(dtype)), key)
    assert torch.cuda.current_device() == 0
    assert all(same(a, b) for a, b in zip(found, operation.call(operation.make(dtype), key), strict=True))


# Streams and graphs


def test_the_current_stream_is_used(operation, key, on_gpu):
    dtype = operation.dtypes[0]
    source, stream = on("cuda", operation.make(dtype)), torch.cuda.Stream()
    inputs = [torch.zeros_like(t) for t in source]
    device_key = key.tensor("cuda")
    on_gpu(operation.call, inputs, device_key)  # what is compiled, and the tables of these tensors
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # some 50 ms, in which a launch on another stream would overtake
        for t, s in zip(inputs, source, strict=True):
            t.copy_(s)
        found = on_gpu(operation.call, inputs, device_key)
    stream.synchronize()
    assert all(same(a, b) for a, b in zip(found, operation.call(operation.make(dtype), key), strict=True))


def captured(on_gpu, operation, inputs, source, generator):
    """A graph that sets the inputs to the source and calls; what it writes. Tables are made by the call before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        on_gpu(operation.call, inputs, generator)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for t, s in zip(inputs, source, strict=True):
            t.copy_(s)
        found = on_gpu(operation.call, inputs, generator)
    return graph, found


def test_replays_of_a_graph_follow_their_key(operation, key, on_gpu):
    dtype = operation.dtypes[0]
    source = on("cuda", operation.make(dtype))
    inputs, device_key = [t.clone() for t in source], key.tensor("cuda")
    graph, found = captured(on_gpu, operation, inputs, source, device_key)
    replays = []
    for current in (key, key, key.fold_in(1)):
        device_key.copy_(current.tensor())
        graph.replay()
        torch.cuda.synchronize()
        replays.append([t.clone() for t in found])
        expected = operation.call(operation.make(dtype), current)
        assert all(same(a, b) for a, b in zip(replays[-1], expected, strict=True))
    differs = [not same(a, b) for a, b in zip(replays[0], replays[2], strict=True)]
    assert any(differs) == operation.draws


def test_replays_of_a_graph_draw_afresh(operation, on_gpu):
    if not operation.draws:
        pytest.skip("it draws nothing")
    source = on("cuda", operation.make(operation.dtypes[0]))
    inputs = [t.clone() for t in source]
    graph, found = captured(on_gpu, operation, inputs, source, None)
    replays = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        replays.append([t.clone() for t in found])
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert any(not same(x, y) for x, y in zip(replays[a], replays[b], strict=True))


def test_a_captured_tensor_that_is_new_is_refused_or_right(on_gpu, key):
    """A view's copy has another address in a capture: CUDA C++ does not mind, Triton says what to do."""
    x, device_key = torch.zeros(64, 33, device="cuda"), key.tensor("cuda")
    on_gpu(ldpkernels.perturb_, x.T, C, R, EPS, generator=device_key)
    graph, message = torch.cuda.CUDAGraph(), ""
    try:
        with torch.cuda.graph(graph):
            x.zero_()
            on_gpu(ldpkernels.perturb_, x.T, C, R, EPS, generator=device_key)
    except RuntimeError as error:
        message = str(error)
    if message:
        assert "tensors that are contiguous" in message
    else:
        graph.replay()
        torch.cuda.synchronize()
        assert same(x.T, ldpkernels.perturb_(torch.zeros(33, 64), C, R, EPS, generator=key))


# Compilation


def calls(key):
    """Every operation of torch.ops.ldpkernels, and arguments."""
    tensors = [weights(n, DTYPES[i], i).nan_to_num(0, 1, -1).cuda() for i, n in enumerate((33, 0, 1000, 7))]
    ranges = [C] * 4, [R] * 4, EPS
    for one in ldpkernels.ops.OPERATIONS.values():
        yield one.perturb, (tensors, key, *ranges)
        yield one.report, (tensors, key, *ranges)
    ops = torch.ops.ldpkernels
    yield ops.two_point_threshold, (tensors[0], C, R, EPS, "report")
    yield ops.ordinal_cldp_, (tensors, key, [1e-3] * 4, 1.0, 4, "exponential", "nearest")
    yield ops.ordinal_cldp_sample, (torch.arange(-50, 50, device="cuda"), key, 0.1, 50, "laplace")
    rows = [t.view(-1, 1).expand(-1, 5).contiguous() for t in tensors[:1]]
    yield ops.clipped_noised_sum, (rows, key, [1.0], 0.7, 0.0, "gaussian", "flat")
    yield ops.majority_vote, (torch.randint(0, 4, (5, 99), device="cuda"), 4)


@pytest.mark.parametrize("forced", [False, True], ids=["fastest", "triton"])
def test_opcheck(forced, key):
    with ldpkernels.backend("triton") if forced else contextlib.nullcontext():
        for op, arguments in calls(key.tensor("cuda")):
            torch.library.opcheck(op.default, arguments)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [name for name in OPERATIONS if not name.startswith("report")])
def test_compiled_whole(name, key):
    """Reports are objects; their operations are checked above."""
    operation = OPERATIONS[name]
    dtype = operation.dtypes[0]
    torch.compiler.reset()  # of one process's calls it compiles eight and no more

    @torch.compile(fullgraph=True)
    def step(inputs, key):
        return [t.clone() for t in operation.call(inputs, key)]

    found = step(on("cuda", operation.make(dtype)), key.tensor("cuda"))
    expected = operation.call(operation.make(dtype), key)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise"])
def test_an_aggregate_counts_reports_where_they_lie(mechanism):
    """From threads, each on a stream of its own: the tally's kernels run one after another."""
    model = torch.linspace(-1, 1, 300_007, device=CUDA)
    made = [
        ldpkernels.report(model, 0.0, 1.0, 2.0, mechanism=mechanism, generator=ldpkernels.key(i)) for i in range(40)
    ]
    host, there = ldpkernels.Aggregate(), ldpkernels.Aggregate()
    host.add(*(ldpkernels.Report(r.layout, r.bits) for r in made))

    def work(some):
        with torch.cuda.stream(torch.cuda.Stream(CUDA)):
            for report in some:
                there.add(report)

    torch.cuda.synchronize()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [made[i::4] for i in range(4)]))
    assert there.clients == 40
    assert there._counter._host.count == 0, "they were copied to the host"
    assert there.to_bytes() == host.to_bytes()
    assert torch.equal(there.mean(), host.mean())
