# SPDX-License-Identifier: Apache-2.0
"""The papers' pages: what they say is what their cells say, and a seed is part of a cell's name."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "benchmarks" / "papers"
PAGES = {
    "ldp-fl": ["-m", "benchmarks.papers.ldp_fl"],
    "ldp-fed-fashion-mnist": ["-m", "benchmarks.papers.ldp_fed"],
    "han-xue-adult": ["-m", "benchmarks.papers.han_xue", "adult"],
    "han-xue-mnist": ["-m", "benchmarks.papers.han_xue", "mnist"],
    "han-xue-fashion-mnist": ["-m", "benchmarks.papers.han_xue", "fashion-mnist"],
}
PLANS = """
import json
from dataclasses import replace
from benchmarks.papers import han_xue, ldp_fed_runs, ldp_fl
of_han_xue = lambda seed: [replace(s, seed=s.seed + seed) for s in han_xue.cells_of("mnist")]
plans = (ldp_fl.runs_of, ldp_fed_runs.in_order, of_han_xue)
print(json.dumps([[[s.name for s in plan(seed)] for seed in (0, 7)] for plan in plans]))
"""
TABLE = """
import json
from benchmarks.papers import ldp_fl
print(json.dumps([[*k, v] for k, v in ldp_fl.TABLE_1.items()]))
"""


def python(*arguments):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_its_cells_say(page, tmp_path):
    shutil.copy(PAPERS / "results" / f"{page}.json", tmp_path)
    python(*PAGES[page], "--dry", "--out", str(tmp_path))
    assert (tmp_path / f"{page}.md").read_text() == (PAPERS / "results" / f"{page}.md").read_text()


def test_a_seed_is_part_of_a_cells_name():
    for first, other in json.loads(python("-c", PLANS)):
        assert len(set(first)) == len(first) == len(other)
        assert not set(first) & set(other)
        assert all("seed=" in name for name in first)


def test_the_papers_figures_are_the_papers():
    """LDP-FL's Table 1 has 60.37% for CIFAR-10 at eps = 10, and its text 61.46%."""
    page = json.loads(python("-c", TABLE))
    figures = {(dataset, eps, ranges): value for dataset, eps, ranges, value in page}
    assert figures["cifar10", 10.0, "adaptive"] == 0.6037
    assert figures["cifar10", 5.0, "adaptive"] == 0.5889
    assert len(figures) == 12


def test_every_page_says_whether_global_is_above_standalone(tmp_path):
    for dataset, verdict in (("adult", "holds with some"), ("mnist", "fails"), ("fashion-mnist", "fails")):
        page = f"han-xue-{dataset}"
        assert f"**Global above standalone {verdict}" in (PAPERS / "results" / f"{page}.md").read_text()
    cells = json.loads((PAPERS / "results" / "han-xue-mnist.json").read_text())
    for cell in cells.values():
        cell["global"] = 0.99
    (tmp_path / "han-xue-mnist.json").write_text(json.dumps(cells))
    python(*PAGES["han-xue-mnist"], "--dry", "--out", str(tmp_path))
    assert "**Global above standalone holds.**" in (tmp_path / "han-xue-mnist.md").read_text()
