# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels audit`: the epsilon that mechanisms show, compared with the epsilon that they claim."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from ldpkernels.accounting import CENTRAL, SUMMED, GaussianEvent, composed_epsilon
from ldpkernels.audit import AuditResult, GameResult, measure, updates, vector_game
from ldpkernels.calls.cldp import cldp_
from ldpkernels.calls.clipped_noise import NoiseKind, clipped_noised_sum
from ldpkernels.calls.perturb import perturb_, report
from ldpkernels.calls.vector import Sampled, vector_mechanism
from ldpkernels.commands import audit_client, options
from ldpkernels.commands.audit_client import row
from ldpkernels.commands.options import Commands
from ldpkernels.commands.program import Outcome
from ldpkernels.commands.verify import SLOW, add_measuring, chosen_backends, chosen_dtypes, filled
from ldpkernels.common import capabilities
from ldpkernels.common.arrays import Array, Floats
from ldpkernels.common.keys import Key, key
from ldpkernels.common.optional import is_tensor, require
from ldpkernels.common.plot import new_figure, save
from ldpkernels.laws.adaptive_clipping import AdaptiveClipping
from ldpkernels.laws.distributed import DistributedGaussian, DistributedSkellam
from ldpkernels.laws.ordinal_cldp import OrdinalCLDP
from ldpkernels.laws.projected_code import ProjectedCode
from ldpkernels.laws.registry import KINDS, MECHANISMS, NAMES, MechanismName

if TYPE_CHECKING:
    import torch

VECTORS = 1 << 13  # draws of a mechanism for whole vectors, each of which takes some 50 microseconds
LIKELY = 0.3  # a delta at which some thousand draws bound an eps of 2 closely
NEIGHBOURS = (
    (-1.0, 1.0, "the two ends"),
    (float("nan"), 1.0, "NaN and an end"),
    (float("-inf"), 0.3, "-Inf and inside"),
)


def library_cases(dtype: str, backend: str, eps: float, n: int, seed: int) -> Iterator[AuditResult]:
    """Every mechanism that claims an eps on pairs of neighbours, one of them a weight that has gone wrong."""
    outputs = [(name, False) for name in NAMES if capabilities.offers(backend, MECHANISMS[name].kernel)]
    outputs.insert(1, ("two-point", True))
    for name, reported in outputs:
        for a, b, words in NEIGHBOURS:
            keys = (key(seed).fold_in(i) for i in range(2))

            def draw(
                x: float,
                n: int,
                name: MechanismName = name,
                reported: bool = reported,
                keys: Iterator[Key] = keys,
            ) -> Array | torch.Tensor:
                weights = filled(n, x, dtype)
                if not reported:
                    return perturb_(weights, 0.0, 1.0, eps, mechanism=name, generator=next(keys))
                bits = report(weights, 0.0, 1.0, eps, mechanism=name, generator=next(keys)).bits
                return np.unpackbits(bits, bitorder="little")[:n]

            with capabilities.backend(backend):
                label = f"two-point {'report' if reported else 'perturb_'}" if name == "two-point" else name
                claimed = MECHANISMS[name](eps).effective_eps
                yield measure(draw, a, b, claimed, n=n, name=f"{label}, {dtype}, {backend}, {words}")


def cldp_cases(dtype: str, backend: str, n: int, seed: int) -> Iterator[AuditResult]:
    """Ordinal CLDP, whose claim is a metric's: here the eps that it implies between the two ends of a small box."""
    alpha, c, rho = 0.1, 1.0, 1
    keys = (key(seed).fold_in(i) for i in range(2))

    def draw(x: float, n: int) -> Array | torch.Tensor:
        return cldp_(filled(n, x, dtype), alpha, c, rho, generator=next(keys))

    with capabilities.backend(backend):
        claimed = OrdinalCLDP(alpha, c, rho).worst_case_eps
        yield measure(draw, -c, c, claimed, n=n, name=f"cldp, {dtype}, {backend}, the two ends")


def vector_cases(eps: float, n: int, seed: int) -> Iterator[AuditResult]:
    """The mechanisms of whole vectors on opposite updates, seen along them. They run on the host, one by one."""
    dimension, delta = 2, 1e-3
    exact = vector_mechanism("k-of-d", eps, dimension, 1.0), vector_mechanism("privunitg", eps, dimension, 1.0)
    gaussian = vector_mechanism("gaussian", eps, dimension, 1.0, delta=delta)
    for mechanism, forgiven in ((exact[0], 0.0), (exact[1], 0.0), (gaussian, delta)):
        keys = (key(seed).fold_in(i) for i in itertools.count())

        def draw(x: float, n: int, mechanism: Sampled = mechanism, keys: Iterator[Key] = keys) -> Floats:
            update = np.eye(1, dimension)[0] * x
            return np.array([mechanism.sample(update, next(keys))[0] for _ in range(n)])

        label = f"{mechanism.name}, {dimension} weights, opposite updates"
        yield measure(draw, -1.0, 1.0, mechanism.epsilon(forgiven), n=n, delta=forgiven, name=label)


