# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels account`: the accountant's questions on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ldpkernels import accounting
from ldpkernels.accounting import Claim, CldpResult, PrivacyResult
from ldpkernels.accounting.ledger import recorded
from ldpkernels.accounting.records import rounded_up
from ldpkernels.commands import options
from ldpkernels.commands.options import Commands
from ldpkernels.commands.program import Outcome
from ldpkernels.laws.registry import NAMES, mechanism_named

# What --mechanism names, as `plan` and `audit` do: by --eps, or gaussian's by --noise-multiplier. The first two are any
# mechanism of two outcomes, and any of pure eps.
PURE = ("randomized-response", "pure", *NAMES, "k-of-d", "privunitg", "projected-code")


@dataclass(frozen=True)
class Told:
    """An answer that is more than a result: its paragraphs, and its data for JSON."""

    paragraphs: Sequence[str | PrivacyResult | CldpResult]
    data: dict[str, object]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.paragraphs))

    def to_dict(self) -> dict[str, object]:
        """Return the data for JSON."""
        return self.data


Answer = PrivacyResult | Claim | CldpResult | Told


def add_parser(commands: Commands) -> None:
    """Add the command line of `account`."""
    parser = commands.add_parser(
        "account",
        help="what a client or an example loses: local, shuffled, subsampled, DP-SGD, alpha-CLDP, the papers' claims",
        description="Privacy accounting: upper bounds, each with its adversary, neighbours and assumptions.",
    )
    questions = options.add_commands(parser, "QUESTION")

    local = _question(
        questions,
        "local",
        _local,
        "reports of d weights in each of T rounds, as seen by whoever can link them to the client",
        "account local --eps 1 --weights 21840 --rounds 10",
    )
    local.add_argument("--mechanism", choices=(*PURE, "gaussian"), default=PURE[0], help="default: %(default)s")
    options.add_epsilon(local, help="eps of one report; of gaussian, --noise-multiplier instead")
    local.add_argument("--noise-multiplier", type=float, help="noise over the distance of any two inputs (gaussian)")
    _size(local)

    shuffle = _question(
        questions,
        "shuffle",
        _shuffle,
        "the central view behind an ideal shuffler for every position; with --target, how many clients it takes",
        "account shuffle --eps 1 --clients 100 --weights 21840 --rounds 10",
    )
    options.add_epsilon(shuffle, required=True, help="local eps of one report")
    shuffle.add_argument("--mechanism", choices=PURE, default=PURE[0], help="default: %(default)s")
    shuffle.add_argument("--clients", type=options.count, help="honest clients a round")
    shuffle.add_argument("--target", type=float, help="a central epsilon: print how many clients are enough for it")
    shuffle.add_argument(
        "--method", choices=("exact", "stronger_clones", "clones"), help="by default the sharpest that is proved"
    )
    _size(shuffle)

    subsample = _question(
        questions,
        "subsample",
        _subsample,
        "pure eps on secret random samples: ln(1 + q (e^eps - 1)) a round, which is not q eps",
        "account subsample --eps 20 --q 0.18",
    )
    options.add_epsilon(subsample, required=True, help="eps of a round for those who are in it")
    subsample.add_argument("--q", type=float, required=True, help="sampling rate")
    subsample.add_argument("--rounds", type=options.count, default=1)

    gaussian = _question(
        questions,
        "gaussian",
        _gaussian,
        "DP-SGD: the Poisson-sampled Gaussian, by privacy loss distribution and by Renyi",
        "account gaussian --noise-multiplier 1 --q 0.0106667 --steps 10000",
    )
    gaussian.add_argument("--noise-multiplier", type=float, required=True, help="noise over the clipping norm")
    gaussian.add_argument("--q", type=float, required=True, help="Poisson sampling rate")
    gaussian.add_argument("--steps", type=options.count, required=True)
    _delta(gaussian)

    cldp = _question(
        questions,
        "cldp",
        _cldp,
        "alpha-CLDP: what alpha means in the worst case, and with --layers LDP-Fed's schedule",
        "account cldp --alpha 1 --layers 416 32 12832 64 15690 --rounds 80 --cycles 5",
    )
    cldp.add_argument("--alpha", type=options.number(above=0), required=True, help="total budget")
    cldp.add_argument("--c", type=float, default=1.0, help="values are clipped to [-c, c]; default: %(default)s")
    cldp.add_argument("--rho", type=options.count, default=10, help="digits kept after the point; default: %(default)s")
    cldp.add_argument("--metric", choices=("linf", "l1"), default="linf")
    cldp.add_argument("--layers", type=options.count, nargs="+", help="layer sizes from the input to the output")
    cldp.add_argument("--rounds", type=options.count, default=80)
    cldp.add_argument("--cycles", type=options.count, default=1)

    claims = _question(
        questions,
        "claims",
        _claims,
        "the papers' numbers next to the true ones, at the papers' own settings",
        "account claims ldp-fl",
    )
    claims.add_argument("paper", nargs="?", choices=("all", "ldp-fl", "ldp-fed", "han-xue"), default="all")

    ledger = _question(
        questions,
        "ledger",
        _ledger,
        "what a ledger's file says: its budget, its rounds, what was spent and the digest to keep; it changes nothing",
        "account ledger run.ledger",
    )
    ledger.add_argument("file", metavar="FILE")


