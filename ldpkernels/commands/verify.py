# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels verify`: measured mean and variance compared with the theory, for everything that can run here."""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ldpkernels.calls.cldp import cldp_
from ldpkernels.calls.perturb import perturb_, report
from ldpkernels.commands import options
from ldpkernels.commands.options import Commands
from ldpkernels.commands.program import Outcome
from ldpkernels.common import capabilities, keys
from ldpkernels.common.arrays import Array, Floats
from ldpkernels.common.dtypes import DTYPES
from ldpkernels.common.keys import Key
from ldpkernels.common.plot import new_figure, save
from ldpkernels.launch.proved import Answer, ask_all
from ldpkernels.laws.ordinal_cldp import OrdinalCLDP
from ldpkernels.laws.registry import MECHANISMS, NAMES, MechanismName
from ldpkernels.laws.two_point import TwoPoint

if TYPE_CHECKING:
    import torch

LIMIT = 6.0  # |z| beyond this has probability 2e-9 a figure; a run has a few hundred figures: a false alarm in 1e6 runs
LEAST = 1000  # samples: of fewer, a z-score is not nearly normal
SLOW = {"reference": 1 << 12, "triton": 1 << 14, "scalar": 1 << 20}  # elements; "triton" is the interpreter here


@dataclass(frozen=True)
class Case:
    """One law to check: how to sample it, and its exact moments."""

    mechanism: str
    dtype: str
    setting: str
    weight: float
    mean: float
    variance: float
    fourth: float | None  # fourth central moment: how far a sample variance may stray; None is the sample's own
    sample: Callable[[int, Key], Floats]


@dataclass(frozen=True)
class Figure:
    """A case as measured on one backend."""

    mechanism: str
    dtype: str
    backend: str
    setting: str
    weight: float
    n: int
    mean: float
    expected_mean: float
    z_mean: float
    variance: float
    expected_variance: float
    z_variance: float

    @property
    def ok(self) -> bool:
        """Whether both figures are as near to the theory as chance leaves them."""
        return abs(self.z_mean) < LIMIT and abs(self.z_variance) < LIMIT


def cases(dtype: str) -> Iterator[Case]:
    """Every mechanism, for weights at the center, inside, at the end and outside of a range."""
    for name in NAMES:
        yield from weight_cases(name, dtype)
    if dtype in ("float32", "float64"):  # a step of its grid is below what the half formats can write
        yield from cldp_cases(dtype)


def weight_cases(name: MechanismName, dtype: str) -> Iterator[Case]:
    """The values of a mechanism in the registry; of two-point also the reports, whose law is fp64's."""
    for eps, c, r in ((1.0, 0.0, 1.0), (4.0, 1.0, 0.01)):
        mechanism = MECHANISMS[name](eps)
        for t in (-1.0, 0.0, 0.4, 3.0):
            weight = float(_rounded(c + t * r, dtype))
            mean = weight + float(mechanism.bias(weight, c, r))
            for reported in (False, True) if name == "two-point" else (False,):
                written = None if reported else dtype
                fourth = None
                if mechanism.reported == "bits":  # the sample's own is too rough where both values are as likely
                    lower, upper = mechanism.outputs(c, r, written)
                    below, above = mean - lower, upper - mean
                    fourth = below * above * (below**3 + above**3) / (below + above)
                yield Case(
                    mechanism=name if name != "two-point" else "report" if reported else "perturb_",
                    dtype=dtype,
                    setting=f"eps={eps:g} c={c:g} r={r:g}",
                    weight=weight,
                    mean=mean,
                    variance=float(mechanism.variance(weight, c, r, written)),
                    fourth=fourth,
                    sample=_sampler(name, reported, weight, (c, r, eps), dtype),
                )


def cldp_cases(dtype: str) -> Iterator[Case]:
    """Ordinal CLDP, whose exponential mechanism is biased as its formula says."""
    alpha, c, rho = 0.1, 1.0, 2
    kinds: tuple[Literal["exponential", "laplace"], ...] = ("exponential", "laplace")
    for kind in kinds:
        mechanism = OrdinalCLDP(alpha, c, rho, kind)
        for v in (-100, 0, 40):

            def sample(n: int, key: Key, v: int = v, kind: Literal["exponential", "laplace"] = kind) -> Floats:
                x = filled(n, v / 10**rho, dtype)
                return _as_float64(cldp_(x, alpha, c, rho, mechanism=kind, generator=key))

            mean, variance = (v + mechanism.bias(v)) / 10**rho, mechanism.variance(v) / 10 ** (2 * rho)
            yield Case(
                f"cldp {kind[:4]}", dtype, f"alpha={alpha:g} c={c:g} rho={rho}", v / 100, mean, variance, None, sample
            )


