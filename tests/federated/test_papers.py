# SPDX-License-Identifier: Apache-2.0
"""The papers' pages: what they say is what their cells say, and a seed is part of a cell's name."""

import json
import math
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import all as all_papers
from benchmarks.papers import (
    han_xue,
    han_xue_ablation,
    han_xue_baseline,
    han_xue_page,
    han_xue_plan,
    ldp_fl,
    ldp_fl_others,
    ldp_fl_page,
    ldp_fl_runs,
)
from benchmarks.papers import ldp_fed_features as features
from benchmarks.papers import ldp_fed_runs as fed_runs
from benchmarks.papers.common import Cells, Job
from ldpkernels.federated import ldp_fl as algorithm

PAPERS = Path(__file__).parents[2] / "benchmarks" / "papers"
PAGES = ["ldp-fl", "ldp-fed-fashion-mnist", "han-xue"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_its_cells_say(page, tmp_path):
    shutil.copy(PAPERS / "results" / f"{page}.json", tmp_path)
    (table,) = (t for t in all_papers.tables("", tmp_path, 1, None) if t.cells.path.stem == page)
    table.write()
    assert (tmp_path / f"{page}.md").read_text() == (PAPERS / "results" / f"{page}.md").read_text()
    assert (tmp_path / f"{page}.png").exists() == (PAPERS / "results" / f"{page}.png").exists()


def test_every_run_that_is_kept_is_of_the_plan():
    """What no table shows any more is not among the figures, nor in a page's count of runs."""
    for table in all_papers.tables("", PAPERS / "results", 1, None):
        assert not set(table.cells.all()) - {job.name for job in table.jobs}


def test_no_two_rows_of_a_table_say_that_they_ran_the_same():
    """What comes before the first figure says what was run."""
    page, tables = (PAPERS / "results" / "ldp-fl.md").read_text(), 0
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
        if "perturbed" in head and "T" in head:
            figures = head.index("paper" if "paper" in head else "two-point")
            ran = [tuple(row[:figures]) for row in rows]
            assert sorted(set(ran)) == sorted(ran)
            tables += 1
    assert tables == 4


def test_the_pictures_of_a_page_are_there():
    for page in PAGES:
        names = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (PAPERS / "results" / f"{page}.md").read_text())
        assert names
        assert not [name for name in names if not (PAPERS / "results" / name).exists()]


def parties_of(dataset, root, workers, seed):
    return han_xue.jobs(dataset, root, workers, Path(), "", seed)


def test_a_seed_is_part_of_a_cells_name():
    plans = (
        ldp_fl.jobs,
        fed_runs.jobs,
        *(partial(parties_of, dataset) for dataset in han_xue_page.PAPER),
    )
    for plan in plans:
        first, other = ([job.name for job in plan("", 1, seed)] for seed in (0, 70))
        assert len(set(first)) == len(first) == len(other)
        assert not set(first) & set(other)
        assert all("seed=" in name for name in first)


def test_the_papers_figures_are_the_papers():
    """LDP-FL's Table 1 has 60.37% for CIFAR-10 at eps = 10, and its text 61.46%."""
    figures = ldp_fl_page.TABLE_1
    assert figures["cifar10", 10.0, "adaptive"] == 0.6037
    assert figures["cifar10", 5.0, "adaptive"] == 0.5889
    assert len(figures) == 12


@pytest.mark.parametrize("dataset", ["adult", "mnist", "fashion-mnist"])
def test_every_page_says_whether_global_is_above_standalone(dataset):
    page = PAPERS / "results" / "han-xue"
    found = han_xue.runs_of(json.loads(page.with_suffix(".json").read_text()))
    cells = [c for c in found if c["dataset"] == dataset and not c["sound"]]
    assert han_xue_page.gain(dataset, cells) in page.with_suffix(".md").read_text()
    for accuracy, verdict in ((0.999, "holds."), (0.5, "fails.")):
        assert f"standalone {verdict}**" in han_xue_page.gain(dataset, [{**c, "global": accuracy} for c in cells])
    either = [{**cells[0], "seed": seed, "global": accuracy} for seed, accuracy in enumerate((0.5, 0.999))]
    assert "standalone is not decided.**" in han_xue_page.gain(dataset, either)


