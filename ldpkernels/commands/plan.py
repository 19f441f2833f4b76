# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels plan`: from a total epsilon to calls, on the command line."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from ldpkernels.commands import options
from ldpkernels.commands.options import Commands
from ldpkernels.commands.program import Outcome
from ldpkernels.common import plot
from ldpkernels.common.optional import require
from ldpkernels.planning import TRUSTS, Candidate, Plan, Setting, app, picture
from ldpkernels.planning.plan import planned
from ldpkernels.planning.silos import BELOW, SiloSetting, silo_plan


def add_parser(commands: Commands) -> None:
    """Add the command line of `plan`."""
    parser = commands.add_parser(
        "plan",
        help="from a total epsilon for a client to the calls that keep it, the one of least error first",
        description="Finds, for a total epsilon of one client over all rounds, the calls that keep it under each "
        "trust, calibrated against the accountant, in the order of the expected error of a round's mean. What clipping "
        "moves is not in that error.",
        epilog="example: ldpkernels plan --epsilon 8 --rounds 10 --clients 1000 --weights 650 --norm 1 --radius 0.1",
    )
    needed = parser.add_argument_group("the setting")
    options.add_epsilon(needed, required=True, help="total for all that a client ever sends")
    needed.add_argument("--delta", type=float, default=1e-5, help="probability that the total excludes (1e-5)")
    needed.add_argument("--rounds", type=options.count, required=True, help="most rounds in which a client takes part")
    needed.add_argument("--clients", type=options.count, help="honest clients that report in a round")
    needed.add_argument("--weights", type=options.count, help="numbers in an update")
    needed.add_argument(
        "--trust",
        choices=TRUSTS,
        nargs="+",
        default=list(TRUSTS),
        help="who is trusted (default: each in turn)",
        metavar="TRUST",
    )
    needed.add_argument("--radius", type=float, help="largest coordinate of an update; this, or --norm, or both")
    needed.add_argument("--norm", type=float, help="L2 norm to which an update is clipped")
    needed.add_argument(
        "--participation", type=float, default=1.0, help="chance of a client to be in a round, by a fresh draw (1)"
    )
    for name, meaning in (
        ("at-least", "fewest honest clients of a round, where others hide a client: smaller rounds are dropped"),
        ("invited", "most clients that may upload to a secure sum"),
        ("threshold", "fewest clients whose secure sum is opened, one of whom may collude"),
    ):
        needed.add_argument(f"--{name}", type=options.count, metavar="N", help=meaning)
    below = parser.add_argument_group("an example or a person of a silo, in place of a client (docs/silos.md)")
    below.add_argument("--unit", choices=("client", *BELOW), default="client", help="who is protected (client)")
    below.add_argument("--examples", type=options.count, metavar="N", help="examples, or persons, of a silo")
    below.add_argument("--batch", type=float, metavar="N", help="examples, or persons, in a batch on average")
    below.add_argument("--epochs", type=float, metavar="X", help="passes over them in a round (default: one step)")
    below.add_argument("--most", type=options.count, metavar="N", help="records of a person that a step takes, at most")
    shown = parser.add_argument_group("the answer")
    shown.add_argument("--full", action="store_true", help="every call with its adversary and assumptions")
    shown.add_argument("--better", action="store_true", help="what would make the best of each trust better")
    shown.add_argument("--out", type=options.picture, metavar="FILE", help="draw error over epsilon (a minute or two)")
    shown.add_argument("--app", type=Path, metavar="DIR", help="write a Flower app for the best of the one --trust")
    shown.add_argument("--choose", metavar="NAME", help="with --app: for this mechanism instead")
    options.add_json(shown)
    parser.set_defaults(main=main, command="plan")


def main(args: argparse.Namespace) -> Outcome:
    """Check everything, plan, print, draw."""
    for module in ("scipy", "dp_accounting"):
        require(module, "accounting", "a plan")
    if args.unit != "client":
        return _of_silos(args)
    if args.clients is None or args.weights is None or args.examples is not None:
        raise ValueError("--unit client takes --clients and --weights, and no --examples")
    if args.radius is None and args.norm is None:
        raise ValueError("--radius and --norm are both missing: give one of them, or both")
    if args.choose and not args.app:
        raise ValueError(f"--choose {args.choose} names the mechanism of an app: give --app DIR")
    settings = [options.taken(args, Setting, epsilon=args.eps, trust=trust) for trust in dict.fromkeys(args.trust)]
    if args.app:
        if len(settings) > 1:
            raise ValueError(f"--app {args.app} needs one answer to whom is trusted: name it with --trust")
        app.check_folder(args.app)
    answers = {}
    for setting in settings:
        found = planned(setting)
        better = found[0].better() if args.better and found else {}
        print(_text(found, better, full=args.full))
        answers[setting.trust] = {
            "verdict": found.verdict,
            "candidates": [one.to_dict() for one in found],
            "left_out": found.left_out,
            "better": better,
        }
    if args.app:
        chosen = _chosen(found, args.choose)
        app.write_app(chosen, args.app)
        print(f"app: {args.app}, of {chosen.name!r}; its README.md says how to run it")
    if args.out:
        drawn = picture.curves(settings, lambda text: print(text, file=sys.stderr))
        plot.save(picture.draw(drawn, settings[0]), args.out)
        print(f"picture: {args.out}")
    facts = {name: value for name, value in asdict(settings[0]).items() if name != "trust"}
    return Outcome({**facts, "trust": answers})


def _of_silos(args: argparse.Namespace) -> Outcome:
    """The ways to train inside of silos."""
    if args.examples is None or args.batch is None:
        raise ValueError(f"--unit {args.unit} takes --examples and --batch")
    if args.app or args.out or args.better or args.radius is not None:
        raise ValueError(f"--unit {args.unit} takes no --app, --out, --better or --radius: leave them out")
    norm = 1.0 if args.norm is None else args.norm
    setting = options.taken(args, SiloSetting, epsilon=args.eps, norm=norm)
    found = silo_plan(setting)
    print(found)
    print("\n".join(f"{name} is left out: {reason}" for name, reason in found.left_out.items()))
    print("\n\n".join(f"{one}\n\n{one.deploy}" for one in found) if args.full else found[0].deploy if found else "")
    return Outcome({**asdict(setting), "candidates": [one.to_dict() for one in found], "left_out": found.left_out})


def _chosen(found: Plan, name: str | None) -> Candidate:
    """The candidate of this name, or the best that has an app."""
    candidates = [one for one in found if one.name == name or (name is None and app.has_app(one))]
    if not candidates:
        known = ", ".join(repr(one.name) for one in found if app.has_app(one))
        raise ValueError(f"--choose {name} is not a candidate here: choose one of {known or 'another trust'}")
    return candidates[0]


def _text(found: Plan, better: dict[str, float], *, full: bool) -> str:
    lines = [f"trust = {found.setting.trust}: {found}"]
    if found.setting.radius is None and any("R=" in one.call for one in found):
        lines.append(
            f"without --radius, calls with R use the norm, {found.setting.norm:g}: a smaller radius, if you know one,"
            " makes them better (docs/choosing.md)"
        )
    lines += [f"{name} is left out: {reason}" for name, reason in found.left_out.items()]
    lines += [f"better: {text}: {value:.3g} of the norm" for text, value in better.items()]
    if full:
        lines += ["", *map(str, found)]
    elif found:
        lines.append(found[0].call)
        lines += ["", str(found[0].deploy)]
    return "\n".join(lines) + "\n"
