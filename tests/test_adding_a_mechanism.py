# SPDX-License-Identifier: Apache-2.0
"""docs/adding_a_mechanism.md shows what is in the tree, and its count of edits is true."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/adding_a_mechanism.md").read_text()
BLOCKS = re.findall(r"^```\w+ (\S+)\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)
OWN = [
    "docs/mechanisms/sign.md",
    "ldpkernels/laws/sign.py",
    "ldpkernels/reference/sign.py",
    "csrc/mechanisms/sign.h",
    "ldpkernels/triton/sign.py",
    "tests/test_sign.py",
]
REGISTRIES = {
    "csrc/mechanisms/registry.h": 2,
    "csrc/tables.h": 1,
    "ldpkernels/laws/registry.py": 3,
    "ldpkernels/reference/registry.py": 2,
    "ldpkernels/triton/registry.py": 2,
}
SUFFIXES = (".py", ".pyi", ".h", ".cpp", ".cu", ".cuh", ".md")
NAMED = re.compile(r'"sign"|\bSign(Law)?\b|\bsign\.(h|py|md|launch)\b|import .*\bsign\b')


def named_in(path):
    return [line for line in (ROOT / path).read_text().splitlines() if NAMED.search(line)]


def files(*folders):
    every = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return [path.relative_to(ROOT).as_posix() for path in every]


def test_every_block_is_in_the_tree():
    assert len(BLOCKS) == PAGE.count("```") // 2 > 10, "a block names no file"
    for path, text in BLOCKS:
        assert f"\n{text}\n" in (ROOT / path).read_text(), f"{path} has no\n{text}"


def test_a_mechanism_is_named_in_the_registries_and_nowhere_else():
    assert {path: len(named_in(path)) for path in REGISTRIES} == REGISTRIES
    assert sum(REGISTRIES.values()) == 10
    for path, lines in REGISTRIES.items():
        assert f"{path} ({lines})" in PAGE
    sources = [path for path in files("ldpkernels", "csrc") if path not in (*OWN, *REGISTRIES)]
    sources = [path for path in sources if "/ordinal_cldp" not in path]  # a column of its law is called so
    assert not {path: lines for path in sources if (lines := named_in(path))}