def test_the_readmes_figures_are_those_of_the_cells():
    """An accuracy with its deviation and seeds is on a page, or follows from Han and Xue's cells."""
    text = (PAPERS.parents[1] / "README.md").read_text()
    rows = [row.split("|") for row in text[text.index("## The papers, rerun") :].splitlines() if row.startswith("| ")]
    pages = " ".join((PAPERS / "results" / f"{page}.md").read_text() for page in PAGES)
    cells = han_xue.runs_of(json.loads((PAPERS / "results" / "han-xue.json").read_text()))
    for dataset, name in han_xue_page.NAMES.items():
        five = [c for c in cells if (c["dataset"], c["sound"], c["parties"], c["sigma"]) == (dataset, False, 5, 1)]
        usual = [100 * c["global"] for c in five if han_xue_page.recipe(c) == han_xue_page.recipes(five)[0]]
        wide = [100 * c["global"] for c in five if c.get("wide")]
        told = {f"Han and Xue, {name},": usual, **({f"{name} with DCGANs and wider": wide} if wide else {})}
        for words, ours in told.items():
            (row,) = (row for row in rows if words in row[1])
            deviation = f"{statistics.stdev(ours):.2f}".lstrip("0")
            assert f"{statistics.fmean(ours):.2f} ± {deviation}% ({len(ours)} seeds)" in row[3]
            assert row[2].strip() == f"{100 * han_xue_page.PAPER[dataset]['table 1'][2]:.2f}%"
    others = [row for row in rows if "%" in row[3] and "Han and Xue" not in row[1]]
    assert len(others) >= 9
    for row in others:
        mean, deviation, seeds = re.match(r" ([\d.]+)(?: ± ([.\d]+))?% \((\d+) seeds?", row[3]).groups()
        ours = f"{mean}% ± {float(deviation):.2f} ({seeds} seeds)" if deviation else f"| {mean}% |"
        assert ours in re.sub(" +", " ", pages), row
        clean, spread = re.match(r" ([\d.]+)(?: ± ([.\d]+))?% ", row[4]).groups()
        assert f"{clean}% ± {float(spread):.2f} (" in pages if spread else f" {clean}% |" in pages
        assert row[2].strip() in pages


@pytest.mark.parametrize(("alpha", "M"), [(1.0, 10), (0.3, 6), (2.0, 3), (1e-3, 50)])
def test_an_adversary_is_as_sure_as_the_law_says(alpha, M):
    values = np.arange(-M, M + 1)
    law = np.exp(-alpha / 2 * np.abs(values[:, None] - values))
    law /= law.sum(1, keepdims=True)
    sure = (law / law.sum(0)).max()
    assert features.certainty(alpha, M) == pytest.approx(sure, rel=1e-9)
    eps = features.equivalent_epsilon(alpha, M)
    assert math.exp(eps) / (math.exp(eps) + 2 * M) == pytest.approx(sure, rel=1e-9)


def test_a_name_says_all_that_a_run_is():
    assert ldp_fl_runs.in_order()
    for s in ldp_fl_runs.in_order():
        assert ldp_fl_runs.Setting.of(s.name) == s
        assert s.twin.eps is None
    found = json.loads((PAPERS / "results" / "ldp-fl.json").read_text())
    for name in set(found) - {other.name for other in ldp_fl_others.in_order()}:
        assert ldp_fl_runs.Setting.of(name).name == name


def test_what_a_cell_says_is_what_ran():
    """The kept configuration is that of the cell's name, today."""
    found = json.loads((PAPERS / "results" / "ldp-fl.json").read_text())
    ran_of = {name: cell["ran"] for name, cell in found.items()}
    for other in ldp_fl_others.in_order():
        ran, candidate = ran_of.pop(other.name), ldp_fl_others.planned(other, 21_840)
        assert ran["task"] == json.loads(json.dumps(asdict(ldp_fl_others.task_of(other))))
        assert (ran["plan"], ran["rounds"]) == ("" if candidate is None else candidate.call, other.rounds)
    assert len(ran_of) > 600
    for name, ran in ran_of.items():
        s = ldp_fl_runs.Setting.of(name)
        usual, today = (json.loads(json.dumps(asdict(c))) for c in (algorithm.Config(None), ldp_fl_runs.config_of(s)))
        assert {**usual, **ran["config"]} == today  # an option that came later had its default
        assert (ran["clients"], ran["rounds"]) == (s.clients, s.rounds)
        copies = 1 if s.eps is None or not s.trained else round(s.fraction * s.clients) // s.trained
        assert ran.get("reports of a model", copies) == copies  # runs of before this was kept have it in fields alone
        assert (found[name].get("trained", 0), found[name]["fraction"]) == (s.trained, s.fraction)
        assert ran["network"] == (s.network or ldp_fl_runs.NETWORK[s.dataset])
        assert ran["examples of a client"] == ldp_fl_runs.EXAMPLES[s.dataset] // s.clients