def measure(case: Case, backend: str, n: int, seed: int) -> Figure:
    """Draw n outputs of one case on one backend."""
    with capabilities.backend(backend):
        x = case.sample(n, keys.key(seed))
    mean, variance = float(x.mean()), float(np.mean((x - case.mean) ** 2))
    if case.fourth is not None:
        spread = case.fourth - case.variance**2
    else:  # all of it the sample's own: its fourth moment less another variance would be anything
        spread = float(np.mean((x - case.mean) ** 4)) - variance**2
    return Figure(
        case.mechanism, case.dtype, backend, case.setting, case.weight, len(x), mean, case.mean,
        _z(mean - case.mean, case.variance, len(x)), variance, case.variance,
        _z(variance - case.variance, spread, len(x)),
    )  # fmt: skip


def measure_all(
    backends: list[str], dtypes: list[str], n: int, seed: int, progress: Callable[[Figure], None]
) -> list[Figure]:
    """Every case on every backend; each with a key of its own."""
    figures: list[Figure] = []
    for backend in backends:
        size = min(n, SLOW.get(backend, n))
        for dtype in dtypes:
            for case in cases(dtype):
                if case.mechanism in MECHANISMS and not capabilities.offers(backend, MECHANISMS[case.mechanism].kernel):
                    continue
                figures.append(measure(case, backend, size, seed + len(figures)))
                progress(figures[-1])
    return figures


def draw(figures: list[Figure], path: str) -> None:
    """The picture: variance over weight against the curve of the theory, and the z-scores against the normal law."""
    figure, (left, right) = new_figure(1, 2, width=11, height=4.2)
    eps, c, r = 1.0, 0.0, 1.0
    t = np.linspace(-1, 1, 101)
    left.plot(t, TwoPoint(eps).variance(t, c, r), color="0.6", lw=1.5, label="theory: r²B² − (w−c)²", zorder=1)
    for mechanism, marker in (("perturb_", "o"), ("report", "x")):
        here = [f for f in figures if f.mechanism == mechanism and f.setting.startswith("eps=1 ")]
        rows = [f for f in here if f.dtype == "float32" and f.n == max(g.n for g in here)] or here
        left.scatter(
            [min(f.weight, 1.0) for f in rows], [f.variance for f in rows], marker=marker, s=26, label=mechanism
        )
    left.set(
        xlabel="weight (clipped to its range), eps = 1, C = 0, R = 1", ylabel="variance of the output", ylim=(0, None)
    )
    left.set_title("Measured variance, float32")
    left.legend(frameon=False)
    z = np.array(
        [v for f in figures for v in (f.z_mean, f.z_variance) if abs(v) > 1e-3]
    )  # at w = c the variance is exact
    grid = np.linspace(-5, 5, 201)
    bins = np.linspace(-5, 5, 26).tolist()
    right.hist(np.clip(z, -5, 5), bins=bins, density=True, alpha=0.7, label=f"{len(z)} z-scores")
    right.plot(grid, np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi), color="0.3", lw=1.5, label="standard normal")
    right.set(xlabel="(measured − theory) / standard error", ylabel="density")
    right.set_title("All mechanisms, formats and backends")
    right.legend(frameon=False)
    save(figure, path)


def table(figures: list[Figure]) -> str:
    """A line a figure, and the summary."""
    head = f"{'mechanism':10} {'dtype':9} {'backend':10} {'setting':22} {'weight':>9} {'n':>9}"
    lines = [f"{head} {'mean':>11} {'theory':>11} {'z':>6} {'variance':>11} {'theory':>11} {'z':>6}"]
    lines += [row(f) for f in figures]
    return "\n".join(lines)


def row(f: Figure) -> str:
    """One figure as a line of the table."""
    text = f"{f.mechanism:10} {f.dtype:9} {f.backend:10} {f.setting:22} {f.weight:9.4f} {f.n:9d}"
    text += f" {f.mean:11.6g} {f.expected_mean:11.6g} {f.z_mean:6.2f}"
    text += f" {f.variance:11.6g} {f.expected_variance:11.6g} {f.z_variance:6.2f}"
    return text if f.ok else text + "  <-- not by chance"


def add_parser(commands: Commands) -> None:
    """The command line of `verify`."""
    parser = commands.add_parser(
        "verify",
        help="measured against theoretical mean and variance, for every mechanism, dtype and backend",
        description="Samples every mechanism in every floating-point format on every backend of this machine, and "
        "compares mean and variance with the exact law. Exits with 1 if a z-score is above 6.",
        epilog="example: ldpkernels verify --backend avx2 reference --dtype float32 --out verify.png",
    )
    add_measuring(parser)
    parser.add_argument(
        "--n",
        type=options.integer(LEAST),
        default=1 << 20,
        help=f"samples a case, {LEAST} at least; slow backends take fewer (default 2^20)",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="a GPU ('cuda', 'cuda:1'): known answers of every kernel there, bit for bit"
    )
    options.add_json(parser)
    parser.set_defaults(main=main, command="verify")


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """What `verify` and `audit` share: what to measure, and where to draw it."""
    parser.add_argument("--seed", type=options.seed, default=0, help="first key's seed (default 0)")
    parser.add_argument("--backend", nargs="+", metavar="NAME", help="as ldpkernels.backends() has them; default: all")
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), help="default: all that this installation has")
    parser.add_argument(
        "--out", type=options.picture, metavar="FILE", help="draw the picture (.png, .svg, .pdf); needs matplotlib"
    )


