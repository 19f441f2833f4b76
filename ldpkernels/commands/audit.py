# SPDX-License-Identifier: Apache-2.0
"""`python -m ldpkernels audit`."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

import ldpkernels
from ldpkernels.audit import AuditResult, GameResult, measure, vector_game
from ldpkernels.commands.verify import SLOW, filled
from ldpkernels.dtypes import DTYPES
from ldpkernels.laws.hybrid import Hybrid
from ldpkernels.laws.ordinal_cldp import OrdinalCLDP
from ldpkernels.laws.piecewise import Piecewise
from ldpkernels.laws.two_point import TwoPoint
from ldpkernels.vector import vector_mechanism

VECTORS = 1 << 13  # draws of a mechanism for whole vectors, each of which takes some 50 microseconds
NEIGHBOURS = (
    (-1.0, 1.0, "the two ends"),
    (float("nan"), 1.0, "NaN and an end"),
    (float("-inf"), 0.3, "-Inf and inside"),
)


def library_cases(dtype: str, backend: str, eps: float, n: int, seed: int) -> Iterator[AuditResult]:
    """Every mechanism that claims an eps on pairs of neighbours, one of them a weight that has gone wrong."""
    outputs = ["perturb_", "report"]
    if backend != "cuda":  # on a GPU, they have Triton kernels only
        outputs += ["piecewise", "hybrid"]
    for output in outputs:
        for a, b, words in NEIGHBOURS:
            keys = (ldpkernels.key(seed).fold_in(i) for i in range(2))

            def draw(x: float, n: int, output: str = output, keys: Any = keys) -> Any:
                weights = filled(n, x, dtype)
                if output != "report":
                    kind = "two-point" if output == "perturb_" else output
                    return ldpkernels.perturb_(weights, 0.0, 1.0, eps, mechanism=kind, generator=next(keys))
                bits = ldpkernels.report(weights, 0.0, 1.0, eps, generator=next(keys)).bits
                return np.unpackbits(bits, bitorder="little")[:n]

            with ldpkernels.backend(backend):
                mechanism = {"piecewise": Piecewise, "hybrid": Hybrid}.get(output, TwoPoint)(eps)
                label = output if output in ("piecewise", "hybrid") else f"two-point {output}"
                yield measure(draw, a, b, mechanism.effective_eps, n=n, name=f"{label}, {dtype}, {backend}, {words}")


def cldp_cases(dtype: str, backend: str, n: int, seed: int) -> Iterator[AuditResult]:
    """Ordinal CLDP, whose claim is a metric's: here the eps that it implies between the two ends of a small box."""
    alpha, c, rho = 0.1, 1.0, 1
    keys = (ldpkernels.key(seed).fold_in(i) for i in range(2))

    def draw(x: float, n: int) -> Any:
        return ldpkernels.cldp_(filled(n, x, dtype), alpha, c, rho, generator=next(keys))

    with ldpkernels.backend(backend):
        claimed = OrdinalCLDP(alpha, c, rho).worst_case_eps
        yield measure(draw, -c, c, claimed, n=n, name=f"cldp, {dtype}, {backend}, the two ends")


def vector_cases(eps: float, n: int, seed: int) -> Iterator[AuditResult]:
    """The mechanisms of whole vectors on opposite updates, seen along them. They run on the host, one by one."""
    dimension = 2
    for name in ("k-of-d", "privunitg"):
        mechanism = vector_mechanism(name, eps, dimension, norm=1.0)
        keys = (ldpkernels.key(seed).fold_in(i) for i in itertools.count())

        def draw(x: float, n: int, mechanism: Any = mechanism, keys: Any = keys) -> Any:
            update = np.eye(1, dimension)[0] * x
            return np.array([mechanism.sample(update, next(keys))[0] for _ in range(n)])

        label = f"{name}, {dimension} weights, opposite updates"
        yield measure(draw, -1.0, 1.0, mechanism.effective_eps, n=n, name=label)


def clipped_cases(dtype: str, backend: str, eps: float, n: int, seed: int) -> Iterator[AuditResult]:
    """Clipped sums with and without one row: every column is a release of its own, with sensitivity 1."""
    from ldpkernels.accounting import GaussianEvent, local_epsilon

    delta = 1e-3
    sigma = math.sqrt(2 * math.log(1.25 / delta)) / eps
    claimed = local_epsilon(GaussianEvent(sigma), delta=delta).epsilon
    noises = ["gaussian"] if backend in ("reference", "triton") else ["gaussian", "discrete"]  # slow there, or absent
    for noise in noises:
        for a, b, words in ((1.0, 0.0, "a row or none"), (1e4, float("nan"), "one clipped, one poisoned")):
            keys = (ldpkernels.key(seed).fold_in(i) for i in range(2))

            def draw(x: float, n: int, noise: Any = noise, keys: Any = keys) -> Any:
                row, norm = filled(n, x, dtype)[None], math.sqrt(n)
                return ldpkernels.clipped_noised_sum(row, norm, sigma / norm, noise=noise, generator=next(keys))

            with ldpkernels.backend(backend):
                name = f"clipped sum, {noise}, {dtype}, {backend}, {words}"
                yield measure(draw, a, b, claimed, n=n, delta=delta, name=name)


