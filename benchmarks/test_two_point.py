# SPDX-License-Identifier: Apache-2.0
"""The two-point mechanism beside what else would do the same work, and beside the floors of the machine.

Work in place runs again and again on its own output. No kernel here, ours or a peer's, takes longer for one value of a
weight than for another: ours draws 16 bits, and 16 more where they tie with the threshold's, which is one draw in 2^16
whatever the threshold.

`bytes` are what the work must read and write, and not what a form with temporaries does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, Literal

import numpy as np
import pytest
import torch

import ldpkernels
from benchmarks import machine, peers
from benchmarks.peers import EPS, C, R
from ldpkernels import _native
from ldpkernels.dtypes import FLOAT32
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.registry import law_table
from ldpkernels.laws.two_point import TwoPoint

Measure = Callable[[str, Literal["ours", "peer", "floor"], str, float, float, Callable[[], object]], None]

pytestmark = pytest.mark.filterwarnings("default")  # torch.compile's own deprecations

ISAS = [name for name in ldpkernels.backends() if name in _native.isas()]
GENERATORS: dict[str, Any] = {
    "default": None,
    "AES": ldpkernels.secure_key("aes"),
    "ChaCha20": ldpkernels.secure_key("chacha20"),
    "Philox": ldpkernels.key(0),
}
CIPHERS = {isa: [name for name in list(GENERATORS)[1:] if name != "AES" or isa in _native.AES_ISAS] for isa in ISAS}
BACKENDS = [pytest.param(isa, name, id=f"{isa}-{name}") for isa, names in CIPHERS.items() for name in names]
WITH_DEFAULT = [pytest.param("", "default", id="default"), *BACKENDS]
CLIENTS = 100
IN_CACHE = 1 << 16


@pytest.fixture
def measure(benchmark: Any, request: pytest.FixtureRequest) -> Measure:
    def run(group: str, kind: str, row: str, elements: float, nbytes: float, work: Callable[[], object]) -> None:
        benchmark.group = group
        benchmark.extra_info.update(row=row, kind=kind, elements=elements, bytes=nbytes)
        machine.OthersShare.wait(request.config.getoption("--patience"))
        benchmark(work)

    return run


def forced(isa: str) -> Any:
    return ldpkernels.backend(isa) if isa else nullcontext()


def named(function: str, isa: str, generator: str = "") -> str:
    return f"{function}, {isa} {generator}".rstrip() if isa else function


# perturb_


class Large:
    """A tensor of weights, the name of its group and the bytes of a pass in place."""

    def __init__(self, w: torch.Tensor) -> None:
        self.w, self.numel = w, w.numel()
        self.bytes = 2 * self.numel * w.element_size()
        dtype = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16"}[w.dtype]
        self.size = f"{self.numel / 2**20:g} M {dtype}"
        self.group = f"perturb_, {self.size}"


@pytest.fixture(scope="module")
def fp32(elements: int) -> Large:
    return Large(torch.randn(elements))


@pytest.fixture(scope="module", params=["fp32", "bf16", "fp64"])
def large(request: pytest.FixtureRequest, elements: int) -> Large:
    if request.param == "fp32":
        return Large(torch.randn(elements))
    return Large(torch.randn(elements // 2).to({"bf16": torch.bfloat16, "fp64": torch.float64}[request.param]))


@pytest.mark.parametrize(("isa", "generator"), WITH_DEFAULT)
def test_perturb(measure: Measure, large: Large, isa: str, generator: str) -> None:
    source = GENERATORS[generator]
    with forced(isa):
        work = lambda: ldpkernels.perturb_(large.w, C, R, EPS, generator=source)  # noqa: E731
        measure(large.group, "ours", named("perturb_", isa, generator), large.numel, large.bytes, work)


@pytest.mark.parametrize("form", ["bernoulli", "compare"])
def test_torch_eager(measure: Measure, large: Large, form: str) -> None:
    work = getattr(peers, f"{form}_")
    measure(large.group, "peer", f"torch eager, {form}", large.numel, large.bytes, lambda: work(large.w))


@pytest.mark.parametrize("form", ["bernoulli", "compare"])
def test_torch_compile(measure: Measure, large: Large, form: str) -> None:
    work = torch.compile(getattr(peers, f"{form}_"), fullgraph=True)
    work(large.w)
    measure(large.group, "peer", f"torch.compile, {form}", large.numel, large.bytes, lambda: work(large.w))


def test_numpy(measure: Measure, fp32: Large) -> None:
    rng, w = np.random.default_rng(), fp32.w.numpy()
    measure(fp32.group, "peer", "NumPy, compare", fp32.numel, fp32.bytes, lambda: peers.numpy_(w, rng))


def test_copy(measure: Measure, large: Large) -> None:
    source = large.w.clone()
    measure(large.group, "floor", "copy_", large.numel, large.bytes, lambda: large.w.copy_(source))


def test_mul(measure: Measure, large: Large) -> None:
    measure(large.group, "floor", "mul_ in place", large.numel, large.bytes, lambda: large.w.mul_(-1.0))


# report


@pytest.mark.parametrize(("isa", "generator"), WITH_DEFAULT)
def test_report(measure: Measure, fp32: Large, isa: str, generator: str) -> None:
    source = GENERATORS[generator]
    with forced(isa):
        work = lambda: ldpkernels.report(fp32.w, C, R, EPS, generator=source)  # noqa: E731
        measure(f"report, {fp32.size}", "ours", named("report", isa, generator), fp32.numel, 4.125 * fp32.numel, work)


def test_report_numpy(measure: Measure, fp32: Large) -> None:
    rng, w = np.random.default_rng(), fp32.w.numpy()
    row = "NumPy, compare and packbits"
    measure(f"report, {fp32.size}", "peer", row, fp32.numel, 4.125 * fp32.numel, lambda: peers.numpy_report(w, rng))


# aggregate: the bytes are those of the reports


class Clients:
    """Reports in memory. Their bits are uniform, which is all that a counter could notice."""

    def __init__(self, weights: int) -> None:
        layout = ldpkernels.report(torch.zeros(weights), C, R, EPS).layout
        rng = np.random.default_rng(0)
        self.arrays = [rng.integers(0, 256, layout.nbytes, np.uint8) for _ in range(CLIENTS)]
        self.payloads = [torch.from_numpy(array) for array in self.arrays]
        self.reports = [ldpkernels.Report(layout, payload) for payload in self.payloads]
        self.size = (weights * CLIENTS, layout.nbytes * CLIENTS)
        self.group = f"aggregate, {CLIENTS} clients of {weights / 2**20:g} M weights"


@pytest.fixture(scope="module")
def clients(elements: int) -> Clients:
    return Clients(elements // 2)


@pytest.mark.parametrize("isa", ["", *ISAS])
def test_aggregate(measure: Measure, clients: Clients, isa: str) -> None:
    with forced(isa):
        row = named("aggregate", isa)
        measure(clients.group, "ours", row, *clients.size, lambda: ldpkernels.aggregate(clients.reports))


def test_add(measure: Measure, clients: Clients) -> None:
    total = ldpkernels.Aggregate()
    total.add(*clients.reports)
    measure(clients.group, "ours", "Aggregate.add alone", *clients.size, lambda: total.add(*clients.reports))


def test_aggregate_of_bytes(measure: Measure, clients: Clients) -> None:
    wire = [report.to_bytes() for report in clients.reports]
    row = "aggregate of bytes, digests checked"
    measure(clients.group, "ours", row, *clients.size, lambda: ldpkernels.aggregate(wire))


def test_aggregate_torch(measure: Measure, clients: Clients) -> None:
    row = "torch eager, shift and add"
    measure(clients.group, "peer", row, *clients.size, lambda: peers.torch_mean(clients.payloads))


def test_aggregate_numpy(measure: Measure, clients: Clients) -> None:
    row = "NumPy, unpackbits and add"
    measure(clients.group, "peer", row, *clients.size, lambda: peers.numpy_mean(clients.arrays))


def test_aggregate_read(measure: Measure, clients: Clients) -> None:
    words = torch.stack(clients.payloads).view(torch.int64)
    measure(clients.group, "floor", "read the bytes (torch.sum)", *clients.size, words.sum)


# a small model: the cost of a call


class Small:
    def __init__(self) -> None:
        self.model = peers.small_model()
        sizes = [p.numel() for p in self.model.parameters()]
        self.size = (sum(sizes), 8 * sum(sizes))
        self.group = f"small model, {sum(sizes):,} weights in {len(sizes)} tensors"


@pytest.fixture(scope="module")
def small() -> Small:
    return Small()


@pytest.mark.parametrize("generator", ["default", "Philox"])
@pytest.mark.parametrize("function", ["perturb_", "report"])
def test_small_model(measure: Measure, small: Small, function: str, generator: str) -> None:
    call, source = getattr(ldpkernels, function), GENERATORS[generator]
    row = f"{function}, Philox" if generator == "Philox" else function
    measure(
        small.group, "ours", row, *small.size, lambda: call(small.model, C, R, EPS, generator=source, buffers="keep")
    )


def test_small_model_eager(measure: Measure, small: Small) -> None:
    row = "torch eager, bernoulli in a loop"
    measure(small.group, "peer", row, *small.size, lambda: peers.eager_loop_(small.model))


# in a core's own cache: what the arithmetic alone allows, on one core and on all

THREADS = sorted({1, machine.cores()})


def cached(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)} in cache, {IN_CACHE // 1024} K fp32 each"


@pytest.mark.parametrize(("isa", "generator"), BACKENDS)
@pytest.mark.parametrize("threads", THREADS)
def test_cached(measure: Measure, isa: str, generator: str, threads: int) -> None:
    times = 64 * threads  # the same chunks again and again, to make small what a call and a thread cost
    w = torch.randn(IN_CACHE * threads)
    addresses = [w.data_ptr() + 4 * IN_CACHE * (i % threads) for i in range(times)]
    spans = span_table(addresses, [0] * times, [IN_CACHE] * times, [FLOAT32] * times)
    laws = law_table(TwoPoint(EPS), [C] * times, [R] * times, [FLOAT32] * times, "values")
    words, n = GENERATORS[generator].uint32(), times * IN_CACHE
    work = lambda: _native.launch("two_point", "values", spans, laws, words, isa, threads)  # noqa: E731
    measure(cached(threads), "ours", named("perturb_", isa, generator), n, 8 * n, work)


@pytest.mark.parametrize(("isa", "generator"), BACKENDS)
def test_cached_keystream(measure: Measure, isa: str, generator: str) -> None:
    words, draws = GENERATORS[generator].uint32(), 32 if generator == "ChaCha20" else 8  # of a block
    work = lambda: _native.keystream(words, 0, 0, IN_CACHE // draws, isa)  # noqa: E731
    measure(cached(1), "floor", named("keystream alone", isa, generator), IN_CACHE, 2 * IN_CACHE, work)


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_cached_mul(measure: Measure) -> None:
    w = torch.randn(IN_CACHE)
    measure(cached(1), "floor", "mul_ in place", IN_CACHE, 8 * IN_CACHE, lambda: w.mul_(-1.0))