def chosen_backends(args: argparse.Namespace) -> list[str]:
    """The backends that --backend names, or all of them."""
    available = capabilities.backends()
    for name in args.backend or ():
        if name not in available:
            raise ValueError(f"--backend {name} is not available here: use one of {', '.join(available)}")
    return args.backend or list(available)


def chosen_dtypes(args: argparse.Namespace) -> list[str]:
    """The formats that --dtype names, or all that there are: without torch, NumPy's."""
    torch_is_here = importlib.util.find_spec("torch") is not None
    available = [name for name in DTYPES if torch_is_here or name in np.sctypeDict]
    for name in args.dtype or ():
        if name not in available:
            raise ValueError(f"--dtype {name}: NumPy has no such dtype: pip install 'ldpkernels[torch]'")
    return args.dtype or available


def known_answers(device: str) -> Outcome:
    """Ask every kernel of a device what is known, and print a table."""
    there = options.device(device)
    if there.type == "cuda" and there.index is None:
        there = type(there)("cuda", 0)
    answers, row = list[Answer](), "{:14} {:11} {:9} {:9} {:7} {}"
    for answer in ask_all(there):
        if not answers:
            print(row.format("kernel", "output", "dtype", "cipher", "backend", "answers"))
        of = answer.subject
        found = answer.error or "the host's bits"
        print(row.format(of.kernel, of.output, of.dtype, of.cipher, answer.backend, found), flush=True)
        answers.append(answer)
    if not answers:
        raise ValueError(f"--device {device}: no GPU backend has a kernel that runs there")
    wrong = sum(a.error is not None for a in answers)
    print(f"\n{len(answers)} kernels, " + (f"{wrong} of them WRONG" if wrong else "all with the host's bits"))
    return Outcome(answers, 1 if wrong else 0)


def main(args: argparse.Namespace) -> Outcome:
    """Measure every case, print the table, and draw it where that is asked for; or ask a device."""
    if args.device:
        return known_answers(args.device)
    backends, dtypes = chosen_backends(args), chosen_dtypes(args)
    print(table([]))
    figures = measure_all(backends, dtypes, args.n, args.seed, lambda f: print(row(f), flush=True))
    z = [abs(v) for f in figures for v in (f.z_mean, f.z_variance)]
    bad = sum(not f.ok for f in figures)
    verdict = "all as the theory says" if not bad else f"{bad} cases are NOT as the theory says"
    print(f"\n{len(figures)} cases, {len(z)} z-scores, largest {max(z):.2f} (limit {LIMIT:g}): {verdict}")
    if args.out:
        draw(figures, args.out)
        print(f"picture: {args.out}")
    return Outcome(figures, 1 if bad else 0)


def _sampler(
    name: MechanismName, reported: bool, weight: float, law: tuple[float, float, float], dtype: str
) -> Callable[[int, Key], Floats]:
    c, r, eps = law

    def sample(n: int, key: Key) -> Floats:
        x = filled(n, weight, dtype)
        if not reported:
            return _as_float64(perturb_(x, c, r, eps, mechanism=name, generator=key))
        bits = np.unpackbits(report(x, c, r, eps, mechanism=name, generator=key).bits, bitorder="little")[:n]
        lower, upper = TwoPoint(eps).outputs(c, r)
        return np.where(bits, upper, lower)

    return sample


def _z(difference: float, variance: float, n: int) -> float:
    """A difference in standard errors; a law without variance must be met exactly, to rounding."""
    return difference / math.sqrt(max(variance, 1e-24) / n)


def filled(n: int, weight: float, dtype: str) -> Array | torch.Tensor:
    """n copies of a weight: a tensor where torch is installed, as users have, else an array, which has no bfloat16."""
    try:
        import torch
    except ImportError:
        return np.full(n, weight, dtype)
    device = "cuda" if torch.cuda.is_available() and capabilities.forced() in ("cuda", "triton") else "cpu"
    return torch.full((n,), weight, dtype=getattr(torch, dtype), device=device)


def _as_float64(x: Array | torch.Tensor) -> Floats:
    array: Floats = x.astype(np.float64) if isinstance(x, np.ndarray) else x.double().cpu().numpy()
    return array


def _rounded(x: float, dtype: str) -> float:
    return float(_as_float64(filled(1, x, dtype))[0])
