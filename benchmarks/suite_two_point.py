# SPDX-License-Identifier: Apache-2.0
"""The two-point mechanism beside what else would do the same work, and beside the floors of the machine.

Work in place runs again and again on its own output. No kernel here, ours or a peer's, takes longer for one value of a
weight than for another: ours draws 16 bits, and 16 more where they tie with the threshold's, which is one draw in 2^16
whatever the threshold. `bytes` are what the work must read and write, and not what a form with temporaries does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

import ldpkernels
from benchmarks import machine, peers
from benchmarks.pairs import Pairs
from benchmarks.peers import EPS, C, R
from benchmarks.results import Case, Work
from ldpkernels import _native
from ldpkernels.common.dtypes import FLOAT32
from ldpkernels.inputs.spans import span_table
from ldpkernels.laws.registry import law_table
from ldpkernels.laws.two_point import TwoPoint

ISAS = [name for name in ldpkernels.backends() if name in _native.isas()]
GENERATORS: dict[str, Any] = {
    "AES": ldpkernels.secure_key("aes"),  # the default's cipher where a processor has instructions for it
    "ChaCha20": ldpkernels.secure_key("chacha20"),
    "Philox": ldpkernels.key(0),
}
WITH_DEFAULT = [("", ""), *product(ISAS, GENERATORS)]
CLIENTS = 100
IN_CACHE = 1 << 16


def named(function: str, isa: str, generator: str = "") -> str:
    """What a row is called."""
    return f"{function}, {isa} {generator}".rstrip() if isa else function


def compiled(form: Callable[[torch.Tensor], object], w: torch.Tensor) -> Work:
    """A form in torch, compiled by torch.compile."""
    return partial(torch.compile(form, fullgraph=True), w)


def cases(elements: int) -> Iterator[Case]:
    """Everything that is measured."""
    for dtype, size in ((torch.float32, elements), (torch.bfloat16, elements // 2), (torch.float64, elements // 2)):
        yield from perturb_cases(torch.randn(size).to(dtype))
    yield from report_cases(torch.randn(elements))
    yield from aggregate_cases(elements // 2)
    yield from small_cases()
    yield from cached_cases()


def sized(w: torch.Tensor) -> str:
    """How large a tensor is, in words."""
    name = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16"}[w.dtype]
    return f"{w.numel() / 2**20:g} M {name}"


def perturb_cases(w: torch.Tensor) -> Iterator[Case]:
    """Weights in place, beside torch, NumPy and the memory alone."""
    of = partial(Case, f"perturb_, {sized(w)}", elements=w.numel(), bytes=2 * w.numel() * w.element_size())
    for isa, generator in WITH_DEFAULT:
        work = partial(ldpkernels.perturb_, w, C, R, EPS, generator=GENERATORS.get(generator))
        yield of(named("perturb_", isa, generator), "ours", lambda work=work: work, backend=isa)
    for form in (peers.bernoulli_, peers.compare_):
        name = form.__name__.rstrip("_")
        yield of(f"torch eager, {name}", "peer", lambda form=form: partial(form, w))
        yield of(f"torch.compile, {name}", "peer", partial(compiled, form, w))
    if w.dtype == torch.float32:
        yield of("NumPy, compare", "peer", lambda: partial(peers.numpy_, w.numpy(), np.random.default_rng()))
    yield of("copy_", "floor", lambda: partial(w.copy_, w.clone()))
    yield of("mul_ in place", "floor", lambda: partial(w.mul_, -1.0))


def report_cases(w: torch.Tensor) -> Iterator[Case]:
    """One bit a weight."""
    of = partial(Case, f"report, {sized(w)}", elements=w.numel(), bytes=4.125 * w.numel())
    for isa, generator in WITH_DEFAULT:
        work = partial(ldpkernels.report, w, C, R, EPS, generator=GENERATORS.get(generator))
        yield of(named("report", isa, generator), "ours", lambda work=work: work, backend=isa)
    numpy_report = partial(peers.numpy_report, w.numpy(), np.random.default_rng())
    yield of("NumPy, compare and packbits", "peer", lambda: numpy_report)


def uniform_reports(weights: int) -> tuple[list[ldpkernels.Report], torch.Tensor]:
    """Reports in memory, and their bytes. Their bits are uniform, which is all that a counter could notice."""
    layout = ldpkernels.report(torch.zeros(weights), C, R, EPS).layout
    bits = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (CLIENTS, layout.nbytes), np.uint8))
    return [ldpkernels.Report(layout, payload) for payload in bits], bits


def aggregate_cases(weights: int) -> Iterator[Case]:
    """The mean of reports; bytes are those of the reports."""
    reports, bits = uniform_reports(weights)
    group = f"aggregate, {CLIENTS} clients of {weights / 2**20:g} M weights"
    of = partial(Case, group, elements=weights * CLIENTS, bytes=bits.numel())
    total, wire = ldpkernels.Aggregate(), [report.to_bytes() for report in reports]
    for isa in ("", *ISAS):
        yield of(named("aggregate", isa), "ours", lambda: partial(ldpkernels.aggregate, reports), backend=isa)
    yield of("Aggregate.add alone", "ours", lambda: partial(total.add, *reports))
    yield of("aggregate of bytes, digests checked", "ours", lambda: partial(ldpkernels.aggregate, wire))
    yield of("torch eager, shift and add", "peer", lambda: partial(peers.torch_mean, list(bits)))
    yield of("NumPy, unpackbits and add", "peer", lambda: partial(peers.numpy_mean, list(bits.numpy())))
    yield of("read the bytes (torch.sum)", "floor", lambda: bits.view(torch.int64).sum)


def small_cases() -> Iterator[Case]:
    """A small model: the cost of a call."""
    model = peers.small_model()
    sizes = [p.numel() for p in model.parameters()]
    group = f"small model, {sum(sizes):,} weights in {len(sizes)} tensors"
    of = partial(Case, group, elements=sum(sizes), bytes=8 * sum(sizes))
    for call, generator in product((ldpkernels.perturb_, ldpkernels.report), ("", "Philox")):
        work = partial(call, model, C, R, EPS, generator=GENERATORS.get(generator), buffers="keep")
        row = f"{call.__name__}, Philox" if generator else call.__name__
        yield of(row, "ours", lambda work=work: work)
    yield of("torch eager, bernoulli in a loop", "peer", lambda: partial(peers.eager_loop_, model))


def cached_cases() -> Iterator[Case]:
    """Weights in a core's own cache: what the arithmetic alone allows, on one core and on all."""

    def of(cores: int, *row: str, n: int, nbytes: int, work: Work, **options: Any) -> Case:
        group = f"{cores} thread{'s' * (cores > 1)} in cache, {IN_CACHE // 1024} K fp32 each"
        return Case(group, *row, lambda: work, elements=n, bytes=nbytes, **options)

    for threads, isa, generator in product(sorted({1, machine.cores()}), ISAS, GENERATORS):
        times = 64 * threads  # the same chunks again and again, to make small what a call and a thread cost
        w = torch.randn(IN_CACHE * threads)
        addresses = [w.data_ptr() + 4 * IN_CACHE * (i % threads) for i in range(times)]
        spans = span_table(addresses, [0] * times, [IN_CACHE] * times, [FLOAT32] * times)
        laws = law_table(TwoPoint(EPS), [C] * times, [R] * times, [FLOAT32] * times, "values")
        words, n = GENERATORS[generator].uint32(), times * IN_CACHE
        work = partial(_native.launch, "two_point", "values", spans, laws, words, isa, threads)
        held = partial(lambda work, _: work(), work, w)  # the spans hold addresses alone
        yield of(threads, named("perturb_", isa, generator), "ours", n=n, nbytes=8 * n, work=held)
    for isa, generator in product(ISAS, GENERATORS):
        blocks = IN_CACHE // (32 if generator == "ChaCha20" else 8)  # two bytes an element
        work = partial(_native.keystream, GENERATORS[generator].uint32(), 0, 0, blocks, isa)
        row = named("keystream alone", isa, generator)
        yield of(1, row, "floor", n=IN_CACHE, nbytes=2 * IN_CACHE, work=work)
    w = torch.randn(IN_CACHE)
    yield of(1, "mul_ in place", "floor", n=IN_CACHE, nbytes=8 * IN_CACHE, work=partial(w.mul_, -1.0), threads=1)