def update_cases(eps: float, n: int, seed: int) -> Iterator[AuditResult]:
    """Whole updates with others' help: a code at eps; shares of noise, and the bits of adaptive clipping.

    Sums are held to more than they claim, which is a bound by Renyi divergences: to a Gaussian of their variance, at
    the point of its curve where so few draws tell most. There a fifth less noise is seen.
    """
    keys = (key(seed + 1).fold_in(i) for i in itertools.count())
    public = key(seed)
    code = ProjectedCode(eps, 4, bits=3)
    name = f"{code.name}, 4 weights, opposite updates"
    yield measure(updates.codes(code, keys, public), 1.0, -1.0, code.effective_eps, n=n, name=name)
    for kind in (DistributedGaussian, DistributedSkellam):
        law = kind.calibrated(8.0, 1e-3, dimension=2, clients=2, bits=24)
        sums, multiplier = updates.sums(law, keys, public), law.stddev * math.sqrt(law.clients) / law.l2
        yield as_gaussian(sums, multiplier, n, f"{law.name}, a client or none")
    bits, group = AdaptiveClipping(1.0, clients=4, bit_stddev=5.0), 20  # of one client nothing is seen in such noise
    for shares, words in ((False, "a server's noise"), (True, "shares")):
        sums = updates.bits(bits, group, keys, shares=shares)
        yield as_gaussian(sums, bits.bit_multiplier / group, n, f"bits of adaptive clipping, {words}, {group} or none")


def as_gaussian(sums: updates.Draw, multiplier: float, n: int, name: str) -> AuditResult:
    """Measure a sum against the curve of the Gaussian mechanism with a noise multiplier."""
    claimed = composed_epsilon([(GaussianEvent(multiplier, scope=SUMMED), 1)], LIKELY)
    return measure(sums, 1.0, 0.0, claimed, n=n, delta=LIKELY, name=name)


def clipped_cases(dtype: str, backend: str, eps: float, n: int, seed: int) -> Iterator[AuditResult]:
    """Clipped sums with and without one row: every column is a release of its own, with sensitivity 1."""
    delta = 1e-3
    sigma = math.sqrt(2 * math.log(1.25 / delta)) / eps
    claimed = composed_epsilon([(GaussianEvent(sigma, scope=CENTRAL), 1)], delta)
    noises: list[NoiseKind] = ["gaussian"]
    if backend not in ("reference", "triton"):  # slow there, or absent
        noises.append("discrete")
    for noise in noises:
        for a, b, words in ((1.0, 0.0, "a row or none"), (1e4, float("nan"), "one clipped, one poisoned")):
            keys = (key(seed).fold_in(i) for i in range(2))

            def draw(x: float, n: int, noise: NoiseKind = noise, keys: Iterator[Key] = keys) -> Array | torch.Tensor:
                row, norm = filled(n, x, dtype)[None], math.sqrt(n)
                sums: Array | torch.Tensor = clipped_noised_sum(
                    row, norm, sigma / norm, noise=noise, generator=next(keys)
                )
                return sums

            with capabilities.backend(backend):
                name = f"clipped sum, {noise}, {dtype}, {backend}, {words}"
                yield measure(draw, a, b, claimed, n=n, delta=delta, name=name)


def add_parser(commands: Commands) -> None:
    """The command line of `audit`."""
    parser = commands.add_parser(
        "audit",
        help="measured epsilon against the claim, for every mechanism, dtype and backend, or a function of yours",
        description="Draws from mechanisms under neighbouring inputs and bounds their epsilon from below, with error "
        "probability 1e-6 a case. Then plays a client's whole vector against a likelihood-ratio attack, and prints the "
        "accountant's figure next to it. Or runs a client of yours and looks at everything that leaves it "
        "(docs/audit.md). Exits with 1 if more leaks than is claimed.",
        epilog="examples: ldpkernels audit --out audit.png; "
        "ldpkernels audit --function mypackage.noise:randomize --inputs 0 1 --eps 1; "
        "ldpkernels audit --client mine:client --data mine:data --out audit.png",
    )
    add_measuring(parser)
    options.add_epsilon(parser, help="epsilon that is claimed (default 1; of a client what its ledger says)")
    parser.add_argument(
        "--n", type=options.integer(2), default=1 << 18, help="draws a case (default 2^18; slow backends take fewer)"
    )
    parser.add_argument("--function", metavar="MODULE:NAME", help="audit f(input, n) -> n outputs instead")
    parser.add_argument("--inputs", nargs=2, type=float, default=(-1.0, 1.0), metavar=("A", "B"), help="its two inputs")
    parser.add_argument(
        "--delta", type=options.number(least=0, below=1), help="delta that the function or client claims (default 0)"
    )
    audit_client.add_options(parser)
    options.add_json(parser)
    parser.set_defaults(main=main, command="audit")


