# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing by atheris: `python -m tests.fuzz report --seconds 60`.

What libFuzzer finds worth keeping stays in build/fuzz/TARGET and is where the next run begins. An input that fails is
written to build/fuzz/found, and `python -m tests.fuzz TARGET FILE` runs it again.
"""

import argparse
import hashlib
import inspect
import logging
import sys
import tempfile
from pathlib import Path

import atheris

from tests.fuzz.targets import TARGETS, dictionary

FOLDER = Path("build/fuzz")


def instrument():
    """Let libFuzzer see every branch of the package: its functions, and those of its classes."""
    seen = set()
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "ldpkernels"]
    for module in modules:
        for value in vars(module).values():
            members = [value, *vars(value).values()] if inspect.isclass(value) else [value]
            for member in members:
                function = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
                if inspect.isfunction(function) and function.__module__ == module.__name__ and function not in seen:
                    seen.add(function)
                    atheris.instrument_func(function)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("file", nargs="?", help="run this input once")
    parser.add_argument("--seconds", type=int, default=60, help="how long (60)")
    parser.add_argument("--runs", type=int, default=-1, help="how many inputs at most (any number)")
    arguments = parser.parse_args()
    logging.disable()
    instrument()
    target, scratch = TARGETS[arguments.target], Path(tempfile.mkdtemp())
    corpus, found = FOLDER / arguments.target, FOLDER / "found"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(target.seeds()):
        (corpus / f"seed-{i}").write_bytes(seed)
    options = [
        f"-max_total_time={arguments.seconds}",
        f"-runs={arguments.runs}",
        f"-artifact_prefix={found}/{arguments.target}-",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-max_len=8192",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    if dictionary(arguments.target):
        words = FOLDER / f"{arguments.target}.dictionary"
        words.write_text(dictionary(arguments.target))
        options.append(f"-dict={words}")

    def read(given):
        try:
            target.run(given, scratch)
        except Exception:  # libFuzzer's alarm may come before it has written the input
            (found / f"{arguments.target}-{hashlib.sha1(given).hexdigest()}").write_bytes(given)
            raise

    inputs = [arguments.file] if arguments.file else [*options, str(corpus)]
    atheris.Setup([sys.argv[0], *inputs], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