def test_the_cells_of_the_other_pages_say_what_ran_too():
    for page, least in (("ldp-fed-fashion-mnist", 140), ("han-xue", 80)):
        found = json.loads((PAPERS / "results" / f"{page}.json").read_text())
        others = (han_xue_ablation.PREFIX, han_xue_baseline.PREFIX)
        said = {name: cell for name, cell in found.items() if not name.startswith(others)}
        assert len(said) >= least
        for name, cell in said.items():
            kind = fed_runs.Run if page != "han-xue" else han_xue_plan.Setting
            s = kind(**{field.name: cell[field.name] for field in fields(kind) if field.name in cell})
            assert s.name == name
            if page == "han-xue":
                config = han_xue_plan.config_of(s)
            else:
                config = (fed_runs.config_of if s.method in fed_runs.ldp_fed.METHODS else fed_runs.other_config)(s)
            today = json.loads(json.dumps(asdict(config)))
            assert_ran(cell["ran"]["config"], today, name)
        for name, cell in ((n, c) for n, c in found.items() if n.startswith(han_xue_baseline.PREFIX)):
            s = han_xue_baseline.run_of(cell["dataset"], cell["seed"])
            assert name == han_xue_baseline.PREFIX + s.name
            assert_ran(cell["ran"]["config"], json.loads(json.dumps(asdict(config_with_baseline(s)))), name)
        for name, cell in ((n, c) for n, c in found.items() if n.startswith(han_xue_ablation.PREFIX)):
            usual = replace(han_xue_plan.full(cell["dataset"], han_xue_ablation.PARTIES, "gan"), seed=cell["seed"])
            assert_ran(cell["ran"]["config"], json.loads(json.dumps(asdict(han_xue_plan.config_of(usual)))), name)


def config_with_baseline(s):
    return replace(han_xue_plan.config_of(s), baseline=True)


def assert_ran(ran, today, name):
    """What ran is what the plan says today; an option that came later has its default."""
    later = {"weigh": "alike", "dropout": 0.0, "global_model": ""}
    assert {option: value for option, value in today.items() if option not in ran}.items() <= later.items(), name
    assert {**today, **ran} == today, name


def job(name, minutes, done, cell=None):
    def compute(folder):
        done.append(name)
        return cell or {"seed": 0}

    return Job(name, minutes, compute)


def test_cells_are_kept_as_they_finish_and_never_run_twice(tmp_path):
    done, path = [], tmp_path / "cells.json"
    plan = [job("a", 1.0, done), job("b", 1.0, done)]
    Cells(path, only="a").fill(plan, lambda: None)
    other = Cells(path)  # another process, which has read the file before b was there
    Cells(path).fill(plan, lambda: None)
    assert done == ["a", "b"]
    other.compute(plan[1])
    assert done == ["a", "b"]
    other.compute(job("c", 1.0, done))
    assert sorted(json.loads(path.read_text())) == ["a", "b", "c"]


def test_all_tables_run_cheap_cells_first_and_say_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["all", "--data", str(tmp_path), "--minutes", "0", "--out", str(tmp_path)])
    all_papers.main()
    told = capsys.readouterr().out
    costs = [float(line.split()[0]) for line in told.splitlines()[2:]]
    assert costs == sorted(costs)
    assert len(costs) == int(told.split()[0]) > 100
    assert not list(tmp_path.glob("*.json"))  # nothing was begun
    assert {table.cells.path.stem for table in all_papers.tables("", tmp_path, 1, None)} == set(PAGES)


def test_all_tables_can_be_called_by_path_from_anywhere(tmp_path):
    if sys.version_info >= (3, 11):  # a folder of that name in the working one is another's
        (tmp_path / "benchmarks" / "papers").mkdir(parents=True)
        (tmp_path / "benchmarks" / "papers" / "all.py").write_text("raise SystemExit('this is not the one')")
    call = [sys.executable, PAPERS / "all.py", "--data", ".", "--minutes", "0", "--out", tmp_path]
    ended = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "cells are not run" in ended.stdout


def test_all_tables_begin_nothing_that_would_not_end_in_time(tmp_path, monkeypatch, capsys):
    done = []
    kept = Cells(tmp_path / "cells.json")
    table = all_papers.Table(kept, [job(f"of {m}", m, done) for m in (5.0, 0.5, 1.0)], lambda: None)
    monkeypatch.setattr(all_papers, "tables", lambda *arguments: [table])
    monkeypatch.setattr(sys, "argv", ["all", "--data", ".", "--minutes", "2", "--workers", "1", "--out", str(tmp_path)])
    all_papers.main()
    assert done == ["of 0.5", "of 1.0"]
    assert "1 cells are not run" in capsys.readouterr().out