def main(args: argparse.Namespace) -> Outcome:
    """Measure every case, print the table, and draw it where that is asked for."""
    require("scipy.special", "audit", "an audit")
    if args.client or args.data:
        return audit_client.main(args)
    args.eps, args.delta = 1.0 if args.eps is None else args.eps, args.delta or 0.0
    results: list[AuditResult] = []
    games: list[GameResult] = []
    if args.function:
        function = loaded(args.function)
        a, b = args.inputs
        results.append(measure(function, a, b, args.eps, delta=args.delta, n=args.n, name=args.function))
        print(results[0])
    else:
        backends, dtypes = chosen_backends(args), chosen_dtypes(args)
        for law in KINDS:  # an eps that one of them refuses is refused before any work
            law(args.eps)
        print(f"{'mechanism':58} {'draws':>8} {'at least':>9} {'claimed':>8}")
        for i, (backend, dtype) in enumerate((b, d) for b in backends for d in dtypes):
            n = min(args.n, SLOW.get(backend, args.n))
            cases = (
                library_cases(dtype, backend, args.eps, n, args.seed + i),
                cldp_cases(dtype, backend, n, args.seed + i),
                clipped_cases(dtype, backend, args.eps, n, args.seed + i),
            )
            for result in itertools.chain.from_iterable(cases):
                results.append(result)
                print(row(result), flush=True)
        n = min(args.n, VECTORS)
        for result in itertools.chain(vector_cases(args.eps, n, args.seed), update_cases(args.eps, n, args.seed)):
            results.append(result)
            print(row(result), flush=True)
        print(f"\n{'weights of one client, eps=0.2 each':58} {'draws':>8} {'at least':>9} {'account':>8}")
        for game in vector_game(seed=args.seed):
            games.append(game)
            results.append(game.audit)
            print(row(game.audit), flush=True)
    bad = [r for r in results if not r.ok]
    for result in bad:
        print(f"\nFAILED: {result}")
    print(
        f"\n{len(results)} audits, {len(bad)} failed"
        + ("" if bad else ": no mechanism was seen to leak more than it claims")
    )
    if args.out:
        draw(results, games, args.out)
        print(f"picture: {args.out}")
    return Outcome([{**asdict(r), "ok": r.ok} for r in results], 1 if bad else 0)


def draw(results: list[AuditResult], games: list[GameResult], path: str) -> None:
    """Measured against claimed, and the growth with the number of weights."""
    figure, axes = new_figure(1, 2 if games else 1, width=11 if games else 5.5, height=4.2)
    left = axes[0]
    single = [r for r in results if r not in [g.audit for g in games]]
    order = np.argsort([r.measured for r in single])
    left.scatter(range(len(single)), [single[i].measured for i in order], s=16, label="measured: at least")
    left.scatter(range(len(single)), [single[i].claimed for i in order], s=16, c="C3", marker="_", label="claimed")
    left.set(xlabel="audits, sorted", ylabel="epsilon of one report", ylim=(0, None), xticks=[])
    left.set_title("One report")
    left.legend(frameon=False, loc="lower right")
    if games:
        sizes = [g.d for g in games]
        axes[1].plot(sizes, [g.accounted for g in games], color="C3", marker="s", ms=4, label="accountant: at most")
        axes[1].plot(sizes, [g.measured for g in games], color="C0", marker="o", ms=4, label="attack: at least")
        axes[1].axhline(games[0].eps, color="0.5", ls="--", lw=1.2, label="epsilon of each weight")
        axes[1].set(xscale="log", xlabel="weights that a client sends", ylabel="epsilon of the client", ylim=(0, None))
        axes[1].xaxis.set_major_formatter("{x:,.0f}")
        axes[1].set_title("A whole client")
        axes[1].legend(frameon=False)
    save(figure, path)


def loaded(path: str) -> Callable[[float, int], Floats]:
    """A function of the user's, from the working folder or wherever Python finds it; what it does wrong is a sentence.

    >>> loaded("math:sin")(0.0, 1)
    Traceback (most recent call last):
    ValueError: --function math:sin: f(0, 1) raised TypeError: math.sin() takes exactly one argument (2 given)
    """
    function = options.found("--function", path)
    if not callable(function):
        raise ValueError(f"--function {path}: that is a {type(function).__name__}, give a function f(input, n)")

    def outputs(x: float, n: int) -> Floats:
        try:
            drawn = function(x, n)
            return np.asarray(drawn.detach().double().cpu() if is_tensor(drawn) else drawn, np.float64)
        except Exception as error:  # likewise
            words = f"--function {path}: f({x:g}, {n}) raised {type(error).__name__}: {error}"
            raise ValueError(words) from error

    return outputs