def add_parser(commands: Any) -> None:
    """The command line of `audit`."""
    parser = commands.add_parser(
        "audit",
        help="measured epsilon against the claim, for every mechanism, dtype and backend, or a function of yours",
        description="Draws from mechanisms under neighbouring inputs and bounds their epsilon from below, with error "
        "probability 1e-6 a case. Then plays a client's whole vector against a likelihood-ratio attack, beside the "
        "accountant's figure. Exits with 1 where a mechanism leaks more than it claims.",
        epilog="examples: python -m ldpkernels audit --out audit.png; "
        "python -m ldpkernels audit --function mypackage.noise:randomize --inputs 0 1 --eps 1",
    )
    available = ldpkernels.backends()
    parser.add_argument("--eps", type=float, default=1.0, help="epsilon that is claimed (default 1)")
    parser.add_argument("--n", type=int, default=1 << 18, help="draws a case (default 2^18; slow backends take fewer)")
    parser.add_argument("--seed", type=int, default=0, help="first key's seed (default 0)")
    parser.add_argument("--backend", nargs="+", choices=available, default=list(available), help="default: all here")
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=list(DTYPES), help="default: all four")
    parser.add_argument("--function", metavar="MODULE:NAME", help="audit f(input, n) -> n outputs instead")
    parser.add_argument("--inputs", nargs=2, type=float, default=(-1.0, 1.0), metavar=("A", "B"), help="its neighbours")
    parser.add_argument("--delta", type=float, default=0.0, help="delta that the function claims (default 0)")
    parser.add_argument("--out", metavar="FILE", help="draw the picture (.png, .svg, .pdf); needs matplotlib")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON")
    parser.set_defaults(run=main)


def main(args: argparse.Namespace) -> int:
    """Run, print, draw; the exit status."""
    results: list[AuditResult] = []
    games: list[GameResult] = []
    if args.function:
        claimed = {"claimed": args.eps, "delta": args.delta, "n": args.n, "name": args.function}
        results.append(measure(_load(args.function), *args.inputs, **claimed))
        print(results[0])
    else:
        print(f"{'mechanism':58} {'draws':>8} {'at least':>9} {'claimed':>8}")
        for i, (backend, dtype) in enumerate((b, d) for b in args.backend for d in args.dtype):
            n = min(args.n, SLOW.get(backend, args.n))
            cases = (
                library_cases(dtype, backend, args.eps, n, args.seed + i),
                cldp_cases(dtype, backend, n, args.seed + i),
                clipped_cases(dtype, backend, args.eps, n, args.seed + i),
            )
            for result in itertools.chain.from_iterable(cases):
                results.append(result)
                print(_row(result), flush=True)
        for result in vector_cases(args.eps, min(args.n, VECTORS), args.seed):
            results.append(result)
            print(_row(result), flush=True)
        print(f"\n{'weights of one client, eps=0.2 each':58} {'draws':>8} {'at least':>9} {'account':>8}")
        for game in vector_game(seed=args.seed):
            games.append(game)
            results.append(game.audit)
            print(_row(game.audit), flush=True)
    bad = [r for r in results if not r.ok]
    for result in bad:
        print(f"\nFAILED: {result}")
    print(
        f"\n{len(results)} audits, {len(bad)} failed"
        + ("" if bad else ": no mechanism was seen to leak more than it claims")
    )
    if args.json:
        with open(args.json, "w") as file:
            json.dump([{**asdict(r), "ok": r.ok} for r in results], file, indent=1)
    if args.out:
        draw(results, games, args.out)
        print(f"picture: {args.out}")
    return 1 if bad else 0


def draw(results: list[AuditResult], games: list[GameResult], path: str) -> None:
    """Measured against claimed, and the growth with the number of weights."""
    from ldpkernels.plot import new_figure, save

    figure, axes = new_figure(1, 2 if games else 1, width=11 if games else 5.5, height=4.2)
    left = axes[0] if games else axes
    single = [r for r in results if r not in [g.audit for g in games]]
    order = np.argsort([r.measured for r in single])
    left.scatter(range(len(single)), [single[i].measured for i in order], s=16, label="measured: at least")
    left.axhline(single[0].claimed, color="C3", lw=1.5, label="claimed")
    left.set(xlabel="audits, sorted", ylabel="epsilon of one weight", ylim=(0, None), xticks=[])
    left.set_title("One weight")
    left.legend(frameon=False, loc="lower right")
    if games:
        sizes = [g.d for g in games]
        axes[1].plot(sizes, [g.accounted for g in games], color="C3", marker="s", ms=4, label="accountant: at most")
        axes[1].plot(sizes, [g.measured for g in games], color="C0", marker="o", ms=4, label="attack: at least")
        axes[1].axhline(games[0].eps, color="0.5", ls="--", lw=1.2, label="epsilon of each weight")
        axes[1].set(xscale="log", xlabel="weights that a client sends", ylabel="epsilon of the client", ylim=(0, None))
        axes[1].set_title("A whole client")
        axes[1].legend(frameon=False)
    save(figure, path)


def _row(result: AuditResult) -> str:
    row = f"{result.name:58} {result.n:8d} {result.measured:9.4f} {result.claimed:8.4f}"
    return row if result.ok else row + "  <-- leaks"


def _load(path: str) -> Callable[[Any, int], Any]:
    module, _, name = path.partition(":")
    if not name:
        raise SystemExit(f"--function {path}: write it as MODULE:NAME")
    try:
        function: Callable[[Any, int], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SystemExit(f"--function {path}: {error}") from None
    return function