def main(args: argparse.Namespace) -> Outcome:
    """Answer, and print the answers unless they go to stdout as JSON."""
    answers: list[Answer] = args.answer(args)
    if args.json != "-":
        print("\n".join(map(_short, answers)) if args.short else "\n\n".join(map(str, answers)))
    data = [answer.to_dict() for answer in answers]
    return Outcome(data[0] if len(data) == 1 else data)


def _question(
    questions: Commands, name: str, answer: Callable[[argparse.Namespace], Sequence[Answer]], text: str, example: str
) -> argparse.ArgumentParser:
    parser = questions.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"Example: ldpkernels {example}",
    )
    options.add_json(parser)
    parser.add_argument("--short", action="store_true", help="print the figures without adversary and assumptions")
    parser.set_defaults(main=main, command=f"account {name}", answer=answer)
    return parser


def _size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", type=options.count, default=1, help="weights a round, d; default: %(default)s")
    parser.add_argument("--rounds", type=options.count, default=1, help="rounds, T; default: %(default)s")
    _delta(parser)


def _delta(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--delta", type=float, default=1e-5, help="default: %(default)s")


def _short(answer: Answer) -> str:
    if isinstance(answer, Told):
        return "\n".join(part if isinstance(part, str) else _short(part) for part in answer.paragraphs)
    if isinstance(answer, Claim):
        results = (answer.honest, *answer.also)
        figures = "; ".join(f"{rounded_up(result.epsilon)} ({result.scope.view.value} view)" for result in results)
        return f"{answer.name}: claims {answer.claimed:.6g}; honest {figures}"
    if isinstance(answer, CldpResult):
        return f"alpha = {answer.alpha:.6g} ({answer.metric}): {_short(answer.worst_case)}"
    return f"epsilon = {rounded_up(answer.epsilon)} at delta = {answer.delta:g} ({answer.method})"


def _required(args: argparse.Namespace, name: str) -> float:
    value: float | None = getattr(args, name)
    if value is None:
        raise ValueError(f"--{name.replace('_', '-')} is missing: this question needs it")
    return value


def _event(args: argparse.Namespace) -> accounting.Event:
    if args.mechanism == "gaussian":
        return accounting.GaussianEvent(_required(args, "noise_multiplier"), scope=accounting.LOCAL)
    eps = _required(args, "eps")
    if args.mechanism in NAMES:
        return mechanism_named(args.mechanism, eps).event
    return (accounting.RandomizedResponseEvent if args.mechanism == PURE[0] else accounting.PureEvent)(eps)


def _local(args: argparse.Namespace) -> list[PrivacyResult]:
    table = accounting.local_table(_event(args), d=args.weights, rounds=args.rounds, delta=args.delta)
    return list(table.values())


def _shuffle(args: argparse.Namespace) -> list[PrivacyResult | Told]:
    report = _event(args)
    if args.target is None:
        if args.clients is None:
            raise ValueError("--clients is missing: this question needs it")
        size = {"d": args.weights, "rounds": args.rounds, "delta": args.delta}
        return [accounting.shuffle_epsilon(report, args.clients, **size, method=args.method)]
    if args.clients is not None:
        raise ValueError(f"--clients = {args.clients} and --target = {args.target}: give one of the two")
    if args.method is not None:
        raise ValueError("--target always uses the sharpest method: leave --method out")
    clients, result = accounting.clients_needed(
        args.target, report, d=args.weights, rounds=args.rounds, delta=args.delta
    )
    return [Told([f"{clients:,} clients are enough.", result], {"clients": clients, "result": result.to_dict()})]


def _subsample(args: argparse.Namespace) -> list[PrivacyResult]:
    return [accounting.subsample_pure(args.eps, args.q, rounds=args.rounds)]


def _gaussian(args: argparse.Namespace) -> list[PrivacyResult]:
    return [
        accounting.sampled_gaussian(args.noise_multiplier, args.q, args.steps, delta=args.delta, method=method)
        for method in ("pld", "rdp")
    ]


def _cldp(args: argparse.Namespace) -> list[CldpResult | Told]:
    # in L1 the diameter grows with the number of values that one budget covers: the largest layer's
    size = max(args.layers) if args.layers and args.metric == "l1" else 1
    result = accounting.cldp(args.alpha, args.c, args.rho, metric=args.metric, size=size)
    if not args.layers:
        return [result]
    plan = accounting.schedule(args.alpha, args.layers, args.rounds, cycles=args.cycles, metric=args.metric)
    lines = ["round  cycle  layer   size  alpha of the round  alpha of a value"]
    lines += [
        f"{e.index:5d}  {e.cycle:5d}  {e.layer:5d}  {e.size:5d}  {float(e.alpha):18.6g}"
        f"  {float(e.alpha_parameter):16.6g}"
        for e in plan
    ]
    lines.append(f"The rounds' alphas add up to {sum(entry.alpha for entry in plan)} exactly.")
    rounds = [
        {"round": e.index, "cycle": e.cycle, "layer": e.layer, "size": e.size}
        | {"alpha": str(e.alpha), "alpha_parameter": str(e.alpha_parameter)}
        for e in plan
    ]
    return [Told([result, "\n".join(lines)], {**result.to_dict(), "schedule": rounds})]


def _claims(args: argparse.Namespace) -> list[Claim]:
    answers: list[Claim] = []
    if args.paper in ("all", "ldp-fl"):
        answers.append(accounting.ldp_fl_claim(21840, 10, 100, 1.0))
    if args.paper in ("all", "ldp-fed"):
        answers += [accounting.ldp_fed_claim(1.0), accounting.ldp_fed_claim(1.0, q=9 / 50)]
    if args.paper in ("all", "han-xue"):
        # Adult, then MNIST, whose parameters Fashion MNIST shares
        for q, steps in ((256 / 7814, 1000), (128 / 12000, 10000)):
            answers += [accounting.han_xue_eq18(q, sigma, steps, 1e-5) for sigma in (1.0, 1.5, 3.0, 5.0)]
    return answers


def _ledger(args: argparse.Namespace) -> list[Told]:
    ledger, rounds = recorded(args.file)
    head = f"{args.file}: {rounded_up(ledger.epsilon)} of {ledger.budget:g} in {len(rounds):,} rounds"
    lines = ["round        times   epsilon  event"]
    lines += [f"{one.number:5d} {one.times:12,} {rounded_up(one.epsilon):>9}  {one.event}" for one in rounds]
    data = {
        "budget": ledger.budget,
        "rounds": [{"event": one.event.to_dict(), "times": one.times, "epsilon": one.epsilon} for one in rounds],
        "digest": ledger.digest,
        "result": ledger.result.to_dict(),
    }
    return [Told([head, "\n".join(lines), ledger.result, f"digest {ledger.digest}"], data)]