def targets(pairs: Pairs, elements: int) -> None:
    """The ratios that are promised; the goals were set for two cores with AVX2."""
    w = torch.randn(elements)
    by_compile = torch.compile(peers.compare_, fullgraph=True)
    perturb = partial(ldpkernels.perturb_, w, C, R, EPS)
    simulate = partial(perturb, generator=ldpkernels.key(7))
    for isa in pairs.backends():
        pairs.add(f"perturb_, {isa} : torch eager, bernoulli", 60, perturb, lambda: peers.bernoulli_(w))
        pairs.add(f"perturb_, {isa} : torch.compile", 30, perturb, lambda: by_compile(w))
        pairs.add(f"perturb_, {isa} : mul_ in place", 0.6, perturb, lambda: w.mul_(-1.0))
        pairs.add(f"perturb_, {isa} : with Philox", 0.8 if isa != "avx2" else 0.65, perturb, simulate)
    pairs.add("report : perturb_", 1, partial(ldpkernels.report, w, C, R, EPS), perturb)

    reports, bits = uniform_reports(elements // 2)
    total, read = ldpkernels.Aggregate(), bits.view(torch.int64).sum
    add = partial(total.add, *reports)
    pairs.add(f"aggregate, {CLIENTS} clients : reading the bytes", 0.5, partial(ldpkernels.aggregate, reports), read)
    pairs.add(f"Aggregate.add, {CLIENTS} clients : reading the bytes", 0.5, add, read)
    uploads = [one.to_bytes() for one in reports]
    pairs.add("Aggregate.add of uploads : of reports", 0.5, partial(total.add, *uploads), add)

    model = peers.small_model()
    small = partial(ldpkernels.perturb_, model, C, R, EPS, buffers="keep")
    pairs.add("small model : eager loop", 10, small, partial(peers.eager_loop_, model))
