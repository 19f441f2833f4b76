# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show: its bits are the CPU's, and its streams, graphs and errors are as documented."""

import copy
import math

import pytest
import torch

import ldpkernels
import ldpkernels.ops

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

C, R, EPS = 0.25, 1.5, 1.0
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
KEYS = {
    "philox": ldpkernels.Key((0x0123456789ABCDEF,)),
    "chacha20": ldpkernels.Key((1, 2**64 - 1, 0xA5A5A5A55A5A5A5A, 2**63)),
}
LENGTHS = [0, 1, 2, 7, 8, 9, 15, 31, 32, 33, 63, 255, 256, 257, 1023, 4097, 8191, 65_537, 100_003, 1 << 20]


@pytest.fixture(params=["cuda", "triton"], autouse=True)
def gpu_backend(request):
    """Every test runs on both of the GPU's backends."""
    if request.param not in ldpkernels.backends():
        pytest.skip(f"the {request.param} backend is not available")
    return request.param


@pytest.fixture(params=KEYS)
def key(request):
    return KEYS[request.param]


def weights(n, dtype, seed=0):
    """Inside the range, outside it, at its ends, and what is no number."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator, dtype=torch.float64).mul_(R).add_(C).to(dtype)
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, C - R, C + R, C], dtype=dtype)
    where = torch.randint(0, max(n, 1), (min(n, n // 100 + 8),), generator=generator)
    x[where] = special.repeat(len(where) // 8 + 1)[: len(where)]
    return x


def on_gpu(function, backend, *arguments, **options):
    with ldpkernels.backend(backend):
        return function(*arguments, **options)


def assert_same_bits(gpu, cpu):
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[cpu.element_size()]
    ours, theirs = gpu.detach().cpu().contiguous().view(-1), cpu.detach().contiguous().view(-1)
    assert ours.dtype == theirs.dtype
    different = (ours.view(integers) != theirs.view(integers)).nonzero()
    where = int(different[0]) if len(different) else -1
    assert where < 0, f"{len(different)} of {len(ours)} differ, the first at {where}: {ours[where]} and {theirs[where]}"


# The same bits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_of_every_length_are_the_cpus(gpu_backend, key, dtype):
    for n in LENGTHS:
        x = weights(n, dtype)
        y = on_gpu(ldpkernels.perturb_, gpu_backend, x.cuda(), C, R, EPS, generator=key)
        assert_same_bits(y, ldpkernels.perturb_(x, C, R, EPS, generator=key))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reports_of_every_length_are_the_cpus(gpu_backend, key, dtype):
    for n in LENGTHS:
        x = weights(n, dtype)
        ours = on_gpu(ldpkernels.report, gpu_backend, x.cuda(), C, R, EPS, generator=key)
        assert ours.to_bytes() == ldpkernels.report(x, C, R, EPS, generator=key).to_bytes()


@pytest.mark.parametrize("output", ["report", "values"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_thresholds_of_all_patterns_are_the_cpus(gpu_backend, dtype, output):
    if dtype.itemsize == 2:
        x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    else:
        bits = torch.randint(-(2**63), 2**63 - 1, (1 << 20,), generator=torch.Generator().manual_seed(1))
        x = torch.cat([bits.view(dtype), weights(1 << 20, dtype)])
    for c, r, eps in ((C, R, EPS), (0.0, 1e-3, 8.0), (1.0, 2.0**-20, 0.01), (0.0, 0.0, 1.0)):
        ours = on_gpu(ldpkernels.two_point_threshold, gpu_backend, x.cuda(), c, r, eps, output=output)
        assert_same_bits(ours, ldpkernels.two_point_threshold(x, c, r, eps, output=output))


def test_the_whole_model_is_the_cpus(gpu_backend, key):
    sizes = [0, 1, 3, 8, 17, 256, 1000, 4096, 10_007]
    tensors = [weights(sizes[i % len(sizes)], DTYPES[i % 4], seed=i) for i in range(600)] + [torch.tensor(0.5)]
    c, r = [i / 600 for i in range(601)], [1 + i / 600 for i in range(601)]
    ours = on_gpu(ldpkernels.perturb_, gpu_backend, [t.cuda() for t in tensors], c, r, EPS, generator=key)
    report = on_gpu(ldpkernels.report, gpu_backend, [t.cuda() for t in tensors], c, r, EPS, generator=key)
    assert report.to_bytes() == ldpkernels.report(tensors, c, r, EPS, generator=key).to_bytes()
    for gpu, cpu in zip(ours, ldpkernels.perturb_(tensors, c, r, EPS, generator=key), strict=True):
        assert_same_bits(gpu, cpu)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_are_the_cpus_and_nothing_outside_is_touched(gpu_backend, key, dtype):
    for view in (
        lambda t: t[1:-1, 3:],
        lambda t: t.T,
        lambda t: t[::2, ::3],
        lambda t: t.view(-1)[5:],
        lambda t: t[3, 4],
    ):
        cpu = weights(33 * 70, dtype).view(33, 70)
        gpu = cpu.cuda()
        on_gpu(ldpkernels.perturb_, gpu_backend, view(gpu), C, R, EPS, generator=key)
        ldpkernels.perturb_(view(cpu), C, R, EPS, generator=key)
        assert_same_bits(gpu, cpu)


def test_more_than_2_to_the_31_elements(gpu_backend):
    n = 2**31 + 77
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of GPU memory")
    x = torch.zeros(n, dtype=torch.bfloat16)
    ours = on_gpu(ldpkernels.perturb_, gpu_backend, x.cuda(), C, R, EPS, generator=KEYS["philox"])
    cpu = ldpkernels.perturb_(x, C, R, EPS, generator=KEYS["philox"])
    for start in range(0, n, 1 << 28):
        assert_same_bits(ours[start : start + (1 << 28)], cpu[start : start + (1 << 28)])


# Modules, keys and errors


def test_a_module_stays_where_it_is(gpu_backend, key):
    cpu = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(9, 5))
    gpu = copy.deepcopy(cpu).cuda()
    with pytest.raises(ValueError, match="running_mean"):
        on_gpu(ldpkernels.perturb_, gpu_backend, gpu, C, R, EPS)
    centers = {"": C, "1.running_var": 10.0}
    assert on_gpu(ldpkernels.perturb_, gpu_backend, gpu, centers, R, EPS, generator=key, buffers="perturb") is gpu
    ldpkernels.perturb_(cpu, centers, R, EPS, generator=key, buffers="perturb")
    for name, tensor in gpu.state_dict().items():
        assert tensor.is_cuda
        assert_same_bits(tensor, cpu.state_dict()[name])
    assert all(p.requires_grad and p.grad_fn is None for p in gpu.parameters())


def test_reports_of_gpu_and_cpu_add_up(gpu_backend):
    x = torch.full((10_000,), 0.5)
    reports = [on_gpu(ldpkernels.report, gpu_backend, x.cuda(), 0.0, 1.0, 2.0) for _ in range(50)]
    reports += [ldpkernels.report(x, 0.0, 1.0, 2.0) for _ in range(50)]
    mean = ldpkernels.aggregate(reports)
    sigma = ldpkernels.TwoPoint(2.0).variance(0.5, 0.0, 1.0) ** 0.5 / math.sqrt(100 * len(x))
    assert abs(float(mean.double().mean()) - 0.5) < 6 * sigma


def test_the_generator_is_the_devices(gpu_backend):
    def draw(generator=None):
        return on_gpu(
            ldpkernels.perturb_, gpu_backend, torch.zeros(1000, device="cuda"), C, R, EPS, generator=generator
        )

    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert_same_bits(draw(), first.cpu())
    assert not torch.equal(first, second)
    twins = [torch.Generator(device="cuda").manual_seed(5) for _ in range(2)]
    assert torch.equal(draw(twins[0]), draw(twins[1]))
    assert not torch.equal(draw("secure"), draw("secure"))
    assert torch.equal(draw(KEYS["chacha20"]), draw(KEYS["chacha20"].tensor("cuda")))


def test_what_cannot_be_reached_is_refused_untouched(gpu_backend):
    x = torch.zeros(100, device="cuda")
    with pytest.raises(ValueError, match="the key is on cpu"):
        on_gpu(ldpkernels.perturb_, gpu_backend, x, C, R, EPS, generator=KEYS["philox"].tensor())
    with pytest.raises(ValueError, match="cuda"):
        on_gpu(ldpkernels.perturb_, gpu_backend, {"a": x, "b": torch.zeros(3)}, C, R, EPS)
    with pytest.raises(ValueError, match="'scalar' cannot reach"):
        on_gpu(ldpkernels.perturb_, "scalar", x, C, R, EPS)
    with pytest.raises(ValueError, match="share memory"):
        on_gpu(ldpkernels.perturb_, gpu_backend, [x[:60], x[40:]], C, R, EPS)
    assert not x.any()


def test_the_cuda_backend_cannot_reach_the_cpu(gpu_backend):
    if gpu_backend == "cuda":
        with pytest.raises(ValueError, match="'cuda' cannot reach"):
            on_gpu(ldpkernels.perturb_, "cuda", torch.zeros(3), C, R, EPS)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_another_device_than_the_current_one(gpu_backend, key):
    x = weights(5000, torch.float32)
    y = on_gpu(ldpkernels.perturb_, gpu_backend, x.to("cuda:1"), C, R, EPS, generator=key)
    assert torch.cuda.current_device() == 0
    assert_same_bits(y, ldpkernels.perturb_(x, C, R, EPS, generator=key))


# Streams, graphs, compilation


def test_the_current_stream_is_used(gpu_backend, key):
    x = weights(1 << 20, torch.float32)
    source, stream = x.cuda(), torch.cuda.Stream()
    on_gpu(ldpkernels.perturb_, gpu_backend, source.clone(), C, R, EPS, generator=key)
    torch.cuda.synchronize()
    device_key = key.tensor("cuda")
    with torch.cuda.stream(stream):
        y = torch.zeros_like(source)
        torch.cuda._sleep(100_000_000)  # some 50 ms, in which a launch on another stream would overtake
        y.copy_(source)
        on_gpu(ldpkernels.perturb_, gpu_backend, y, C, R, EPS, generator=device_key)
    stream.synchronize()
    assert_same_bits(y, ldpkernels.perturb_(x, C, R, EPS, generator=key))


def captured(gpu_backend, tensors, generator):
    """A graph that sets the tensors to zero and perturbs them; its Triton tables are made by the call before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        on_gpu(ldpkernels.perturb_, gpu_backend, tensors, C, R, EPS, generator=generator)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for t in tensors:
            t.zero_()
        on_gpu(ldpkernels.perturb_, gpu_backend, tensors, C, R, EPS, generator=generator)
    return graph


def replayed(graph, tensors):
    graph.replay()
    torch.cuda.synchronize()
    return [t.clone() for t in tensors]


def test_graph_replays_draw_afresh(gpu_backend):
    tensors = [torch.zeros(1001, device="cuda"), torch.zeros(77, device="cuda", dtype=torch.bfloat16)]
    graph = captured(gpu_backend, tensors, None)
    first, second = replayed(graph, tensors), replayed(graph, tensors)
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_graph_replays_follow_their_key(gpu_backend, key):
    tensors = [torch.zeros(n, device="cuda", dtype=d) for n, d in zip((1001, 8, 4097, 33), DTYPES, strict=True)]
    device_key = key.tensor("cuda")
    graph = captured(gpu_backend, tensors, device_key)
    for current in (key, key, key.fold_in(1)):
        device_key.copy_(current.tensor())
        expected = ldpkernels.perturb_(
            [torch.zeros(t.shape, dtype=t.dtype) for t in tensors], C, R, EPS, generator=current
        )
        for gpu, cpu in zip(replayed(graph, tensors), expected, strict=True):
            assert_same_bits(gpu, cpu)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(gpu_backend, key, dtype):
    tensors = [weights(n, dtype).nan_to_num(0, 1, -1).cuda() for n in (33, 0, 1000)]
    ranges = [C] * 3, [R] * 3, EPS
    with ldpkernels.backend(gpu_backend):
        for op, arguments in (
            (torch.ops.ldpkernels.two_point_, (tensors, key.tensor("cuda"), *ranges)),
            (torch.ops.ldpkernels.two_point_report, (tensors, key.tensor("cuda"), *ranges)),
            (torch.ops.ldpkernels.two_point_threshold, (tensors[0], C, R, EPS, "report")),
        ):
            torch.library.opcheck(op.default, arguments)


@pytest.mark.filterwarnings("default")
def test_compiled_whole(gpu_backend, key):
    x = weights(10_007, torch.float32)

    @torch.compile(fullgraph=True)
    def step(w, key):
        torch.ops.ldpkernels.two_point_([w], key, [C], [R], EPS)
        return w * 2

    w = x.cuda()
    doubled = on_gpu(step, gpu_backend, w, key.tensor("cuda"))
    assert_same_bits(w, ldpkernels.perturb_(x, C, R, EPS, generator=key))
    assert_same_bits(doubled, x * 2)
